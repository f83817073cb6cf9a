"""huey's storage in one process and over several: what its own suite does not ask."""

from __future__ import annotations

import contextlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from children import Program, in_child
from patience import TIMEOUT_S

from rmqcore import ConfigError, DiskFullError

pytestmark = pytest.mark.engine

pytest.importorskip("huey", reason="needs huey: pip install rmqcore[huey]")
adapter = pytest.importorskip("rmqcore.adapters.huey")
constants = pytest.importorskip("huey.constants")

#: a huey as a program has it, in a module of its own
APP = """
import sys
from rmqcore.adapters.huey import RmqHuey

huey = RmqHuey("app", path=sys.argv[1], blocking=True, read_timeout=0.2, lease_ms=60_000)

@huey.task()
def slow(number):
    print(number, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def make(tmp_path):
    made = []

    def make(name="app", **settings):
        settings.setdefault("blocking", False)
        huey = adapter.RmqHuey(name, path=tmp_path / "store", **settings)
        made.append(huey)
        return huey

    yield make
    for huey in made:
        huey.storage.close()


@pytest.mark.parametrize(
    "names", [("one", "other"), ("x" * 500, "x" * 501), ("待" * 40, "待" * 41)]
)
def test_names_in_one_store_are_apart(make, names):
    one, other = (make(name).storage for name in names)
    one.enqueue(b"a")
    one.put_data("k", b"v")
    one.add_to_schedule(b"s", datetime(2000, 1, 1))  # noqa: DTZ001
    assert one.incr("c") == 1
    assert (other.queue_size(), other.result_store_size(), other.schedule_size()) == (0, 0, 0)
    assert other.dequeue() is None
    assert other.incr("c", 5) == 5
    other.flush_all()
    assert (one.queue_size(), one.result_store_size(), one.schedule_size()) == (1, 1, 1)
    assert one.incr("c") == 2


def test_all_is_there_after_a_close(make):
    huey = make()
    storage = huey.storage
    storage.enqueue(b"low", -5)
    storage.enqueue(b"high", 1000)
    storage.enqueue(b"higher than low", -4)
    storage.put_data("k", b"v")
    storage.incr("c", 7)
    storage.add_to_schedule(b"later", datetime(2030, 1, 1))  # noqa: DTZ001
    storage.add_to_schedule(b"sooner", datetime(1960, 1, 1))  # noqa: DTZ001
    assert storage.close()
    assert not storage.close()
    assert storage.enqueued_items() == [b"high", b"higher than low", b"low"]
    assert [storage.dequeue() for _ in range(4)] == [b"high", b"higher than low", b"low", None]
    assert storage.peek_data("k") == b"v"
    assert storage.incr("c", 0) == 7
    assert storage.scheduled_items() == [b"sooner", b"later"]
    assert storage.read_schedule(datetime(2000, 1, 1)) == [b"sooner"]  # noqa: DTZ001


def test_times_with_and_without_a_zone_are_ordered(make):
    storage = make().storage
    at = datetime(2026, 3, 29, 0, 59, 59, 999_999, tzinfo=UTC)
    storage.add_to_schedule(b"utc", at)
    storage.add_to_schedule(b"cet", (at + timedelta(seconds=1)).astimezone())
    assert storage.read_schedule(at - timedelta(microseconds=1)) == []
    assert storage.read_schedule(at) == [b"utc"]
    assert storage.read_schedule(at + timedelta(seconds=1)) == [b"cet"]


def test_a_result_that_nobody_reads_expires(make, clock):
    storage = make(result_ttl=0.2).storage
    storage.put_data("result", b"v", is_result=True)
    storage.put_data("revoked", b"v")
    assert storage.result_store_size() == 2
    clock.pass_ms(200)
    assert storage.result_items() == {"revoked": b"v"}


def test_one_of_many_takes_a_result_a_lock_and_a_task(make):
    storage = make().storage
    for number in range(50):
        storage.enqueue(b"%d" % number)
    storage.put_data("k", b"v")
    got = []

    def take():
        got.append(storage.put_if_empty("lock", b"x"))
        got.append(storage.pop_data("k") is not constants.EmptyData)
        while (data := storage.dequeue()) is not None:
            got.append(data)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got.count(True) == 2
    assert sorted(int(each) for each in got if type(each) is bytes) == list(range(50))


def test_a_storage_needs_a_path():
    with pytest.raises(ConfigError, match="the directory of the store"):
        adapter.RmqStorage("app")


@pytest.mark.parametrize("kind", ["greenlet", "gevent"])
def test_a_consumer_has_no_greenlets(make, kind):
    with pytest.raises(ConfigError, match=f"worker_type='{kind}': thread or process"):
        make().create_consumer(worker_type=kind)
    assert make().create_consumer(worker_type="thread", workers=2)


def test_a_task_that_cannot_be_read_goes_to_the_dead_letters(make):
    huey = make(lease_ms=60_000)
    huey.storage.enqueue(b"no task")
    with pytest.raises(Exception, match=r"pickle|unpickl|load"):
        huey.dequeue()
    assert huey.dequeue() is None
    store = huey.storage.store
    assert [bytes(message.body) for message in store.messages("%DLQ%huey")] == [b"no task"]


@pytest.mark.parametrize("lease_ms", [None, 60_000])
def test_a_task_that_ends_whoever_reads_it_is_a_dead_letter(make, monkeypatch, lease_ms):
    """As one whose module calls sys.exit when it is imported: all workers would end by it."""
    huey = make(lease_ms=lease_ms)
    ran = []
    task = huey.task()(ran.append)
    task("ends")
    due = huey.serialize_task(task.s("ends"))
    huey.storage.add_to_schedule(due, datetime(2000, 1, 1))  # noqa: DTZ001
    task("next")
    read = huey.deserialize_task

    def ends(data):
        task = read(data)
        if "ends" in task.args:
            sys.exit(2)
        return task

    monkeypatch.setattr(huey, "deserialize_task", ends)
    with pytest.raises(ValueError, match="ends whoever reads it"):
        huey.dequeue()
    assert huey.read_schedule() == []
    huey.execute(huey.dequeue())
    assert (ran, huey.pending_count(), huey.scheduled_count()) == (["next"], 0, 0)
    assert len(list(huey.storage.store.messages("%DLQ%huey"))) == 2


@pytest.mark.parametrize("lease_ms", [None, 60_000])
@pytest.mark.parametrize("error", [TimeoutError, KeyboardInterrupt, SystemExit])
def test_a_task_that_a_signal_handler_has_kept_from_being_read_is_handed_out(
    make, monkeypatch, lease_ms, error
):
    huey = make(lease_ms=lease_ms)
    ran = []
    task = huey.task()(ran.append)
    task(1)
    task.schedule([2], delay=3600)
    read, handlers = huey.deserialize_task, []

    def interrupted(data):
        if handlers:
            raise handlers.pop()
        return read(data)

    monkeypatch.setattr(huey, "deserialize_task", interrupted)
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        handlers.append(error)
        huey.execute(huey.dequeue())
    while (waiting := huey.dequeue()) is not None:
        huey.execute(waiting)
    assert (ran, huey.scheduled_count()) == ([1], 1)
    if error is TimeoutError:
        handlers.append(error)
        for due in huey.read_schedule(datetime(2100, 1, 1)):  # noqa: DTZ001
            huey.enqueue(due)
        assert huey.pending_count() == 1
    assert not list(huey.storage.store.messages("%DLQ%huey"))


def test_a_full_disk_is_an_error_and_nothing_is_enqueued(make, monkeypatch):
    huey = make()

    @huey.task()
    def task():
        return 1

    def full(*_, **__):
        raise DiskFullError("commit log")

    with monkeypatch.context() as patch:
        patch.setattr(huey.storage.store, "put", full, raising=False)
        with pytest.raises(DiskFullError):
            task()
    assert huey.pending_count() == 0


def test_what_waits_is_named_when_one_was_given_back_behind_later_ones(make):
    storage = make(lease_ms=60_000).storage
    for data in (b"a", b"b", b"c", b"d"):
        storage.enqueue(data)
    first, second, third = (storage.lease(60_000) for _ in range(3))
    storage.acknowledge(second.place)
    assert storage.enqueued_items() == [b"d"]
    storage.give_back(first.place)
    storage.enqueue(b"before all", 5)
    assert storage.enqueued_items() == [b"before all", b"a", b"d"]
    assert storage.enqueued_items(2) == [b"before all", b"a"]
    storage.acknowledge(third.place)
    assert [bytes(storage.lease(60_000).body) for _ in range(3)] == [b"before all", b"a", b"d"]


def test_with_a_lease_a_task_ends_when_it_has_been_executed(make):
    huey = make(lease_ms=60_000)
    stop = [True]

    @huey.task()
    def task():
        if stop.pop():
            raise KeyboardInterrupt
        return 5

    stop.append(True)
    result = task()
    assert huey.execute(huey.dequeue()) is None
    stop[:] = [False]
    again = huey.dequeue()
    assert huey.dequeue() is None
    assert huey.execute(again) == 5
    assert result() == 5
    assert huey.dequeue() is None
    lag = huey.storage.store.lag("huey", ["huey-app"])
    assert [(row.ready, row.leased) for row in lag] == [(0, 0)]


@pytest.mark.parametrize("lease_ms", [None, 60_000])
def test_what_is_due_is_enqueued_once_by_one_of_two_schedulers(make, lease_ms):
    one, other = make(lease_ms=lease_ms), make(lease_ms=lease_ms)

    @one.task()
    def task(number):
        return number

    other._registry = one._registry
    for number in range(3):
        task.schedule((number,), delay=3600)
        one.execute(one.dequeue())
    one.storage.add_to_schedule(b"no task", datetime(2000, 1, 1))  # noqa: DTZ001
    assert one.scheduled_count() == 4
    assert one.read_schedule() == []
    at = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=2)
    read = threading.Thread(target=lambda: [other.enqueue(t) for t in other.read_schedule(at)])
    read.start()
    for due in one.read_schedule(at):
        one.enqueue(due)
    read.join()
    assert one.scheduled_count() == 0
    assert sorted(one.execute(one.dequeue(), at) for _ in range(3)) == [0, 1, 2]
    assert one.dequeue() is None
    assert [bytes(m.body) for m in one.storage.store.messages("%DLQ%huey")] == [b"no task"]


@pytest.mark.parametrize("lease_ms", [None, 60_000])
@pytest.mark.parametrize("refused", [["enqueue"], ["enqueue", "add_to_schedule"]])
def test_a_due_task_that_a_full_disk_refused_is_due_again(make, monkeypatch, refused, lease_ms):
    huey = make(lease_ms=lease_ms)
    task = huey.task()(lambda: None)
    for _ in range(2):
        task.schedule(delay=3600)
        huey.execute(huey.dequeue())
    at = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=2)

    def full(*_, **__):
        raise DiskFullError("commit log")

    def scheduler():
        """As huey's, which logs what fails, and goes on."""
        with contextlib.suppress(DiskFullError):
            for due in huey.read_schedule(at):
                with contextlib.suppress(DiskFullError):
                    huey.enqueue(due)

    with monkeypatch.context() as disk:
        for call in refused:
            disk.setattr(type(huey.storage), call, full)
        scheduler()
    scheduler()
    assert (huey.scheduled_count(), huey.pending_count()) == (0, 2)


