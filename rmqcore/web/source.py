"""What pages ask: a store that nobody serves, or a broker that runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from rmqcore.broker import Broker
from rmqcore.broker.parts import BrokerParts
from rmqcore.errors import (
    CorruptConfigFileError,
    CorruptConsumeQueueError,
    CorruptStoreError,
    StoreClosedError,
)
from rmqcore.files.config_tables import TopicConfigTable
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.group_table import SubscriptionGroupTable
from rmqcore.files.index_file import IndexFile
from rmqcore.files.store_dir import StoreDir
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.read_only_store import ReadOnlyMessageStore
from rmqcore.web.kept import Kept
from rmqcore.world import wall_clock_ms

Store: TypeAlias = DefaultMessageStore | ReadOnlyMessageStore
_Table = TypeVar("_Table", TopicConfigTable, ConsumerOffsetTable, SubscriptionGroupTable)
#: The list of all queues is looked up again after this long, no sooner.
_LISTED_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class IndexFileFacts:
    """What a page says of an index file.

    Attributes:
        name: of the file.
        entries: that it has.
        begin_ms, end_ms: store times of the first message and of the last; None: not known.
        trouble: why it cannot be read; empty when it can.
    """

    name: str
    entries: int = 0
    begin_ms: int | None = None
    end_ms: int | None = None
    trouble: str = ""


def index_files(store: Store) -> list[IndexFileFacts]:
    """The index files of a store, the oldest first; none where it keeps no index."""
    return [] if store.index is None else [_facts_of(file) for file in store.index.files]


def _facts_of(file: IndexFile) -> IndexFileFacts:
    name = Path(file.path).name
    try:
        header = file.header
        times = header.begin_timestamp_ms, header.end_timestamp_ms
        return IndexFileFacts(name, max(0, file.entry_count), *times)
    except CorruptStoreError as error:
        return IndexFileFacts(name, trouble=str(error))


def bounds(store: Store, topic: str, queue_id: int) -> tuple[int, int]:
    """Numbers of a queue's first message, and behind its last; 0 of one that cannot be read.

    `Source.notices` says which one that is.

    Args:
        store: that has it.
        topic: of the queue.
        queue_id: its number.
    """
    try:
        return store.min_queue_offset(topic, queue_id), store.max_queue_offset(topic, queue_id)
    except CorruptStoreError:
        return 0, 0


class Source(Protocol):
    """A store, and what is known beside it.

    Attributes:
        path: the store's directory.
    """

    path: Path

    @property
    def store(self) -> Store:
        """The store; raises StoreClosedError while there is none."""
        ...

    @property
    def managers(self) -> BrokerParts | None:
        """What a broker knows; None of a store that nobody serves."""
        ...

    @property
    def topics(self) -> TopicConfigTable:
        """Which topics are configured."""
        ...

    @property
    def offsets(self) -> ConsumerOffsetTable:
        """How far groups are."""
        ...

    @property
    def groups(self) -> SubscriptionGroupTable:
        """Which groups are configured."""
        ...

    def queues(self) -> dict[str, list[int]]:
        """Queue ids by topic, as of a moment ago."""
        ...

    def notices(self) -> list[str]:
        """What is wrong with what was asked last, in words."""
        ...

    @property
    def is_written(self) -> bool:
        """Whether somebody has the store open for writing."""
        ...

    def state(self) -> str:
        """What a reader wants to know first of the store, in a word or two."""
        ...

    def now_ms(self) -> int:
        """The time against which lag is told, Unix milliseconds."""
        ...


def _listed(store: Store) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, queue_id in store.queues():
        found.setdefault(topic, []).append(queue_id)
    return found


class ColdSource:
    """A store opened with ``mode="r"``, whether somebody writes it or not.

    Args:
        store: the store.
    """

    managers: None = None

    def __init__(self, store: ReadOnlyMessageStore) -> None:
        self.path = store.path
        self._store = store
        self._queues = Kept(self._listed, _LISTED_S, lambda: store.max_phy_offset)
        self._last_ms = Kept(self._last_stored_ms, _LISTED_S, lambda: store.max_phy_offset)
        self._missing = Kept(store.missing, _LISTED_S)
        self._directory = StoreDir(store.path, store.config.store_path_commit_log)
        self._tables: dict[str, tuple[tuple[int, int] | None, Any]] = {}
        self._wrong: dict[str, str] = {}

    @property
    def store(self) -> ReadOnlyMessageStore:
        """The store."""
        return self._store

    @property
    def topics(self) -> TopicConfigTable:
        """As the file says now."""
        return self._table(TopicConfigTable)

    @property
    def offsets(self) -> ConsumerOffsetTable:
        """As the file says now."""
        return self._table(ConsumerOffsetTable)

    @property
    def groups(self) -> SubscriptionGroupTable:
        """As the file says now."""
        return self._table(SubscriptionGroupTable)

    def _table(self, kind: type[_Table]) -> _Table:
        """A table of the store, read again when its file has changed; empty where it is damaged."""
        folder, name = self._directory.config, kind.file_name
        try:
            stat = (folder / name).stat()
            stamp = stat.st_mtime_ns, stat.st_size
        except OSError:
            stamp = None
        known = self._tables.get(name)
        if known is None or known[0] != stamp:
            self._wrong.pop(name, None)
            try:
                table = kind(folder, clock=wall_clock_ms)
            except CorruptConfigFileError as error:
                self._wrong[name] = str(error)
                table = kind(folder / "none", clock=wall_clock_ms)
            known = self._tables[name] = stamp, table
        return known[1]

    def queues(self) -> dict[str, list[int]]:
        """Queue ids by topic; none where the queues are lost, which `notices` says."""
        return self._queues.get()

    def _listed(self) -> dict[str, list[int]]:
        self._wrong.pop("queues", None)
        try:
            return _listed(self._store)
        except CorruptConsumeQueueError as error:
            self._wrong["queues"] = str(error)
            return {}

    def notices(self) -> list[str]:
        """What could not be read, and what is missing."""
        return [*self._wrong.values(), *self._missing.get()]

    @property
    def is_written(self) -> bool:
        """Whether another process has the store open for writing."""
        return self._directory.is_locked()

    def state(self) -> str:
        """Whether somebody has the store open for writing, and how the last one left it."""
        if self.is_written:
            return "open for writing"
        return "not closed" if self._directory.was_aborted else "closed"

    def now_ms(self) -> int:
        """Now while somebody writes, else when the last message came."""
        if self.is_written:
            return wall_clock_ms()
        return self._last_ms.get()

    def _last_stored_ms(self) -> int:
        self.queues()
        last = max(self._store.consume_queues, key=lambda each: each.end_phy_offset, default=None)
        unit = None if last is None else last.unit_at(last.max_offset - 1)
        try:
            message = None if unit is None else self._store.message_at(unit[0])
        except CorruptStoreError:
            message = None
        return wall_clock_ms() if message is None else message.store_timestamp_ms


class BrokerSource:
    """A broker of this process.

    Args:
        broker: may be started and stopped meanwhile.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.path = broker.path
        self._queues = Kept(lambda: _listed(self.store), _LISTED_S)

    @property
    def broker(self) -> Broker:
        """The broker."""
        return self._broker

    def _expect(self) -> BrokerParts:
        managers = self._broker.managers
        if managers is None:
            raise StoreClosedError(f"the broker is {self.state()}")
        return managers

    @property
    def store(self) -> DefaultMessageStore:
        """Its store; raises StoreClosedError while there is none."""
        return self._expect().store

    @property
    def managers(self) -> BrokerParts | None:
        """What it knows."""
        return self._broker.managers

    @property
    def topics(self) -> TopicConfigTable:
        """The store's own table."""
        return self.store.topics

    @property
    def offsets(self) -> ConsumerOffsetTable:
        """The store's own table."""
        return self.store.consumer_offsets

    @property
    def groups(self) -> SubscriptionGroupTable:
        """The broker's own table."""
        return self._expect().groups.table

    def queues(self) -> dict[str, list[int]]:
        """Queue ids by topic."""
        return self._queues.get()

    def notices(self) -> list[str]:
        """Nothing: what is wrong with a broker is in its state."""
        return []

    @property
    def is_written(self) -> bool:
        """Whether the broker serves."""
        return self._broker.managers is not None

    def state(self) -> str:
        """As a probe is told."""
        return str(self._broker.state()[1]["state"])

    def now_ms(self) -> int:
        """Now."""
        return wall_clock_ms()
