"""A full disk, strange bytes on the socket, another release: typed errors, and no harm."""

import os
import random
import resource
import socket
import threading
import zlib

import pytest
from children import Forked
from patience import TIMEOUT_S

import rmqcore
from rmqcore import ConfigError, DiskFullError, Message, RmqCoreError, StoreError
from rmqcore.remoting import RemotingCommand
from rmqcore.store.sharing import calls, channel, shared_handle, values
from rmqcore.store.sharing.calls import STORE_CALL, request_of, result_of
from rmqcore.store.sharing.channel import OwnerChannel
from rmqcore.store.sharing.place import MeetingPlace
from rmqcore.store.sharing.values import pack, unpack

pytestmark = pytest.mark.engine

FILE_SIZE = 1 << 16
SMALL = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": FILE_SIZE // 4,
    "message_index_enable": False,
}


@pytest.fixture
def store(store_path):
    """A client; who owns the store is another handle of this process."""
    with rmqcore.open_shared(store_path), rmqcore.open_shared(store_path) as opened:
        yield opened


def owner_with_little_room(path):
    """A process that owns a store whose files cannot grow any more."""

    def own(ready):
        with rmqcore.open_shared(path, **SMALL):
            resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE // 2, FILE_SIZE // 2))
            ready()

    return Forked(own)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True, "10", None])
def test_what_is_no_time_is_refused_and_makes_no_store(store_path, timeout):
    with pytest.raises(ConfigError, match="owner_timeout_ms"):
        rmqcore.open_shared(store_path, owner_timeout_ms=timeout)
    assert not store_path.exists()


def test_at_the_end_of_a_process_one_store_that_fails_to_close_keeps_no_other_open(monkeypatch):
    class Handle:
        path = "store"
        closed = 0

        def close(self):
            Handle.closed += 1
            raise StoreError("the disk is gone")

    monkeypatch.setattr(shared_handle, "_HANDLES", [Handle(), Handle()])
    shared_handle._close_handles()
    assert Handle.closed == 2


@pytest.mark.process
def test_a_full_disk_is_the_same_error_in_a_client(store_path):
    with (
        owner_with_little_room(store_path) as owner,
        rmqcore.open_shared(store_path, **SMALL) as store,
    ):
        acknowledged, refused = 0, None
        while refused is None:
            try:
                store.put("T", b"%d" % acknowledged + b"." * 500)
                acknowledged += 1
            except DiskFullError as error:
                refused = error
        assert acknowledged > 0
        assert store.owner == owner.pid
        assert len(list(store.messages())) == acknowledged


def channel_to(store):
    """A connection with the owner of a store, without a handle around it."""
    place = MeetingPlace(store.path)
    return OwnerChannel(place.connect(TIMEOUT_S), place, TIMEOUT_S)


def test_strange_bytes_end_their_own_connection_only(store):
    chance = random.Random(5)
    for size in (1, 7, 100, 5000):
        with MeetingPlace(store.path).connect(TIMEOUT_S) as connected:
            connected.settimeout(TIMEOUT_S)
            connected.sendall(b"\x7f" + chance.randbytes(size))
            connected.shutdown(socket.SHUT_WR)
            while connected.recv(4096):
                pass
    assert store.put("T", b"one").queue_offset == 0


@pytest.mark.parametrize(
    "body", [b"", b"\0\0\0\2[]", b"\0\0\0\2{}", b"\xff\xff\xff\xff", b'\0\0\0\x0c["b",1000000]']
)
def test_a_body_that_is_no_value_is_answered_with_an_error(store, body):
    channel = channel_to(store)
    answer = channel.call(RemotingCommand(STORE_CALL, {"method": "put"}, body))
    with pytest.raises((ValueError, TypeError)):
        result_of(answer)
    channel.end()
    assert store.put("T", b"one").queue_offset == 0


