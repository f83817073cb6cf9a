"""Who holds what, over forks, take-overs, second handles, and calls that nobody waits for."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import contextmanager

import pytest
from sharing.children import Forked
from sharing.test_shared_leases import child, leased, told

import rmqcore
from rmqcore import Consumer, DiskFullError
from rmqcore.files.lease_journal import LeaseJournal
from rmqcore.store.consume.holders import new_holder

pytestmark = pytest.mark.process


def bodies(messages):
    return [each.body for each in messages]


def consumer(store):
    return Consumer(store, "g", {"T": "*"}, lease_ms=600_000)


def in_a_child(call):
    """What a call gives in a forked child, which ends with it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, repr(call()).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    try:
        return os.read(read, 1000).decode()
    finally:
        os.close(read)


@contextmanager
def handle(path, role):
    """A handle of this process, as owner or as client, of a store with two messages."""
    if role == "owner":
        with rmqcore.open_shared(path) as store:
            yield store
        return
    owner = Forked(path)
    try:
        with rmqcore.open_shared(path) as store:
            yield store
    finally:
        owner.kill()


def test_what_an_owner_held_comes_again_though_nobody_has_asked_for_its_end(store_path):
    with child(store_path) as owner, rmqcore.open_shared(store_path) as store:
        store.put("T", b"0")
        assert told(owner, 1) == "['0']"
        os.kill(owner.pid, signal.SIGKILL)
        assert bodies(leased(store, timeout_ms=30_000)) == [b"0"]


def test_a_client_that_does_nothing_after_a_take_over_is_freed_when_it_ends(store_path):
    owner = Forked(store_path)
    with rmqcore.open_shared(store_path) as store, child(store_path) as process:
        store.put("T", b"0")
        assert told(process, 1) == "['0']"
        process.send_signal(signal.SIGSTOP)
        owner.kill()
        assert leased(store) == []
        assert store.owner == os.getpid()
        process.kill()
        process.wait()
        assert bodies(leased(store, timeout_ms=30_000)) == [b"0"]


@pytest.mark.parametrize("role", ["owner", "client"])
def test_a_forked_consumer_holds_apart_from_its_parents(store_path, role):
    with handle(store_path, role) as store:
        for number in range(2):
            store.put("T", b"%d" % number)
        with consumer(store) as mine:
            assert bodies(mine.receive()) == [b"0"]
            assert in_a_child(lambda: bodies(mine.receive())) == "[b'1']"
            # what the child had comes again, what the parent has does not
            again = leased(store, timeout_ms=30_000)
            assert bodies(again) == [b"1"]
            in_a_child(mine.close)
            assert leased(store, timeout_ms=50) == []


def test_what_a_signal_handler_leases_is_kept_behind_its_call(store_path):
    with handle(store_path, "client") as store, consumer(store) as mine:
        store.put("T", b"0")
        got = []
        before = signal.signal(signal.SIGALRM, lambda *_: got.extend(mine.receive(timeout_ms=0)))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            assert not store.wait("other", 0, 0, timeout_ms=400)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert bodies(got) == [b"0"]
        assert leased(store, timeout_ms=50) == []


def test_a_second_handle_keeps_what_it_holds_when_the_first_is_closed(store_path):
    first = rmqcore.open_shared(store_path)
    with rmqcore.open_shared(store_path) as second, consumer(second) as mine:
        first.put("T", b"0")
        assert bodies(mine.receive()) == [b"0"]
        first.close()
        assert leased(second, timeout_ms=50) == []


def interrupt(*_):
    raise KeyboardInterrupt


def test_an_interrupted_wait_for_a_message_takes_none(store_path):
    with handle(store_path, "client") as store, consumer(store) as mine:
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                mine.receive()
        finally:
            signal.signal(signal.SIGALRM, before)
        store.put("T", b"0")
        time.sleep(0.1)
        (message,) = mine.receive(timeout_ms=30_000)
        assert (message.body, message.reconsume_times) == (b"0", 0)


