"""`Queue`: values in a directory, each handed out to one process, and not lost by a kill."""

import json
import os
import pickle
import queue
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from children import Program, in_child
from patience import TIMEOUT_S

import rmqcore
from rmqcore.store.sharing import queue as queue_module

pytestmark = pytest.mark.engine

PAGE = (Path(__file__).parents[2] / "docs" / "queue.md").read_text("utf-8")
SMALL = {"mapped_file_size_commit_log": 1 << 20, "message_index_enable": False}
GETS = """
import sys, rmqcore
with rmqcore.Queue(sys.argv[1]) as jobs:
    print(jobs.get(timeout=60), flush=True)
    input()
    jobs.done()
    print("done", flush=True)
    input()
"""


@pytest.fixture
def jobs(store_path):
    with rmqcore.Queue(store_path, **SMALL) as jobs:
        yield jobs


def test_items_come_as_they_were_put_in_their_order(jobs):
    items = [{"to": "ä", "n": 1.5}, ["x", None], "text", True, 7]
    for item in items:
        jobs.put(item)
    assert (len(jobs), jobs.unfinished(), jobs.empty()) == (5, 5, False)
    assert [jobs.get() for _ in items] == items
    assert (len(jobs), jobs.unfinished(), jobs.empty(), bool(jobs)) == (0, 5, True, True)
    for _ in items:
        jobs.task_done()
    assert jobs.unfinished() == 0
    with pytest.raises(ValueError, match=r"nothing that <Queue queue in .*store> has handed out"):
        jobs.task_done()


def test_an_empty_queue_says_so(jobs):
    for wait in ({"block": False}, {"timeout": 0}, {"timeout": 0.01}):
        with pytest.raises(queue.Empty):
            jobs.get(**wait)


def test_the_item_that_is_named_is_done_and_the_others_come_again(jobs, store_path):
    for item in ("a", "b", "c"):
        jobs.put(item)
    got = [jobs.get() for _ in range(3)]
    jobs.done(got[1])
    jobs.close()
    with rmqcore.Queue(store_path) as again:
        assert [again.get(), again.get(), len(again)] == ["a", "c", 0]


def test_an_item_that_is_given_back_comes_again_in_its_time(jobs):
    jobs.put("now")
    jobs.put("later")
    jobs.get()
    jobs.nack(delay_s=0)
    assert [jobs.get(), jobs.get()] == ["now", "later"]
    jobs.nack()
    jobs.nack(delay_s=3600)
    assert (len(jobs), jobs.unfinished()) == (0, 2)


def test_an_item_that_came_too_often_is_a_dead_letter(store_path):
    with rmqcore.Queue(store_path, max_reconsume_times=1, **SMALL) as jobs:
        jobs.put("poison")
        for _ in range(2):
            assert jobs.get() == "poison"
            jobs.nack(delay_s=0)
        assert jobs.unfinished() == 0
        assert [bytes(m.body) for m in jobs.store.messages("%DLQ%queue")] == [b'"poison"']


def test_a_loop_is_done_with_each_item_but_the_one_that_it_is_left_with(jobs):
    for number in range(4):
        jobs.put(number)
    for item in jobs:
        if item == 2:
            break
    assert jobs.unfinished() == 2
    jobs.nack(item, delay_s=0)
    got = []
    for item in jobs:
        got.append(item)
        jobs.done(item)
        if item == 3:
            jobs.close()
    assert got == [2, 3]


def test_a_loop_that_is_stopped_is_done_with_the_item_in_hand(jobs):
    jobs.put("one")
    jobs.put("two")
    got = []
    for item in jobs:
        got.append(item)
        jobs.stop()
    assert (got, jobs.unfinished(), list(jobs)) == (["one"], 1, [])


def test_a_loop_settles_its_own_item_and_no_other_of_the_same_value(jobs):
    for _ in range(3):
        jobs.put(7)
    first = jobs.get()
    for item in jobs:
        assert item is first
        jobs.nack(item, delay_s=60)
        jobs.stop()
    assert (jobs.qsize(), jobs.unfinished()) == (1, 3)
    elsewhere = threading.Thread(target=jobs.get)
    elsewhere.start()
    elsewhere.join()
    jobs.done(first)
    jobs.nack(7, delay_s=0)
    assert (jobs.qsize(), jobs.unfinished()) == (1, 2)


def test_a_loop_whose_queue_is_closed_ends_and_its_item_comes_again(jobs):
    jobs.put("one")
    for _ in jobs:
        jobs.close()
    with rmqcore.Queue(jobs.path) as again:
        assert again.get() == "one"


def test_a_wait_ends_when_the_queue_is_closed(jobs):
    ended = []

    def wait():
        with pytest.raises(rmqcore.StoreClosedError):
            jobs.get()
        ended.append(True)

    waiting = threading.Thread(target=wait)
    waiting.start()
    jobs.close()
    waiting.join(TIMEOUT_S)
    assert ended


def test_threads_are_done_with_their_own(jobs):
    jobs.put("first")
    jobs.put("second")
    assert jobs.get() == "first"

    def other():
        assert jobs.get() == "second"
        jobs.task_done()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(TIMEOUT_S)
    assert jobs.unfinished() == 1
    jobs.nack(delay_s=0)
    assert jobs.get() == "first"


