"""Services that go on, and say so, when the system refuses something for a while."""

import errno
import threading

import pytest
from patience import TIMEOUT_S, until

import rmqcore
from rmqcore.services import runner

pytestmark = pytest.mark.engine


@pytest.fixture
def disk(monkeypatch, store_path):
    """A store whose consume queues the system refuses to write as long as `disk.bad` says."""
    monkeypatch.setattr(runner, "RETRY_INTERVAL_S", 0.02)

    class Disk:
        bad = False
        #: the next try waits for it
        goes_on = threading.Event()

    with rmqcore.open_store(store_path) as store:
        dispatch = store.consume_queues.dispatch
        refused = []

        def refuse(batch):
            if refused:
                assert Disk.goes_on.wait(TIMEOUT_S)
            if Disk.bad:
                refused.append(batch)
                raise OSError(errno.EIO, "Input/output error")
            dispatch(batch)

        monkeypatch.setattr(store.consume_queues, "dispatch", refuse)
        Disk.store = store
        yield Disk
        Disk.bad = False
        Disk.goes_on.set()


def test_dispatch_goes_on_when_the_system_lets_it(disk):
    store = disk.store
    store.put("T", b"a", keys="K")
    assert store.max_queue_offset("T", 0) == 1
    disk.bad = True
    store.put("T", b"b", keys="K")
    until(lambda: store.why_not_writable() is not None, "a refusal")
    assert "Input/output error" in store.why_not_writable()
    assert "tried again" in store.why_not_writable()
    with pytest.raises(rmqcore.StoreNotWritableError, match="Input/output"):
        store.put("T", b"refused")
    disk.bad = False
    disk.goes_on.set()
    until(lambda: store.why_not_writable() is None, "dispatch goes on")
    assert store.put("T", b"c", keys="K").queue_offset == 2
    assert [message.body for message in store.messages("T", 0)] == [b"a", b"b", b"c"]
    assert len(store.query_message("T", "K").messages) == 3


def test_while_dispatch_is_refused_reads_and_flushes_go_on(disk):
    """A flush that came just then made the store read-only for good."""
    store = disk.store
    store.put("T", b"a", keys="K")
    assert store.max_queue_offset("T", 0) == 1
    disk.bad = True
    disk.goes_on.set()
    store.put("T", b"b", keys="K")
    until(lambda: store.why_not_writable() is not None, "a refusal")
    assert store.flush() == store.max_phy_offset
    assert [message.body for message in store.messages("T", 0)] == [b"a"]
    assert len(store.query_message("T", "K").messages) == 1
    disk.bad = False
    until(lambda: store.why_not_writable() is None, "dispatch goes on")
    assert [message.body for message in store.messages("T", 0)] == [b"a", b"b"]
