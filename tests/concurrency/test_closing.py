"""Closing beside threads that put and read; buffers that outlive their files."""

import gc
import random
import threading

import pytest
from patience import TIMEOUT_S, until

import rmqcore
from rmqcore import GetMessageStatus, StoreClosedError, StoreNotWritableError
from rmqcore.services.retention import CleanReport
from rmqcore.services.runner import Rounds, Threads

pytestmark = pytest.mark.engine

SMALL = {"mapped_file_size_commit_log": 65536, "max_hash_slot_num": 500, "max_index_num": 2000}


@pytest.fixture
def stopped(monkeypatch):
    """Whether each service that was stopped had ended by then; a round may take a minute."""
    ended, stop = [], Threads.stop
    monkeypatch.setattr(
        Threads, "stop", lambda runner, service: ended.append(stop(runner, service, TIMEOUT_S))
    )
    return ended


@pytest.mark.parametrize(("how", "most"), [("ASYNC_FLUSH", 3000), ("SYNC_FLUSH", 100)])
@pytest.mark.parametrize("round_number", range(6))
def test_close_beside_puts_and_gets(store_path, rng, stopped, how, most, round_number):
    store = rmqcore.open_store(store_path, flush_disk_type=how, **SMALL)
    acknowledged, problems = [], []

    def put(mark):
        number = 0
        while True:
            number += 1
            body = b"%d-%d " % (mark, number) * (1 + number % 400)
            try:
                if store.put("T", body, queue_id=mark, keys=f"k{mark}-{number}").ok:
                    acknowledged.append((mark, number))
            except (StoreClosedError, StoreNotWritableError):
                return
            except Exception as error:  # noqa: BLE001 - looked at below
                problems.append(error)
                return

    def get():
        while True:
            try:
                for message in store.get_message("T", 0, 0, max_messages=100).messages:
                    assert message.body[:2] == b"0-"
                store.query_message("T", "k1-1")
            except StoreClosedError:
                return
            except Exception as error:  # noqa: BLE001 - looked at below
                problems.append(error)
                return

    threads = [threading.Thread(target=put, args=(mark,)) for mark in range(4)]
    threads.append(threading.Thread(target=get))
    for thread in threads:
        thread.start()
    wanted = rng.randrange(most)
    until(lambda: problems or len(acknowledged) >= wanted, "as many puts")
    store.close()
    assert stopped
    assert all(stopped)
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert problems == []
    with rmqcore.open_store(store_path) as again:
        assert again.recovery_report.clean_shutdown
        found = set()
        for mark in range(4):
            for message in again.messages("T", mark):
                found.add(tuple(int(n) for n in bytes(message.body).split()[0].split(b"-")))
        assert set(acknowledged) <= found