def test_what_was_claimed_before_the_disk_was_full_is_enqueued(make, monkeypatch):
    huey = make(lease_ms=60_000)
    task = huey.task()(lambda: None)
    for _ in range(2):
        task.schedule(delay=3600)
        huey.execute(huey.dequeue())
    at = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=2)
    swap, swapped = huey.storage.store.kv_swap, []

    def until_full(*key, **settings):
        if swapped:
            raise DiskFullError("commit log")
        swapped.append(key)
        return swap(*key, **settings)

    with monkeypatch.context() as disk:
        disk.setattr(huey.storage.store, "kv_swap", until_full, raising=False)
        huey.read_schedule(at)
    assert (huey.scheduled_count(), huey.pending_count()) == (1, 1)
    huey.read_schedule(at)
    assert (huey.scheduled_count(), huey.pending_count()) == (0, 2)


@pytest.mark.parametrize("later_ms", [0, 61_000])
def test_a_scheduler_that_takes_long_enqueues_no_task_that_another_has(make, clock, later_ms):
    """Many are due at once, and each waits for the disk: claims of all together would be over."""
    one, other = make(lease_ms=60_000), make(lease_ms=60_000)
    task = one.task()(lambda: None)
    other._registry = one._registry
    for _ in range(3):
        task.schedule(delay=3600)
        one.execute(one.dequeue())
    at = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=2)
    unschedule = one.storage.unschedule

    def first_of_many(key):
        unschedule(key)
        one.storage.unschedule = unschedule
        clock.pass_ms(61_000)
        other.read_schedule(at)
        clock.pass_ms(later_ms)

    one.storage.unschedule = first_of_many
    one.read_schedule(at)
    assert (one.scheduled_count(), one.pending_count()) == (0, 3)


