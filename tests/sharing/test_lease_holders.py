"""Who holds what, over forks, take-overs, second handles, and calls that nobody waits for."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import contextmanager, suppress

import pytest
from children import in_child
from patience import TIMEOUT_S, until, until_async
from sharing.processes import TIMEOUT_MS, leased, owner_of, program, told, while_asked

import rmqcore
from rmqcore import Consumer, DiskFullError, StoreClosedError
from rmqcore.files.lease_journal import LeaseJournal
from rmqcore.store.consume.holders import new_holder
from rmqcore.store.parts.consuming import Consuming
from rmqcore.store.sharing import owner as owner_module
from rmqcore.store.sharing import shared_handle
from rmqcore.store.sharing.channel import OwnerChannel
from rmqcore.store.sharing.owner import StoreServer

pytestmark = pytest.mark.process

#: at as many moments of a put
INTERRUPTS = 1000


def bodies(messages):
    return [each.body for each in messages]


def consumer(store):
    return Consumer(store, "g", {"T": "*"}, lease_ms=600_000)


@contextmanager
def handle(path, role, **settings):
    """A handle of this process, as owner or as client."""
    if role == "owner":
        with rmqcore.open_shared(path, **settings) as store:
            yield store
        return
    with owner_of(path), rmqcore.open_shared(path, **settings) as store:
        yield store


@pytest.fixture
def looks(monkeypatch):
    """`looks(count)`: let the owner, this process, look so often for the end of others."""
    monkeypatch.setattr(owner_module, "_ENDED_POLL_S", 0.001)
    release_ended, looked = Consuming.release_ended, []

    def counted(store, known, has_ended):
        looked.append(release_ended(store, known, has_ended))
        return looked[-1]

    def look(count):
        wanted = len(looked) + count
        until(lambda: len(looked) >= wanted, f"{count} looks for the end of other processes")

    monkeypatch.setattr(Consuming, "release_ended", counted)
    return look


def alarm(thread):
    """Send a thread of this process a signal."""
    signal.pthread_kill(thread, signal.SIGALRM)


def test_what_an_owner_held_comes_again_though_nobody_has_asked_for_its_end(store_path):
    with program("lease", store_path) as owner, rmqcore.open_shared(store_path) as store:
        store.put("T", b"0")
        assert told(owner, 1) == "['0']"
        os.kill(owner.pid, signal.SIGKILL)
        assert bodies(leased(store, timeout_ms=TIMEOUT_MS)) == [b"0"]


def test_a_client_that_does_nothing_after_a_take_over_is_freed_when_it_ends(store_path):
    owner = owner_of(store_path)
    with rmqcore.open_shared(store_path) as store, program("lease", store_path) as process:
        store.put("T", b"0")
        assert told(process, 1) == "['0']"
        process.signal(signal.SIGSTOP)
        owner.kill()
        assert leased(store) == []
        assert store.owner == os.getpid()
        process.kill()
        assert bodies(leased(store, timeout_ms=TIMEOUT_MS)) == [b"0"]


@pytest.mark.parametrize("role", ["owner", "client"])
def test_what_a_program_held_that_has_begun_another_comes_again(store_path, role):
    """As a server does that starts itself anew: the process is the same, and lives."""
    with rmqcore.open_shared(store_path) as store:
        store.put("T", b"0")
        if role == "owner":
            store.close()
        with program("restart", store_path) as process:
            owner = os.getpid() if role == "client" else process.pid
            assert process.ready == f"{owner} 0"
            assert process.line() == "again"
            with rmqcore.open_shared(store_path) as next_one:
                assert bodies(leased(next_one, timeout_ms=TIMEOUT_MS)) == [b"0"]
            assert process.process.poll() is None


def elsewhere(number=1):
    """A holder of another PID namespace, whose process id is that of this process."""
    return f"{os.getpid()}.1.{number}-x"


@pytest.mark.engine
def test_who_lives_in_another_pid_namespace_keeps_what_it_holds(store_path, looks, monkeypatch):
    with rmqcore.open_shared(store_path) as store:
        store.put("T", b"0")
        assert bodies(leased(store, holder=elsewhere())) == [b"0"]
    # the next owner knows of the holder's process what its connection says
    with rmqcore.open_shared(store_path) as store:
        monkeypatch.setattr(shared_handle, "new_holder", lambda: f"{elsewhere()}-client")
        with rmqcore.open_shared(store_path):
            monkeypatch.setattr(owner_module, "_MISSED_S", 0.0)
            looks(2)
            assert leased(store) == []
        assert bodies(leased(store, timeout_ms=TIMEOUT_MS)) == [b"0"]


@pytest.mark.engine
def test_who_was_missed_in_another_pid_namespace_and_is_back_counts_anew(store_path, monkeypatch):
    with rmqcore.open_shared(store_path) as store:
        server, client = store._server, f"{elsewhere()}-client"
        assert not server._has_ended(client)
        assert server._missed
        monkeypatch.setattr(shared_handle, "new_holder", lambda: client)
        with rmqcore.open_shared(store_path) as back:
            back.stats()
            assert not server._missed


@pytest.mark.parametrize("role", ["owner", "client"])
def test_a_forked_consumer_holds_apart_from_its_parents(store_path, role):
    with handle(store_path, role) as store:
        for number in range(2):
            store.put("T", b"%d" % number)
        with consumer(store) as mine:
            assert bodies(mine.receive()) == [b"0"]
            assert in_child(lambda: bodies(mine.receive())) == [b"1"]
            # what the child had comes again, what the parent has does not
            again = leased(store, timeout_ms=TIMEOUT_MS)
            assert bodies(again) == [b"1"]
            in_child(mine.close)
            assert leased(store, timeout_ms=50) == []


def test_what_a_signal_handler_leases_is_kept_behind_its_call(store_path):
    with handle(store_path, "client") as store, consumer(store) as mine:
        store.put("T", b"0")
        got, thread = [], threading.get_ident()

        def lease_and_end_the_wait():
            alarm(thread)
            until(lambda: got, "what the signal handler leases")
            store.put("other", b"x")

        before = signal.signal(signal.SIGALRM, lambda *_: got.extend(mine.receive(timeout_ms=0)))
        try:
            with while_asked(store, lease_and_end_the_wait):
                assert store.wait("other", 0, 0)
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
        before, thread = signal.signal(signal.SIGALRM, interrupt), threading.get_ident()
        try:
            with while_asked(store, lambda: alarm(thread)), pytest.raises(KeyboardInterrupt):
                mine.receive()
        finally:
            signal.signal(signal.SIGALRM, before)
        store.put("T", b"0")
        # nobody has it who does not wait any more
        until(
            lambda: [(each.ready, each.leased) for each in mine.lag()] == [(1, 0)],
            "a message that is free",
        )
        (message,) = mine.receive(timeout_ms=TIMEOUT_MS)
        assert (message.body, message.reconsume_times) == (b"0", 0)


def test_interrupts_anywhere_in_a_call_end_no_other(store_path, rng, monkeypatch):
    armed, interrupts = False, 0

    def interrupt_once(*_):
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    # an answer that nobody reads would be found by half of the time-out
    with handle(store_path, "client", owner_timeout_ms=4 * TIMEOUT_MS) as store:
        before = signal.signal(signal.SIGALRM, interrupt_once)
        try:
            while interrupts < INTERRUPTS:
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(20e-6, 600e-6))
                    # one that a finalizer has swallowed is sent again
                    while armed:
                        store.put("T", b"0")
                    armed = False
                except KeyboardInterrupt:
                    interrupts += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert not store.reach_owner().interrupted
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        asked, ask = [], OwnerChannel.ask_whether_there
        monkeypatch.setattr(
            OwnerChannel, "ask_whether_there", lambda *args: asked.append(1) or ask(*args)
        )
        store.put("T", b"1")
        assert not asked


def test_a_client_that_loses_its_connection_keeps_what_it_holds(store_path, monkeypatch):
    # its owner has time for many looks for the end of who has no connection
    monkeypatch.setattr(owner_module, "_ENDED_POLL_S", 0.001)
    with handle(store_path, "client") as store, consumer(store) as mine:
        store.put("T", b"0")
        assert bodies(mine.receive()) == [b"0"]
        lost = store.reach_owner()
        # as an interrupt in the middle of a frame does
        lost.lose()
        assert leased(store, timeout_ms=150) == []
        assert store.reach_owner() is not lost


def test_a_client_that_is_stopped_keeps_what_it_holds_and_ends_with_its_process(store_path, looks):
    with rmqcore.open_shared(store_path) as store, program("lease", store_path) as process:
        store.put("T", b"0")
        assert told(process, 1) == "['0']"
        process.signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        for connection in list(store._server._server.connections):
            # which it cannot notice
            store._server._loop.call_soon_threadsafe(connection.close)
        looks(5)
        assert leased(store) == []
        process.kill()
        assert bodies(leased(store, timeout_ms=TIMEOUT_MS)) == [b"0"]


def test_what_a_client_held_comes_again_at_once_when_its_handle_is_closed(
    store_path, monkeypatch, when_asleep
):
    looked = []
    with rmqcore.open_shared(store_path) as store:
        until(lambda: store._server._looking, "the look with which an owner begins")
        monkeypatch.setattr(StoreServer, "_look", lambda _: looked.append(True))
        for number in range(5):
            store.put("T", b"%d" % number)
            second = rmqcore.open_shared(store_path)
            assert bodies(consumer(second).receive()) == [b"%d" % number]
            when_asleep(second.close)
            # who waits is woken by the end of the handle, for which nobody has to look
            assert bodies(leased(store, timeout_ms=TIMEOUT_MS)) == [b"%d" % number]
    assert not looked


def test_what_a_closed_handle_held_comes_again_though_another_connection_of_it_was_open(
    store_path, monkeypatch
):
    """As where a signal handler calls over one of its own."""
    with rmqcore.open_shared(store_path) as store:
        until(lambda: store._server._looking, "the look with which an owner begins")
        monkeypatch.setattr(StoreServer, "_look", lambda _: None)
        store.put("T", b"0")
        second = rmqcore.open_shared(store_path)
        assert bodies(consumer(second).receive()) == [b"0"]
        aside, server = second._new_channel(), store._server
        second.close()
        until(lambda: len(server._server.connections) == 1, "the end of the handle's own one")
        assert leased(store) == []
        aside.end()
        assert bodies(leased(store, timeout_ms=TIMEOUT_MS)) == [b"0"]
        until(lambda: not server._leaving, "nothing kept of who has left")


@pytest.mark.engine
def test_what_a_handle_held_comes_again_when_it_is_closed_beside_calls(store_path, monkeypatch):
    lag, lose, begun, lost = Consuming.lag, OwnerChannel.lose, threading.Event(), threading.Event()

    def lag_as_it_closes(*args):
        begun.set()
        lost.wait(TIMEOUT_S)
        return lag(*args)

    def lose_and_say_so(channel):
        lose(channel)
        lost.set()

    def ask():
        with suppress(StoreClosedError):
            second.lag("g", "T")

    with rmqcore.open_shared(store_path) as store:
        store.put("T", b"0")
        second = rmqcore.open_shared(store_path)
        assert bodies(consumer(second).receive()) == [b"0"]
        monkeypatch.setattr(Consuming, "lag", lag_as_it_closes)
        monkeypatch.setattr(OwnerChannel, "lose", lose_and_say_so)
        asking = threading.Thread(target=ask)
        asking.start()
        assert begun.wait(TIMEOUT_S)
        second.close()
        asking.join()
        assert bodies(leased(store, timeout_ms=TIMEOUT_MS)) == [b"0"]


def test_what_a_dead_client_held_comes_again_when_the_full_disk_has_room(store_path, monkeypatch):
    with rmqcore.open_shared(store_path) as store, program("lease", store_path) as process:
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
        until(lambda: failed, "the journal that takes nothing")
        assert bodies(leased(store, timeout_ms=TIMEOUT_MS)) == [b"0"]


@pytest.mark.parametrize("holder", [new_holder(), ""], ids=["holder", "the client"])
def test_a_message_leased_for_a_call_that_is_cancelled_meanwhile_is_free_again(store_path, holder):
    async def cancel_when_answered(store):
        settings = {"holder": holder, "lease_ms": 600_000, "timeout_ms": TIMEOUT_MS}
        waiting = asyncio.ensure_future(store.lease_async("g", {"T": "*"}, **settings))
        (waiter,) = await until_async(
            lambda: list(store.reach_owner()._waiting.values()), "a call that waits for messages"
        )
        # the loop is kept busy, so that the answer is there and not taken when the end comes
        store.put("T", b"0")
        until(lambda: waiter.answer, "the answer")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with handle(store_path, "client") as store:
        asyncio.run(cancel_when_answered(store))
        (message,) = leased(store, timeout_ms=TIMEOUT_MS)
        assert (message.body, message.reconsume_times) == (b"0", 0)
        # nothing is kept of the calls that have ended
        assert store.reach_owner()._waiting == {}


@pytest.mark.parametrize("holder", [new_holder(), ""], ids=["holder", "the client"])
def test_a_message_leased_for_a_call_that_lost_its_connection_to_an_interrupt_is_free_again(
    store_path, monkeypatch, holder
):
    take = OwnerChannel._receive

    def take_and_raise(channel, data):
        monkeypatch.undo()
        take(channel, data)
        raise KeyboardInterrupt

    with handle(store_path, "client") as store:
        store.put("T", b"0")
        monkeypatch.setattr(OwnerChannel, "_receive", take_and_raise)
        with pytest.raises(KeyboardInterrupt):
            leased(store, holder=holder)
        (message,) = leased(store, timeout_ms=TIMEOUT_MS)
        assert (message.body, message.reconsume_times) == (b"0", 0)


def test_a_call_that_is_cancelled_before_the_owner_has_read_it_takes_no_message(store_path):
    async def cancel(client):
        waiting = asyncio.ensure_future(client.lease_async("g", {"T": "*"}, timeout_ms=None))
        await until_async(lambda: client.reach_owner()._waiting, "a call that waits for messages")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    go_on = threading.Event()
    with rmqcore.open_shared(store_path) as store, rmqcore.open_shared(store_path) as client:
        # the owner reads the call and its end in one
        store._server._loop.call_soon_threadsafe(go_on.wait, TIMEOUT_S)
        asyncio.run(cancel(client))
        go_on.set()
        client.put("T", b"0")
        assert [(each.ready, each.leased) for each in client.lag("g", ["T"])] == [(1, 0)]
