"""Small durable tables of keys and values, for what stands on a store and needs more than queues.

A table is the topic ``%KV%name``: each change is a record, the newest of a key holds. A table is
read at its first use; docs/format/key-values.md has the records and how they are kept few.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final

from rmqcore.arguments import text, whole_number
from rmqcore.errors import (
    ArgumentError,
    CorruptRecordError,
    PutMessageError,
    StoreError,
    StoreNotWritableError,
)
from rmqcore.files.config_tables import TopicConfig, TopicConfigTable, check_topic_name
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.service_topics import TABLE_PREFIX
from rmqcore.message import Message
from rmqcore.store.consume.interrupt_safe_lock import InterruptSafeLock
from rmqcore.store.parts.key_value_records import CALL, DELETE, parts_of, record_of, record_of_call
from rmqcore.store.parts.key_value_table import RECORD_HEAD_SIZE, Change, Table
from rmqcore.store.parts.tables_aside import Aside, TablesAside

if TYPE_CHECKING:
    from rmqcore.files.store_dir import StoreDir
    from rmqcore.message import PutMessageResult
    from rmqcore.native.base._lock import Attempt
    from rmqcore.store.parts.flushing import Flushing
    from rmqcore.store.parts.handle import Handle
    from rmqcore.store.parts.reading import Reading
    from rmqcore.store.parts.settings import Settings
    from rmqcore.store.parts.writing import Writing

_log = logging.getLogger("rmqcore")

#: The topic of a table has this in front of the table's name.
TOPIC_PREFIX: Final = TABLE_PREFIX
#: The offset of this group says where in a table's topic its records begin.
GROUP: Final = "CID_RMQ_SYS_KV"
KEY_MAX: Final = 1 << 16
#: A table is written anew when it has this many records, and four times as many as entries.
COMPACTED_FROM: Final = 1024
#: In search of calls this many records in front of a table's first one are read, or one whole
#: call.
_CALLS_READ: Final = 1024
_RECORDS_PER_ENTRY: Final = 4
#: A table with no more entries is read at once, as that takes less time than another thread.
_AT_HAND_MAX: Final = 1000
#: Tables are put anew where log files that can go then have this many times the tables' bytes.
_WORTH: Final = 2
#: One batch of records has at most this many bytes.
_BATCH_SIZE: Final = 1 << 18
_INT64_MAX: Final = 2**63 - 1


class KeyValues:
    """The tables of a store that is open for writing.

    Args:
        handle: says whether the store is open.
        settings: of the store.
        directory: its.
        reading: reads the records of tables.
        writing: puts them.
        topics: of the store; a table's is in it.
        consumer_offsets: tell where a table's records begin.
        flushing: writes the store through to the disk.
        clock_ms: Unix time in milliseconds.

    Threads: any; one lock for all tables.
    """

    def __init__(
        self,
        handle: Handle,
        settings: Settings,
        directory: StoreDir,
        reading: Reading,
        writing: Writing,
        topics: TopicConfigTable,
        consumer_offsets: ConsumerOffsetTable,
        flushing: Flushing,
        clock_ms: Callable[[], int],
    ) -> None:
        self._handle = handle
        self._settings = settings
        self._directory = directory
        self._reading = reading
        self._writing = writing
        self._topics = topics
        self._consumer_offsets = consumer_offsets
        self._flushing = flushing
        self._clock_ms = clock_ms
        self._tables: dict[str, Table] = {}
        self._lock = InterruptSafeLock("tables of keys and values")

    def _tables_held(self) -> Attempt:
        """The lock of all tables; not waited for in a forked child, where nobody would free it."""
        self._handle.check_open()
        return self._lock.within()

    @contextmanager
    def table_at_hand(self, table: object) -> Iterator[bool]:
        """Tell whether reads of a table are short and wait for nothing, as long as a block runs."""
        self._handle.check_open()
        with self._lock.around() as mine:
            known = self._tables.get(table) if mine and isinstance(table, str) else None
            yield known is not None and len(known.entries) <= _AT_HAND_MAX

    def kv_get(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys, None for each that there is not.

        Args:
            table: its name: letters, digits, ``%``, ``|``, ``_``, ``-``, at most 123. A table that
                nothing was put into is empty.
            keys: bytes, each at most 64 KiB.

        Raises:
            ArgumentError, MessageIllegalError: a key or the table's name is none.
        """
        wanted = list(keys)
        for key in wanted:
            _check_key(key)
        with self._tables_held():
            self._lock.refuse_interrupt()
            entries = self._table(table).entries
            return [entries[key][0] if key in entries else None for key in wanted]

    def kv_put(self, table: str, key: bytes, value: bytes | None, *, ttl_ms: int = 0) -> None:
        """Set the value of a key, or delete it.

        Args:
            table: see `kv_get`.
            key: bytes, at most 64 KiB.
            value: what it has from now on; None deletes it.
            ttl_ms: milliseconds after which it is gone; 0 for never.

        Raises:
            ArgumentError, MessageIllegalError: an argument is none, or the value is too long for a
                message.
            DiskFullError, StoreNotWritableError: as of a put; nothing has changed.

        Durability: that of a put.
        """
        self.kv_put_once(table, key, value, ttl_ms=ttl_ms)

    def kv_put_once(
        self, table: str, key: bytes, value: bytes | None, *, ttl_ms: int = 0, call: str = ""
    ) -> None:
        """As `kv_put`, for a caller that asks the next owner when this one does not answer.

        Args:
            table: see `kv_put`.
            key: see `kv_put`.
            value: see `kv_put`.
            ttl_ms: see `kv_put`.
            call: a name that no other call has; one of this name that was done is not done again,
                so that it does not undo what others have put since.
        """
        change = self._change(key, value, ttl_ms)
        with self._tables_held():
            self._lock.refuse_interrupt()
            known = self._table(table)
            if not self._done_before(table, known, call):
                self._write(table, known, [change], call)

    def kv_swap(
        self, table: str, key: bytes, old: bytes | None, new: bytes | None, *, ttl_ms: int = 0
    ) -> bool:
        """Set the value of a key if it has the value that the caller knows: compare and set.

        Args:
            table: see `kv_get`.
            key: bytes, at most 64 KiB.
            old: what it must have for that; None: the key must not be there.
            new: what it has from then on; None deletes it.
            ttl_ms: milliseconds after which it is gone; 0 for never.

        Returns:
            False when it had another value; nothing has changed then.

        Raises:
            as `kv_put`.

        Durability: that of a put.
        """
        return self.kv_swap_once(table, key, old, new, ttl_ms=ttl_ms)

    def kv_swap_once(
        self,
        table: str,
        key: bytes,
        old: bytes | None,
        new: bytes | None,
        *,
        ttl_ms: int = 0,
        call: str = "",
    ) -> bool:
        """As `kv_swap`, for a caller that asks the next owner when this one does not answer.

        Args:
            table: see `kv_get`.
            key: see `kv_swap`.
            old: see `kv_swap`.
            new: see `kv_swap`.
            ttl_ms: see `kv_swap`.
            call: a name that no other call has; one of this name that was done is not done again.
        """
        change = self._change(key, new, ttl_ms)
        with self._tables_held():
            self._lock.refuse_interrupt()
            known = self._table(table)
            if self._done_before(table, known, call):
                return True
            if known.entries.get(key, (None, 0))[0] != old:
                return False
            if new is not None or old is not None:
                self._write(table, known, [change], call)
            return True

    def _done_before(self, name: str, table: Table, call: str) -> list[tuple[bytes, bytes]]:
        """What a call has done whose answer was lost, here or in an owner that has ended.

        As durable as it was asked for.
        """
        done: list[tuple[bytes, bytes]] = []
        for offset, count in table.made.get(call, ()):
            records = self._reading.messages(_topic_of(name), 0, start=offset)
            done += [
                parts_of(record)[:2]
                for record in islice(records, count)
                if record.properties.get(CALL) == call
            ]
        if done and self._writing.waits:
            self._flushing.flush()
        return done

    def kv_list(
        self, table: str, *, first: bytes = b"", last: bytes | None = None, max_entries: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """The entries of a range, by key.

        Args:
            table: see `kv_get`.
            first: the smallest key.
            last: the key before which it ends; None for the end of the table.
            max_entries: how many at most; 0 for all.
        """
        _check_range(first, last, max_entries)
        with self._tables_held():
            self._lock.refuse_interrupt()
            return self._table(table).range(first, last, max_entries)

    def kv_take(
        self, table: str, *, first: bytes = b"", last: bytes | None = None, max_entries: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """Delete the entries of a range and give them: each goes to one caller.

        Args:
            table: see `kv_get`.
            first: the smallest key.
            last: the key before which it ends; None for the end of the table.
            max_entries: how many at most; 0 for all.

        Returns:
            what was deleted. When the store refuses in the middle, what was until then; the others
            stay.

        Raises:
            DiskFullError, StoreNotWritableError: as of a put; nothing was deleted.

        Durability: that of a put; page_cache where the disk, or a slave, does not confirm it.
        """
        return self.kv_take_once(table, first=first, last=last, max_entries=max_entries)

    def kv_take_once(
        self,
        table: str,
        *,
        first: bytes = b"",
        last: bytes | None = None,
        max_entries: int = 0,
        call: str = "",
    ) -> list[tuple[bytes, bytes]]:
        """As `kv_take`, for a caller that asks the next owner when this one does not answer.

        Args:
            table: see `kv_get`.
            first: see `kv_take`.
            last: see `kv_take`.
            max_entries: see `kv_take`.
            call: a name that no other call has; what one of this name has taken is given again.
        """
        _check_range(first, last, max_entries)
        with self._tables_held():
            self._lock.refuse_interrupt()
            known = self._table(table)
            before = self._done_before(table, known, call)
            if before and len(before) >= max_entries:
                return before
            taken = known.range(first, last, max_entries and max_entries - len(before))
            gone = [(key, None, 0) for key, _ in taken]
            done = self._write(table, known, gone, call, takes=True)
            return before + taken[:done]

    def kv_count(self, table: str) -> int:
        """How many entries a table has."""
        with self._tables_held():
            self._lock.refuse_interrupt()
            return len(self._table(table).entries)

    def _change(self, key: bytes, value: bytes | None, ttl_ms: int) -> Change:
        _check_key(key)
        if value is not None and not isinstance(value, bytes):
            raise ArgumentError("value", value, "bytes, or None for no value")
        ttl_ms = whole_number("ttl_ms", ttl_ms, 0, _INT64_MAX)
        expires_ms = min(self._clock_ms() + ttl_ms, _INT64_MAX) if ttl_ms else 0
        return key, value, expires_ms

    def _table(self, name: str) -> Table:
        """A table as it is now, read from its topic at its first use.

        A table that is being changed is not known: where a signal handler raises in between, it is
        read again. So is each of a slave, whose master changes it.
        """
        name = text("table", name)
        known, is_slave = self._tables.pop(name, None), self._settings.is_slave
        if known is None and self._writing.waits and not is_slave:
            self._flushing.try_flush_log()
        table = self._read(name) if known is None or is_slave else known
        table.expire(self._clock_ms())
        self._tables[name] = table
        return table

    def _read(self, name: str) -> Table:
        topic = _topic_of(name)
        table = Table()
        table.load(self._changes_of(topic, table))
        return table

    def _changes_of(self, topic: str, table: Table) -> Iterator[Change]:
        """The changes that make a table, which is told of its records and of calls in them."""
        start = self._start_of(topic)
        aside = self._aside.load().get(topic)
        committed = self._consumer_offsets.get(topic, GROUP, 0)
        if aside is not None and committed is not None and committed <= aside.end:
            yield from aside.entries
        for message in self._reading.messages(topic, 0, start=self._calls_from(topic, start)):
            key, value, expires_ms = parts_of(message)
            call = message.properties.get(CALL)
            if call is not None:
                table.note(call, [(message.queue_offset, 1)])
            if message.queue_offset >= start:
                table.records += 1
                yield key, None if message.tags == DELETE else value, expires_ms

    def _calls_from(self, topic: str, at: int) -> int:
        """Queue offset in front of one, from which on calls are read."""
        least, calls = self._reading.min_queue_offset(topic, 0), set[str | None]()
        while at > least and len(calls) <= 1 and None not in calls:
            at = max(least, at - _CALLS_READ)
            first = next(self._reading.messages(topic, 0, start=at), None)
            calls.add(None if first is None else first.properties.get(CALL))
        return at

    def _start_of(self, topic: str) -> int:
        """Queue offset from which on a table's topic is read."""
        committed = self._consumer_offsets.get(topic, GROUP, 0) or 0
        return max(committed, self._reading.min_queue_offset(topic, 0))

    def free_of_tables(self, needed: int, delete: Callable[[], int]) -> int:
        """Delete the log files that only tables hold back, and put these anew.

        So that no table is written again and again, that has to free more than it takes. Where the
        disk has no room for it, the tables are in a file of their own until the log files are gone.

        Args:
            needed: physical offset of the oldest message that anything else needs.
            delete: deletes the log files that nothing needs; returns how many.

        Returns:
            files deleted.

        Raises:
            OSError: the disk refused.
        """
        file_size = self._settings.config.mapped_file_size_commit_log
        end = needed // file_size * file_size
        with self._tables_held():
            self._lock.refuse_interrupt()
            for name in list(self._tables):
                self._readable(name)
            were_aside = self._restore_aside()
            held = self._tables_before(end)
            size = sum(table.size for table in held.values())
            if not held or end - self._reading.min_phy_offset < _WORTH * size:
                return delete() if were_aside else 0
            try:
                for topic, table in held.items():
                    self._put_anew(topic, table)
                return delete()
            except (StoreNotWritableError, PutMessageError) as error:
                _log.warning("tables are kept beside the log for a moment: %s", error)
            self._put_aside(held)
            deleted = delete()
            try:
                self._restore_aside()
            except (StoreNotWritableError, PutMessageError) as error:
                _log.warning("tables stay beside the log: %s", error)
            return deleted

    def _tables_before(self, phy_offset: int) -> dict[str, Table]:
        """The tables that begin before a physical offset, by topic."""
        found = {}
        for topic, _ in self._reading.queues():
            if topic.startswith(TOPIC_PREFIX):
                first = next(self._reading.messages(topic, 0, start=self._start_of(topic)), None)
                if first is not None and first.phy_offset < phy_offset:
                    table = self._readable(topic.removeprefix(TOPIC_PREFIX))
                    if table is not None:
                        found[topic] = table
        return found

    def _readable(self, name: str) -> Table | None:
        """A table; None when one of its records cannot be read: then its log files are kept."""
        try:
            return self._table(name)
        except CorruptRecordError as error:
            _log.warning("a table cannot be put anew: %s", error)
            return None

    @property
    def _aside(self) -> TablesAside:
        return TablesAside(self._directory)

    def _restore_aside(self) -> bool:
        """Put tables anew that are in a file of their own; False when none are."""
        left = dict(self._aside.load())
        found = {topic: self._readable(topic.removeprefix(TOPIC_PREFIX)) for topic in left}
        tables = {topic: table for topic, table in found.items() if table is not None}
        for topic, table in tables.items():
            self._put_anew(topic, table)
            del left[topic]
        if left and tables:
            self._aside.store(left)
        elif tables:
            self._aside.remove()
        return bool(tables)

    def _put_aside(self, tables: Mapping[str, Table]) -> None:
        """Write tables into a file, and let them begin behind their records, which no cut takes."""
        self._flushing.flush_log()
        ends = {topic: self._reading.max_queue_offset(topic, 0) for topic in tables}
        anew = {
            topic: Aside(ends[topic], [(key, *table.entries[key]) for key in table.keys])
            for topic, table in tables.items()
        }
        # tables that were there and cannot be read have no other copy
        self._aside.store({**self._aside.load(), **anew})
        for topic, end in ends.items():
            self._consumer_offsets.commit(topic, GROUP, 0, end)
        self._consumer_offsets.persist()

    @contextmanager
    def forgetting(self, topics: Sequence[str]) -> Iterator[None]:
        """Change no table while topics are deleted, and know nothing of theirs then."""
        gone = [name.removeprefix(TOPIC_PREFIX) for name in topics if name.startswith(TOPIC_PREFIX)]
        if not gone:
            yield
            return
        with self._tables_held():
            self._lock.refuse_interrupt()
            self._tables = {name: each for name, each in self._tables.items() if name not in gone}
            yield
            self._aside.forget(topics)

    def _write(
        self,
        name: str,
        table: Table,
        changes: Sequence[Change],
        call: str = "",
        *,
        takes: bool = False,
    ) -> int:
        """Put changes, which a call of another process may have made, into topic and memory.

        Args:
            name: of the table.
            table: what it is now.
            changes: in their order.
            call: name of that call.
            takes: whether the caller is given what is deleted. It is in the records then; a refusal
                behind the first of them ends the changes without an error, and so does one of the
                disk, or a slave, that has not confirmed a record.

        Returns:
            how many of the changes hold.
        """
        topic, name = _topic_of(name), text("table", name)
        # nobody knows what has reached the log, even when the store refuses
        self._tables.pop(name, None)
        if table.records > max(COMPACTED_FROM, _RECORDS_PER_ENTRY * len(table.entries)):
            self._compact(topic, table)
        if table.records == 0 and self._topics.get(topic) is None:
            self._aside.reserve()
            self._topics.put(TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1))
        taken = table.entries if takes else {}
        records = [record_of_call(topic, taken, *change, call) for change in changes]
        done = 0
        made: list[tuple[int, int]] = []
        for batch in self._batches(records):
            try:
                receipt = self._receipt(batch)
                if not takes or receipt.queue_offset < 0:
                    self._writing.raised(receipt)
            except (StoreError, OSError) as error:
                if not (takes and done):
                    raise
                _log.warning("%s: %d of %d changes: %s", topic, done, len(changes), error)
                break
            done += len(batch)
            made.append((receipt.queue_offset, len(batch)))
            if not receipt.ok:
                break
        table.apply(changes[:done])
        table.records += done
        table.note(call, made)
        self._tables[name] = table
        return done

    def _put_anew(self, topic: str, table: Table) -> None:
        """As `_compact`, of a table that is known again when it is whole."""
        name = topic.removeprefix(TOPIC_PREFIX)
        self._tables.pop(name, None)
        self._compact(topic, table)
        self._tables[name] = table

    def _compact(self, topic: str, table: Table) -> None:
        """Put every entry anew, and let the table begin there."""
        anew = [record_of(topic, key, *table.entries[key]) for key in table.keys]
        start = None
        for batch in self._batches(anew):
            receipt = self._put(batch)
            start = receipt.queue_offset if start is None else start
        # what the offset passes over may be the only copy on the disk
        self._flushing.flush()
        if start is None:
            start = self._reading.max_queue_offset(topic, 0)
        self._consumer_offsets.commit(topic, GROUP, 0, start)
        table.records = len(anew)

    def _put(self, batch: list[Message]) -> PutMessageResult:
        return self._writing.raised(self._receipt(batch))

    def _receipt(self, batch: list[Message]) -> PutMessageResult:
        """Put records; in one that is alone only the body counts, and no property of a call."""
        writing, alone = self._writing, len(batch) == 1
        return writing.put_message(batch[0]) if alone else writing.put_messages(batch)

    def _batches(self, records: list[Message]) -> Iterator[list[Message]]:
        """Records in batches that a store takes at once; a long one is alone."""
        batch: list[Message] = []
        size, size_max = 0, min(_BATCH_SIZE, self._settings.config.effective_max_message_size)
        for record in records:
            record_size = len(record.body) + RECORD_HEAD_SIZE
            if batch and size + record_size > size_max:
                yield batch
                batch, size = [], 0
            batch.append(record)
            size += record_size
        if batch:
            yield batch


def _check_key(key: object) -> None:
    if not isinstance(key, bytes) or len(key) > KEY_MAX:
        raise ArgumentError("key", key, f"bytes, at most {KEY_MAX}")


def _check_range(first: object, last: object, max_entries: object) -> None:
    if not isinstance(first, bytes):
        raise ArgumentError("first", first, "bytes")
    if last is not None and not isinstance(last, bytes):
        raise ArgumentError("last", last, "bytes, or None for the end of the table")
    whole_number("max_entries", max_entries, 0, _INT64_MAX)


def _topic_of(table: str) -> str:
    topic = TOPIC_PREFIX + text("table", table)
    check_topic_name(topic)
    return topic