class Unwilling:
    """A serializer that raises an error of its own."""

    @staticmethod
    def dumps(item):
        raise pickle.PicklingError("PicklingError or another's")

    loads = pickle.loads


def test_what_the_serializer_does_not_take_is_not_put(jobs):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for item in (b"bytes", {1, 2}, object(), deep):
        with pytest.raises(rmqcore.ArgumentError, match=r"item=.*serializer=pickle"):
            jobs.put(item)
    with (
        rmqcore.Queue(jobs.path, serializer=Unwilling) as other,
        pytest.raises(rmqcore.ArgumentError, match=r"item='a'.*PicklingError or another's"),
    ):
        other.put("a")
    assert len(jobs) == 0
    with pytest.raises(rmqcore.ArgumentError, match="serializer=None: expected what has dumps"):
        rmqcore.Queue(jobs.path, serializer=None)


def test_what_could_not_be_settled_is_still_to_be(jobs, monkeypatch):
    jobs.put("one")
    jobs.get()

    def full(*_, **__):
        raise rmqcore.DiskFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(jobs.store, "acknowledge", full, raising=False)
        with pytest.raises(rmqcore.DiskFullError):
            jobs.done()
    for wrong in (-1, "1", float("nan"), float("inf")):
        with pytest.raises(rmqcore.ArgumentError, match=r"delay_s=.* seconds, 0 or more"):
            jobs.nack(delay_s=wrong)
        with pytest.raises(rmqcore.ArgumentError, match="timeout="):
            jobs.get(timeout=wrong)
        with pytest.raises(rmqcore.ArgumentError, match="lease_s="):
            rmqcore.Queue(jobs.path, lease_s=wrong)
    jobs.done()
    assert jobs.unfinished() == 0


def test_another_serializer_and_what_this_one_does_not_read(jobs):
    with rmqcore.Queue(jobs.path, serializer=pickle) as other:
        other.put({1, 2})
        assert other.get() == {1, 2}
        other.nack(delay_s=0)
    jobs.put("readable")
    with pytest.raises(rmqcore.ArgumentError, match="serializer reads"):
        jobs.get()
    assert jobs.get() == "readable"
    assert jobs.unfinished() == 2


def test_queues_of_other_names_are_apart_and_are_topics(jobs):
    with rmqcore.Queue(jobs.path, "mail") as mail:
        mail.put("letter")
        assert (len(mail), len(jobs)) == (1, 0)
        (stored,) = mail.store.messages("mail")
        assert json.loads(bytes(stored.body)) == "letter"


def test_what_is_done_leaves_the_disk(jobs):
    for _ in range(40):
        jobs.put("x" * 100_000)
        jobs.get()
        jobs.done()
    assert jobs.store.min_phy_offset > 0


def test_a_refusal_to_free_files_does_not_undo_what_is_done(jobs, monkeypatch):
    def refuse():
        raise rmqcore.StoreError("not now")

    monkeypatch.setattr(jobs.store, "delete_consumed_files", refuse)
    for _ in range(12):
        jobs.put("x" * 100_000)
        jobs.get()
        jobs.done()
    assert jobs.unfinished() == 0


@pytest.mark.process
def test_a_forked_child_leaves_its_parent_what_that_has_got(jobs):
    jobs.put("parent's")
    jobs.put("child's")
    assert jobs.get() == "parent's"

    def child():
        got = jobs.get(timeout=TIMEOUT_S)
        jobs.task_done()
        return got

    assert in_child(child) == "child's"
    assert jobs.unfinished() == 1
    jobs.task_done()
    assert jobs.unfinished() == 0


@pytest.mark.process
def test_a_forked_child_knows_what_two_threads_got_that_came_first(jobs, monkeypatch):
    jobs.put("one")
    jobs.put("two")
    begun, goes_on = threading.Event(), threading.Event()

    def getpid():
        if not begun.is_set():
            begun.set()
            assert goes_on.wait(TIMEOUT_S)
        return os.getpid()

    def child():
        monkeypatch.setattr(queue_module, "os", SimpleNamespace(getpid=getpid))
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(jobs.get, timeout=TIMEOUT_S)
            assert begun.wait(TIMEOUT_S)
            got = [jobs.get(timeout=TIMEOUT_S)]
            goes_on.set()
            got.append(first.result(TIMEOUT_S))
        for item in got:
            jobs.done(item)
        return got, jobs.unfinished()

    assert in_child(child) == (["one", "two"], 0)


@pytest.mark.process
def test_what_a_killed_process_had_got_comes_again_and_what_was_done_does_not(jobs):
    jobs.put("one")
    jobs.put("two")
    with Program("-c", GETS, jobs.path) as other:
        assert other.line() == "one"
        other.say("")
        assert other.line() == "done"
    with Program("-c", GETS, jobs.path) as other:
        assert other.line() == "two"
        assert len(jobs) == 0
    assert jobs.get(timeout=TIMEOUT_S) == "two"
    assert jobs.unfinished() == 1


@pytest.mark.process
def test_the_page_says_what_its_programs_print(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for code, said in blocks:
        command = [sys.executable, "-W", "error", "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == (said, "")
