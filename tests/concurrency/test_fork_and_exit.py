"""A store in a forked child, at the interpreter's end, and beside a second writer."""

import fcntl
import os
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from children import Forked, Program, copies_of, descriptors_of, in_child
from patience import TIMEOUT_S, rounds

import rmqcore
from rmqcore import StoreForkedError, StoreLockedError
from rmqcore.store.follower import Follower
from rmqcore.store.parts.all_parts import Parts
from rmqcore.store.parts.files import StoreFiles

pytestmark = pytest.mark.process

SMALL = {"mapped_file_size_commit_log": 8192, "max_hash_slot_num": 50, "max_index_num": 200}

CALLS = {
    "put": lambda store: store.put("T", b"x"),
    "put_message": lambda store: store.put_message(rmqcore.Message("T", b"x")),
    "put_messages": lambda store: store.put_messages([rmqcore.Message("T", b"x")]),
    "get_message": lambda store: store.get_message("T", 0, 0),
    "query_message": lambda store: store.query_message("T", "k"),
    "message_at": lambda store: store.message_at(0),
    "messages": lambda store: list(store.messages()),
    "queues": lambda store: store.queues(),
    "max_phy_offset": lambda store: store.max_phy_offset,
    "flush": lambda store: store.flush(),
}


def tree(path):
    return {
        file.relative_to(path): (file.stat().st_size, file.read_bytes())
        for file in path.rglob("*")
        if file.is_file()
    }


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("call", CALLS)
def test_a_childs_handle_refuses_everything(store_path, call):
    with rmqcore.open_store(store_path, **SMALL) as store:
        store.put("T", b"parent", keys="k")
        store.flush()
        # what the parent still has to write by itself
        for service in store.parts.log_services.timed:
            rounds(service, 2)
        before = tree(store_path)

        def work():
            with pytest.raises(StoreForkedError):
                CALLS[call](store)
            store.close()

        in_child(work)
        assert tree(store_path) == before
        assert store.put("T", b"after").ok
        assert [bytes(m.body) for m in store.messages("T")] == [b"parent", b"after"]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_beside_threads_that_put(store_path):
    script = f"""
import os, sys, threading, rmqcore
store = rmqcore.open_store({str(store_path)!r}, mapped_file_size_commit_log=65536)
stop = False
def put():
    while not stop:
        store.put("T", b"x" * 100)
threads = [threading.Thread(target=put) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(40):
    child = os.fork()
    if child == 0:
        try:
            store.put("T", b"child")
        except rmqcore.StoreForkedError:
            store.close()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop = True
for thread in threads: thread.join()
store.close()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=TIMEOUT_S)
    with rmqcore.open_store(store_path) as store:
        assert store.recovery_report.clean_shutdown
        assert {bytes(m.body) for m in store.messages()} == {b"x" * 100}


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_reads_on_that_was_forked_while_another_thread_looked_for_what_is_new(
    store_path, monkeypatch
):
    with rmqcore.open_store(store_path, **SMALL) as store:
        for _ in range(30):
            store.put("T", b"x" * 500)
    follow, follows, goes_on = Follower._find_end, threading.Event(), threading.Event()

    def slowly(follower, *arguments, **named):
        if threading.current_thread() is not threading.main_thread():
            follows.set()
            assert goes_on.wait(TIMEOUT_S)
        return follow(follower, *arguments, **named)

    with rmqcore.open_store(store_path, mode="r") as reader, ThreadPoolExecutor(1) as threads:
        began = reader.messages("T")
        assert next(began).queue_offset == 0
        monkeypatch.setattr(Follower, "_find_end", slowly)
        reading = threads.submit(reader.get_message, "T", 0, 0)
        assert follows.wait(TIMEOUT_S)
        try:
            numbers = in_child(
                lambda: (
                    [message.queue_offset for message in began],
                    [message.queue_offset for message in reader.messages("T")],
                    len(list(reader.messages())),
                )
            )
        finally:
            goes_on.set()
        assert numbers == (list(range(1, 30)), list(range(30)), 30)
        assert len(reading.result(TIMEOUT_S)) == 30


def test_a_child_does_not_keep_the_lock(store_path):
    script = """
import os, sys, rmqcore
store = rmqcore.open_store(sys.argv[1])
store.put("T", b"parent")
if os.fork() == 0:
    os.close(1)
    sys.stdin.read()
    os._exit(0)
