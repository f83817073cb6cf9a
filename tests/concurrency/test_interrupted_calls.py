"""Ctrl-C, or a time limit's exception, at each place of a call: what follows finds all in order."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from queue import Empty

import pyarrow as pa
import pytest
from held_time import HeldTime
from interrupts import Interrupt, Interrupted, each_interrupt
from patience import TIMEOUT_S, until

import rmqcore
from rmqcore.adapters.queuelib import FifoQueue, LifoQueue
from rmqcore.config import StoreConfig
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.sharing import queue as queue_module
from rmqcore.store.sharing import shared_handle

pytestmark = pytest.mark.engine

SIZES = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 16,
    "max_index_num": 64,
    "allocate_ahead": 0,
}


@pytest.fixture
def paths(tmp_path):
    """`paths(interrupt)`: a directory of its own for each interrupt."""
    # the many collections of these tests look at what they make alone
    gc.collect()
    gc.freeze()
    return lambda interrupt: tmp_path / str(interrupt.left)


def open_events():
    """How many files of this process are those by which threads wake one another."""
    count = 0
    for number in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += "eventfd" in str(number.readlink())
    return count


def open_store(path, **settings):
    return rmqcore.open_store(path, **SIZES, **settings)


def change_keys(store):
    store.kv_put("t", b"new", b"1")
    store.kv_swap("t", b"05", b"v", b"w")
    store.kv_take("t", first=b"08", last=b"10")
    store.kv_put("t", b"11", None)


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_tables_of_keys_are_what_the_log_says(paths, flush_disk_type):
    for interrupt in each_interrupt(5):
        path = paths(interrupt)
        with open_store(path, flush_disk_type=flush_disk_type) as store:
            for number in range(12):
                store.kv_put("t", b"%02d" % number, b"v")
            interrupt.during(lambda store=store: change_keys(store))
            there, count = store.kv_list("t"), store.kv_count("t")
        with open_store(path) as store:
            assert store.kv_list("t") == there, interrupt.at
        assert len(there) == count


def test_a_handler_changes_no_table_that_is_being_changed(store_path):
    with open_store(store_path) as store:
        store.kv_get("t", [b"lock"])
        told, refused = [], 0

        def handler():
            nonlocal refused
            try:
                told.append(store.kv_swap("t", b"lock", None, b"handler"))
            except rmqcore.StoreNotWritableError:
                refused += 1

        for number in range(1, 200):
            interrupt = Interrupt(number, handler)
            told.append(
                interrupt.during(lambda: store.kv_swap("t", b"lock", None, b"main")),
            )
            assert told.count(True) == 1, interrupt.at
            told.clear()
            store.kv_put("t", b"lock", None)
            if not interrupt.at:
                break
        assert refused > 20


def test_a_topic_is_as_it_was_or_gone(paths):
    for interrupt in each_interrupt(23):
        path = paths(interrupt)
        with open_store(path) as store:
            for number in range(6):
                store.put("T", b"old", queue_id=number % 2)
                store.put("U", b"u")
            store.lease("g", {"T": "*"}, max_messages=3)
            interrupt.during(lambda store=store: store.delete_topic("T"))
            store.put("T", b"new")
            there = [bytes(message.body) for message in store.messages("T", 0)]
            assert there[-1:] == [b"new"], interrupt.at
            others = len(list(store.messages("U", 0)))
        with open_store(path) as store:
            assert [bytes(message.body) for message in store.messages("T", 0)] == there
            store.delete_topic("T")
            store.put("T", b"newer")
            leased = store.lease("g", {"T": "*"}, max_messages=9)
            assert [bytes(message.body) for message in leased] == [b"newer"], interrupt.at
        assert others == 6


def test_consumers_get_what_was_interrupted(paths):
    for interrupt in each_interrupt(13):
        with open_store(paths(interrupt)) as store:
            for number in range(6):
                store.put("T", b"%d" % number, queue_id=number % 2)
            got = interrupt.during(lambda store=store: store.lease("g", {"T": "*"}, lease_ms=1))
            seen = {bytes(message.body) for message in got or ()}
            while len(seen) < 6:
                found = store.lease("g", {"T": "*"}, lease_ms=1, timeout_ms=1000 * TIMEOUT_S)
                assert found, interrupt.at
                seen |= {bytes(message.body) for message in found}


def test_two_queues_are_never_one_in_the_journal(paths, tmp_path):
    for interrupt in each_interrupt(1, ["lease_table.py"]):
        killed = tmp_path / "killed"
        with open_store(paths(interrupt)) as store:
            for topic in ("T", "U"):
                store.put(topic, b"x")
            store.lag("g", ["T", "U"])
            interrupt.during(lambda store=store: store.lease("g", {"T": "*"}, lease_ms=1))
            assert len(store.lease("g", {"U": "*"}, lease_ms=1)) == 1
            shutil.copytree(store.path, killed)
        with open_store(killed) as store:
            for topic in ("T", "U"):
                found = store.lease("g", {topic: "*"}, timeout_ms=1000 * TIMEOUT_S)
                assert len(found) == 1, interrupt.at
        shutil.rmtree(killed)


def test_what_an_interrupted_lease_had_begun_with_is_not_done_with_behind_a_kill(paths, tmp_path):
    """The journal takes what lies in front of a later lease for done with."""
    for interrupt in each_interrupt(1, ["leases.py", "lease_queue.py", "lease_table.py"]):
        killed = tmp_path / "killed"
        with open_store(paths(interrupt)) as store:
            for number in range(5):
                store.put("T", b"%d" % number)
            (first,) = store.lease("g", {"T": "*"}, max_messages=1)
            store.give_back("g", [first.place], delay_ms=0)
            terms = {"max_messages": 3, "lease_ms": 3_600_000}
            interrupt.during(lambda store=store, terms=terms: store.lease("g", {"T": "*"}, **terms))
            store.lease("g", {"T": "*"}, max_messages=2, lease_ms=3_600_000)
            shutil.copytree(store.path, killed)
        with open_store(killed) as store:
            found = store.lease("g", {"T": "*"}, max_messages=9)
            assert {bytes(one.body) for one in found} == {b"%d" % n for n in range(5)}, interrupt.at
        shutil.rmtree(killed)


def test_what_is_acknowledged_of_a_topic_made_anew_counts(paths):
    for interrupt in each_interrupt(1, ["lease_table.py"]):
        with open_store(paths(interrupt)) as store:
            store.put("T", b"old")
            store.lease("g", {"T": "*"})
            interrupt.during(lambda store=store: store.delete_topic("T"))
            store.put("T", b"new")
            found = store.lease("g", {"T": "*"})
            assert found[-1].body == b"new", interrupt.at
            places = [message.place for message in found]
            assert store.acknowledge("g", places) == len(places), interrupt.at


def test_dead_letters_that_were_interrupted_are_put_when_they_come_again(paths):
    for interrupt in each_interrupt(3, ["leases.py", "retry.py", "lease_table.py"]):
        with open_store(paths(interrupt), deliver_delayed=True) as store:
            for number in range(3):
                store.put("T", b"%d" % number)
            with rmqcore.Consumer(store, "g", {"T": "*"}, max_reconsume_times=0) as consumer:
                given = consumer.receive(3)
                interrupt.during(lambda given=given, consumer=consumer: consumer.nack(*given))
                # at once: what is on its way to another topic would be nobody's for a minute
                consumer.nack(*given)
                consumer.receive(3, timeout_ms=0)
            dead = {bytes(message.body) for message in store.messages("%DLQ%g", 0)}
        assert dead == {b"0", b"1", b"2"}, interrupt.at


def test_named_queues_are_what_the_store_says(paths):
    for interrupt in each_interrupt(2, ["named_queue.py", "named_queues.py"]):
        path = paths(interrupt)
        fifo, lifo = (kind(path / kind.__name__, store=path) for kind in (FifoQueue, LifoQueue))

        def change(fifo=fifo, lifo=lifo):
            for queue in (fifo, lifo):
                queue.push(b"4")
                queue.pop()

        for number in range(4):
            fifo.push(b"%d" % number)
            lifo.push(b"%d" % number)
        interrupt.during(change)
        first = [fifo.pop() for _ in range(len(fifo))]
        last = [lifo.pop() for _ in range(len(lifo))]
        assert (fifo.pop(), lifo.pop()) == (None, None), interrupt.at
        assert first == sorted(set(first)), interrupt.at
        assert last == sorted(set(last), reverse=True), interrupt.at
        assert b"3" in first
        assert b"0" in last
        fifo.close()
        lifo.close()


@pytest.mark.filterwarnings("ignore")  # what is left open is closed by the collector
def test_a_store_that_was_not_opened_is_nobodys(paths):
    for interrupt in each_interrupt(7, ["store_dir.py", "store_trace.py"]):
        path = paths(interrupt)
        open_store(path).close()
        opened = []
        interrupt.during(lambda path=path, opened=opened: opened.append(open_store(path)))
        for store in opened:
            store.close()
        del opened
        gc.collect()
        open_store(path).close()


def test_a_shared_store_that_was_not_closed_can_be_closed(paths):
    for interrupt in each_interrupt(53):
        path = paths(interrupt)
        store = rmqcore.open_shared(path, **SIZES)
        store.put("T", b"x")
        interrupt.during(store.close)
        store.close()
        with open_store(path) as again:
            assert len(list(again.messages("T", 0))) == 1, interrupt.at


@pytest.mark.filterwarnings("ignore")  # what is left open is closed by the collector
def test_a_shared_store_whose_opening_was_interrupted_can_be_opened(paths):
    for interrupt in each_interrupt(11, ["shared_handle.py", "owner.py", "place.py"]):
        path, opened = paths(interrupt), []
        interrupt.during(
            lambda path=path, opened=opened: opened.append(rmqcore.open_shared(path, **SIZES))
        )
        for store in opened:
            store.close()
        del opened
        gc.collect()
        with rmqcore.open_shared(path, **SIZES) as store:
            assert store.put("T", b"x").ok, interrupt.at


@pytest.mark.filterwarnings("ignore")
def test_a_take_over_that_was_interrupted_is_made_by_the_next_call(paths, monkeypatch):
    # only calls take over
    monkeypatch.setattr(shared_handle, "watch_owner", lambda *_: None)
    for interrupt in each_interrupt(5, ["shared_handle.py", "owner.py", "place.py"]):
        path = paths(interrupt)
        owner = rmqcore.open_shared(path, **SIZES)
        with rmqcore.open_shared(path, **SIZES) as store:
            owner.close()
            interrupt.during(lambda store=store: store.put("T", b"x"))
            assert store.put("T", b"x").ok, interrupt.at
            assert store.owner == os.getpid()


@pytest.mark.filterwarnings("ignore")  # what is left open is closed by the collector
def test_an_interrupted_connection_frees_nothing_that_its_client_has(store_path, monkeypatch):
    # only calls connect
    monkeypatch.setattr(shared_handle, "watch_owner", lambda *_: None)
    with (
        rmqcore.open_shared(store_path, **SIZES) as owner,
        rmqcore.open_shared(store_path) as client,
    ):
        client.put("T", b"x")
        # of whom somebody has reached, not before
        connections = owner._server._server
        client.lease("g", {"T": "*"}, lease_ms=3_600_000)
        for interrupt in each_interrupt(2, ["shared_handle.py", "channel.py"]):
            client.reach_owner().lose()
            interrupt.during(client.reach_owner)
            client.stats()
            until(lambda: len(connections.connections) == 1, "the end of the others")
            (lag,) = client.lag("g", ["T"])
            assert (lag.ready, lag.leased) == (0, 1), interrupt.at
        # each keeps a connection until it has begun
        watches = [one for one in threading.enumerate() if one.name == "WatchOwner"]
        for watch in watches:
            watch.join(TIMEOUT_S)
        gc.collect()


def test_what_an_interrupted_lease_of_a_client_was_given_comes_again_at_once(store_path):
    terms = {"lease_ms": 3_600_000, "max_reconsume_times": 1 << 30}
    with (
        rmqcore.open_shared(store_path, **SIZES) as owner,
        rmqcore.open_shared(store_path) as client,
    ):
        client.put("T", b"x")
        for interrupt in each_interrupt(2, ["channel.py", "calls.py", "values.py"]):
            got = interrupt.during(lambda: client.lease("g", {"T": "*"}, **terms))
            if got is None:
                got = owner.lease("g", {"T": "*"}, timeout_ms=1000 * TIMEOUT_S, **terms)
            assert len(got) == 1, interrupt.at
            places = [each.place for each in got]
            owner.give_back("g", places, delay_ms=0, max_reconsume_times=1 << 30)


@pytest.mark.filterwarnings("ignore")
def test_a_clients_handle_that_was_interrupted_and_dropped_keeps_nothing_open(store_path):
    def open_and_close():
        with rmqcore.open_shared(store_path):
            pass

    def none_left():
        # a thread that watches may have had the handle a moment ago
        gc.collect()
        return open_events() == before

    with rmqcore.open_shared(store_path, **SIZES):
        before = open_events()
        for interrupt in each_interrupt(1, ["shared_handle.py"]):
            interrupt.during(open_and_close)
            until(none_left, f"none left by an interrupt at {interrupt.at}")


def test_an_item_of_a_queue_is_done_with_when_it_is_said_again_or_left(tmp_path):
    with rmqcore.Queue(tmp_path / "q") as queue:
        for number, interrupt in enumerate(each_interrupt(1, ["queue.py", "leases.py"])):
            queue.put("first")
            queue.put("second")
            assert queue.get() == "first"
            interrupt.during(queue.done)
            if interrupt.at and number % 2:
                queue.done()
            second, left = queue.get(), queue.unfinished()
            # the first one, too, when the interrupt came before anything was said of it
            for _ in range(left):
                queue.done()
            assert (second, queue.unfinished()) == ("second", 0), interrupt.at
            with pytest.raises(ValueError, match="left to be settled"):
                queue.done(second)


def test_no_other_item_is_taken_for_one_that_is_said_again_to_be_done_with(tmp_path):
    with rmqcore.Queue(tmp_path / "q") as queue:
        for interrupt in each_interrupt(1, ["queue.py", "leases.py"]):
            queue.put("first")
            queue.put("second")
            assert [queue.get(), queue.get()] == ["first", "second"]
            interrupt.during(queue.done)
            if interrupt.at:
                queue.done()
            assert queue.unfinished() == 1, interrupt.at
            queue.nack(delay_s=0)
            assert queue.get() == "second", interrupt.at
            queue.done()


#: files that an item goes through on its way to who gets it
WAYS_OF_A_GET = ("queue.py", "consumer.py", "consuming.py", "shared_handle.py", "calls.py")


@pytest.mark.parametrize("role", ["owner", "client"])
def test_an_item_that_an_interrupted_get_was_given_is_handed_out_by_a_next_one(tmp_path, role):
    owns = rmqcore.open_shared(tmp_path / "q") if role == "client" else nullcontext()
    with owns, rmqcore.Queue(tmp_path / "q") as queue:
        for interrupt in each_interrupt(1, WAYS_OF_A_GET):
            queue.put("held")
            assert queue.get() == "held"
            queue.put("item")
            given = interrupt.during(queue.get)
            assert (given is None) == bool(interrupt.at)
            queue.done()
            if interrupt.at:
                assert queue.get(block=False) == "item", interrupt.at
            queue.done()
            assert queue.unfinished() == 0, interrupt.at


def test_what_an_interrupted_get_was_given_waits_for_nobody_who_holds_nothing(tmp_path):
    with rmqcore.Queue(tmp_path / "q") as queue, rmqcore.Queue(tmp_path / "q") as other:
        for interrupt in each_interrupt(3, ["queue.py", "consumer.py"]):
            queue.put("item")
            if interrupt.during(queue.get) is not None:
                queue.done()
            queue.put("next")
            assert queue.get(block=False) == ("item" if interrupt.at else "next"), interrupt.at
            queue.done()
            if interrupt.at:
                assert other.get(block=False) == "next", interrupt.at
                other.done()
            assert queue.unfinished() == 0, interrupt.at


def test_what_could_neither_be_read_nor_given_back_comes_when_there_is_room(tmp_path, monkeypatch):
    with rmqcore.Queue(tmp_path / "q") as queue:
        queue.store.put("queue", b"no JSON")

        def full(*_, **__):
            raise rmqcore.DiskFullError("no room")

        with monkeypatch.context() as patch:
            for name in ("give_back", "release_leases"):
                patch.setattr(queue.store, name, full, raising=False)
            with pytest.raises(rmqcore.DiskFullError):
                queue.get(block=False)
            with pytest.raises(Empty):
                queue.get(block=False)
        with pytest.raises(rmqcore.ArgumentError):
            queue.get(block=False)


def test_a_signal_handler_gets_and_is_done_in_the_middle_of_a_call(tmp_path):
    with rmqcore.Queue(tmp_path / "q") as queue:

        def one():
            with suppress(Empty, rmqcore.StoreNotWritableError):
                queue.done(queue.get(block=False))

        interrupt, number = None, 0
        while interrupt is None or interrupt.at:
            number += 1
            interrupt = Interrupt(number, one, files=["queue.py"])
            queue.put("first")
            queue.put("second")
            interrupt.during(one)
            while not queue.empty():
                one()
            assert queue.unfinished() == 0, interrupt.at


class InterruptedOnce:
    """JSON, whose first item is interrupted while it is read."""

    dumps = staticmethod(json.dumps)

    def __init__(self):
        self.read = 0

    def loads(self, data):
        self.read += 1
        if self.read == 1:
            raise Interrupted
        return json.loads(data)


def test_an_item_that_an_interrupted_get_was_given_comes_to_a_thread_that_waits(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(queue_module, "_WAIT_MS", 1.0)
    queue = rmqcore.Queue(tmp_path / "q", serializer=InterruptedOnce())
    with queue, ThreadPoolExecutor(2) as threads:
        gets = [threads.submit(queue.get, timeout=TIMEOUT_S) for _ in range(2)]
        until(lambda: len(queue._gettings) == 2, "both to wait")
        queue.put("item")
        ended = [(get.exception(), get.exception() or get.result()) for get in gets]
        assert sorted(type(error) is Interrupted for error, _ in ended) == [False, True]
        assert "item" in [each for _, each in ended]


def test_nothing_acknowledged_comes_again_after_an_interrupted_acknowledgement(paths):
    for interrupt in each_interrupt(files=["lease_table.py", "leases.py", "lease_queue.py"]):
        path = paths(interrupt)
        with open_store(path) as store:
            for number in range(3):
                store.put("T", b"%d" % number)
            first, *others = store.lease("g", {"T": "*"}, max_messages=3)
            store.acknowledge("g", [each.place for each in others])
            interrupt.during(lambda store=store, first=first: store.acknowledge("g", [first.place]))
        with open_store(path) as store:
            left = store.lease("g", {"T": "*"}, max_messages=3)
            assert {each.body for each in left} <= {b"0"}, interrupt.at


@pytest.mark.parametrize("kind", [FifoQueue, LifoQueue])
def test_what_is_popped_after_an_interrupted_push_that_waits_for_the_disk_is_gone(paths, kind):
    for interrupt in each_interrupt(3):
        path = paths(interrupt)
        queue = kind(path, durability="disk")
        for body in (b"a", b"b"):
            queue.push(body)
        interrupt.during(lambda queue=queue: queue.push(b"c"))
        popped, left = queue.pop(), len(queue)
        queue.close()
        queue = kind(path, durability="disk")
        assert len(queue) == left, interrupt.at
        assert popped not in [queue.pop() for _ in range(left)], interrupt.at
        queue.close()


BATCH = [rmqcore.Message("T", b"1"), rmqcore.Message("T", b"2")]
#: No flush comes by itself.
ASKED_FLUSHES = {
    "flush_disk_type": "SYNC_FLUSH",
    "flush_commit_log_thorough_interval_ms": 3_600_000,
}
TABLE = pa.table({"topic": ["T", "T"], "body": pa.array([b"1", b"2"])})
PUTS = {
    "batch": lambda store: store.put_messages(BATCH),
    "general": lambda store: store.put_message(BATCH[0], durability="disk"),
    "table": lambda store: store.put_columns(TABLE),
}


@pytest.mark.parametrize("put", PUTS)
def test_what_a_put_left_that_was_interrupted_before_its_wait_for_the_disk_is_read(paths, put):
    appended = 0
    for interrupt in each_interrupt(1, ["writing.py", "column_writing.py", "confirmation.py"]):
        with open_store(paths(interrupt), **ASKED_FLUSHES) as store:
            interrupt.during(lambda store=store: PUTS[put](store))
            count = store.parts.files.tail.next_queue_offset("T", 0)
            assert store.max_queue_offset("T", 0) == count, interrupt.at
            appended += count > 0
    assert appended > 1


async def cancel_while_it_waits_for_a_thread(coroutine):
    others, loop = threading.Event(), asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool:
        loop.set_default_executor(pool)
        pool.submit(others.wait)
        cancelled = asyncio.ensure_future(coroutine)
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        others.set()


@pytest.mark.parametrize(
    "put",
    [lambda store: store.put_messages_async(BATCH), lambda store: store.put_columns_async(TABLE)],
    ids=["batch", "table"],
)
def test_a_put_whose_coroutine_is_cancelled_is_stored_and_flushed(store_path, put):
    with open_store(store_path, **ASKED_FLUSHES) as store:
        asyncio.run(cancel_while_it_waits_for_a_thread(put(store)))
        until(lambda: store.max_queue_offset("T", 0) == 2, "the messages")


def test_a_close_whose_coroutine_is_cancelled_is_made(store_path):
    store = open_store(store_path)
    asyncio.run(cancel_while_it_waits_for_a_thread(store.__aexit__()))
    with open_store(store_path) as again:
        assert again.put("T", b"x").ok


def test_an_interrupted_close_leaves_nothing_in_the_transient_pool(paths):
    for interrupt in each_interrupt(11):
        path = paths(interrupt)
        # no service commits it before
        config = StoreConfig(transient_store_pool_enable=True, **SIZES)
        store = DefaultMessageStore(path, config, runner=HeldTime().services)
        store.put("T", b"x")
        interrupt.during(store.close)
        store.close()
        with open_store(path) as again:
            assert len(list(again.messages("T", 0))) == 1, interrupt.at
