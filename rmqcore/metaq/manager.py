"""MessageStoreManager: every partition of a broker, their flushes, their old segments.

Invariants:
    - A partition is opened once; two threads that ask for a new one get the same store.
    - `stores` is replaced, never changed; readers take no lock.
"""

from __future__ import annotations

import logging
import re
import resource
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rmqcore.errors import RmqCoreError, StoreClosedError
from rmqcore.metaq.errors import IllegalTopicError, WrongPartitionError
from rmqcore.metaq.message_store import MessageStore, check_topic, make_directory
from rmqcore.metaq.meta_config import TOPICS, UNFLUSH_INTERVAL, MetaConfig
from rmqcore.metaq.partition_reader import partition_named
from rmqcore.metaq.schedule import Schedule
from rmqcore.world import REAL, World

_LOG = logging.getLogger(__name__)
_LOADERS = 4
#: Files that partitions have open at most when one more is created, and half of what the process
#: may have: a broker that is started again has to open them all.
_FILES_MAX = 65_536
#: A partition has its directory, its mark and each segment open; a new one has one segment.
_FILES_BESIDE, _FILES_OF_NEW = 2, 3

Stores = Mapping[str, Mapping[int, MessageStore]]


class MessageStoreManager:
    """The partitions below every data path of a configuration.

    Attributes:
        config: the configuration; its changes are followed.
        world: durable flush, failpoints and clocks, also of what serves the partitions.
        stores: topic -> partition -> store.
        ignored: directories and files that are no partitions, left alone; a warning names
            transaction journals among them.
        schedule: flushes in time, and runs the delete jobs.
        topic_listeners: called when a topic gets its first partition; they must not block.

    Differs: a topic that left the configuration takes no new partitions (the original's set of
    names only grows); in a configured name every character but ``*`` stands for itself (the
    original reads it as a regular expression, so that a name with ``$`` never matches itself).

    Source: MetaQ MessageStoreManager.java.
    """

    def __init__(self, config: MetaConfig, *, fast_boot: bool = False, world: World = REAL) -> None:
        """Open every partition there is and start the schedules.

        Args:
            config: settings, data paths, topics.
            fast_boot: do not read what is known to be on disk.
            world: durable flush, failpoints, clock.

        Raises:
            RmqCoreError: a partition cannot be opened; those that were are closed again.
        """
        self.config = config
        self._fast_boot = fast_boot
        self.world = world
        self._lock = threading.Lock()
        self._closed = False
        self.stores: Stores = {}
        self.ignored: tuple[Path, ...] = ()
        self.topic_listeners: list[Callable[[], object]] = []
        self.schedule = Schedule(self._flush_interval, self._delete_job, world)
        self._match_topics()
        try:
            self._load()
        except BaseException:
            self._close_stores()
            raise
        config.add_property_change_listener(TOPICS, self._topics_changed)
        config.add_property_change_listener(UNFLUSH_INTERVAL, self._intervals_changed)
        self._schedule_delete_jobs()
        self.schedule.start()

    # ---- partitions ----

    def get(self, topic: str, partition: int) -> MessageStore | None:
        """The store of a partition, None when it does not exist.

        Args:
            topic: name of the topic.
            partition: number of the partition in its topic.
        """
        return self.stores.get(topic, {}).get(partition)

    def get_or_create(
        self, topic: str, partition: int, *, offset_if_create: int = 0
    ) -> MessageStore:
        """The store of a partition; a configured topic's partition is created when it is missing.

        Args:
            topic: name of the topic.
            partition: number of the partition in its topic.
            offset_if_create: offset of a new partition's first byte.

        Raises:
            IllegalTopicError: no configured name matches the topic, or so many partitions are open
                that this is created no more.
            WrongPartitionError: the topic has fewer partitions.
            StoreClosedError: the manager is closed.
        """
        store = self.get(topic, partition)
        if store is not None:
            return store
        check_topic(topic)
        if not self.accepts(topic):
            raise IllegalTopicError(f"no configured topic matches {topic!r}")
        count = self.num_partitions(topic)
        if not 0 <= partition < count:
            raise WrongPartitionError(f"partition {partition} of {topic!r}, which has {count}")
        with self._lock:
            if self._closed:
                raise StoreClosedError("the message store manager is closed")
            store = self.get(topic, partition)
            if store is None:
                self._expect_room(topic)
                store = self._open(topic, partition, offset_if_create)
                self._add([store])
        return store

    def _expect_room(self, topic: str) -> None:
        """Refuse a partition with which the next start may find too many files to open them."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        allowed = _FILES_MAX if soft == resource.RLIM_INFINITY else min(_FILES_MAX, soft // 2)
        count = sum(_FILES_BESIDE + len(store.segments) for store in self.all_stores())
        if count + _FILES_OF_NEW > allowed:
            raise IllegalTopicError(
                f"{topic!r} gets no new partition: those that there are have {count} files open, "
                f"and {allowed} is the most"
            )

    def accepts(self, topic: str) -> bool:
        """Tell whether a configured name matches a topic."""
        return self._pattern.fullmatch(topic) is not None

    def num_partitions(self, topic: str) -> int:
        """Partitions that a topic may have."""
        return self.config.topic_config(topic).num_partitions

    def all_topics(self) -> tuple[str, ...]:
        """Configured topics and those that have partitions, sorted."""
        return tuple(sorted({*self.config.topics, *self.stores}))

    def all_stores(self) -> Iterable[MessageStore]:
        """Every store."""
        return [store for stores in self.stores.values() for store in stores.values()]

    def total_message_count(self) -> int:
        """Messages counted in the newest segments."""
        return sum(store.message_count for store in self.all_stores())

    # ---- flush and retention ----

    def flush(self) -> None:
        """Flush every store."""
        for store in self.all_stores():
            store.flush()

    def run_delete_policies(self, topics: Iterable[str] | None = None) -> list[Path]:
        """Take out old segments now; a failure in one partition does not stop the others.

        Returns:
            The files that left the log.
        """
        gone = []
        for topic in self.all_topics() if topics is None else topics:
            for store in self.stores.get(topic, {}).values():
                try:
                    gone += store.run_delete_policy()
                except OSError as error:
                    _LOG.error("the delete policy of %s failed: %s", store.path, error)
        return gone

    def close(self) -> None:
        """Stop the schedules and close every store."""
        with self._lock:
            self._closed = True
        self.config.remove_property_change_listener(self._topics_changed)
        self.config.remove_property_change_listener(self._intervals_changed)
        self.schedule.stop()
        self._close_stores()

    def __enter__(self) -> MessageStoreManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- loading ----

    def _data_paths(self, *, logs: bool = False) -> list[Path]:
        """The global data path and those of topics, each once; ``logs``: the journals' instead."""
        system = self.config.system
        topics = [] if logs else [t.data_path for t in self.config.topics.values()]
        paths = [system.data_log_path if logs else system.data_path, *topics]
        return list(dict.fromkeys(Path(path).expanduser() for path in paths))

    def _load(self) -> None:
        found: list[tuple[str, int]] = []
        ignored = []
        for data_path in self._data_paths():
            make_directory(data_path)
            for entry in sorted(data_path.iterdir()):
                named = partition_named(entry.name)
                own = named and Path(self.config.topic_config(named[0]).data_path).expanduser()
                if named and own == data_path and entry.is_dir():
                    found.append(named)
                else:
                    ignored.append(entry)
        self.ignored = tuple(ignored)
        for path in self._data_paths(logs=True):
            for journal in transaction_journals(path):
                _LOG.warning(NOT_REPLAYED, journal)
        threads = _LOADERS if self.config.system.load_message_stores_in_parallel else 1
        opened: list[MessageStore] = []

        def load(name: tuple[str, int]) -> None:
            opened.append(self._open(*name, 0))

        try:
            with ThreadPoolExecutor(threads, "metaq-load") as pool:
                for _ in pool.map(load, found):
                    pass
        finally:
            self._add(opened)

    def _open(self, topic: str, partition: int, offset_if_create: int) -> MessageStore:
        return MessageStore(
            topic,
            partition,
            self.config,
            offset_if_create=offset_if_create,
            fast_boot=self._fast_boot,
            world=self.world,
            on_unflushed=self._on_unflushed,
        )

    def _add(self, stores: Iterable[MessageStore]) -> None:
        table = {topic: dict(partitions) for topic, partitions in self.stores.items()}
        for store in stores:
            table.setdefault(store.topic, {})[store.partition] = store
        new = table.keys() - self.stores.keys()
        self.stores = table
        for listener in tuple(self.topic_listeners) if new else ():
            listener()

    def _close_stores(self) -> None:
        stores, self.stores = self.all_stores(), {}
        for store in stores:
            try:
                store.close()
            except (OSError, RmqCoreError) as error:
                _LOG.error("closing %s failed: %s", store.path, error)

    # ---- what the configuration and the clock tell ----

    def _match_topics(self) -> None:
        names = map(_expression, self.config.topics)
        self._pattern = re.compile("|".join(names) or r"(?!)", re.DOTALL)

    def _topics_changed(self) -> None:
        self._match_topics()
        for store in self.all_stores():
            store.refresh_settings()
        self._schedule_delete_jobs()

    def _intervals_changed(self) -> None:
        self.schedule.forget_flushes()
        for store in self.all_stores():
            if store.unflushed:
                self._on_unflushed(store)

    def _on_unflushed(self, store: MessageStore) -> None:
        self.schedule.flush_within(self.config.topic_config(store.topic).unflush_interval_ms)

    def _flush_interval(self, interval_ms: int) -> None:
        for store in self.all_stores():
            own = self.config.topic_config(store.topic).unflush_interval_ms
            if store.unflushed and own == interval_ms:
                try:
                    store.flush()
                except (OSError, RmqCoreError) as error:
                    _LOG.error("flushing %s failed: %s", store.path, error)

    def _schedule_delete_jobs(self) -> None:
        self.schedule.set_jobs({self.config.topic_config(t).delete_when for t in self.all_topics()})

    def _delete_job(self, expression: str) -> None:
        own = self.config.topic_config
        self.run_delete_policies(t for t in self.all_topics() if own(t).delete_when == expression)


#: The warning for a data path with a transaction journal, which is not replayed here.
NOT_REPLAYED = (
    "%s: a transaction journal with entries, which is not read here; if MetaQ's broker was not "
    "stopped cleanly, let it start and stop once, or committed messages may be missing; prepared "
    "transactions stay behind"
)


def transaction_journals(data_path: Path) -> list[Path]:
    """Journal files of a data path with something in them.

    MetaQ makes an empty one at every start. Source: MetaQ JournalStore.java.
    """
    found = sorted((data_path / "transactions").glob("redo.*"))
    return [path for path in found if path.is_file() and path.stat().st_size > 0]


def matches(name: str, topic: str) -> bool:
    """Tell whether a configured name, in which ``*`` stands for anything, matches a topic.

    Args:
        name: as the settings have it; all of the topic has to match.
        topic: by name, capitals and all.
    """
    return re.fullmatch(_expression(name), topic, re.DOTALL) is not None


def _expression(name: str) -> str:
    return re.escape(name).replace(r"\*", ".*")