def test_interrupts_anywhere_in_a_call_end_no_other(store_path, rng):
    armed, interrupts = False, 0

    def interrupt_once(*_):
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    with handle(store_path, "client") as store:
        before = signal.signal(signal.SIGALRM, interrupt_once)
        try:
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline:
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(20e-6, 600e-6))
                    # one that a finalizer has swallowed is sent again
                    while armed and time.monotonic() < deadline:
                        store.put("T", b"0")
                    armed = False
                except KeyboardInterrupt:
                    interrupts += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert not store.settled().interrupted
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert interrupts > 20
        began = time.monotonic()
        store.put("T", b"1")
        assert time.monotonic() - began < 5


def test_a_client_that_loses_its_connection_keeps_what_it_holds(store_path):
    with handle(store_path, "client") as store, consumer(store) as mine:
        store.put("T", b"0")
        assert bodies(mine.receive()) == [b"0"]
        lost = store.settled()
        # as an interrupt in the middle of a frame does
        lost._lose()
        assert leased(store, timeout_ms=1500) == []
        assert store.settled() is not lost


def test_a_client_that_is_stopped_keeps_what_it_holds_and_ends_with_its_process(store_path):
    with rmqcore.open_shared(store_path) as store, child(store_path) as process:
        store.put("T", b"0")
        assert told(process, 1) == "['0']"
        for connection in list(store._server._server.connections):
            # which it cannot notice
            process.send_signal(signal.SIGSTOP)
            store._server._loop.call_soon_threadsafe(connection.close)
        assert leased(store, timeout_ms=1500) == []
        process.kill()
        process.wait()
        assert bodies(leased(store, timeout_ms=30_000)) == [b"0"]


def test_what_a_client_held_comes_again_at_once_when_its_handle_is_closed(store_path):
    with rmqcore.open_shared(store_path) as store:
        took_s = []
        # what else the machine does may hold some of them up
        while min(took_s, default=1) >= 0.9 and len(took_s) < 10:
            store.put("T", b"%d" % len(took_s))
            second = rmqcore.open_shared(store_path)
            assert bodies(consumer(second).receive()) == [b"%d" % len(took_s)]
            began = time.monotonic()
            second.close()
            again = leased(store, timeout_ms=30_000)
            took_s.append(time.monotonic() - began)
            assert bodies(again) == [b"%d" % (len(took_s) - 1)]
        assert min(took_s) < 0.9


def test_what_a_dead_client_held_comes_again_when_the_full_disk_has_room(store_path, monkeypatch):
    with rmqcore.open_shared(store_path) as store, child(store_path) as process:
        store.put("T", b"0")
        assert told(process, 1) == "['0']"
        append, failed = LeaseJournal.append, []

        def full_once(journal, records):
            if not failed:
                failed.append(True)
                raise DiskFullError(journal.path)
            append(journal, records)

        monkeypatch.setattr(LeaseJournal, "append", full_once)
        process.kill()
        process.wait()
        eventually = time.monotonic() + 30
        while not failed and time.monotonic() < eventually:
            time.sleep(0.01)
        assert bodies(leased(store, timeout_ms=30_000)) == [b"0"]


def test_a_message_leased_for_a_call_that_is_cancelled_meanwhile_is_free_again(store_path):
    async def cancel_when_answered(store):
        settings = {"holder": new_holder(), "lease_ms": 600_000, "timeout_ms": 5000}
        waiting = asyncio.ensure_future(store.lease_async("g", {"T": "*"}, **settings))
        await asyncio.sleep(0.05)
        # the loop is kept busy, so that the answer is there and not taken when the end comes
        store.put("T", b"0")
        time.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with handle(store_path, "client") as store:
        asyncio.run(cancel_when_answered(store))
        (message,) = leased(store, timeout_ms=30_000)
        assert (message.body, message.reconsume_times) == (b"0", 0)
        # nothing is kept of the calls that have ended
        assert store.settled()._waiting == {}
