"""A process that has a shared store open forks: who owns it then, and whose files are whose."""

import asyncio
import errno
import fcntl
import os
import signal
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from children import Forked, in_child
from patience import TIMEOUT_S, until, until_async
from sharing.processes import owner_of, program

import rmqcore
from rmqcore.store.sharing import shared_handle
from rmqcore.store.sharing.channel import OwnerChannel
from rmqcore.store.sharing.place import MeetingPlace
from rmqcore.store.sharing.shared_handle import SharedStoreHandle

pytestmark = pytest.mark.process


@pytest.fixture
def store(store_path):
    """A client; who owns the store is another handle of this process."""
    with rmqcore.open_shared(store_path), rmqcore.open_shared(store_path) as opened:
        yield opened


def bodies(store):
    return [message.body for message in store.messages("T", 0)]


def test_the_owners_handle_is_a_clients_in_a_forked_child(store_path):
    with rmqcore.open_shared(store_path) as store:
        parent = store.owner
        store.put("T", b"parent")

        def put():
            store.put("T", b"child")
            return store.owner, [bytes(body) for body in bodies(store)]

        assert in_child(put) == (parent, [b"parent", b"child"])
        assert bodies(store) == [b"parent", b"child"]


def test_a_clients_handle_works_in_a_forked_child(store):
    store.put("T", b"parent")

    def put():
        store.put("T", b"child")
        store.close()

    in_child(put)
    assert bodies(store) == [b"parent", b"child"]


def test_a_forked_child_keeps_nobody_from_taking_over(tmp_path):
    """It has copies of the owner's sockets, which would look alive when the owner has gone."""
    with program("fork", tmp_path / "store") as owner:
        forked = int(owner.ready)
        try:
            with rmqcore.open_shared(tmp_path / "store") as client:
                client.put("T", b"one")
                owner.kill()
                client.put("T", b"two")
                assert client.owner in (os.getpid(), forked)
                assert bodies(client) == [b"one", b"two"]
        finally:
            os.kill(forked, signal.SIGKILL)


def test_a_child_forked_while_a_thread_becomes_the_owner_keeps_nobody_out(store_path, monkeypatch):
    own, owns, goes_on = SharedStoreHandle._own, threading.Event(), threading.Event()

    def slowly(handle):
        own(handle)
        owns.set()
        assert goes_on.wait(TIMEOUT_S)

    monkeypatch.setattr(SharedStoreHandle, "_own", slowly)
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(rmqcore.open_shared, store_path)
        assert owns.wait(TIMEOUT_S)
        with Forked(lambda until_told: until_told()):
            goes_on.set()
            opening.result(TIMEOUT_S).close()
            place = MeetingPlace(store_path)
            assert place.try_lock()
            place.unlock()


def test_a_child_forked_while_a_thread_connects_has_no_copy_of_the_connection(
    store_path, monkeypatch
):
    """The owner would think that the parent were there for as long as the child is."""
    say_hello, connected, goes_on = OwnerChannel.say_hello, [], threading.Event()

    def slowly(channel, client):
        connected.append(channel._socket.fileno())
        assert goes_on.wait(TIMEOUT_S)
        say_hello(channel, client)

    def has_copy():
        with suppress(OSError):
            return stat.S_ISSOCK(os.fstat(connected[0]).st_mode)
        return False

    with rmqcore.open_shared(store_path), ThreadPoolExecutor(1) as threads:
        monkeypatch.setattr(OwnerChannel, "say_hello", slowly)
        opening = threads.submit(rmqcore.open_shared, store_path)
        until(lambda: connected, "the connection")
        assert has_copy()
        try:
            assert not in_child(has_copy)
        finally:
            goes_on.set()
        with opening.result(TIMEOUT_S) as client:
            client.put("T", b"x")


def is_given(number):
    """Give a file a number that nobody has; whether that was so."""
    given = fcntl.fcntl(0, fcntl.F_DUPFD, number)
    if given != number:
        os.close(given)
    return given == number


def test_a_child_forked_while_nobody_owns_the_store_closes_no_other_file(tmp_path, monkeypatch):
    path = tmp_path / "store"
    with (
        owner_of(path) as owner,
        rmqcore.open_shared(path) as first,
        rmqcore.open_shared(path) as second,
    ):
        channels = [each.reach_owner() for each in (first, second)]
        numbers = [each._watching.fileno() for each in channels]
        monkeypatch.setattr(MeetingPlace, "try_lock", lambda _: False)
        owner.kill()
        until(lambda: all(each._socket.fileno() < 0 for each in channels), "closed connections")
        # their numbers are other files' now
        for number in numbers:
            until(lambda number=number: is_given(number), "no other thread has the number")

        def put():
            monkeypatch.undo()
            for each in (first, second):
                each.put("T", b"child")
            return [os.fstat(number).st_ino for number in numbers]

        assert in_child(put) == [os.fstat(0).st_ino] * 2
        for number in numbers:
            os.close(number)
        monkeypatch.undo()
        assert bodies(first) == [b"child"] * 2


def test_an_owner_without_room_for_files_forks(store_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EMFILE, "too many open files")

    with rmqcore.open_shared(store_path) as store:

        def put():
            monkeypatch.undo()
            store.put("T", b"child")
            return store.owner

        monkeypatch.setattr(os, "open", refuse)
        assert in_child(put) == os.getpid()
        monkeypatch.undo()
        assert bodies(store) == [b"child"]


@pytest.mark.storm
def test_a_fork_while_other_threads_call_is_safe(store):
    stop = threading.Event()

    def put():
        while not stop.is_set():
            store.put("T", b"thread")

    threads = [threading.Thread(target=put) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            in_child(lambda: store.put("U", b"child"))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert store.max_queue_offset("U", 0) == 10


@pytest.mark.engine
def test_a_close_that_waits_for_an_owner_keeps_no_fork_of_another_thread_waiting(
    store, monkeypatch
):
    goodbye, free = SharedStoreHandle._say_goodbye, []

    def may_fork():
        with suppress(RuntimeError):
            free.append(shared_handle._OPENING.acquire(blocking=False))
            shared_handle._OPENING.release()

    def say_goodbye(handle):
        with ThreadPoolExecutor(1) as threads:
            threads.submit(may_fork).result()
        goodbye(handle)

    async def cancel():
        waiting = asyncio.ensure_future(store.lease_async("g", {"T": "*"}, timeout_ms=None))
        await until_async(lambda: store.reach_owner()._waiting, "a call that waits for messages")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    monkeypatch.setattr(SharedStoreHandle, "_say_goodbye", say_goodbye)
    asyncio.run(cancel())
    store.close()
    assert free == [True]
