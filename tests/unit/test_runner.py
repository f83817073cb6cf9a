"""Who runs services: rounds that are due, woken, refused; by hand and in threads."""

import errno
import threading

import pytest
from held_time import HeldTime
from patience import TIMEOUT_S, until

import rmqcore
from rmqcore.errors import DiskFullError
from rmqcore.services.runner import Threads
from rmqcore.services.service import Service

pytestmark = pytest.mark.logic


class Counted(Service):
    """Notes when its rounds were; the first ones fail as often as it is told."""

    def __init__(self, rest_s, failures=0, refusal=errno.EIO, *, tries_again=False):
        super().__init__("Counted")
        self.tries_again = tries_again
        self.rest_s, self.failures, self.refusal = rest_s, failures, refusal
        self.rounds, self.ends, self.errors = [], [], []

    def run(self, now):
        self.rounds.append(now)
        if len(self.rounds) <= self.failures:
            self.wakeup()
            raise OSError(self.refusal, "refused")
        return self.rest_s

    def last(self, *, ended):
        self.ends.append(ended)


@pytest.fixture
def held():
    return HeldTime()


def started(held, *what, **settings):
    service = Counted(*what, **settings)
    held.services.start(service, service.errors.append)
    return service


def test_a_round_comes_when_it_is_due_and_not_before(held):
    service = started(held, 10.0)
    held.services.until_idle()
    assert service.rounds == [0.0]
    assert held.services.due_in_s == 10.0
    held.services.advance(25.0)
    assert service.rounds == [0.0, 10.0, 20.0]
    assert held.now_s == 25.0


def test_a_service_that_is_woken_runs_at_once_and_once(held):
    service = started(held, 10.0)
    held.services.advance(4.0)
    service.wakeup()
    service.wakeup()
    assert held.services.due_in_s == 0.0
    assert held.services.step()
    assert not held.services.step()
    assert service.rounds == [0.0, 4.0]
    held.services.advance(10.0)
    assert service.rounds == [0.0, 4.0, 14.0]


def test_rounds_of_the_same_time_run_in_the_order_of_their_start(held):
    order = []

    class Named(Service):
        def run(self, now):
            order.append(self.name)
            return 1.0

    for name in "cab":
        held.services.start(Named(name), order.append)
    held.services.advance(1.0)
    assert order == list("cabcab")


@pytest.mark.parametrize(
    ("refusal", "tries_again"),
    [
        *((refusal, True) for refusal in (errno.EIO, errno.EROFS, errno.ENOSPC)),
        *((refusal, False) for refusal in (errno.EMFILE, errno.ENFILE, errno.EACCES)),
    ],
)
def test_a_round_that_is_refused_without_loss_is_run_again_each_second_and_told_once(
    held, caplog, refusal, tries_again
):
    caplog.set_level("INFO", "rmqcore")
    service = started(held, 10.0, 40, refusal, tries_again=tries_again)
    held.services.advance(40.0)
    # it is woken all the while, and waits the whole second
    assert service.rounds == [float(second) for second in range(41)]
    assert service.errors == []
    assert [record.getMessage() for record in caplog.records] == [
        f"Counted: [Errno {refusal}] refused; it is tried again",
        "Counted goes on",
    ]


def test_another_refusal_is_told_too(held, caplog):
    service = started(held, 10.0, 4, errno.EMFILE)
    held.services.advance(1.0)
    service.refusal = errno.EACCES
    held.services.advance(1.0)
    assert [record.getMessage()[:18] for record in caplog.records] == [
        f"Counted: [Errno {number}" for number in (errno.EMFILE, errno.EACCES)
    ]


def test_two_refusals_that_come_in_turns_are_told_once_each(held, caplog):
    service = started(held, 10.0, 10)
    service.run = lambda now: refused((errno.EMFILE, errno.EACCES)[int(now) % 2])
    held.services.advance(9.0)
    assert len(caplog.records) == 2


def refused(number):
    raise OSError(number, "refused")


def test_a_full_disk_ends_no_service(held):
    service = started(held, 10.0, 1)
    service.run = lambda _: raise_full()
    held.services.advance(3.0)
    assert service.errors == []


def raise_full():
    raise DiskFullError("/a/b")


@pytest.mark.parametrize("refusal", [errno.EIO, errno.EROFS, errno.ENOSPC])
def test_a_refusal_that_may_have_cost_bytes_ends_who_does_not_say_otherwise(held, refusal):
    service = started(held, 10.0, 1, refusal)
    held.services.advance(3.0)
    assert [type(error) for error in service.errors] == [OSError]
    assert held.services.is_running(service) is service.active is False


def test_one_that_has_been_stopped_runs_no_more_and_does_what_is_left(held):
    service = started(held, 1.0)
    held.services.until_idle()
    assert held.services.stop(service)
    held.services.advance(5.0)
    assert service.rounds == [0.0]
    assert service.ends == [True]
    assert held.services.due_in_s == float("inf")


def test_services_that_wake_themselves_without_end_are_found(held):
    started(held, 0.0)
    with pytest.raises(RuntimeError, match="Counted"):
        held.services.until_idle()


@pytest.mark.engine
def test_in_threads_a_refused_round_is_tried_again(monkeypatch):
    monkeypatch.setattr("rmqcore.services.runner.RETRY_INTERVAL_S", 0.001)
    for tries_again, ends in ((True, False), (False, True)):
        runner, service = Threads(), Counted(0.001, 4, tries_again=tries_again)
        runner.start(service, service.errors.append)
        until(lambda it=service: len(it.rounds) > 5 or it.errors, "it goes on, or ends")
        assert runner.stop(service)
        assert [type(error) for error in service.errors] == [OSError] * ends
        assert not runner.is_running(service)


@pytest.mark.engine
def test_a_stop_waits_for_the_round_that_runs_and_says_when_it_does_no_longer(caplog):
    may_end, begun = threading.Event(), threading.Event()

    class Slow(Counted):
        def run(self, now):
            begun.set()
            assert may_end.wait(TIMEOUT_S)
            return super().run(now)

    runner, service = Threads(), Slow(3600.0)
    runner.start(service, service.errors.append)
    assert begun.wait(TIMEOUT_S)
    assert not runner.stop(service, 0.0)
    assert f"{service.name} is still at work after 0 s" in caplog.text
    assert service.ends == [False]
    may_end.set()
    assert runner.stop(service, TIMEOUT_S)
    assert service.ends == [False, True]
    assert len(service.rounds) == 1


def test_a_store_runs_by_hand_without_a_thread(tmp_path, held):
    before = threading.active_count()
    config = rmqcore.StoreConfig(mapped_file_size_commit_log=1 << 20)
    store = rmqcore.DefaultMessageStore(
        tmp_path / "s", config, runner=held.services, world=held.world
    )
    try:
        assert threading.active_count() == before
        arrived = []
        store.on_arrival(arrived.extend)
        held.services.until_idle()
        store.put("T", b"x")
        assert arrived == []
        # a put wakes who dispatches
        assert held.services.due_in_s == 0.0
        held.services.until_idle()
        assert arrived == [("T", 0)]
        assert store.stats()["remainHowManyDataToFlush"] != "0"
        held.services.advance(60.0)
        assert store.stats()["remainHowManyDataToFlush"] == "0"
    finally:
        store.close()
    assert held.services.due_in_s == float("inf")
