"""All partitions of a broker: loading, creating, flush intervals, delete jobs, changes."""

import os
import resource
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from patience import TIMEOUT_S, until

from rmqcore.errors import CorruptStoreError, StoreClosedError, StoreLockedError
from rmqcore.metaq import (
    IllegalTopicError,
    MessageStoreManager,
    MetaConfig,
    SystemConfig,
    TopicConfig,
    WrongPartitionError,
)
from rmqcore.metaq.schedule import Schedule
from rmqcore.world import REAL, World, monotonic_s, wall_clock_ms

pytestmark = pytest.mark.engine


@pytest.fixture
def open_manager(config):
    opened = []

    def make(chosen=None, world=REAL, **settings):
        manager = MessageStoreManager(chosen or config(**settings), world=world)
        opened.append(manager)
        return manager

    yield make
    for manager in opened:
        manager.close()


def test_no_more_partitions_are_made_than_the_next_start_can_open(open_manager, monkeypatch):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, hard))
    manager = open_manager(topics=("log.*",), num_partitions=1)
    for number in range(6):
        manager.get_or_create(f"log.{number}", 0).append(number, b"x")
    with pytest.raises(IllegalTopicError, match="have 18 files open, and 20 is the most"):
        manager.get_or_create("log.6", 0)
    assert manager.get_or_create("log.5", 0) is manager.get("log.5", 0)
    assert not (Path(manager.config.system.data_path) / "log.6-0").exists()


HOUR_MS = 3_600_000


class Hours:
    """A world whose clock goes on, and by an hour at once."""

    def __init__(self):
        self._ahead_s = 0.0
        self.world = World(monotonic_s=lambda: monotonic_s() + self._ahead_s)

    def pass_one(self, manager):
        self._ahead_s += HOUR_MS / 1000
        manager.schedule.wake()


@pytest.fixture
def hours():
    return Hours()


def test_partitions_are_created_once_and_found_again(open_manager):
    manager = open_manager(num_partitions=3)
    assert manager.get("t", 0) is None
    store = manager.get_or_create("t", 2)
    assert manager.get_or_create("t", 2) is store is manager.get("t", 2)
    store.append(1, b"x")
    manager.close()
    again = open_manager(num_partitions=3)
    assert [m.message_id for m in again.get("t", 2).messages()] == [1]


