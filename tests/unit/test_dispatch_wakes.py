"""A put wakes the dispatcher: who listens hears of it at once, not at the next look."""

import statistics
import threading
import time
from types import SimpleNamespace

import pytest

from rmqcore import open_store
from rmqcore.native.log._tail import LogTail
from rmqcore.services import reput

pytestmark = pytest.mark.engine

SETTINGS = {
    "async": {},
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "pool": {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
}


@pytest.mark.parametrize("how", SETTINGS)
def test_a_put_into_an_idle_store_arrives_at_once(tmp_path, how):
    sizes = {"mapped_file_size_commit_log": 1 << 20, "warm_mapped_file_enable": False}
    with open_store(tmp_path / "s", **SETTINGS[how], **sizes) as store:
        arrived = threading.Event()
        store.on_arrival(lambda *_: arrived.set())
        medians = []
        # what else the machine does may hold some of them up
        while min(medians, default=10) >= 10 and len(medians) < 5:
            late_ms = []
            for _ in range(15):
                time.sleep(0.06)
                arrived.clear()
                began = time.monotonic()
                store.put("T", b"x")
                assert arrived.wait(60)
                late_ms.append(1000 * (time.monotonic() - began))
            medians.append(statistics.median(late_ms))
    # without a wake-up it is half of the 50 ms between two looks
    assert min(medians) < 10, medians


def test_an_idle_store_sleeps(tmp_path):
    with open_store(tmp_path / "s") as store:
        store.put("T", b"x")
        time.sleep(0.1)
        began = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - began < 0.1


def tail():
    made = LogTail("127.0.0.1:10911", 1 << 20)
    made.attach(bytearray(1 << 16), 0, 0)
    made.writable = True
    return made


def put(log):
    log.put("T", b"x", 0, None, None, None, 0, 0, 0, None, None, 0, 0)


def test_who_waits_for_a_put_sees_it_whenever_it_comes():
    log, seen = tail(), []
    assert log.wait_for_put(0, 0.01) is False

    def wait():
        while len(seen) < 200:
            known = seen[-1] if seen else 0
            if log.wait_for_put(known, 5):
                seen.append(log.max_offset)

    waiter = threading.Thread(target=wait)
    waiter.start()
    for number in range(200):
        before = log.max_offset
        put(log)
        end = time.monotonic() + 5
        while not (seen and seen[-1] > before):
            assert time.monotonic() < end, number
    waiter.join(5)
    assert not waiter.is_alive()
    assert log.wait_for_put(0, 0) is True


def test_a_wait_can_be_ended():
    log = tail()
    waiter = threading.Thread(target=log.wait_for_put, args=(0, 30))
    waiter.start()
    end = time.monotonic() + 20
    while waiter.is_alive():
        log.end_wait()
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(("takes_s", "pause_s"), [(0, 0.001), (0.00015, 0.0015), (0.2, 0.002)])
def test_a_round_that_took_long_is_followed_by_a_longer_pause(
    tmp_path, monkeypatch, takes_s, pause_s
):
    now = [1.0]
    with open_store(tmp_path / "s") as store:
        dispatcher = store._reput
        dispatcher.stop()
        monkeypatch.setattr(dispatcher, "_on_progress", lambda _: now.append(now[-1] + takes_s))
        monkeypatch.setattr(reput, "time", SimpleNamespace(monotonic=lambda: now[-1]))
        store.put("T", b"x")
        dispatcher.run_once()
        assert dispatcher.interval_s == pytest.approx(pause_s)
        dispatcher.run_once()
        assert dispatcher.interval_s == 0.05
        monkeypatch.undo()
