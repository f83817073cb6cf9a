"""Closing a handle that somebody else is closing."""

import threading

import pytest
from patience import TIMEOUT_S

from rmqcore import StoreLockedError, open_store
from rmqcore.services.allocate import AllocateMappedFileService
from rmqcore.services.flush import FlushConsumeQueueService
from rmqcore.store import message_store

pytestmark = pytest.mark.engine


def test_a_second_close_leaves_the_next_handle_alone(tmp_path):
    first = open_store(tmp_path / "s")
    first.put("T", b"x")
    go, inside, beside = (threading.Event() for _ in range(3))
    stop_callers = first.parts.stop_callers

    def held():
        stop_callers()
        if threading.current_thread() is slow:
            inside.set()
            go.wait(TIMEOUT_S)
        else:
            beside.set()

    first.parts.stop_callers = held
    slow = threading.Thread(target=first.close)
    slow.start()
    assert inside.wait(TIMEOUT_S)
    second = threading.Thread(target=first.close)
    second.start()
    assert beside.wait(TIMEOUT_S)
    go.set()
    slow.join(TIMEOUT_S)
    second.join(TIMEOUT_S)
    assert not slow.is_alive()
    assert not second.is_alive()
    with open_store(tmp_path / "s") as other:
        other.put("T", b"y")
        first.close()
        assert (tmp_path / "s" / "abort").exists()
    assert not (tmp_path / "s" / "abort").exists()


@pytest.mark.parametrize("callers", [8])
def test_all_who_close_return_when_it_is_closed(tmp_path, callers):
    store = open_store(tmp_path / "s")
    store.put("T", b"x")
    markers = []

    def close():
        store.close()
        markers.append((tmp_path / "s" / "abort").exists())

    threads = [threading.Thread(target=close) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert markers == [False] * callers


@pytest.mark.parametrize("stopped", [FlushConsumeQueueService, AllocateMappedFileService])
def test_an_interrupted_close_leaves_nothing_running(tmp_path, monkeypatch, stopped):
    store, interrupted = open_store(tmp_path / "s"), []
    store.put("T", b"x")
    join = threading.Thread.join

    def interrupt(thread, timeout=None):
        if thread.name == stopped.__name__ and not interrupted:
            interrupted.append(thread)
            raise KeyboardInterrupt
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    assert not [
        service
        for service in store.parts.upkeep.services
        if store.parts.upkeep.runner.is_running(service)
    ]
    with open_store(tmp_path / "s") as other:
        assert not other.recovery_report.clean_shutdown
        assert [bytes(message.body) for message in other.messages()] == [b"x"]


@pytest.mark.parametrize("part", ["Upkeep.stop_running", "StoreDir.unlock"])
def test_a_close_that_is_interrupted_at_its_end_can_be_called_again(tmp_path, monkeypatch, part):
    owner, _, name = part.rpartition(".")
    owner = getattr(message_store, owner) if owner else message_store
    real, due = getattr(owner, name), [True]

    def interrupted(*what):
        if due.pop():
            due.append(False)
            raise KeyboardInterrupt
        due.append(False)
        return real(*what)

    monkeypatch.setattr(owner, name, interrupted)
    store = open_store(tmp_path / "s")
    store.put("T", b"x")
    with pytest.raises(KeyboardInterrupt):
        store.close()
    with pytest.raises(StoreLockedError):
        open_store(tmp_path / "s")
    store.close()
    assert not [
        service
        for service in store.parts.upkeep.services
        if store.parts.upkeep.runner.is_running(service)
    ]
    with open_store(tmp_path / "s") as other:
        assert [bytes(message.body) for message in other.messages()] == [b"x"]
