"""StoreStatsService: counters, rates over windows, sampled latencies, RocketMQ's names."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rmqcore import Message, open_store
from rmqcore.services.store_stats import StoreStatsService

pytestmark = pytest.mark.logic

RUNTIME_INFO = {
    "bootTimestamp",
    "runtime",
    "putMessageEntireTimeMax",
    "putMessageTimesTotal",
    "putMessageFailedTimes",
    "putMessageSizeTotal",
    "putMessageDistributeTime",
    "putMessageAverageSize",
    "dispatchMaxBuffer",
    "putTps",
    "getFoundTps",
    "getMissTps",
    "getTotalTps",
    "getTransferredTps",
    "putLatency99",
    "putLatency999",
}


class World:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.put_count = 0
        self.put_size = 0
        self.get_counts = (0, 0, 0)
        self.stats = StoreStatsService(
            clock=lambda: self.now_ms,
            put_counts=lambda: (self.put_count, self.put_size),
            get_counts=lambda: self.get_counts,
        )

    def pass_seconds(self, seconds: int, puts_a_second: int = 0, size: int = 100) -> None:
        for _ in range(seconds):
            self.now_ms += 1000
            self.put_count += puts_a_second
            self.put_size += puts_a_second * size
            self.stats.run_once(self.now_ms)

    def rates(self, name: str) -> list[float]:
        return [float(rate) for rate in self.stats.runtime_info()[name].split()]


@pytest.fixture
def world() -> World:
    return World()


def test_the_names_are_rocketmqs(world):
    info = world.stats.runtime_info()
    assert set(info) == RUNTIME_INFO
    assert info["bootTimestamp"] == "1700000000000"
    assert info["putMessageTimesTotal"] == "1"
    assert info["putMessageAverageSize"] == "0.0"
    assert info["putTps"] == "0.0 0.0 0.0"
    assert info["putLatency99"] == "0.00"


def test_rates_are_those_of_their_windows(world):
    world.pass_seconds(600, puts_a_second=10)
    world.pass_seconds(50, puts_a_second=100)
    world.pass_seconds(10, puts_a_second=1000)
    ten, sixty, six_hundred = world.rates("putTps")
    assert ten == 1000
    assert sixty == 250
    assert six_hundred == (540 * 10 + 50 * 100 + 10 * 1000) / 600


def test_before_a_window_is_full_the_rate_is_over_what_there_is(world):
    world.pass_seconds(4, puts_a_second=50)
    assert world.rates("putTps") == [50, 50, 50]


def test_a_clock_that_steps_back_makes_no_rate(world):
    world.pass_seconds(3, puts_a_second=50)
    world.now_ms -= 100_000
    assert world.rates("putTps") == [0, 0, 0]


def test_samples_are_a_second_apart(world):
    for _ in range(100):
        world.now_ms += 10
        world.stats.run_once(world.now_ms)
    assert len(world.stats._snapshots) == 2


def test_puts_are_the_tails(world):
    world.pass_seconds(1, puts_a_second=4, size=250)
    info = world.stats.runtime_info()
    assert info["putMessageTimesTotal"] == "4"
    assert info["putMessageSizeTotal"] == "1000"
    assert info["putMessageAverageSize"] == "250.0"


def test_gets_and_failures_are_counted(world):
    world.get_counts = (1, 1, 3)
    world.stats.put_failed()
    world.stats.dispatch_lagged(500)
    world.stats.dispatch_lagged(100)
    world.pass_seconds(1)
    info = world.stats.runtime_info()
    assert world.rates("getFoundTps")[0] == 1
    assert world.rates("getMissTps")[0] == 1
    assert world.rates("getTotalTps")[0] == 2
    assert world.rates("getTransferredTps")[0] == 3
    assert info["putMessageFailedTimes"] == "1"
    assert info["dispatchMaxBuffer"] == "500"


def test_quantiles_of_the_samples(world):
    for elapsed_ms in range(1, 1001):
        world.stats.put_took(float(elapsed_ms))
    info = world.stats.runtime_info()
    assert info["putLatency99"] == "991.00"
    assert info["putLatency999"] == "1000.00"
    assert info["putMessageEntireTimeMax"] == "1000"


def test_only_the_last_samples_are_kept(world):
    for _ in range(5000):
        world.stats.put_took(1.0)
    for _ in range(4096):
        world.stats.put_took(50.0)
    parts = world.stats.runtime_info()["putMessageDistributeTime"].split()
    assert [part for part in parts if not part.endswith(":0")] == ["[50~100ms]:4096"]


@pytest.mark.parametrize(
    ("elapsed_ms", "bucket"),
    [
        (0.0, "[<=0ms]"),
        (0.4, "[<=0ms]"),
        (1.0, "[0~10ms]"),
        (9.9, "[0~10ms]"),
        (10.0, "[10~50ms]"),
        (499.0, "[200~500ms]"),
        (500.0, "[500ms~1s]"),
        (4999.0, "[4~5s]"),
        (9999.0, "[5~10s]"),
        (10_000.0, "[10s~]"),
    ],
)
def test_buckets_of_the_distribution(world, elapsed_ms, bucket):
    world.stats.put_took(elapsed_ms)
    parts = world.stats.runtime_info()["putMessageDistributeTime"].split()
    assert len(parts) == 13
    assert [part for part in parts if not part.endswith(":0")] == [f"{bucket}:1"]


def test_the_runtime_in_words(world):
    world.now_ms += ((2 * 24 + 3) * 3600 + 4 * 60 + 5) * 1000
    assert world.stats.runtime_info()["runtime"] == "[ 2 days, 3 hours, 4 minutes, 5 seconds ]"


@pytest.mark.engine
def test_threads_do_not_lose_counts(world):
    def work() -> None:
        for _ in range(2000):
            world.stats.put_failed()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.stats.runtime_info()["putMessageFailedTimes"] == "8000"


@pytest.mark.engine
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"flush_disk_type": "SYNC_FLUSH"},
        {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
    ],
    ids=["ASYNC_FLUSH", "SYNC_FLUSH", "pool"],
)
def test_puts_are_timed_in_every_mode(tmp_path, settings):
    def timed(store):
        told = store.stats()["putMessageDistributeTime"]
        return sum(int(part.rpartition(":")[2]) for part in told.split())

    async def put_later(store):
        for _ in range(65):
            await store.put_async("T", b"x")

    with open_store(tmp_path / "s", mapped_file_size_commit_log=1 << 20, **settings) as store:
        store.put("T", b"x")
        assert timed(store) == 1
        asyncio.run(put_later(store))
        assert timed(store) > 1
        seen = timed(store)
        for _ in range(64):
            store.put_messages([Message("T", b"x"), Message("T", b"y")])
        assert timed(store) > seen