os.write(1, b"forked\\n")
os._exit(0)
"""
    # the child lives until its input ends
    with Program("-W", "ignore", "-c", script, store_path) as parent:
        assert list(parent.lines()) == ["forked"]
        assert parent.process.wait(TIMEOUT_S) == 0
        with rmqcore.open_store(store_path) as store:
            assert [bytes(m.body) for m in store.messages()] == [b"parent"]


def locked(store_path):
    """What a store has locks on."""
    return store_path / "lock", store_path / "commitlog"


def slowly(monkeypatch, owner, name):
    """Let a method wait; (event that says that it does, event that lets it go on)."""
    method, waits, goes_on = getattr(owner, name), threading.Event(), threading.Event()

    def slow(*arguments, **named):
        waits.set()
        assert goes_on.wait(TIMEOUT_S)
        return method(*arguments, **named)

    monkeypatch.setattr(owner, name, slow)
    return waits, goes_on


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_that_was_forked_while_a_thread_opened_the_store_does_not_keep_the_lock(
    store_path, monkeypatch
):
    opens, goes_on = slowly(monkeypatch, StoreFiles, "recover")
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(rmqcore.open_store, store_path)
        assert opens.wait(TIMEOUT_S)
        held = in_child(lambda: descriptors_of(*locked(store_path)))
        with Forked(lambda until_told: until_told()):
            goes_on.set()
            opening.result(TIMEOUT_S).close()
            rmqcore.open_store(store_path).close()
    assert held == []


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_that_was_forked_while_a_thread_closed_the_store_neither_waits_nor_locks(
    store_path, monkeypatch
):
    store = rmqcore.open_store(store_path)
    closes, goes_on = slowly(monkeypatch, Parts, "end")

    def close(until_told):
        assert descriptors_of(*locked(store_path)) == []
        store.close()
        with pytest.raises(StoreForkedError):
            store.put("T", b"child")
        until_told()

    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(store.close)
        assert closes.wait(TIMEOUT_S)
        try:
            with Forked(close):
                goes_on.set()
                closing.result(TIMEOUT_S)
                with rmqcore.open_store(store_path) as again:
                    assert again.recovery_report.clean_shutdown
        finally:
            goes_on.set()


def test_a_store_is_given_back_while_a_child_that_was_just_forked_has_copies(store_path):
    """Any thread may start a child, which has them until it gives them back, or execs."""
    store = rmqcore.open_store(store_path)
    with copies_of(*locked(store_path)):
        store.close()
        rmqcore.open_store(store_path).close()


def test_a_subprocess_does_not_inherit_the_store(store_path):
    with rmqcore.open_store(store_path) as store:
        store.put("T", b"x")
        listing = "import os; print(*(os.readlink(f'/proc/self/fd/{n}') for n in range(3, 50)"
        listing += " if os.path.exists(f'/proc/self/fd/{n}')))"
        done = subprocess.run(
            [sys.executable, "-c", listing], capture_output=True, check=True, close_fds=False
        )
    assert str(store_path) not in done.stdout.decode()


@pytest.mark.parametrize("how", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize(
    "ending", ["", "sys.exit(3)", "raise RuntimeError", "threading.Thread(target=put).start()"]
)
def test_a_store_left_open_at_exit_is_closed_in_order(store_path, how, ending):
    script = f"""
import sys, threading, time, rmqcore
store = rmqcore.open_store({str(store_path)!r}, flush_disk_type={how!r})
def put():
    for number in range(100, 150):
        store.put("T", b"%d" % number, keys="k%d" % number)
for number in range(100):
    store.put("T", b"%d" % number, keys="k%d" % number)
{ending}
"""
    subprocess.run(
        [sys.executable, "-c", script], stderr=subprocess.DEVNULL, check=False, timeout=TIMEOUT_S
    )
    assert not (store_path / "abort").exists()
    with rmqcore.open_store(store_path) as store:
        assert store.recovery_report.clean_shutdown
        wanted = 150 if "Thread" in ending else 100
        assert [int(bytes(m.body)) for m in store.messages("T", 0)] == list(range(wanted))
        assert len(store.query_message("T", "k99")) == 1


def test_two_handles_exclude_each_other(store_path):
    with rmqcore.open_store(store_path) as store:
        with pytest.raises(StoreLockedError) as caught:
            rmqcore.open_store(store_path)
        assert str(store_path / "lock") in str(caught.value)
        assert store.put("T", b"x").ok
        # the refused one must not have freed the lock
        with pytest.raises(StoreLockedError):
            rmqcore.open_store(store_path)
    rmqcore.open_store(store_path).close()


def test_two_processes_exclude_each_other(store_path):
    script = f"import rmqcore; rmqcore.open_store({str(store_path)!r})"
    with rmqcore.open_store(store_path):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
        assert done.returncode == 1
        assert b"StoreLockedError" in done.stderr
    subprocess.run([sys.executable, "-c", script], check=True, timeout=TIMEOUT_S)


def test_a_java_brokers_lock_is_respected(store_path):
    """Java takes a POSIX lock (fcntl) on the first byte of `lock`."""
    rmqcore.open_store(store_path).close()
    script = """
import fcntl, os, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("locked", flush=True)
sys.stdin.read()
"""
    with Program("-c", script, store_path / "lock") as broker:
        assert broker.line() == "locked"
        with pytest.raises(StoreLockedError) as caught:
            rmqcore.open_store(store_path)
        assert caught.value.owner == broker.pid
        with rmqcore.open_store(store_path, mode="r") as reader:
            assert reader.queues() == []
    rmqcore.open_store(store_path).close()


def test_a_java_broker_is_kept_out(store_path):
    with rmqcore.open_store(store_path), (store_path / "lock").open("r+b") as file:
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        answer = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, request))
        assert answer[0] == fcntl.F_WRLCK
        with pytest.raises(BlockingIOError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)


IDLE = """
import sys, time
import rmqcore

def share_of_a_core(seconds):
    began, used = time.monotonic(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - used) / (time.monotonic() - began)

with rmqcore.open_store(sys.argv[1]) as store:
    store.put("T", b"x")
    time.sleep(0.3)
    # the least of some: beside other work on the machine each wake-up costs several times more
    print(min(share_of_a_core(1.5) for _ in range(4)))
"""


@pytest.mark.measure
def test_an_idle_store_costs_next_to_nothing(store_path, figure):
    command = [sys.executable, "-c", IDLE, str(store_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figure("of a core", float(done.stdout) * 100, "%", at_most=0.5)
