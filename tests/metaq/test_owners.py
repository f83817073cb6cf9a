"""Who may open a partition; forks, exits and interrupts beside its appends."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from children import Forked, copies_of, descriptors_of, in_child
from metaq.test_message_store import A, fill, write_segments
from patience import TIMEOUT_S

from rmqcore.errors import (
    CorruptStoreError,
    StoreForkedError,
    StoreLockedError,
    StoreNotFoundError,
    StoreNotWritableError,
)
from rmqcore.metaq import MessageStore
from rmqcore.metaq.segments import segment_name

pytestmark = pytest.mark.engine


def test_a_second_opening_is_refused_and_reading_is_not(open_store):
    store = open_store(unflush_threshold=0)
    store.append(1, b"x")
    with pytest.raises(StoreLockedError):
        open_store()
    reader = open_store(mode="r")
    assert [m.message_id for m in reader.messages()] == [1]
    with pytest.raises(StoreNotWritableError, match='mode="r"'):
        reader.append(2, b"x")
    store.close()
    open_store()


@pytest.mark.process
def test_another_process_is_refused(open_store, tmp_path):
    open_store()
    code = (
        "import sys\nfrom rmqcore.metaq import *\n"
        "from rmqcore.errors import StoreLockedError\n"
        "try:\n    MessageStore('t', 0, MetaConfig(SystemConfig(data_path=sys.argv[1])))\n"
        "except StoreLockedError:\n    sys.exit(42)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "meta")], check=False)
    assert done.returncode == 42


def test_reading_creates_and_changes_nothing(open_store, tmp_path):
    with pytest.raises(StoreNotFoundError):
        open_store(mode="r")
    assert not (tmp_path / "meta").exists()
    write_segments(tmp_path / "meta" / "t-0", [(0, A + b"torn")])
    reader = open_store(mode="r")
    assert reader.max_offset == len(A)
    assert [p.name for p in reader.path.iterdir()] == [segment_name(0)]
    assert reader.segments[0].messages.path.read_bytes() == A + b"torn"


def test_reading_notices_what_is_missing_below_the_mark(open_store):
    store = open_store(unflush_threshold=0)
    fill(store, 3)
    store.close()
    path = store.segments[-1].messages.path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptStoreError, match="were on disk"):
        open_store(mode="r")
    assert len(list(open_store(mode="r", repair=True).messages())) == 2


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_partition(open_store, monkeypatch):
    store = open_store()
    assert in_child(lambda: descriptors_of(store.path)) == []
    with Forked(lambda until_told: until_told()):
        store.close()
        open_store().close()
    load, loads, goes_on = MessageStore._load, threading.Event(), threading.Event()

    def slowly(*arguments):
        loads.set()
        assert goes_on.wait(TIMEOUT_S)
        load(*arguments)

    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as threads:
        patch.setattr(MessageStore, "_load", slowly)
        opening = threads.submit(open_store)
        assert loads.wait(TIMEOUT_S)
        assert in_child(lambda: descriptors_of(store.path)) == []
        with Forked(lambda until_told: until_told()):
            goes_on.set()
            opening.result(TIMEOUT_S).close()
            open_store().close()


def test_a_partition_is_given_back_while_a_child_that_was_just_forked_has_a_copy(open_store):
    store = open_store()
    with copies_of(store.path):
        store.close()
        open_store()


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_writes_nothing(open_store):
    store = open_store()
    store.append(1, b"parent")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.append(2, b"child")
        except StoreForkedError:
            store.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.append(3, b"parent")
    store.flush()
    assert [m.message_id for m in store.messages()] == [1, 3]


@pytest.mark.process
def test_a_store_left_open_at_exit_loses_nothing(config, tmp_path):
    code = (
        "import sys\nfrom rmqcore.metaq import *\n"
        "s = MessageStore('t', 0, MetaConfig(SystemConfig(data_path=sys.argv[1])))\n"
        "g = MessageStore('t', 1, MetaConfig(SystemConfig(data_path=sys.argv[1],"
        " unflush_threshold=0)))\n"
        "s.append(1, b'left')\ng.append(2, b'open')\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "meta")], check=True, timeout=TIMEOUT_S
    )
    for partition, message_id in ((0, 1), (1, 2)):
        with MessageStore("t", partition, config()) as store:
            assert [m.message_id for m in store.messages()] == [message_id]


@pytest.mark.process
@pytest.mark.parametrize("threshold", [0, 10])
def test_interrupts_inside_appends_lose_nothing_and_hang_nothing(open_store, rng, threshold):
    armed = False

    def interrupt(*_):
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    store = open_store(unflush_threshold=threshold, max_segment_size=5_000)
    acknowledged, interrupts, message_id = [], 0, 0
    before = signal.signal(signal.SIGALRM, interrupt)

    def goes_on():
        return message_id < 2000 or interrupts <= 3

    try:
        while goes_on():
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.003))
                # one that a finalizer has swallowed is sent again
                while armed and goes_on():
                    message_id += 1
                    store.append(message_id, b"x" * 50)
                    acknowledged.append(message_id)
                armed = False
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    store.close()
    again = open_store()
    assert again.holes == ()
    ids = [m.message_id for m in again.messages()]
    assert ids == sorted(set(ids))
    assert set(ids) >= set(acknowledged)