def test_two_threads_that_close(store_path):
    store = rmqcore.open_store(store_path)
    store.put("T", b"x")
    threads = [threading.Thread(target=store.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert store.why_not_writable() == "the store has been closed"
    rmqcore.open_store(store_path).close()


def test_a_put_that_finds_its_file_full_while_the_store_is_closed_makes_none(
    store_path, monkeypatch
):
    store = rmqcore.open_store(store_path, allocate_ahead=0, **SMALL)
    end = store.put("T", bytes(40_000)).store_size
    writer = store.parts.files.writer
    end_puts = writer.end_puts

    def end_puts_before_one_rolls():
        end_puts()
        writer.roll(0)

    monkeypatch.setattr(writer, "end_puts", end_puts_before_one_rolls)
    store.close()
    assert [path.name for path in (store_path / "commitlog").iterdir()] == [f"{0:020d}"]
    with rmqcore.open_store(store_path) as again:
        assert again.recovery_report.clean_shutdown
        assert again.max_phy_offset == end


def test_what_was_read_outlives_store_files_and_deletion(store_path):
    store = rmqcore.open_store(store_path, **SMALL)
    bodies = [b"%d " % number * 200 for number in range(400)]
    for body in bodies:
        store.put("T", body)
    result = store.get_message("T", 0, 0, max_messages=400)
    slices = result.slices()
    messages = list(store.messages("T", 0))
    views = [memoryview(message.body) for message in messages]
    first, second = store.log.queue.files[:2]
    store.log.queue.remove_first(2)
    assert not first.path.exists()
    assert not second.path.exists()
    store.close()
    for file in (store_path / "commitlog").iterdir():
        file.unlink()
    del store, first, second
    gc.collect()
    assert [bytes(message.body) for message in messages] == bodies
    assert [bytes(message.body) for message in result.messages] == bodies
    assert b"".join(bytes(piece) for piece in slices).count(b"399 ") == 200
    assert [bytes(view) for view in views] == bodies


def test_reads_beside_deletion_and_few_mappings(store_path, rng):
    """Files go while they are read, and mappings are let go while they are used."""
    settings = SMALL | {"max_mapped_files": 8}
    with rmqcore.open_store(store_path, **settings) as store:
        stop, problems = threading.Event(), []

        def read(seed):
            chance = random.Random(seed)
            held = []
            while not stop.is_set():
                try:
                    low = store.min_queue_offset("T", 0)
                    result = store.get_message("T", 0, low + chance.randrange(300))
                    for message in result.messages:
                        number = int(bytes(message.body[:8]))
                        assert message.queue_offset == number
                        held.append((number, message))
                    if result.status is GetMessageStatus.FOUND and low < result.min_queue_offset:
                        continue
                    held = held[-200:]
                    for number, message in held:
                        assert int(bytes(message.body[:8])) == number
                except Exception as error:  # noqa: BLE001 - looked at below
                    problems.append(error)
                    return

        threads = [threading.Thread(target=read, args=(rng.random(),)) for _ in range(3)]
        for number in range(200):
            store.put("T", b"%08d" % number + b"x" * 1000)
        for thread in threads:
            thread.start()
        for number in range(200, 3000):
            store.put("T", b"%08d" % number + b"x" * 1000)
            if number % 150 == 0:
                store.flush()
                store.log.queue.remove_first(len(store.log.queue.files) - 4)
                store.consume_queues.delete_before(store.log.min_offset)
        stop.set()
        for thread in threads:
            thread.join(TIMEOUT_S)
        assert problems == []


@pytest.fixture
def await_rounds(monkeypatch):
    """`await_rounds(store)`: until each service is in the middle of a round, or has begun one."""
    begun, inside, one = set(), set(), Rounds.one

    def watched(rounds, now):
        begun.add(rounds.service)
        inside.add(rounds.service)
        try:
            return one(rounds, now)
        finally:
            inside.discard(rounds.service)

    def await_all(store):
        begun.clear()
        running = {service for service in store.parts.upkeep.services if service.active}
        for service in running:
            service.wakeup()
        until(lambda: running <= begun | inside, "a round of each service")

    monkeypatch.setattr(Rounds, "one", watched)
    return await_all


def close_inside(store, await_rounds):
    """Close as a signal handler does that interrupts this place; services wait for it."""
    other = threading.Thread(target=store.put, args=("T", b"meanwhile"))
    other.start()
    other.join(TIMEOUT_S)
    await_rounds(store)
    store.close()


def check_clean(store_path, stopped):
    assert stopped
    assert all(stopped)
    with rmqcore.open_store(store_path) as again:
        assert again.recovery_report.clean_shutdown


def test_a_close_inside_the_counters_waits_for_no_service(store_path, stopped, await_rounds):
    store = rmqcore.open_store(store_path, **SMALL)
    taken = []

    class Count(int):
        def __add__(self, more):
            taken.append(close_inside(store, await_rounds))
            return int(self) + more

    store.parts.stats._put_failed_count = Count()
    store.parts.stats.put_failed()
    assert taken
    store.close()
    check_clean(store_path, stopped)


def test_a_close_inside_retention_waits_for_no_service(
    store_path, monkeypatch, stopped, await_rounds
):
    store = rmqcore.open_store(store_path, retention=True, **SMALL)
    clean_log, taken = store.parts.upkeep.retention.clean_log, []

    def run_once(now_ms):
        if not taken:
            taken.append(True)
            close_inside(store, await_rounds)
        return CleanReport(())

    monkeypatch.setattr(clean_log, "run_once", run_once)
    store.parts.upkeep.retention.run(0.0)
    assert taken
    store.close()
    check_clean(store_path, stopped)
