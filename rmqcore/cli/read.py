"""``rmqcore cat`` and ``rmqcore tail``: messages in order, and as they come."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from heapq import merge
from itertools import chain, islice
from typing import Annotated

import typer

from rmqcore import MessageExt, ReadOnlyMessageStore
from rmqcore.cli import complete
from rmqcore.cli.formats import FORMAT_HELP, printer
from rmqcore.cli.options import (
    AsJson,
    ConfigFile,
    DamageCount,
    Long,
    Settings,
    SkipDamaged,
    StorePath,
    check_queue,
    is_cluster,
    open_for_reading,
    queues_of,
)
from rmqcore.cli.times import parse_time
from rmqcore.errors import CorruptConfigFileError, CorruptConsumeQueueError, CorruptStoreError
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.files.log_walker import first_record
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.store_mark import StoreMark
from rmqcore.message import light_numbers
from rmqcore.store.parts.iteration import OnDamage
from rmqcore.world import sleep

Topic = Annotated[
    str | None,
    typer.Argument(
        metavar="TOPIC",
        help="one topic; the whole log without it",
        autocompletion=complete.topics,
    ),
]
Queue = Annotated[int | None, typer.Option(min=0, help="one queue of the topic")]
MessageFormat = Annotated[str | None, typer.Option("--format", help=FORMAT_HELP)]
Tags = Annotated[str | None, typer.Option(help="only these tags: 'a' or 'a || b'")]


def cat(
    store: StorePath,
    topic: Topic = None,
    queue: Queue = None,
    start: Annotated[
        int | None, typer.Option(help="first queue offset; physical offset without a topic")
    ] = None,
    stop: Annotated[int | None, typer.Option(help="end before this offset")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="stored at or after"),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="stored at or before")] = None,
    tags: Tags = None,
    count: Annotated[int | None, typer.Option("-n", min=0, help="at most this many")] = None,
    long: Long = False,
    message_format: MessageFormat = None,
    skip_damaged: SkipDamaged = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print messages: the whole log in its order, or queues of a topic one after the other.

    STORE may be namesrv://host:port/topic, a topic of running brokers.
    """
    begin_ms, end_ms = parse_time(since), parse_time(until)
    damage = DamageCount(as_json=as_json)
    passed = damage if skip_damaged else None
    show = printer(message_format, as_json=as_json, long=long)
    if is_cluster(store, TOPIC=topic, skip_damaged=skip_damaged, config=config, settings=settings):
        from rmqcore.cli.cluster import cluster_messages  # noqa: PLC0415 - needs asyncio

        messages = cluster_messages(store, queue, start, stop)
        for message in islice(_selected(messages, tags, begin_ms, end_ms), count):
            show(message)
        return
    with open_for_reading(store, config, settings) as opened:
        lost = _lost_queues(opened, topic) if skip_damaged else []
        check_queue(opened, topic, queue, lost=lost)
        if topic is None:
            messages = _log_from(opened, start, stop, begin_ms, passed)
        elif passed is None:
            messages = opened.messages(topic, queue, start=start, stop=stop)
        else:
            messages = chain.from_iterable(
                _of_queue(opened, topic, number, start or 0, stop, passed, lost)
                for number in _queues(opened, topic, queue, lost)
            )
        for message in islice(_selected(messages, tags, begin_ms, end_ms), count):
            show(message)
    damage.finish()


