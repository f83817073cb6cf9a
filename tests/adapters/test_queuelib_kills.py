"""Queues killed before a write of a workload, and again while they are opened after that."""

import os
import random
import shutil
import sys
import threading
from collections import Counter, deque

import pytest
from children import run_child
from killed_copy import copy_as_killed

from rmqcore.adapters import named_queues
from rmqcore.adapters.queuelib import FifoQueue, LifoQueue
from rmqcore.adapters.words_file import WordsFile

pytestmark = pytest.mark.process

KILLED = 9
#: as of Scrapy: requests, retried ones, and start requests
QUEUES = {"0": LifoQueue, "1": LifoQueue, "0s": FifoQueue}
LOG_FILE_SIZE = 64 << 10
FILE_EVENTS = {"os.rename", "os.remove", "os.truncate", "os.rmdir", "os.mkdir"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    """Log files are given back, and long-staying elements copied, after a few dozen pushes."""
    monkeypatch.setattr(named_queues, "_LOG_FILE_SIZE", LOG_FILE_SIZE)
    small = {
        "mapped_file_size_commit_log": LOG_FILE_SIZE,
        "mapped_file_size_consume_queue": 4000,
        "max_message_size": LOG_FILE_SIZE - 4096,
    }
    for name, value in small.items():
        monkeypatch.setitem(named_queues._SETTINGS, name, value)


class Words:
    """The words of a file, with a call before each one that is set."""

    def __init__(self, words, before):
        self.words, self.before = words, before

    def __setitem__(self, at, value):
        self.before()
        self.words[at] = value

    def __getitem__(self, at):
        return self.words[at]

    def __len__(self):
        return len(self.words)

    def release(self):
        self.words.release()


def kill_before(number):
    """End this process before its main thread's write of a number; a function that counts them."""
    main, done = threading.get_ident(), 0

    def write():
        nonlocal done
        if threading.get_ident() == main:
            done += 1
            if done == number:
                os._exit(KILLED)

    def count_calls(owner, name):
        called = getattr(owner, name)

        def counted(*arguments):
            write()
            return called(*arguments)

        setattr(owner, name, counted)

    def map_words(file, size, map_file=WordsFile._map):
        map_file(file, size)
        file.words = Words(file.words, write)

    def on_event(event, arguments):
        if event in FILE_EVENTS or (event == "open" and int(arguments[2] or 0) & WRITES):
            write()

    WordsFile._map = map_words
    for name in ("write_bytes", "grow", "flush"):
        count_calls(WordsFile, name)
    count_calls(named_queues.NamedQueues, "put")
    sys.addaudithook(on_event)
    return lambda: done


def forked(run):
    """As `run_child`; what it told, and whether it was killed."""
    code, told = run_child(run)
    assert code in (0, KILLED)
    return told, code == KILLED


def operations(chosen, count):
    """(what, queue, number) of a workload, and bodies whose first bytes are their number."""
    model, held, steps = {name: deque() for name in QUEUES}, [], []
    for number in range(count):
        what, name = chosen.random(), chosen.choice(list(QUEUES))
        if what < 0.5:
            model[name].append(number)
            steps.append(("push", name, number))
        elif what < 0.85 and model[name]:
            taken = model[name].popleft() if QUEUES[name] is FifoQueue else model[name].pop()
            steps.append(("hold" if what < 0.75 else "pop", name, taken))
            held += [(name, taken)] * (what < 0.75)
        elif held:
            steps.append(("release", *held.pop(chosen.randrange(len(held)))))
    return steps


def body_of(number):
    return b"%06d" % number + bytes(number * 7919 % 24_000)


def work(store, steps, tell):
    """Do the steps, and tell after each; a queue that is empty is closed, as Scrapy does."""
    home = named_queues.named_queues(store)
    queues, held = {}, {}
    for what, name, number in steps:
        if what == "release":
            held.pop(number)()
        else:
            queue = queues.get(name) or QUEUES[name](store.parent / name, store=store)
            queues[name] = queue
            if what == "push":
                queue.push(body_of(number))
            elif what == "pop":
                assert queue.pop() == body_of(number)
            else:
                body, held[number] = queue.hold()
                assert body == body_of(number)
            if not len(queue):
                queues.pop(name).close()
        tell("done")
    for queue in queues.values():
        queue.close()
    home.leave()


def contents(store, tell):
    """Tell what each queue gives."""
    home = named_queues.named_queues(store)
    for name in home.names():
        queue = QUEUES[name](store.parent / name, store=store)
        for body in iter(queue.pop, None):
            assert body == body_of(int(body[:6]))
            tell((name, int(body[:6])))
        queue.close()
    home.leave()


def check(found, steps, done, *, twice):
    """Everything is in once; what the push, pop or release that was cut off is about, or not.

    With ``twice`` what was held may be in twice.
    """
    pushed = [(name, number) for what, name, number in steps[:done] if what == "push"]
    gone = {(name, number) for what, name, number in steps[:done] if what in ("pop", "release")}
    held = {(name, number) for what, name, number in steps[: done + 1] if what == "hold"}
    cut_off = {(name, number) for what, name, number in steps[done : done + 1] if what != "hold"}
    expected = set(pushed) - gone
    assert expected - cut_off <= set(found), f"lost after {done}: {steps[done : done + 1]}"
    assert set(found) <= expected | cut_off
    assert {one for one, count in Counter(found).items() if count > 1} <= (held if twice else set())
    for name, make in QUEUES.items():
        stayed = [one for one in pushed if one[0] == name and one in expected - held - cut_off]
        given = [one for one in found if one in stayed]
        assert given == (stayed if make is FifoQueue else stayed[::-1])


def killed(path, steps, number):
    """Do the steps in a directory until a write; how many were done, and whether it was killed."""

    def run(tell):
        kill_before(number)
        work(path / "store", steps, tell)

    told, was_killed = forked(run)
    return len(told), was_killed


def writes_of(run):
    """How many writes a function does."""

    def counting(tell):
        count = kill_before(0)
        run()
        tell(count())

    return forked(counting)[0][0]


def every_kill(tmp_path, chosen, steps, numbers):
    for number in numbers:
        path = tmp_path / "killed"
        path.mkdir()
        done, _ = killed(path, steps, number)
        # killed once more, while what was left is opened
        again = tmp_path / "again"
        shutil.copytree(path, again)

        def open_again(_, again=again):
            kill_before(chosen.randrange(1, 40))
            named_queues.named_queues(again / "store")
            os._exit(KILLED)

        forked(open_again)
        for left in (path, again):
            found, _ = forked(lambda tell, left=left: contents(left / "store", tell))
            check(found, steps, done, twice=left is again)
            assert not (left / "store").exists()
            shutil.rmtree(left)


def test_a_kill_before_a_write_loses_and_invents_nothing(tmp_path, seed):
    chosen = random.Random(seed)
    steps = operations(chosen, 150)
    writes = writes_of(lambda: work(tmp_path / "whole" / "store", steps, lambda _: None))
    every_kill(tmp_path, chosen, steps, chosen.sample(range(1, writes + 1), 5))


@pytest.mark.storm
def test_a_kill_before_each_eighth_write_loses_and_invents_nothing(tmp_path, seed):
    chosen = random.Random(seed)
    steps = operations(chosen, 150)
    writes = writes_of(lambda: work(tmp_path / "whole" / "store", steps, lambda _: None))
    every_kill(tmp_path, chosen, steps, range(chosen.randrange(1, 9), writes + 1, 8))


@pytest.mark.parametrize("make", [FifoQueue, LifoQueue])
@pytest.mark.parametrize("pushed", [[], [b"2"]], ids=["empty", "filled"])
def test_what_is_held_comes_back_into_a_queue_that_was_made_anew_in_the_other_order(
    tmp_path, make, pushed
):
    """And the others of the store are there, too."""
    before, store = tmp_path / "before", tmp_path / "store"
    other = {FifoQueue: LifoQueue, LifoQueue: FifoQueue}[make]
    queue, kept = (make(tmp_path / name, store=before) for name in ("queue", "kept"))
    kept.push(b"kept")
    queue.push(b"1")
    assert queue.hold()[0] == b"1"
    queue.close()
    again = other(tmp_path / "queue", store=before)
    for body in pushed:
        again.push(body)
    copy_as_killed(before, store)
    for one in (again, kept):
        one.close()
    queue = (other if pushed else make)(tmp_path / "queue", store=store)
    kept = make(tmp_path / "kept", store=store)
    assert sorted(iter(queue.pop, None)) == [b"1", *pushed]
    assert list(iter(kept.pop, None)) == [b"kept"]
    for one in (queue, kept):
        one.close()