def test_a_task_that_a_killed_scheduler_had_claimed_is_claimed_again(make, clock):
    storage = make(lease_ms=60_000).storage
    storage.add_to_schedule(b"x", datetime(2000, 1, 1))  # noqa: DTZ001
    now = datetime(2001, 1, 1)  # noqa: DTZ001
    assert [data for _, data in storage.claim_schedule(now)] == [b"x"]
    assert list(storage.claim_schedule(now)) == []
    clock.pass_ms(60_000)
    assert [data for _, data in storage.claim_schedule(now)] == [b"x"]


@pytest.mark.process
def test_a_task_that_a_scheduler_had_claimed_is_claimed_at_once_when_that_has_died(make):
    storage = make(lease_ms=60_000).storage
    storage.add_to_schedule(b"x", datetime(2000, 1, 1))  # noqa: DTZ001

    def claimed():
        return [data for _, data in storage.claim_schedule(datetime(2001, 1, 1))]  # noqa: DTZ001

    def claim():
        assert claimed() == [b"x"]
        assert claimed() == []
        storage.close()

    in_child(claim)
    assert [claimed(), claimed()] == [[b"x"], []]


@pytest.mark.process
def test_a_task_of_a_killed_process_is_executed_again(make, tmp_path):
    (tmp_path / "app.py").write_text(APP + "\nhuey.execute(huey.dequeue())\n")
    huey = make(lease_ms=60_000, read_timeout=TIMEOUT_S, blocking=True)

    @huey.task()
    def slow(number):
        return number

    slow(1)
    # the name of the task is that of the program's module
    huey._registry._registry["__main__.slow"] = slow.task_class
    slow.task_class.__module__ = "__main__"
    slow(2)
    assert huey.dequeue().args == (1,)
    with Program(tmp_path / "app.py", tmp_path / "store") as child:
        assert child.line() == "2"
    assert huey.dequeue().args == (2,)


