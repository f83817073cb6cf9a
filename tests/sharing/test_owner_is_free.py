"""The owner of a shared store answers others while one call waits for the disk, or takes long."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from patience import TIMEOUT_S, until

import rmqcore
from rmqcore import Consumer
from rmqcore.files.mapped_file import MappedFile
from rmqcore.store.parts.key_values import KeyValues
from rmqcore.store.sharing.owner import StoreServer

pytestmark = pytest.mark.engine


@pytest.fixture
def owner(store_path):
    with rmqcore.open_shared(store_path) as opened:
        yield opened


@pytest.fixture
def client(owner, store_path):
    with rmqcore.open_shared(store_path) as opened:
        yield opened


@pytest.fixture
def other(owner, store_path):
    """Another client, who is not to wait."""
    with rmqcore.open_shared(store_path) as opened:
        yield opened


@contextmanager
def stopped_disk(monkeypatch):
    """A disk that takes nothing as long as the block runs; what the block gets says who waits."""
    flush, goes_on, waits = MappedFile.flush, threading.Event(), threading.Event()

    def slow(file):
        waits.set()
        assert goes_on.wait(TIMEOUT_S)
        return flush(file)

    monkeypatch.setattr(MappedFile, "flush", slow)
    try:
        yield waits
    finally:
        goes_on.set()


@pytest.mark.parametrize("way", ["nack", "lease"])
def test_dead_letters_wait_for_the_disk_and_nobody_else(client, other, monkeypatch, way):
    for number in range(100):
        client.put("T", b"%d" % number)
    consumer = Consumer(client, "g", {"T": "*"}, max_reconsume_times=0)
    found = consumer.receive(max_messages=100)
    with ThreadPoolExecutor(1) as thread:
        with stopped_disk(monkeypatch) as waits:
            if way == "nack":
                dead = thread.submit(consumer.nack, *found)
            else:
                client.release_leases(consumer.holder)
                dead = thread.submit(consumer.receive, 100, 0)
            until(waits.is_set, "the wait for the disk")
            assert other.put("U", b"x").ok
            assert other.kv_get("t", [b"k"]) == [None]
        dead.result(TIMEOUT_S)
    assert client.max_queue_offset("%DLQ%g", 0) == 100
    assert consumer.receive(1, 0) == []


def test_a_table_that_is_read_or_changed_keeps_nobody_else_waiting(owner, client, other):
    client.kv_put("t", b"k", b"v")
    with ThreadPoolExecutor(1) as thread:
        with owner._store.parts.key_values._tables_held():
            got = thread.submit(client.kv_get, "t", [b"k"])
            until(lambda: client.reach_owner()._waiting, "the call")
            assert other.put("T", b"x").ok
            assert other.put("T", b"y").ok
        assert got.result(TIMEOUT_S) == [b"v"]


def test_a_table_is_read_in_a_thread_of_its_own(owner, client, monkeypatch):
    client.kv_put("t", b"k", b"v")
    owner._store.parts.key_values._tables.clear()
    read, threads = KeyValues._read, []

    def noted(store, name):
        threads.append(threading.current_thread().name)
        return read(store, name)

    monkeypatch.setattr(KeyValues, "_read", noted)
    assert client.kv_list("t") == [(b"k", b"v")]
    assert client.kv_count("t") == 1
    assert threads == ["ShareStoreCall"]


def test_one_that_is_to_end_before_it_has_begun_ends(tmp_path):
    """As where the store cannot be opened, which may take less time than a thread to start."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = StoreServer(listening, tmp_path)
        server._loop.call_soon(server._begin_stop)
        server.start()
        until(lambda: not server._thread.is_alive(), "the end of its thread")
