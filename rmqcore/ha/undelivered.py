"""What a cut of the log takes with it: what was delivered, or decided, behind it is so no more.

A master delivers delayed and timer messages, and what POP hands out again, by copies at the end of
its log, and waits for no slave that has them. So does it keep what a consumer gives back, whose
group goes on behind it. Where that end is cut off, the messages are still in the log, and have to
come. So have those that get the places of what is cut off, to whoever has read that.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Final

from rmqcore._codec import decode_record
from rmqcore.errors import CorruptStoreError
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.files.log_walker import GoodRecord, find_good_record, good_record_at
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.mapped_file_queue import numbered_files
from rmqcore.files.readers_of_lost import ReadersOfLostFile
from rmqcore.files.service_topics import (
    OP_HALF_TOPIC,
    REVIVE_GROUP,
    REVIVE_PREFIX,
    TABLE_PREFIX,
    TRANSACTION_GROUP,
)
from rmqcore.files.store_dir import StoreDir, queue_id_of, subdirectories
from rmqcore.files.timer_check import TIMER_TOPIC, TimerCheck, TimerProgress
from rmqcore.java.json import parse_java_json
from rmqcore.message import DEAD_LETTER_PREFIX, RETRY_PREFIX, MessageExt, light_numbers
from rmqcore.services.delay_schedule import queue_id_of_level
from rmqcore.services.timer_due import SLOT, due_of
from rmqcore.store.opening import open_store
from rmqcore.store.read_only_store import ReadOnlyMessageStore

logger = logging.getLogger(__name__)

#: What POP hands out comes again after this at the latest.
_POP_MAX_MS: Final = 12 * 3600 * 1000
_CHECKPOINT: Final = "ck"
_REAL_TOPIC: Final = "REAL_TOPIC"
_ORIGIN: Final = "ORIGIN_MESSAGE_ID"
#: A copy of what was put off has one of these properties.
_PUT_OFF: Final = frozenset((_REAL_TOPIC, SLOT))

#: what a message and its copy have in common, and the same message that is put off again has not
_Identity = tuple[str, int, int, int, str | None]


def set_back_progress(directory: StoreDir, at: int, clock_ms: Callable[[], int]) -> None:
    """Let nothing count as delivered whose copy lies behind an offset, before the log is cut there.

    What was delivered since the first of these comes again, of the same delay level, or of timers;
    likewise what a group has consumed of a queue since the first that it has given back, or popped,
    there. Nothing counts as delivered whose place lies there itself, and who has read on from there
    is sent back by the broker, as the next opening does with offsets.

    Args:
        directory: of the store, which nobody has open.
        at: physical offset where the log is to be cut.
        clock_ms: Unix time in milliseconds.

    Raises:
        OSError: it cannot be written.
    """
    log = str(directory.commit_log)
    try:
        with open_store(directory.path, mode="r", store_path_commit_log=log) as store:
            _set_back(directory, store, at, clock_ms)
    except CorruptStoreError as error:
        logger.warning("what was delivered behind %d may not come again: %s", at, error)


def set_back_all(directory: StoreDir, clock_ms: Callable[[], int]) -> None:
    """Let nothing count as delivered or read of a log that is put aside whole.

    Only where a master was served by its tables: those of a slave are its master's.

    Args:
        directory: of the store, which nobody has open.
        clock_ms: Unix time in milliseconds.

    Raises:
        OSError: it cannot be written.
    """
    file = ReadersOfLostFile(directory.config)
    try:
        lost = file.load()
        if lost.was_serving is None:
            return
        delays = DelayOffsetTable(directory.config, clock=clock_ms)
        offsets = ConsumerOffsetTable(directory.config, clock=clock_ms)
    except CorruptStoreError as error:
        logger.warning("what was delivered of the log may count for what comes instead: %s", error)
        return
    for level in delays.levels():
        delays.commit(level, 0)
    delays.persist()
    timer = TimerCheck(directory.config)
    if (known := timer.load(clock_ms())) is not None:
        timer.store(known.up_to(0), clock_ms())
    read = offsets.keys()
    for topic, group, queue_id in read:
        if group == REVIVE_GROUP:
            # this offset is that of the last record that is done with
            offsets.forget_queue(topic, queue_id)
        else:
            offsets.advance(topic, group, queue_id, 0)
    offsets.persist()
    queues = {(topic, queue_id) for topic, _, queue_id in read}
    for root in (directory.consume_queue, directory.batch_consume_queue):
        for topic in subdirectories(root):
            names = map(queue_id_of, subdirectories(root / topic))
            queues.update((topic, queue_id) for queue_id in names if queue_id is not None)
    lost.note_cut(dict.fromkeys(queues, 0), read)
    file.store(lost)


def _set_back(
    directory: StoreDir, store: ReadOnlyMessageStore, at: int, clock_ms: Callable[[], int]
) -> None:
    begins, copies, since_ms, of_pop = dict[tuple[str, int], int](), set[_Identity](), None, False
    given_back: defaultdict[str, dict[_Identity, str]] = defaultdict(dict)
    popped_from: dict[tuple[str, str, int], int] = {}
    for message in _behind(directory, at):
        for place, number in _places_in_queues(message):
            begins[place] = min(number, begins.get(place, number))
        of_pop |= _stands_for_popped(message)
        if not _PUT_OFF.isdisjoint(message.properties):
            copies.add(_identity(message, message.topic))
        since_ms = message.store_timestamp_ms if since_ms is None else since_ms
        if (popped := _popped(message)) is not None:
            queue, first = popped
            popped_from[queue] = min(first, popped_from.get(queue, first))
        if (group := _giver(message)) is not None:
            before = _identity(message, group, message.reconsume_times - 1)
            given_back[group][before] = message.properties.get(_ORIGIN, "")
    if since_ms is None:
        return
    topics = {topic for topic, _ in begins}
    delays = DelayOffsetTable(directory.config, clock=clock_ms)
    for level, offset in delays.levels().items():
        queue_id = queue_id_of_level(level)
        end = min(offset, begins.get((SCHEDULE_TOPIC, queue_id), offset))
        delays.commit(level, _first_of(copies, store, queue_id, end) if copies else end)
    delays.persist()
    timer = TimerCheck(directory.config)
    if (known := timer.load(clock_ms())) is not None:
        progress = _without(copies, store, known) if copies else known
        progress = progress.up_to(begins.get((TIMER_TOPIC, 0), progress.read_offset))
        if progress != known:
            timer.store(progress, clock_ms())
    offsets = ConsumerOffsetTable(directory.config, clock=clock_ms)
    for topic, group in offsets.pairs():
        for queue_id, offset in offsets.queues(topic, group).items():
            is_table = topic.startswith(TABLE_PREFIX) and topic in topics
            if is_table or (group == TRANSACTION_GROUP and OP_HALF_TOPIC in topics):
                # read again from what is left: of a table, also from before it was put anew
                offsets.advance(topic, group, queue_id, 0)
            elif group == REVIVE_GROUP and (of_pop or topic in topics):
                popped_ms = max(0, since_ms - _POP_MAX_MS)
                first = store.queue_offset_by_time(topic, queue_id, popped_ms)
                # this offset is that of the last record that is done with
                offsets.forget_queue(topic, queue_id)
                if first > 0:
                    offsets.advance(topic, group, queue_id, min(offset, first - 1))
    places = chain(
        _places_of(given_back, store, at), ((*queue, first) for queue, first in popped_from.items())
    )
    for topic, group, queue_id, offset in places:
        former = offsets.get(topic, group, queue_id)
        if former is not None and offset < former:
            offsets.advance(topic, group, queue_id, offset)
    offsets.persist()
    file = ReadersOfLostFile(directory.config)
    lost = file.load()
    lost.note_cut(begins, offsets.keys())
    file.store(lost)


def _places_in_queues(message: MessageExt) -> Iterator[tuple[tuple[str, int], int]]:
    """The queues that have a message, by topic and queue id, and its numbers there."""
    yield (message.topic, message.queue_id), message.queue_offset
    for name, number in light_numbers(message):
        yield (name, 0), number


def _behind(directory: StoreDir, at: int) -> Iterator[MessageExt]:
    """Every whole record from a physical offset on, also where a crash has damaged the log there.

    A store that was not closed ends at the damage for who reads it.
    """
    opened = OpenFiles()
    for begin, path, size in numbered_files(directory.commit_log):
        file = MappedFile(path, size, begin, opened, writable=False)
        position = max(0, at - begin)
        while (found := _good_record(file, position)) is not None:
            position = found.end_offset - begin
            yield decode_record(file.read_bytes(found.phy_offset - begin, found.size))


def _good_record(file: MappedFile, position: int) -> GoodRecord | None:
    """The first from a position of a log file on, past what the disk refuses to give."""
    with suppress(OSError):
        if (here := good_record_at(file, position)) is not None:
            return here
    return find_good_record([file], position, past_bad_sectors=True)


def _giver(message: MessageExt) -> str | None:
    """The group that has given a message back; None where none has."""
    topic = message.topic
    if topic == SCHEDULE_TOPIC:
        topic = message.properties.get(_REAL_TOPIC, "")
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return None


def _popped(message: MessageExt) -> tuple[tuple[str, str, int], int] | None:
    """What the note of a POP says that it has handed out first, if there is no note before it.

    Returns:
        topic, group and queue id, and the queue offset; None for any other message, and where only
        the time was changed, or the note was kept by a timer and is delivered: it is still there.
    """
    is_waiting = message.topic == TIMER_TOPIC
    topic = message.properties.get(_REAL_TOPIC, "") if is_waiting else message.topic
    if not (topic.startswith(REVIVE_PREFIX) and message.tags == _CHECKPOINT):
        return None
    if not (is_waiting or _PUT_OFF.isdisjoint(message.properties)):
        return None
    try:
        fields = parse_java_json(bytes(message.body).decode())
        first = int(fields["so"])
        if fields.get("kept") or first < 0:
            return None
        return (str(fields["t"]), str(fields["c"]), int(fields["q"])), first
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None


def _places_of(
    given_back: Mapping[str, Mapping[_Identity, str]], store: ReadOnlyMessageStore, at: int
) -> Iterator[tuple[str, str, int, int]]:
    """Where what groups have given back lies in front of an offset.

    It is the message itself, or one that has come again before.

    Args:
        given_back: by group, what it has given back, with the id of the message itself.
        store: where it lies.
        at: physical offset.

    Returns:
        topic, group, queue id and queue offset of each.
    """
    for group, found in given_back.items():
        origins = (_message_named(store, name) for name in found.values())
        retries = (
            store.messages(*queue, on_damage=_pass_over)
            for queue in store.queues()
            if queue[0] == RETRY_PREFIX + group
        )
        for message in chain(origins, chain.from_iterable(retries)):
            if message and message.phy_offset < at and _identity(message, group) in found:
                yield message.topic, group, message.queue_id, message.queue_offset


def _message_named(store: ReadOnlyMessageStore, message_id: str) -> MessageExt | None:
    with suppress(CorruptStoreError):
        return store.message_by_id(message_id)
    return None


def _first_of(
    copies: Collection[_Identity], store: ReadOnlyMessageStore, queue_id: int, stop: int
) -> int:
    """Offset of the first message of a delay level, below one, that has a copy; else that one."""
    for message in store.messages(SCHEDULE_TOPIC, queue_id, stop=stop, on_damage=_pass_over):
        if _identity(message, message.properties.get(_REAL_TOPIC, "")) in copies:
            return message.queue_offset
    return stop


def _without(
    copies: Collection[_Identity], store: ReadOnlyMessageStore, known: TimerProgress
) -> TimerProgress:
    """Progress of timer messages with none of those delivered that have a copy, nor any later one.

    They are not delivered in the order in which they were put.
    """

    def places() -> Iterator[tuple[int, int, MessageExt]]:
        queue = TIMER_TOPIC, 0
        for message in store.messages(*queue, stop=known.read_offset, on_damage=_pass_over):
            yield due_of(message), message.queue_offset, message

    undone = [
        (due_ms, offset)
        for due_ms, offset, message in places()
        if known.has_delivered(due_ms, offset)
        and _identity(message, message.properties.get(_REAL_TOPIC, "")) in copies
    ]
    if not undone:
        return known
    progress = known.before(*min(undone))
    waiting = (
        offset for due_ms, offset, _ in places() if not progress.has_delivered(due_ms, offset)
    )
    return replace(progress, first_pending=next(waiting, known.first_pending))


def _stands_for_popped(message: MessageExt) -> bool:
    """Whether it is a message that POP hands out again, or its note of when it will.

    A note may have taken the place of one before: the time was changed, or the broker's cluster.
    """
    is_note = message.topic.startswith(REVIVE_PREFIX) and message.tags == _CHECKPOINT
    return is_note or message.topic.startswith(RETRY_PREFIX)


def _pass_over(_: Exception) -> None:
    """What is damaged is delivered to nobody, and is no copy that counts."""


def _identity(message: MessageExt, topic: str, tries: int | None = None) -> _Identity:
    tries = message.reconsume_times if tries is None else tries
    return topic, message.born_timestamp_ms, tries, message.body_crc, message.unique_key