@pytest.mark.parametrize(
    "method", ["close", "_put_generally", "path", "topics._install", "__init__"]
)
def test_only_what_the_table_names_can_be_called(store, method):
    channel = channel_to(store)
    with pytest.raises(StoreError, match="no call of a shared store"):
        result_of(channel.call(request_of(method, (), {})))
    channel.end()


@pytest.mark.parametrize("open_one", [rmqcore.open_store, rmqcore.open_shared])
def test_greenlets_in_the_place_of_threads_are_refused(tmp_path, monkeypatch, open_one):
    def get_ident():
        return 1

    get_ident.__module__ = "gevent.thread"
    monkeypatch.setattr("threading.get_ident", get_ident)
    with pytest.raises(StoreError, match="gevent has replaced the threads"):
        open_one(tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "replaced", ["select.select", "selectors.DefaultSelector", "queue.SimpleQueue"]
)
def test_greenlets_beside_threads_are_refused_where_processes_share(
    tmp_path, monkeypatch, replaced
):
    """So gevent's patch_all(thread=False) does; a store of one process works with it."""

    class Green:
        pass

    Green.__module__ = "gevent.made"
    monkeypatch.setattr(replaced, Green)
    with pytest.raises(StoreError, match="gevent has replaced the module"):
        rmqcore.open_shared(tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("open_one", [rmqcore.open_store, rmqcore.open_shared])
def test_a_profiler_that_makes_locks_of_its_own_is_no_hindrance(tmp_path, monkeypatch, open_one):
    made = threading.Lock

    class Timed:
        def __init__(self):
            self._lock = made()

        def __enter__(self):
            return self._lock.__enter__()

        def __exit__(self, *raised):
            self._lock.__exit__(*raised)

        def __getattr__(self, name):
            return getattr(self._lock, name)

    monkeypatch.setattr("threading.Lock", Timed)
    with open_one(tmp_path / "store") as store:
        store.put("T", b"x")


def test_a_client_of_another_version_is_refused(store, monkeypatch):
    monkeypatch.setattr(channel, "VERSION", 99)
    words = f"process {os.getpid()}, shares it by version {calls.VERSION}"
    with pytest.raises(StoreError, match=words):
        rmqcore.open_shared(store.path)


def test_calls_that_are_others_have_another_version():
    """Who adds a call raises the version, so that no owner is asked for what it does not know."""
    names = "\n".join(sorted(calls.CALLS))
    assert (calls.VERSION, zlib.crc32(names.encode())) == (5, 3_470_188_127)


def test_values_come_back_as_they_were(store):
    store.put("T", b"one", tags="a", keys=("k", "l"))
    (message,) = store.get_message("T", 0, 0).messages
    values = [
        None,
        ["l", "x"],
        ("m", 1, 2.5, True),
        {"$": {1: b"\0\xff"}, "d": []},
        Message("T", b"body", tags="t", properties={"p": "v"}),
        message,
        rmqcore.Durability.DISK,
        store.path,
        rmqcore.StoreConfig.embedded(mapped_file_size_commit_log=1 << 20),
    ]
    again = unpack(b"".join(bytes(part) for part in pack(values)))
    assert again == values
    for error in (DiskFullError("here", "no room"), rmqcore.FlushTimeoutError(5, "slow")):
        again = unpack(b"".join(pack(error)))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_bytes_that_were_changed_are_an_error_and_never_another_kind_of_object():
    chance = random.Random(7)
    whole = b"".join(pack([[("T", b"body"), Message("T", b"x")], {"durability": "disk"}]))
    for _ in range(3000):
        changed = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            unpack(bytes(changed))
        except (ValueError, RmqCoreError):
            continue


def test_what_a_signal_handler_raises_while_an_answer_is_read_stays_what_it_is(monkeypatch):
    """A program waits for its own time-out, not for an error of the store."""

    def interrupted(_):
        raise TimeoutError("the program's own")

    monkeypatch.setattr(values, "_DECODE", interrupted)
    with pytest.raises(TimeoutError, match="the program's own"):
        unpack(b"".join(pack([b"a"])))