def test_many_threads_get_one_store(open_manager):
    manager = open_manager()
    stores = set()
    threads = [
        threading.Thread(target=lambda: stores.add(manager.get_or_create("t", 0))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores) == 1


@pytest.mark.parametrize("partition", [-1, 3, 10**9])
def test_partitions_beyond_the_configuration_are_refused(open_manager, partition):
    with pytest.raises(WrongPartitionError):
        open_manager(num_partitions=3).get_or_create("t", partition)


@pytest.mark.parametrize(
    ("names", "topic", "accepted"),
    [
        (("t",), "t", True),
        (("t",), "tt", False),
        (("a*",), "abc", True),
        (("a*",), "ba", False),
        (("*",), "anything.at-all", True),
        (("!@#$%",), "!@#$%", True),
        (("a.c",), "abc", False),
        ((), "t", False),
    ],
)
def test_names_are_patterns(open_manager, names, topic, accepted):
    manager = open_manager(topics=names)
    assert manager.accepts(topic) == accepted
    if not accepted:
        with pytest.raises(IllegalTopicError):
            manager.get_or_create(topic, 0)


@pytest.mark.parametrize("topic", ["../evil", "..", "a/b", "a\0b"])
def test_no_topic_leaves_the_data_path(open_manager, topic, tmp_path):
    manager = open_manager(topics=("*",))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(IllegalTopicError):
        manager.get_or_create(topic, 0)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("parallel", [False, True])
def test_every_data_path_is_loaded_and_strangers_are_left_alone(open_manager, tmp_path, parallel):
    system = SystemConfig(data_path=str(tmp_path / "one"), load_message_stores_in_parallel=parallel)
    topics = [
        TopicConfig.of("a-b", system, num_partitions=5),
        TopicConfig.of("far", system, data_path=str(tmp_path / "two")),
    ]
    manager = open_manager(MetaConfig(system, topics))
    for topic, partition in (("a-b", 0), ("a-b", 4), ("far", 0)):
        manager.get_or_create(topic, partition).append(1, topic.encode())
    manager.close()
    (tmp_path / "one" / "transactions").mkdir()
    (tmp_path / "one" / "notes-7").write_text("a file")
    (tmp_path / "one" / "x-y").mkdir()
    again = open_manager(MetaConfig(system, topics))
    assert {t: set(s) for t, s in again.stores.items()} == {"a-b": {0, 4}, "far": {0}}
    assert (tmp_path / "two" / "far-0").is_dir()
    assert {p.name for p in again.ignored} == {"transactions", "notes-7", "x-y"}


def test_one_bad_partition_closes_the_others_again(open_manager, config, tmp_path):
    manager = open_manager(num_partitions=2)
    for partition in range(2):
        manager.get_or_create("t", partition).append(1, b"x" * 50)
    manager.close()
    (tmp_path / "meta" / "t-1" / "00000000000000000000.meta").write_bytes(b"")
    with pytest.raises(CorruptStoreError):
        MessageStoreManager(config(num_partitions=2))
    (tmp_path / "meta" / "t-1" / "high-water-mark").unlink()
    open_manager(num_partitions=2)


def test_a_second_manager_is_refused(open_manager, config):
    open_manager().get_or_create("t", 0)
    with pytest.raises(StoreLockedError):
        MessageStoreManager(config())


def test_a_closed_manager_creates_nothing(open_manager):
    manager = open_manager()
    manager.close()
    with pytest.raises(StoreClosedError):
        manager.get_or_create("t", 0)


def test_the_interval_flushes_without_another_append(open_manager, hours):
    manager = open_manager(world=hours.world, unflush_interval_ms=HOUR_MS)
    store = manager.get_or_create("t", 0)
    store.append(1, b"x")
    assert store.max_offset == 0
    hours.pass_one(manager)
    until(lambda: store.max_offset == 21, "the first flush")
    store.append(2, b"x")
    assert store.max_offset == 21
    hours.pass_one(manager)
    until(lambda: store.max_offset == 42, "the second flush")


def test_nothing_is_scheduled_while_nothing_is_unflushed(open_manager):
    manager = open_manager(unflush_interval_ms=20)
    store = manager.get_or_create("t", 0)
    assert manager.schedule.flush_intervals() == set()
    store.append(1, b"x")
    until(
        lambda: store.max_offset == 21 and manager.schedule.flush_intervals() == set(),
        "the flush and the end of its interval",
    )


def test_an_idle_broker_wakes_to_look_at_its_clock_alone(open_manager):
    now_ms = [wall_clock_ms()]
    world = World(clock_ms=lambda: now_ms[0])
    manager = open_manager(world=world, unflush_interval_ms=1, unflush_threshold=0)
    manager.get_or_create("t", 0).append(1, b"x")
    until(lambda: manager.schedule.flush_intervals() == set(), "the end of the flush interval")
    next_job = min(manager.schedule.next_runs().values())
    now_ms[0] = int((next_job - timedelta(hours=1)).timestamp() * 1000)
    assert manager.schedule.seconds_left() == 600


def cpu_s(threads):
    """The processor seconds that threads have used."""
    used_ns = 0
    for thread in threads:
        schedule = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text("ascii")
        used_ns += int(schedule.split()[0])
    return used_ns / 1e9


@pytest.mark.measure
def test_an_idle_broker_uses_no_cpu(open_manager, figure):
    others = set(threading.enumerate())
    manager = open_manager(unflush_interval_ms=1, unflush_threshold=0)
    manager.get_or_create("t", 0).append(1, b"x")
    time.sleep(0.05)
    # its own threads: other tests' brokers may run beside it
    mine = [thread for thread in threading.enumerate() if thread not in others]
    assert mine
    before = cpu_s(mine)
    time.sleep(0.5)
    figure("processor time of half a second", cpu_s(mine) - before, "s", at_most=0.005)


def test_a_shorter_interval_counts_for_what_waits(tmp_path, hours):
    path = tmp_path / "server.ini"

    def text(interval):
        return (
            "[system]\nbrokerId=0\nnumPartitions=1\nunflushThreshold=1000\n"
            f"unflushInterval={2 * HOUR_MS}\nmaxSegmentSize=1000000\nmaxTransferSize=1000\n"
            f"dataPath={tmp_path}/meta\n"
            f"[topic=t]\nunflushInterval={interval}\n"
        )

    path.write_text(text(2 * HOUR_MS))
    config = MetaConfig.from_file(path)
    with MessageStoreManager(config, world=hours.world) as manager:
        store = manager.get_or_create("t", 0)
        store.append(1, b"x")
        path.write_text(text(HOUR_MS))
        os.utime(path, (1, 1))
        assert config.reload()
        assert manager.schedule.flush_intervals() == {HOUR_MS}
        assert store.max_offset == 0
        hours.pass_one(manager)
        until(lambda: store.max_offset == 21, "the flush")


def test_a_topic_that_left_takes_no_new_partitions_and_keeps_its_old(open_manager, config):
    settings = config(topics=("a", "b"), num_partitions=2)
    manager = open_manager(settings)
    store = manager.get_or_create("a", 0)
    settings.topics = {"b": settings.topics["b"]}
    settings._fire("topics")
    assert manager.get_or_create("a", 0) is store
    with pytest.raises(IllegalTopicError):
        manager.get_or_create("a", 1)
    settings.add_topic(TopicConfig.of("new", settings.system))
    manager.get_or_create("new", 0)


def test_delete_jobs_follow_the_topics_schedules(open_manager, config):
    settings = config(topics=("a", "b", "c"))
    settings.add_topic(TopicConfig.of("b", settings.system, delete_when="0 30 3 * * ?"))
    manager = open_manager(settings)
    runs = manager.schedule.next_runs()
    assert set(runs) == {"0 0 6,18 * * ?", "0 30 3 * * ?"}
    assert (runs["0 30 3 * * ?"].hour, runs["0 30 3 * * ?"].minute) == (3, 30)


def test_the_policies_run_topic_by_topic_and_one_failure_stops_no_other(open_manager, monkeypatch):
    manager = open_manager(
        topics=("a", "b"), own={"delete_policy": "delete,1s"}, max_segment_size=50
    )
    stores = [manager.get_or_create(topic, 0) for topic in ("a", "b")]
    for store in stores:
        for i in range(1, 4):
            store.append(i, b"x" * 60)
        for segment in store.segments[:2]:
            os.utime(segment.messages.path, (1000, 1000))
    real = stores[0].run_delete_policy

    def refuse():
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(stores[0], "run_delete_policy", refuse)
    assert len(manager.run_delete_policies()) == 2
    assert (stores[0].min_offset, stores[1].min_offset) == (0, 160)
    monkeypatch.setattr(stores[0], "run_delete_policy", real)
    manager._delete_job("0 0 6,18 * * ?")
    assert stores[0].min_offset == 160


def test_a_cron_job_runs_at_its_time_and_again():
    moment = [datetime(2024, 1, 1, 5, 59, 59).astimezone()]
    world = World(clock_ms=lambda: int(moment[0].timestamp() * 1000))
    ran = threading.Semaphore(0)
    runs = []

    def delete(expression):
        runs.append((expression, moment[0]))
        ran.release()

    schedule = Schedule(lambda _: None, delete, world)
    schedule.set_jobs({"0 0 6 * * ?"})
    schedule.start()
    for _ in range(2):
        moment[0] += timedelta(seconds=1)
        schedule.set_jobs({"0 0 6 * * ?"})
        assert ran.acquire(timeout=TIMEOUT_S)
        moment[0] += timedelta(days=1, seconds=-1)
    schedule.stop()
    assert [run[1].hour for run in runs] == [6, 6]


def test_a_job_that_fails_does_not_end_the_schedule(caplog):
    failed, done = threading.Event(), threading.Event()

    def flush(interval_ms):
        if interval_ms == 1:
            failed.set()
            raise OSError(5, "Input/output error")
        done.set()

    schedule = Schedule(flush, lambda _: None, REAL)
    schedule.start()
    schedule.flush_within(1)
    assert failed.wait(TIMEOUT_S)
    schedule.flush_within(2)
    assert done.wait(TIMEOUT_S)
    schedule.stop()
    assert "Input/output error" in caplog.text


def test_closing_flushes_everything(open_manager):
    manager = open_manager()
    store = manager.get_or_create("t", 0)
    store.append(1, b"x")
    manager.close()
    assert store.max_offset == 21
