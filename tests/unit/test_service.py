"""Services that go on, and say so, when the system refuses something for a while."""

import errno
import threading
import time

import pytest
from patience import TIMEOUT_S, until

import rmqcore
from rmqcore.services import service
from rmqcore.services.reput import ReputMessageService
from rmqcore.services.service import ServiceThread

pytestmark = pytest.mark.engine


class Refused(ServiceThread):
    """A service whose rounds fail as often as it is told to, woken all the while."""

    tries = 5

    def __init__(self, failures, refusal=errno.EIO):
        self.errors = []
        super().__init__("Refused", 0.001, self.errors.append)
        self.failures = failures
        self.refusal = refusal
        self.rounds = 0

    def run_once(self):
        self.rounds += 1
        self.wakeup()
        if self.rounds <= self.failures:
            raise OSError(self.refusal, "refused")


@pytest.mark.parametrize("refusal", [errno.EMFILE, errno.ENFILE])
def test_a_service_that_gets_no_descriptor_tries_until_it_gets_one(monkeypatch, refusal):
    monkeypatch.setattr(service, "RETRY_INTERVAL_S", 0.001)
    refused = Refused(40, refusal)
    refused.start()
    until(lambda: refused.rounds > 40, "it goes on")
    refused.stop()
    assert refused.errors == []


def test_a_service_that_is_refused_tries_again_so_often_and_no_oftener(monkeypatch):
    monkeypatch.setattr(service, "RETRY_INTERVAL_S", 0.02)
    for failures, ended in ((4, False), (5, True)):
        began = time.monotonic()
        refused = Refused(failures)
        refused.start()
        until(lambda it=refused: it.rounds > 5 or it.errors, "it goes on, or ends")
        assert time.monotonic() - began >= 4 * 0.02
        refused.stop()
        assert [type(error) for error in refused.errors] == [OSError] * ended


@pytest.fixture
def disk(monkeypatch, store_path):
    """A store whose consume queues the system refuses to write as long as `disk.bad` says."""
    monkeypatch.setattr(service, "RETRY_INTERVAL_S", 0.02)

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
    assert "30 times" in store.why_not_writable()
    with pytest.raises(rmqcore.StoreNotWritableError, match="Input/output"):
        store.put("T", b"refused")
    disk.bad = False
    disk.goes_on.set()
    until(lambda: store.why_not_writable() is None, "dispatch goes on")
    assert store.put("T", b"c", keys="K").queue_offset == 2
    assert [message.body for message in store.messages("T", 0)] == [b"a", b"b", b"c"]
    assert len(store.query_message("T", "K").messages) == 3


def test_dispatch_that_never_goes_on_ends_and_says_so(disk, monkeypatch):
    monkeypatch.setattr(ReputMessageService, "tries", 3)
    disk.bad = True
    disk.goes_on.set()
    disk.store.put("T", b"a")
    until(lambda: "ended" in (disk.store.why_not_writable() or ""), "the dispatcher ends")
    assert "Input/output error" in disk.store.why_not_writable()
