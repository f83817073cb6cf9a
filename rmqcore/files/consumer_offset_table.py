"""`ConsumerOffsetTable`: how far each group is in each queue."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rmqcore.arguments import text, whole_number
from rmqcore.errors import ArgumentError, CorruptConfigFileError, MessageIllegalError
from rmqcore.files.config_file import ConfigFile
from rmqcore.files.config_tables import (
    OFFSET_MAX,
    QUEUE_ID_MAX,
    ConfigTable,
    DataVersion,
    check_topic_name,
    mapping,
    numbered_offsets,
)
from rmqcore.java.json import parse_java_json

_log = logging.getLogger("rmqcore")

_GROUP_SEPARATOR: Final = "@"
#: A field of our own: where POP's revive queues ended of which the offsets know.
_REVIVE_ENDS: Final = "reviveQueueEnds"
#: Another one, of a slave's: the queue ids of offsets that its master has not told, by key.
_OWN: Final = "ownOfFollower"
#: Where a broker of RocketMQ with ``enableLmq=true`` keeps the offsets of all groups.
_LMQ_NAME: Final = "lmqConsumerOffset.json"
#: A field of our own: the CRC of that file when it was taken over.
_LMQ_TAKEN: Final = "lmqOffsetsTaken"


class ConsumerOffsetTable(ConfigTable):
    """``consumerOffset.json``: the next queue offset of each group in each queue.

    What is committed is in the file 5 seconds later, after ``store.flush()``, or when the store is
    closed; a crash forgets what came after, so that a consumer sees it again.

    Source: RocketMQ broker/offset/ConsumerOffsetManager.java.
    """

    file_name = "consumerOffset.json"

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], int],
        end_of: Callable[[str, int], int] | None = None,
    ) -> None:
        """See `ConfigTable`.

        Args:
            directory: where the file lies.
            clock: Unix time in milliseconds.
            end_of: the end of a queue by topic and queue id, beyond which no offset may lie.
        """
        self._offsets: dict[str, dict[int, int]] = {}
        #: by (topic@group) key and queue id, the offsets that were not taken over from a master;
        #: None: all of them
        self._own: set[tuple[str, int]] | None = None
        #: how often offsets were forgotten: what somebody has told before says nothing of those
        self.forgotten = 0
        self._end_of = end_of
        #: called with topic, group and queue id of offsets that were set or removed; None is any
        self.on_set: Callable[[str | None, str | None, int | None], None] | None = None
        #: a broker's, which hands out by POP: where its revive queues end
        self.revive_ends_of: Callable[[], list[int]] | None = None
        self._revive_ends: list[int] | None = None
        super().__init__(directory, clock=clock)
        self._own = _places_named(self._other.pop(_OWN, None))
        #: where the revive queues ended that these offsets, as they were read, know of; None where
        #: nobody says so
        self.read_revive_ends: list[int] | None = _whole_numbers(
            self._other.pop(_REVIVE_ENDS, None)
        )

    def follow_revive_queues(self) -> None:
        """Note that these offsets know of all that POP has handed out until now.

        It is written with them: what POP notes later moves them on when it is read back, and what
        it noted before says nothing of an offset that was set back. Of a slave's nobody says so
        then, until its master tells again.
        """
        self._revive_ends = None if self.revive_ends_of is None else self.revive_ends_of()

    def begin(self) -> None:
        """As `ConfigTable.begin`, also where the file says nothing or else of what POP hands out.

        Revive queues that have lost their end get new records in the place of those it knows of.
        """
        super().begin()
        with self._lock.within():
            self._changed |= self._revive_ends not in (None, self.read_revive_ends)

    def lead(self) -> None:
        """As `ConfigTable.lead`; what was taken over is this broker's own from now on."""
        super().lead()
        with self._lock.within():
            self._changed |= self._own is not None
            self._own = None

    def take_over_lmq(self) -> None:
        """Go on where a broker of RocketMQ with ``enableLmq=true`` was: its offsets are elsewhere.

        Before `lead`. What it has written is taken once, so that an offset which is set back later
        stays so; of two the larger counts, but for what a broker of ours has led with, or one of
        RocketMQ since, with other settings.

        Raises:
            CorruptConfigFileError: its file cannot be read, and was not taken before.

        Source: RocketMQ broker/offset/LmqConsumerOffsetManager.java.
        """
        file = ConfigFile(self.path.with_name(_LMQ_NAME), _lmq_offsets_in)
        taken = self._other.get(_LMQ_TAKEN)
        try:
            found = file.load()
        except CorruptConfigFileError as error:
            if taken is None:
                raise
            _log.warning("%s; what it said before was taken over", error)
            return
        # a backup that is read for it is older than what was taken
        if found is None or found[0] == taken or (taken is not None and not file.is_newest):
            return
        is_later = found[1].timestamp_ms >= self.data_version.timestamp_ms
        larger_counts = taken is not None or (self.begun_ms is None and is_later)
        with self._lock.within():
            for key, queues in found[2].items():
                for queue_id, offset in queues.items():
                    own = self._offsets.get(key, {}).get(queue_id)
                    if own is None or (larger_counts and offset > own):
                        self._offsets.setdefault(key, {})[queue_id] = offset
            self._other[_LMQ_TAKEN] = found[0]
            self._changed = True

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """The next queue offset that the group wants; None when it has committed none.

        Args:
            topic: of the queue; an unknown one has no offset.
            group: whose offset it is.
            queue_id: of the queue; an unknown one has no offset.
        """
        return self._offsets.get(_offset_key(topic, group), {}).get(queue_id)

    def commit(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """Set the next queue offset of a group.

        Args:
            topic: of the queue: 1 to 127 letters, digits, %, |, _ and -.
            group: whose offset it is: 1 to 127 letters, digits, %, |, _ and -.
            queue_id: of the queue; 0 to 2^31 - 1.
            queue_offset: number of the first message that the group has not consumed.

        Raises:
            ArgumentError: the queue id or the offset is no whole number from 0 on, or the offset
                lies beyond the end of the queue, where no message has been put yet.
            MessageIllegalError: the topic or the group is no legal name.
        """
        group, topic = text("group", group), text("topic", topic)
        check_topic_name(group)
        check_topic_name(topic)
        # plain numbers, which the file can be read with again
        queue_id = whole_number("queue_id", queue_id, 0, QUEUE_ID_MAX)
        queue_offset = whole_number("queue_offset", queue_offset, 0, OFFSET_MAX)
        if self._end_of is not None and queue_offset > (end := self._end_of(topic, queue_id)):
            rule = f"at most {end}, the end of queue {queue_id} of {topic}"
            raise ArgumentError("queue_offset", queue_offset, rule)
        with self._lock.within():
            queues = self._offsets.setdefault(_offset_key(topic, group), {})
            former = queues.get(queue_id)
            if former is not None and queue_offset < former:
                self.follow_revive_queues()
            self._changed |= former != queue_offset
            queues[queue_id] = queue_offset
            if self._own is not None:
                self._own.add((_offset_key(topic, group), queue_id))
        if self.on_set is not None:
            self.on_set(topic, group, queue_id)

    def advance(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        """As `commit`, for an offset of a message that has been read: nothing is checked.

        Arguments as those of `commit`.
        """
        with self._lock.within():
            self._offsets.setdefault(_offset_key(topic, group), {})[queue_id] = queue_offset
            self._changed = True

    def move(
        self, topic: str, group: str, queue_id: int, former: int | None, queue_offset: int
    ) -> bool:
        """As `advance`, of an offset that nobody has set since it was read.

        Args:
            topic: as `commit` takes it.
            group: as `commit` takes it.
            queue_id: as `commit` takes it.
            former: what `get` has said.
            queue_offset: as `commit` takes it.

        Returns:
            False when it is another one by now; nothing has changed.
        """
        with self._lock.within():
            if self.get(topic, group, queue_id) != former:
                return False
            self.advance(topic, group, queue_id, queue_offset)
            return True

    def queues(self, topic: str, group: str) -> dict[int, int]:
        """A copy of the offsets of one group in one topic, by queue id.

        Args:
            topic: by name; one that is unknown has none.
            group: whose offsets they are.
        """
        with self._lock.within():
            return dict(self._offsets.get(_offset_key(topic, group), {}))

    def offset_count(self) -> int:
        """How many offsets there are, of all queues."""
        with self._lock.within():
            return sum(map(len, self._offsets.values()))

    def keys(self) -> frozenset[tuple[str, str, int]]:
        """Topic, group and queue id of every offset."""
        with self._lock.within():
            return frozenset(
                (topic, group, queue_id)
                for key, queues in self._offsets.items()
                for topic, _, group in (key.partition(_GROUP_SEPARATOR),)
                for queue_id in queues
            )

    def pairs(self) -> list[tuple[str, str]]:
        """All pairs (topic, group) that have committed."""
        with self._lock.within():
            keys = [key.partition(_GROUP_SEPARATOR) for key in self._offsets]
        return [(topic, group) for topic, _, group in keys]

    def forget_queue(self, topic: str, queue_id: int) -> None:
        """Forget what every group has consumed of one queue.

        Args:
            topic: of the queue; one without offsets is nothing to do.
            queue_id: of the queue; the topic's other queues keep theirs.
        """
        self._forget_queues(topic, lambda each: each == queue_id)

    def forget_queues_but(self, topic: str, kept: Collection[int]) -> set[int]:
        """Forget what every group has consumed of a topic's queues, but for some.

        Args:
            topic: of the queues; one without offsets is nothing to do.
            kept: queue ids of those that keep theirs.

        Returns:
            queue ids of those that had some.
        """
        return self._forget_queues(topic, lambda each: each not in kept)

    def _forget_queues(self, topic: str, is_gone: Callable[[int], bool]) -> set[int]:
        found = set[int]()
        with self._lock.within():
            self.follow_revive_queues()
            self.forgotten += 1
            for key, queues in list(self._offsets.items()):
                if key.partition(_GROUP_SEPARATOR)[0] != topic:
                    continue
                for queue_id in [each for each in queues if is_gone(each)]:
                    del queues[queue_id]
                    found.add(queue_id)
                    self._changed = True
                if not queues:
                    del self._offsets[key]
        return found

    def remove(self, *, topic: str | None = None, group: str | None = None) -> int:
        """Forget the offsets of a topic, of a group, or of one group in one topic.

        Args:
            topic: only offsets in this one; None for every topic.
            group: only offsets of this one; None for every group, and for all there is with no
                topic.

        Returns:
            Pairs (topic, group) forgotten.
        """
        with self._lock.within():
            self.follow_revive_queues()
            self.forgotten += 1
            gone = [
                key
                for key in self._offsets
                if topic in (None, key.partition(_GROUP_SEPARATOR)[0])
                and group in (None, key.partition(_GROUP_SEPARATOR)[2])
            ]
            for key in gone:
                del self._offsets[key]
            self._changed |= bool(gone)
        if gone and self.on_set is not None:
            self.on_set(topic, group, None)
        return len(gone)

    @contextmanager
    def removing(self, topics: Collection[str]) -> Iterator[None]:
        """Forget the offsets of topics on the disk, and at the end of the context in memory.

        What raises in it, or refuses to write, leaves them in memory, and for the next `persist`.

        Args:
            topics: by name; without offsets they are nothing to do.

        Raises:
            OSError: it could not be written.
        """
        with self._persist_lock.within():
            with self._lock.within():
                kept = {
                    key: queues
                    for key, queues in self._encoded(self._offsets).items()
                    if key.partition(_GROUP_SEPARATOR)[0] not in topics
                }
                if had := len(kept) < len(self._offsets):
                    self.data_version = self.data_version.next(self._clock())
                    self._changed = True
                    text = self._text({"offsetTable": kept})
            if had:
                if self.ahead is not None:
                    self.ahead()
                # the backup, too: it would bring back what was removed
                for _ in range(2):
                    self._file.store(text)
            yield
            # whoever deletes a topic tells leases of it: none is asked between two of its steps
            for topic in topics:
                self._forget_queues(topic, lambda _: True)

    def told_text(self, besides: Mapping[str, object]) -> str:
        """The file's content with other members, for slaves; RocketMQ's pass over these."""
        return self._text(besides)

    @staticmethod
    def _decode(content: dict[str, object]) -> dict[str, dict[int, int]]:
        # RocketMQ 5.5 writes this map beside the offsets and derives it from them when it reads.
        content.pop("groupTopicMap", None)
        entries = mapping("offsetTable", content.pop("offsetTable", {}))
        return {key: numbered_offsets(key, queues) for key, queues in entries.items()}

    def _install(self, table: dict[str, dict[int, int]]) -> None:
        self._offsets = table

    def _fitted(self, told: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
        """The same, and none behind the end of its queue: what is put there would be missed."""
        return {key: self._reached(key, queues) for key, queues in told.items()}

    def _reached(self, key: str, queues: dict[int, int]) -> dict[int, int]:
        if self._end_of is None:
            return queues
        reached, topic = {}, key.partition(_GROUP_SEPARATOR)[0]
        for queue_id, offset in queues.items():
            # no queue can have such a name
            with suppress(MessageIllegalError):
                reached[queue_id] = min(offset, self._end_of(topic, queue_id))
        return reached

    def _followed_by(
        self, told: dict[str, dict[int, int]], keep: Callable[[str], bool]
    ) -> dict[str, dict[int, int]]:
        # what consumers committed here while the master was away stays
        return self._beside_own(told, self._own)

    def _with(self, told: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
        # a master whose table was begun anew has not removed what it had before
        return self._beside_own(told, None)

    def _beside_own(
        self, told: dict[str, dict[int, int]], own: set[tuple[str, int]] | None
    ) -> dict[str, dict[int, int]]:
        """A master's table and what of this one is its own; from now on that alone is."""
        here = _places_in(self._offsets)
        own = (here if own is None else own & here) - _places_in(told)
        self._changed |= own != self._own
        self._own = own
        table: dict[str, dict[int, int]] = {}
        for key, queue_id in sorted(own):
            table.setdefault(key, {})[queue_id] = self._offsets[key][queue_id]
        for key, queues in told.items():
            table[key] = {**table.get(key, {}), **queues}
        return table

    def _text(self, besides: Mapping[str, object]) -> str:
        named: dict[str, list[int]] = {}
        for key, queue_id in sorted(self._own or ()):
            named.setdefault(key, []).append(queue_id)
        return super()._text(besides if self._own is None else {**besides, _OWN: named})

    def _adopt_besides(self, besides: dict[str, object]) -> None:
        # once this broker leads, what the master's groups popped since moves them on
        ends = _whole_numbers(besides.get(_REVIVE_ENDS))
        self._changed |= ends != self._revive_ends
        self._revive_ends = ends

    def _encode(self) -> dict[str, object]:
        ends = {} if self._revive_ends is None else {_REVIVE_ENDS: self._revive_ends}
        return {"offsetTable": self._encoded(self._offsets), **ends}

    def _content(self) -> object:
        return self._offsets, self._revive_ends

    @staticmethod
    def _encoded(table: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]]:
        return {key: dict(sorted(queues.items())) for key, queues in sorted(table.items())}


def _whole_numbers(value: object) -> list[int] | None:
    """A list of whole numbers of a file; None for anything else, which says nothing."""
    if isinstance(value, list) and all(type(each) is int and each >= 0 for each in value):
        return value
    return None


def _places_named(value: object) -> set[tuple[str, int]] | None:
    """The keys and queue ids that a member of a file names; None where it is none."""
    if not isinstance(value, dict):
        return None
    named = {key: _whole_numbers(queue_ids) or () for key, queue_ids in value.items()}
    return {(key, queue_id) for key, ids in named.items() for queue_id in ids}


def _lmq_offsets_in(text: str) -> tuple[int, DataVersion, dict[str, dict[int, int]]]:
    """Read RocketMQ's file: its CRC, its version, and offsets as in our table.

    Raises:
        ValueError: it is none.
    """
    content = mapping(_LMQ_NAME, parse_java_json(text))
    table = ConsumerOffsetTable._decode(dict(content))
    light = mapping("lmqOffsetTable", content.get("lmqOffsetTable") or {})
    for key, offset in light.items():
        # a light queue has no other number
        table[key] = numbered_offsets(key, {"0": offset})
    version = DataVersion.from_java(content.get("dataVersion") or {})
    return zlib.crc32(text.encode()), version, table


def _places_in(table: Mapping[str, Mapping[int, int]]) -> set[tuple[str, int]]:
    """Key and queue id of each offset of a table."""
    return {(key, queue_id) for key, queues in table.items() for queue_id in queues}


def _offset_key(topic: str, group: str) -> str:
    # an enum's format is not its value
    return f"{text('topic', topic)}{_GROUP_SEPARATOR}{text('group', group)}"
