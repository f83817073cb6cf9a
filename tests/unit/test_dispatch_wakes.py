"""A put wakes the dispatcher: who listens hears of it at once, not at the next look."""

import queue
import statistics
import threading
import time

import pytest
from held_time import HeldTime
from patience import TIMEOUT_S, rounds, until

from rmqcore import Message, open_store
from rmqcore.errors import DiskFullError
from rmqcore.native.log._tail import LogTail
from rmqcore.services import reput

pytestmark = pytest.mark.engine

SETTINGS = {
    "async": {},
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "pool": {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
}


SIZES = {"mapped_file_size_commit_log": 1 << 20, "warm_mapped_file_enable": False}


@pytest.mark.parametrize("how", SETTINGS)
def test_a_put_into_an_idle_store_wakes_the_dispatcher(tmp_path, monkeypatch, how):
    monkeypatch.setattr(reput, "_IDLE_INTERVAL_S", 600.0)
    rests, run = [], reput.ReputMessageService.run

    def noted(dispatcher, now):
        rests.append(run(dispatcher, now))
        return rests[-1]

    monkeypatch.setattr(reput.ReputMessageService, "run", noted)
    with open_store(tmp_path / "s", **SETTINGS[how], **SIZES) as store:
        arrived, dispatcher = threading.Event(), store.parts.log_services.reput
        store.on_arrival(lambda *_: arrived.set())
        for _ in range(15):
            until(lambda: rests[-1:] == [600], "the dispatcher has nothing to do")
            arrived.clear()
            store.put("T", b"x")
            assert arrived.wait(TIMEOUT_S)
        # a stop just before the thread sleeps does not wake it
        until(lambda: store.parts.upkeep.runner.stop(dispatcher, 0), "the dispatcher ends")


def test_no_put_wakes_a_dispatcher_that_finds_the_disk_full(tmp_path):
    """Else its rounds would have no pause at all: the log has what is not dispatched."""
    held, rounds_s, full = HeldTime(), [], [True]
    with open_store(tmp_path / "s", **SIZES) as store:
        dispatcher = store.parts.log_services.reput
        assert store.parts.upkeep.runner.stop(dispatcher)

        def run(now, really=dispatcher.run):
            rounds_s.append(now)
            if full:
                raise DiskFullError(tmp_path)
            return really(now)

        dispatcher.run = run
        held.services.start(dispatcher, pytest.fail)
        store.put("T", b"x")
        held.services.advance(2.0)
        assert dispatcher.woken
        assert rounds_s == [0.0, 1.0, 2.0]
        full.clear()
        held.services.advance(1.0)
        assert dispatcher.offset == store.max_phy_offset
        assert held.services.stop(dispatcher)


@pytest.mark.measure
@pytest.mark.parametrize("how", SETTINGS)
def test_a_put_into_an_idle_store_arrives_at_once(tmp_path, figure, how):
    with open_store(tmp_path / "s", **SETTINGS[how], **SIZES) as store:
        arrived = threading.Event()
        store.on_arrival(lambda *_: arrived.set())
        medians = []
        for _ in range(5):
            late_ms = []
            for _ in range(15):
                until(lambda: store.parts.log_services.reput.behind == 0, "all is dispatched")
                time.sleep(0.01)
                arrived.clear()
                began = time.monotonic()
                store.put("T", b"x")
                assert arrived.wait(TIMEOUT_S)
                late_ms.append(1000 * (time.monotonic() - began))
            medians.append(statistics.median(late_ms))
    # without a wake-up it is half of the second between two looks
    figure("median of 15, best of 5", min(medians), "ms", at_most=10)


def test_an_idle_store_rests_between_its_rounds(tmp_path):
    with open_store(tmp_path / "s") as store:
        store.put("T", b"x")
        until(lambda: store.parts.log_services.reput.behind == 0, "the put is dispatched")
        for service in store.parts.upkeep.services:
            rounds(service, 2)
            assert service.run(time.monotonic()) >= 0.05, service.name


@pytest.mark.measure
def test_an_idle_store_sleeps(tmp_path, figure):
    with open_store(tmp_path / "s") as store:
        store.put("T", b"x")
        time.sleep(0.1)
        began = time.process_time()
        time.sleep(0.5)
        figure("processor time in half a second", time.process_time() - began, "s", at_most=0.1)


def tail():
    made = LogTail("127.0.0.1:10911", 1 << 20)
    made.attach(bytearray(1 << 16), 0, 0)
    made.writable = True
    return made


def put(log):
    log.put_message(Message("T", b"x"))


def test_who_waits_for_a_put_sees_it_whenever_it_comes():
    log, seen = tail(), queue.SimpleQueue()
    assert log.wait_for_put(0, 0.01) is False

    def wait():
        known = 0
        for _ in range(200):
            while not log.wait_for_put(known, TIMEOUT_S):
                pass
            known = log.max_offset
            seen.put(known)

    waiter = threading.Thread(target=wait)
    waiter.start()
    for _ in range(200):
        put(log)
        assert seen.get(timeout=TIMEOUT_S) == log.max_offset
    waiter.join()
    assert log.wait_for_put(0, 0) is True


def test_a_wait_can_be_ended():
    log = tail()
    waiter = threading.Thread(target=log.wait_for_put, args=(0, 600), daemon=True)
    waiter.start()
    until(lambda: log.end_wait() or not waiter.is_alive(), "the wait ends")


def test_a_wait_that_is_about_to_begin_is_ended_too():
    log = tail()
    log.end_wait()
    waiter = threading.Thread(target=log.wait_for_put, args=(0, 600), daemon=True)
    waiter.start()
    until(lambda: not waiter.is_alive(), "the wait ends")
    put(log)
    assert log.wait_for_put(0, 0) is True
    assert log.wait_for_put(log.max_offset, 0.01) is False


@pytest.mark.parametrize(("takes_s", "pause_s"), [(0, 0.001), (0.00015, 0.0015), (0.2, 0.002)])
def test_a_round_that_took_long_is_followed_by_a_longer_pause(
    tmp_path, monkeypatch, takes_s, pause_s
):
    now = [1.0]
    with open_store(tmp_path / "s") as store:
        dispatcher = store.parts.log_services.reput
        store.parts.upkeep.runner.stop(dispatcher)
        monkeypatch.setattr(dispatcher, "_on_progress", lambda _: now.append(now[-1] + takes_s))
        monkeypatch.setattr(dispatcher, "_monotonic_s", lambda: now[-1])
        store.put("T", b"x")
        assert dispatcher.run(now[-1]) == pytest.approx(pause_s)
        assert dispatcher.run(now[-1]) == 1.0
        monkeypatch.undo()
