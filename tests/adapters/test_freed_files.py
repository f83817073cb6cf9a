"""By default the stores of adapters give back what is done with, and handles that are dropped."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from killed_copy import copy_as_killed
from patience import TIMEOUT_S, until

import rmqcore
from rmqcore import DiskFullError, StoreClosedError, StoreNotWritableError
from rmqcore.adapters import opened as opened_module
from rmqcore.adapters.named_queue import TOPIC
from rmqcore.adapters.opened import OpenedStore

pytestmark = pytest.mark.engine

FILE_SIZE = 1 << 20
SMALL = {"mapped_file_size_commit_log": FILE_SIZE, "message_index_enable": False}
BODY = bytes(100_000)


@pytest.fixture
def opened(tmp_path):
    use = OpenedStore(tmp_path / "store", SMALL)
    yield use
    use.close()


def consume(opened, count):
    """Put so many messages, each of which is handed out and acknowledged; look after each."""
    for _ in range(count):
        opened.store.put("T", BODY)
        for message in opened.lease("g", {"T": "*"}):
            opened.store.acknowledge("g", [message.place])
        opened.delete_consumed(3600)


def test_log_files_go_when_as_many_bytes_were_handed_out(opened, caplog):
    caplog.set_level(logging.INFO, "rmqcore")
    consume(opened, 40)
    assert opened.store.min_phy_offset >= 2 * FILE_SIZE
    assert opened.held_size() <= 2 * FILE_SIZE
    assert f"1 log files given back, {FILE_SIZE} bytes held" in caplog.text


def test_nothing_is_looked_for_before_it_is_time(opened, monkeypatch):
    opened.delete_consumed(3600)
    monkeypatch.setattr(opened.store, "delete_consumed_files", lambda: pytest.fail("too early"))
    consume(opened, 9)
    opened.delete_consumed(None)


def test_a_store_that_refuses_to_free_files_keeps_nobody_from_his_work(opened, monkeypatch, caplog):
    def refuse():
        raise DiskFullError("/disk")

    monkeypatch.setattr(opened.store, "delete_consumed_files", refuse)
    consume(opened, 15)
    assert "no log files are given back now" in caplog.text


def test_what_was_refused_is_settled_by_several_threads_at_once(opened):
    done, meanwhile, is_full = [], [], True

    def settle(number):
        if is_full:
            raise DiskFullError("consumerLeases.log")
        if not meanwhile:
            meanwhile.append(number)
            threads.submit(opened.lease, "g", {"T": "*"}).result(TIMEOUT_S)
        done.append(number)

    with ThreadPoolExecutor(1) as threads:
        for number in range(2):
            with pytest.raises(DiskFullError):
                opened.settle(lambda number=number: settle(number))
        is_full = False
        assert opened.lease("g", {"T": "*"}) == []
    assert set(done) == {0, 1}
    done.clear()
    opened.lease("g", {"T": "*"})
    assert done == []


def test_a_use_that_is_dropped_gives_back_what_it_holds_and_the_last_one_the_store(tmp_path):
    kept = OpenedStore(tmp_path / "store", SMALL)
    kept.store.put("T", b"x")
    dropped = OpenedStore(tmp_path / "store", SMALL)
    assert len(dropped.lease("g", {"T": "*"}, lease_ms=3_600_000)) == 1
    del dropped
    gc.collect()
    assert len(kept.lease("g", {"T": "*"}, timeout_ms=60_000)) == 1
    del kept
    gc.collect()
    with alone(tmp_path / "store") as store:
        assert store.max_queue_offset("T", 0) == 1
    assert str(tmp_path / "store") not in opened_module._stores


def test_a_handle_of_a_shared_store_that_is_dropped_is_closed(tmp_path):
    owner = rmqcore.open_shared(tmp_path / "store", **SMALL)
    client = rmqcore.open_shared(tmp_path / "store", **SMALL)
    owner.put("T", b"x")
    assert len(client.lease("g", {"T": "*"}, lease_ms=3_600_000)) == 1
    handles = [client]
    del client
    drop(handles)
    assert len(owner.lease("g", {"T": "*"}, timeout_ms=60_000)) == 1
    handles = [owner]
    del owner
    drop(handles)
    alone(tmp_path / "store").close()


def test_a_client_that_listens_for_arrivals_is_closed_when_it_is_dropped(tmp_path):
    with rmqcore.open_shared(tmp_path / "store", **SMALL) as owner:
        handles = [rmqcore.open_shared(tmp_path / "store", **SMALL)]
        told = threading.Event()
        handles[0].on_arrival(lambda _: told.set())
        # the listener's thread waits in a call of the handle
        until(lambda: owner.put("T", b"x") and told.is_set(), "an arrival that was told")
        drop(handles)
        until(lambda: not owner._server._server.connections, "a connection that has ended")


def drop(handles):
    """Let the last reference to some handles go."""
    gc.collect()
    with pytest.warns(ResourceWarning, match=r"SharedMessageStore.*was not closed"):
        handles.clear(), gc.collect()


def alone(path):
    """A store as soon as nobody else has it any more."""

    def unlocked():
        with suppress(rmqcore.StoreLockedError):
            return rmqcore.open_store(path, **SMALL)

    return until(unlocked, "the store's lock")


@pytest.fixture
def coilmq(monkeypatch):
    """`rmqcore.adapters.coilmq` beside as much of CoilMQ as it imports."""

    class Frame:
        def __init__(self, cmd, headers=None, body=""):
            self.cmd, self.headers, self.body = cmd, headers or {}, body

    contents = {
        "coilmq": {},
        "coilmq.config": {"config": None},
        "coilmq.exception": {"ConfigError": Exception},
        "coilmq.store": {"QueueStore": object},
        "coilmq.util": {},
        "coilmq.util.frames": {"Frame": Frame},
    }
    for name, content in contents.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "rmqcore.adapters.coilmq", raising=False)
    from rmqcore.adapters import coilmq

    coilmq.Frame = Frame
    yield coilmq
    sys.modules.pop("rmqcore.adapters.coilmq", None)


def test_destinations_that_are_empty_leave_their_place_to_others(coilmq, tmp_path):
    store = coilmq.RmqQueueStore(tmp_path / "store")
    for number in range(50):
        name = f"/temp-queue/{number}"
        store.enqueue(name, coilmq.Frame("SEND", {"n": str(number)}, "x"))
        assert store.destinations() == {name}
        frame = store.dequeue(name)
        assert frame.headers == {"n": str(number)}
        assert store.size(name) == 0
        assert store.dequeue(name) is None
    assert store.destinations() == set()
    queues = [queue for queue in store._home.store.queues() if queue[0] == TOPIC]
    assert len(queues) == 1
    assert store.held_size() == 16 << 20
    store.close()


def test_a_frame_that_is_held_comes_back_though_its_place_is_anothers(coilmq, tmp_path):
    path = tmp_path / "store"
    store = coilmq.RmqQueueStore(path)
    store.enqueue("/queue/a", coilmq.Frame("SEND", {}, "a"))
    held = store.dequeue("/queue/a")
    store.enqueue("/queue/b", coilmq.Frame("SEND", {}, "b"))
    store.close()
    again = coilmq.RmqQueueStore(path)
    assert again.destinations() == {"/queue/a", "/queue/b"}
    assert [again.dequeue(f"/queue/{name}").body for name in "ab"] == ["a", "b"]
    again.close()
    del held


@pytest.mark.parametrize("refusal", [DiskFullError, StoreNotWritableError])
def test_a_frame_that_no_client_took_and_the_store_refused_is_not_lost(
    coilmq, tmp_path, monkeypatch, caplog, refusal
):
    store = coilmq.RmqQueueStore(tmp_path / "store")
    store.enqueue("/queue/a", coilmq.Frame("SEND", {}, "a"))
    frame = store.dequeue("/queue/a")

    def full(*_):
        raise refusal("no room")

    with monkeypatch.context() as patch:
        patch.setattr(store._home, "put", full)
        # an error here would let CoilMQ keep a connection that has ended, and the frame
        store.requeue("/queue/a", frame)
        assert "/queue/a: a frame is stored again later: " in caplog.text
        del frame
        gc.collect()
        assert store.dequeue("/queue/a") is None
        copy_as_killed(tmp_path / "store", tmp_path / "killed")
    assert store.size("/queue/a") == 1
    assert store.dequeue("/queue/a").body == "a"
    assert store.dequeue("/queue/a") is None
    store.close()
    killed = coilmq.RmqQueueStore(tmp_path / "killed")
    assert killed.dequeue("/queue/a").body == "a"
    killed.close()


def test_a_frame_that_went_past_the_store_and_was_refused_is_stored_at_the_closing(
    coilmq, tmp_path, monkeypatch
):
    store = coilmq.RmqQueueStore(tmp_path / "store")

    def full(*_):
        raise DiskFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(store._home, "put", full)
        store.requeue("/queue/a", coilmq.Frame("MESSAGE", {}, "a"))
    store.close()
    # CoilMQ's clients go later: nobody stores their frames again
    with pytest.raises(StoreClosedError, match="/queue/a"):
        store.requeue("/queue/a", coilmq.Frame("MESSAGE", {}, "b"))
    again = coilmq.RmqQueueStore(tmp_path / "store")
    assert again.dequeue("/queue/a").body == "a"
    assert again.dequeue("/queue/a") is None
    again.close()