def test_the_log_does_not_grow_for_ever(make):
    small = {"mapped_file_size_commit_log": 1 << 20, "message_index_enable": False}
    huey = make(**small)
    huey.storage.put_data("k", b"v")
    for _ in range(30):
        huey.storage.enqueue(bytes(100_000))
        assert huey.storage.dequeue() == bytes(100_000)
    assert huey.storage.store.min_phy_offset >= 1 << 20
    assert huey.storage.held_size() <= 3 << 20
    assert huey.storage.peek_data("k") == b"v"


def test_a_directory_that_was_removed_is_begun_anew(make, tmp_path):
    removed = make().storage
    removed.enqueue(b"a")
    (tmp_path / "store").rename(tmp_path / "removed")
    storage = make().storage
    assert storage.dequeue() is None
    storage.enqueue(b"b")
    removed.close()
    assert storage.dequeue() == b"b"


def test_a_storage_whose_directory_is_made_anew_by_another_is_that_one(make, tmp_path):
    storage = make().storage
    storage.enqueue(b"a")
    (tmp_path / "store").rename(tmp_path / "removed")
    storage.enqueue(b"b")
    other = make().storage
    assert other.dequeue() == b"b"
    (tmp_path / "store").rename(tmp_path / "removed too")
    other.put_data("k", b"v")
    assert storage.peek_data("k") == b"v"