def tail(
    store: StorePath,
    topic: Topic = None,
    queue: Queue = None,
    count: Annotated[int, typer.Option("-n", min=0, help="the last so many messages")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="and those that come")] = False,
    tags: Tags = None,
    interval_ms: Annotated[
        int, typer.Option("--interval", min=1, help="milliseconds between two looks")
    ] = 200,
    long: Long = False,
    message_format: MessageFormat = None,
    skip_damaged: SkipDamaged = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print the last messages; with -f go on with what a writer, also a broker, adds."""
    damage = DamageCount(as_json=as_json)
    show = printer(message_format, as_json=as_json, long=long)
    with open_for_reading(store, config, settings) as opened:
        lost = _lost_queues(opened, topic) if skip_damaged else []
        check_queue(opened, topic, queue, may_come=follow, lost=lost)
        queues_of(opened, lost)
        reader = _Tail(opened, topic, queue, damage if skip_damaged else None, lost)
        last: deque[MessageExt] = deque(maxlen=count)
        try:
            last.extend(_selected(reader.from_end(count), tags, None, None))
        finally:
            # before damage that is not passed over, too
            _print_all(last, show)
        while follow:
            sleep(interval_ms / 1000)
            _print_all(_selected(reader.new(), tags, None, None), show)
    damage.finish()


def _print_all(messages: Iterable[MessageExt], show: Callable[[MessageExt], None]) -> None:
    for message in messages:
        show(message)
    sys.stdout.flush()


def _selected(
    messages: Iterable[MessageExt], tags: str | None, begin_ms: int | None, end_ms: int | None
) -> Iterator[MessageExt]:
    """The messages that have one of the tags and were stored in the time, both ends included."""
    wanted = {tag.strip() for tag in (tags or "").split("||")} - {"", "*"}
    for message in messages:
        if wanted and message.tags not in wanted:
            continue
        if begin_ms is not None and message.store_timestamp_ms < begin_ms:
            continue
        if end_ms is not None and message.store_timestamp_ms > end_ms:
            continue
        yield message


def _log_from(
    store: ReadOnlyMessageStore,
    start: int | None,
    stop: int | None,
    begin_ms: int | None,
    on_damage: OnDamage | None,
) -> Iterator[MessageExt]:
    """The log from an offset, or from the last file that begins before a time."""
    end = store.max_phy_offset
    first = store.min_phy_offset
    if begin_ms is not None and start is None:
        for file in store.log.queue.files:
            record = first_record(file)
            if record is not None and record.store_timestamp_ms < begin_ms:
                first = file.file_from_offset
    first = first if start is None else max(start, first)
    last = end if stop is None else min(stop, end)
    return store.messages(start=first, stop=last, on_damage=on_damage)


def _queues(
    store: ReadOnlyMessageStore, topic: str | None, queue: int | None, lost: Collection[int] = ()
) -> list[int]:
    numbers = {number for name, number in queues_of(store, lost) if name == topic}.union(lost)
    return sorted(number for number in numbers if queue in (None, number))


def _lost_queues(store: ReadOnlyMessageStore, topic: str | None) -> list[int]:
    """The queues of a topic of which there is no file: the last writer had them, or the log has."""
    if topic is None:
        return []
    try:
        known = set(store.queues())
    except CorruptConsumeQueueError:
        # all are gone; what is damaged is told when it is read to be shown
        every = store.messages(on_damage=lambda *_: None)
        return sorted({number for message in every for number in _queues_in(message, topic)})
    if not store.missing():
        return []
    mark = StoreMark(StoreDir(store.path, store.config.store_path_commit_log))
    with suppress(CorruptConfigFileError, OSError):
        mark.load()
    return sorted(key[1] for key in mark.ends if key[0] == topic and key not in known)


class _UnitsEnd(Exception):
    """The units of a queue do not lead to its messages from here on."""


def _of_queue(
    store: ReadOnlyMessageStore,
    topic: str,
    queue_id: int,
    start: int,
    stop: int | None,
    on_damage: OnDamage,
    lost: Collection[int],
) -> Iterator[MessageExt]:
    """The messages of a queue; from where its units are damaged, or end too soon, of the log."""

    def damaged(error: CorruptStoreError) -> None:
        on_damage(error)
        if isinstance(error, CorruptConsumeQueueError):
            raise _UnitsEnd

    begin = store.min_phy_offset
    listed: Iterable[MessageExt] = ()
    if queue_id not in lost:
        listed = store.messages(topic, queue_id, start=start, stop=stop, on_damage=damaged)
    try:
        for message in listed:
            yield message
            start = _number_in(topic, queue_id, message, message.queue_offset) + 1
            begin = message.phy_offset + message.store_size
        if not store.missing() and queue_id not in lost:
            return
    except _UnitsEnd:
        pass
    deleted = DeletedTopics(StoreDir(store.path, store.config.store_path_commit_log)).load()
    begin = max(begin, deleted.counts_from(topic))
    for message in store.messages(start=begin, on_damage=on_damage):
        number = _number_in(topic, queue_id, message, -1)
        if start <= number and (stop is None or number < stop):
            yield message


def _queues_in(message: MessageExt, topic: str) -> list[int]:
    """The queues of a topic that list a message."""
    light = [0] if topic in dict(light_numbers(message)) else []
    return [message.queue_id] if message.topic == topic else light


def _number_in(topic: str, queue_id: int, message: MessageExt, other: int) -> int:
    """The number of a message in a queue, which may be a light one; ``other``: it is not in it."""
    numbers = {(name, 0): number for name, number in light_numbers(message)}
    numbers[message.topic, message.queue_id] = message.queue_offset
    return numbers.get((topic, queue_id), other)


class _Tail:
    """The end of a log, or of the queues of a topic, and what is added to it.

    - Messages come in the order of the log, each once.
    - A queue that appears later is read from its beginning.

    Args:
        lost: queues of the topic that the log alone has.
    """

    def __init__(
        self,
        store: ReadOnlyMessageStore,
        topic: str | None,
        queue: int | None,
        on_damage: OnDamage | None,
        lost: Collection[int] = (),
    ) -> None:
        self._store = store
        self._lost = set(lost)
        self._on_damage = on_damage
        self._topic = topic
        self._queue = queue
        self._log_end = store.max_phy_offset
        self._queue_ends: dict[int, int] = {}

    def from_end(self, count: int) -> Iterator[MessageExt]:
        """The last messages, ``count`` of them or more."""
        if self._topic is not None:
            for number in _queues(self._store, self._topic, self._queue, self._lost):
                end = self._end_of_queue(number)
                self._queue_ends[number] = max(end - count, 0)
            return self._new_of_queues(to_log_end=bool(self._lost or self._store.missing()))
        offsets = [
            unit[0]
            for queue in self._store.consume_queues
            for offset in range(max(queue.min_offset, queue.max_offset - count), queue.max_offset)
            if (unit := queue.unit_at(offset)) is not None
        ]
        start = self._log_end
        if count:
            newest = sorted(offset for offset in offsets if offset < self._log_end)[-count:]
            first = self._store.min_phy_offset
            # of a queue that cannot be read there are more than is known
            start = max(newest[0], first) if len(newest) == count else first
        return self._store.messages(start=start, stop=self._log_end, on_damage=self._on_damage)

    def new(self) -> Iterator[MessageExt]:
        """What has been added since the last look."""
        return self._new_of_log() if self._topic is None else self._new_of_queues()

    def _new_of_log(self) -> Iterator[MessageExt]:
        end = self._store.max_phy_offset
        start = max(min(self._log_end, end), self._store.min_phy_offset)
        self._log_end = end
        return self._store.messages(start=start, stop=end, on_damage=self._on_damage)

    def _new_of_queues(self, *, to_log_end: bool = False) -> Iterator[MessageExt]:
        topic, on_damage = str(self._topic), self._on_damage
        parts = []
        for number in _queues(self._store, topic, self._queue, self._lost):
            end = self._end_of_queue(number)
            start = min(self._queue_ends.get(number, 0), end)
            self._queue_ends[number] = end
            if on_damage is None:
                parts.append(self._store.messages(topic, number, start=start, stop=end))
            elif to_log_end:
                found = _of_queue(self._store, topic, number, start, None, on_damage, self._lost)
                parts.append(self._noted(number, found))
            elif start < end:
                found = _of_queue(self._store, topic, number, start, end, on_damage, self._lost)
                parts.append(found)
        return merge(*parts, key=lambda message: message.phy_offset)

    def _noted(self, number: int, messages: Iterator[MessageExt]) -> Iterator[MessageExt]:
        """Messages of a queue, which then ends behind them where it cannot be read."""
        for message in messages:
            last = _number_in(str(self._topic), number, message, message.queue_offset)
            self._queue_ends[number] = last + 1
            yield message

    def _end_of_queue(self, number: int) -> int:
        """The end of a queue, as it was known where it cannot be read and that is passed over."""
        known = self._queue_ends.get(number, 0)
        try:
            end = self._store.max_queue_offset(str(self._topic), number)
        except CorruptConsumeQueueError:
            if self._on_damage is None:
                raise
            return known
        if number not in self._lost:
            return end
        if end:
            # a writer has derived it anew: its units are read again, not the whole log
            self._lost.discard(number)
        return end or known
