"""A signal handler that raises anywhere in a lease: what nobody was given is leased to nobody."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from interrupts import Interrupt, Interrupted, each_interrupt
from patience import TIMEOUT_S

import rmqcore
from rmqcore.store.consume.lease_queue import LeaseQueue
from rmqcore.store.consume.lease_table import LeaseTable
from rmqcore.store.consume.leases import Leases
from rmqcore.store.consume.undoing import Undoing, undone_if_interrupted
from rmqcore.store.parts.consuming import Consuming
from rmqcore.store.sharing.shared_handle import SharedStoreHandle

pytestmark = pytest.mark.engine

SIZES = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 16,
    "max_index_num": 64,
    "allocate_ahead": 0,
}
TERMS = {"lease_ms": 3_600_000, "max_reconsume_times": 1 << 30}
#: files that a message goes through on its way to who leases it
WAYS = (
    *("leases.py", "lease_table.py", "lease_queue.py", "lease_request.py", "undoing.py"),
    *("consuming.py", "forwarding.py", "shared_store.py", "shared_handle.py", "consumer.py"),
)


@pytest.mark.parametrize("receives", [False, True])
@pytest.mark.parametrize("role", ["only", "owner", "client"])
def test_what_an_interrupted_lease_was_given_comes_again_at_once(store_path, role, receives):
    opens = rmqcore.open_store if role == "only" else rmqcore.open_shared
    owns = rmqcore.open_shared(store_path, **SIZES) if role == "client" else nullcontext()
    with owns, opens(store_path, **SIZES) as store:
        consumer = rmqcore.Consumer(store, "g", {"T": "*"}, **TERMS)

        def lease(timeout_ms=0):
            if receives:
                return consumer.receive(3, timeout_ms=timeout_ms)
            return store.lease("g", {"T": "*"}, timeout_ms=timeout_ms, **TERMS)

        for interrupt in each_interrupt(1, WAYS):
            store.put("T", b"x")
            # dispatched now: of each lease the places are the same
            store.lag("g", ["T"])
            got = interrupt.during(lease) or lease(1000 * TIMEOUT_S)
            assert [each.reconsume_times for each in got] == [0], interrupt.at
            store.acknowledge("g", [each.place for each in got])


class InterruptedAgainError(KeyboardInterrupt):
    """What a second handler raises."""


def interrupt_again():
    raise InterruptedAgainError


@pytest.fixture
def seconds(monkeypatch):
    """A list; what is undone while there is an interrupt in it is interrupted by that."""
    there = []

    def interruptible(kind, name):
        undo = getattr(kind, name)

        def interrupted(self, *args):
            for second in there:
                return second.during(lambda: undo(self, *args))
            return undo(self, *args)

        monkeypatch.setattr(kind, name, interrupted)

    interruptible(LeaseQueue, "take_back")
    interruptible(Undoing, "undo_all")
    return there


def test_a_second_interrupt_while_a_lease_is_undone_leaves_nothing_leased(store_path, seconds):
    with rmqcore.open_store(store_path, **SIZES) as store:
        for number in (3, 11, 29):
            for first in each_interrupt(2, WAYS):
                for body in (b"0", b"1", b"2"):
                    store.put("T", body)
                (returned,) = store.lease("g", {"T": "*"}, max_messages=1, **TERMS)
                terms = {"delay_ms": 0, "max_reconsume_times": 1 << 30}
                store.give_back("g", [returned.place], **terms)
                seconds.append(Interrupt(number, interrupt_again))
                try:
                    got = first.during(lambda: store.lease("g", {"T": "*"}, **TERMS))
                except InterruptedAgainError:
                    got = None
                where = first.at, seconds.pop().at
                got = got or store.lease("g", {"T": "*"}, **TERMS)
                assert [bytes(each.body) for each in got] == [b"0", b"1", b"2"], where
                store.acknowledge("g", [each.place for each in got])


def test_what_another_thread_is_given_of_an_interrupted_lease_stays_its_own(
    store_path, monkeypatch
):
    lease_once, undo, given = Consuming.lease_once, Leases.undo_interrupted, []

    def undo_before_another_thread_leases(leases):
        undo(leases)
        if not given:
            with ThreadPoolExecutor(1) as threads:
                given.extend(threads.submit(store.lease, "g", {"T": "*"}, **TERMS).result())

    def interrupted(*args, **settings):
        found = lease_once(*args, **settings)
        if threading.current_thread() is threading.main_thread():
            raise Interrupted
        return found

    monkeypatch.setattr(Leases, "undo_interrupted", undo_before_another_thread_leases)
    monkeypatch.setattr(Consuming, "lease_once", interrupted)
    with rmqcore.open_store(store_path, **SIZES) as store:
        now_ms = store.world.clock_ms()
        # within one millisecond
        monkeypatch.setattr(LeaseTable, "now_ms", lambda _: now_ms)
        store.put("T", b"x")
        with pytest.raises(Interrupted):
            rmqcore.Consumer(store, "g", {"T": "*"}, **TERMS).receive()
        assert [each.reconsume_times for each in given] == [0]
        monkeypatch.undo()
        assert store.lease("g", {"T": "*"}, **TERMS) == []


def test_only_what_a_client_was_given_is_undone(store_path, monkeypatch):
    undone = []
    monkeypatch.setattr(SharedStoreHandle, "_undo_lease", lambda *_: undone.append(True))
    with (
        rmqcore.open_shared(store_path, **SIZES),
        rmqcore.open_shared(store_path, **SIZES) as store,
    ):

        @undone_if_interrupted
        def receive():
            store.lease("g", {"T": "*"}, **TERMS)
            with pytest.raises(rmqcore.ArgumentError):
                store.change_lease("g", [], 0)
            raise Interrupted

        store.put("U", b"x")
        for expected in ([], [True]):
            with pytest.raises(Interrupted):
                receive()
            assert undone == expected
            store.put("T", b"x")


def test_a_lease_that_is_refused_as_another_cannot_be_undone_leaves_nothing(
    store_path, monkeypatch
):
    def refuse(*_, **__):
        raise rmqcore.DiskFullError(store_path)

    with rmqcore.open_store(store_path, **SIZES) as store:

        @undone_if_interrupted
        def receive():
            store.lease("g", {"T": "*"}, **TERMS)
            raise Interrupted

        store.put("T", b"x")
        store.lag("g", ["T"])
        with monkeypatch.context() as patch:
            patch.setattr(LeaseTable, "set", refuse)
            with pytest.raises(Interrupted):
                receive()
            left = store.parts.consuming._leases.interrupted._left
            known = len(left)
            for _ in range(3):
                with pytest.raises(rmqcore.DiskFullError):
                    store.lease("g", {"T": "*"}, **TERMS)
            assert len(left) == known
        assert len(store.lease("g", {"T": "*"}, **TERMS)) == 1


@pytest.mark.process
def test_a_forked_child_undoes_nothing_that_its_parent_leases(store_path):
    journal = store_path / "config" / "consumerLeases.log"
    with rmqcore.open_store(store_path, **SIZES) as store:

        @undone_if_interrupted
        def receive():
            found = store.lease("g", {"T": "*"}, **TERMS)
            sizes.append(journal.stat().st_size)
            if os.fork() == 0:
                # as a signal handler does that begins a child
                raise Interrupted
            os.wait()
            return found

        sizes = []
        store.put("T", b"x")
        try:
            found = receive()
        except Interrupted:
            os._exit(0)
        assert len(found) == 1
        assert sizes == [journal.stat().st_size]