@pytest.mark.process
def test_a_forked_child_uses_the_store_too(make):
    storage = make().storage
    storage.enqueue(b"a")

    def use():
        storage.enqueue(b"b")
        return storage.incr("c")

    assert in_child(use) == 1
    assert [storage.dequeue(), storage.dequeue()] == [b"a", b"b"]
    assert storage.incr("c") == 2


@pytest.mark.process
def test_a_child_that_is_forked_while_a_thread_opens_the_storage_opens_it(make, monkeypatch):
    storage, begun, goes_on = make().storage, threading.Event(), threading.Event()
    opened = adapter.opened_again

    def slowly(*arguments):
        begun.set()
        assert goes_on.wait(TIMEOUT_S)
        return opened(*arguments)

    def enqueue():
        monkeypatch.undo()
        storage.enqueue(b"child")
        storage.close()

    monkeypatch.setattr(adapter, "opened_again", slowly)
    with ThreadPoolExecutor(1) as threads:
        parents = threads.submit(storage.enqueue, b"parent")
        assert begun.wait(TIMEOUT_S)
        try:
            in_child(enqueue)
        finally:
            goes_on.set()
        parents.result(TIMEOUT_S)
    assert [storage.dequeue(), storage.dequeue()] == [b"child", b"parent"]


def test_a_worker_that_waits_while_the_storage_is_closed_has_no_task(make, when_asleep):
    storage = make(blocking=True, read_timeout=60).storage
    assert storage.store
    when_asleep(storage.close)
    assert storage.dequeue() is None


def test_a_retry_that_is_taken_at_once_does_not_end_for_the_first_try(make, monkeypatch):
    huey = make(lease_ms=60_000)
    runs, taken = [], []

    @huey.task(retries=1)
    def task():
        runs.append(1)
        if len(runs) == 1:
            raise ValueError

    task()
    first = huey.dequeue()
    enqueue = huey.enqueue
    with monkeypatch.context() as patch:
        # another worker is as quick as can be
        patch.setattr(huey, "enqueue", lambda each: (enqueue(each), taken.append(huey.dequeue())))
        huey.execute(first)
    (lag,) = huey.storage.store.lag("huey", ["huey-app"])
    assert (lag.committed_offset, lag.leased) == (1, 1)
    huey.execute(taken[0])
    (lag,) = huey.storage.store.lag("huey", ["huey-app"])
    assert (len(runs), lag.committed_offset, lag.leased) == (2, 2, 0)


def test_a_task_whose_retry_the_store_refuses_is_not_lost(make, monkeypatch):
    huey = make(lease_ms=60_000)

    @huey.task(retries=1)
    def task():
        raise ValueError

    def full(*_, **__):
        raise DiskFullError("commit log")

    task()
    taken = huey.dequeue()
    with monkeypatch.context() as patch:
        patch.setattr(huey.storage.store, "put", full, raising=False)
        with pytest.raises(DiskFullError):
            huey.execute(taken)
    (lag,) = huey.storage.store.lag("huey", ["huey-app"])
    assert (lag.committed_offset, lag.leased) == (0, 1)


@pytest.mark.parametrize("how", ["taken", "given back", "executed"])
def test_what_a_full_disk_did_not_let_go_is_settled_when_it_has_room(make, monkeypatch, how):
    huey = make(lease_ms=None if how == "taken" else 3_600_000)
    storage = huey.storage
    huey.task()(lambda: 5)()

    def full(*_, **__):
        raise DiskFullError("consumerLeases.log")

    calls = {
        "taken": huey.dequeue,
        "given back": lambda: storage.give_back(storage.lease(3_600_000).place),
        "executed": lambda: huey.execute(huey.dequeue()),
    }
    with monkeypatch.context() as disk:
        for call in ("acknowledge", "give_back"):
            disk.setattr(type(storage.store), call, full)
        with pytest.raises(DiskFullError):
            calls[how]()
    assert (huey.dequeue() is None) == (how == "executed")
    huey.storage.close()
    # else it was leased still, and came again now
    assert (huey.dequeue() is None) == (how in ("executed", "taken"))
