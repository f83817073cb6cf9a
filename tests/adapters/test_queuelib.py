"""Queues of bytes over a store: order, one store for many, kills, stale tables, full disks."""

import os
import random
import resource
import shutil
import subprocess
import sys
import textwrap
from collections import deque
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from children import Program, in_child
from killed_copy import copy_as_killed
from syncs import watched

from rmqcore import (
    ConfigError,
    CorruptConsumeQueueError,
    DiskFullError,
    StoreForkedError,
    StoreLockedError,
    open_store,
)
from rmqcore.adapters.named_queue import TOPIC
from rmqcore.adapters.named_queues import DEAD_LETTERS, HELD, TABLE, NamedQueues, named_queues
from rmqcore.adapters.queuelib import FifoQueue, LifoQueue
from rmqcore.adapters.words_file import WordsFile

pytestmark = pytest.mark.engine

KINDS = pytest.mark.parametrize("make", [FifoQueue, LifoQueue])

#: pushes and pops by a seed, writes a line after each that is done, until somebody kills it
WORKER = """
    import os, random, sys
    from rmqcore.adapters import queuelib
    queue = getattr(queuelib, sys.argv[1])(sys.argv[2])
    chosen = random.Random(int(sys.argv[3]))
    number = 0
    while True:
        if chosen.random() < 0.55:
            queue.push(b"%d" % number)
            number += 1
        else:
            queue.pop()
        os.write(1, b".\n")
"""


def model_of(make, seed, operations):
    """What a queue holds after some operations of the worker."""
    chosen, number, held = random.Random(seed), 0, deque()
    for _ in range(operations):
        if chosen.random() < 0.55:
            held.append(b"%d" % number)
            number += 1
        elif held:
            held.popleft() if make is FifoQueue else held.pop()
    return list(held) if make is FifoQueue else list(held)[::-1]


def drained(queue):
    """Everything that a queue gives, in order."""
    return list(iter(queue.pop, None))


@KINDS
def test_gives_what_a_list_would_whatever_is_closed_between(make, tmp_path, seed):
    chosen, held = random.Random(seed), deque()
    queue = make(tmp_path / "queue")
    for number in range(600):
        step = chosen.random()
        if step < 0.5:
            queue.push(b"%d" % number)
            held.append(b"%d" % number)
        elif step < 0.98:
            expected = (held.popleft() if make is FifoQueue else held.pop()) if held else None
            assert queue.peek() == expected
            assert queue.pop() == expected
        elif step < 0.985:
            queue.clear()
            held.clear()
        else:
            queue.close()
            assert (tmp_path / "queue").exists() == bool(held)
            queue = make(tmp_path / "queue")
        assert len(queue) == len(held)
    queue.close()


@pytest.mark.process
@KINDS
def test_a_kill_at_any_moment_loses_and_repeats_nothing(make, tmp_path, seed):
    chosen = random.Random(seed)
    for turn in range(2):
        path = tmp_path / str(turn)
        worker_seed = chosen.getrandbits(32)
        done, wanted = 0, chosen.randrange(1, 5000)
        command = ("-c", textwrap.dedent(WORKER), make.__name__, path, worker_seed)
        with Program(*command) as worker:
            for _ in worker.lines():
                done += 1
                if done == wanted:
                    worker.kill()
        queue = make(path)
        # the last operation was done, or not, before its line could be written
        assert len(queue) in {len(model_of(make, worker_seed, n)) for n in (done, done + 1)}
        assert drained(queue) in [model_of(make, worker_seed, n) for n in (done, done + 1)]
        queue.close()
        assert not path.exists()


@KINDS
def test_a_table_older_than_the_log_loses_nothing(make, tmp_path):
    """What a power cut may leave: the log was flushed, the table of the queues was not."""
    path = tmp_path / "queue"
    queue = make(path)
    queue.push(b"first")
    shutil.copy(path / "config" / TABLE, tmp_path / "old")
    for number in range(10):
        queue.push(b"%d" % number)
    queue.pop()
    queue.push(b"last")
    copy = make(_copied(path, tmp_path / "copy"))
    shutil.copy(tmp_path / "old", _copied(path, tmp_path / "stale") / "config" / TABLE)
    stale = make(tmp_path / "stale")
    expected, found = drained(copy), drained(stale)
    assert set(found) >= set(expected)
    assert len(found) - len(expected) <= 1
    for opened in (queue, copy, stale):
        opened.close()


def _copied(path, copy):
    shutil.copytree(path, copy)
    return copy


@KINDS
def test_a_table_newer_than_the_log_gives_what_the_log_has(make, tmp_path):
    """Another thing that a power cut may leave."""
    path = tmp_path / "queue"
    queue = make(path)
    for number in range(3):
        queue.push(b"%d" % number)
    shutil.copytree(path, tmp_path / "cut")
    for number in range(3, 9):
        queue.push(b"%d" % number)
    assert {queue.pop() for _ in range(4)}
    shutil.copy(path / "config" / TABLE, tmp_path / "cut" / "config" / TABLE)
    queue.close()
    queue = make(tmp_path / "cut")
    queue.push(b"new")
    assert b"new" in drained(queue)
    queue.close()


@KINDS
def test_what_an_early_end_of_the_log_has_settled_is_not_read_of_a_longer_log(
    make, tmp_path, monkeypatch
):
    """The power fails twice: the log is short, then grows, and the table was not written since."""
    path, cut, again = tmp_path / "queue", tmp_path / "cut", tmp_path / "again"
    queue = make(path)
    for number in range(10):
        if number == 5:
            copy_as_killed(path, cut)
        queue.push(b"%d" % number)
    for _ in range(8):
        queue.pop()
    queue._queue.save()
    on_disk = {name: (path / "config" / name).read_bytes() for name in (TABLE, HELD)}
    queue.close()
    flush = WordsFile.flush

    def flushed(file):
        flush(file)
        on_disk[file.path.name] = file.path.read_bytes()

    (cut / "config" / TABLE).write_bytes(on_disk[TABLE])
    monkeypatch.setattr(WordsFile, "flush", flushed)
    queue = make(cut)
    new = [b"new %d" % number for number in range(5)]
    for body in new:
        queue.push(body)
    queue._home.store.flush()
    copy_as_killed(cut, again)
    for name, content in on_disk.items():
        (again / "config" / name).write_bytes(content)
    queue.close()
    queue = make(again)
    assert set(new) <= set(drained(queue))
    queue.close()


def test_many_queues_share_a_store_that_goes_with_the_last(tmp_path):
    store = tmp_path / "store"
    queues = [FifoQueue(tmp_path / str(n), store=store) for n in range(100)]
    for number, queue in enumerate(queues):
        queue.push(b"%d" % number)
    assert len(list((store / "commitlog").iterdir())) <= 2
    for queue in queues:
        queue.close()
    assert store.exists()
    again = [FifoQueue(tmp_path / str(n), store=store) for n in range(100)]
    assert [queue.pop() for queue in again] == [b"%d" % n for n in range(100)]
    for queue in again:
        queue.close()
    assert not any(tmp_path.iterdir())


def test_a_place_is_used_again_by_queues_of_other_names(tmp_path):
    store = tmp_path / "store"
    kept = FifoQueue(tmp_path / "kept", store=store)
    kept.push(b"kept")
    for number in range(300):
        queue = (FifoQueue, LifoQueue)[number % 2](tmp_path / str(number), store=store)
        queue.push(b"%d" % number)
        assert queue.pop() == b"%d" % number
        queue.close()
    assert len(list((store / "consumequeue" / "NAMED_QUEUES").iterdir())) <= 2
    kept.close()


@pytest.mark.process
def test_what_is_held_comes_back_when_it_was_not_released(tmp_path):
    code = """
        import os, sys
        from pathlib import Path
        from rmqcore.adapters.named_queue import NamedFifo, NamedLifo
        from rmqcore.adapters.named_queues import named_queues
        home = named_queues(Path(sys.argv[1]))
        for name, kind in (("fifo", NamedFifo), ("lifo", NamedLifo)):
            queue = home.open(name, kind)
            for number in range(6):
                queue.push(b"%d" % number)
            held = [home.hold(queue) for _ in range(4)]
            home.release(held[1][1])
        os.kill(os.getpid(), 9)
    """
    path = tmp_path / "store"
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), path], check=False)
    fifo = FifoQueue(tmp_path / "fifo", store=path)
    lifo = LifoQueue(tmp_path / "lifo", store=path)
    assert drained(fifo) == [b"4", b"5", b"0", b"2", b"3"]
    assert drained(lifo) == [b"5", b"3", b"2", b"1", b"0"]
    fifo.close()
    lifo.close()
    assert not path.exists()


@KINDS
def test_what_comes_back_to_a_full_disk_comes_back_once(make, tmp_path, monkeypatch):
    queue = make(tmp_path / "queue")
    bodies = [b"%d" % number for number in range(6)]
    for body in bodies:
        queue.push(body)
    for _ in bodies:
        queue.hold()
    copy_as_killed(tmp_path / "queue", tmp_path / "killed")
    queue.close()
    put, room = NamedQueues.put, 3

    def put_where_there_is_room(home, *message):
        nonlocal room
        if not room:
            raise DiskFullError(home.path, "no room")
        room -= 1
        return put(home, *message)

    monkeypatch.setattr(NamedQueues, "put", put_where_there_is_room)
    for _ in range(2):
        with pytest.raises(DiskFullError):
            make(tmp_path / "killed")
    room = 100
    queue = make(tmp_path / "killed")
    assert sorted(drained(queue)) == bodies
    queue.close()


@pytest.mark.process
def test_a_second_process_is_told_which_one_has_it(tmp_path):
    queue = FifoQueue(tmp_path / "queue")
    code = (
        f"from rmqcore.adapters.queuelib import FifoQueue; FifoQueue({str(tmp_path / 'queue')!r})"
    )
    second = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "StoreLockedError" in second.stderr
    assert f"process {os.getpid()}" in second.stderr
    queue.close()


def test_a_second_object_on_one_path_is_refused(tmp_path):
    queue = FifoQueue(tmp_path / "queue")
    with pytest.raises(StoreLockedError, match="another handle of this process"):
        FifoQueue(tmp_path / "queue")
    queue.push(b"a")
    assert queue.pop() == b"a"
    queue.close()


def test_a_directory_that_was_removed_is_begun_anew(tmp_path):
    removed = FifoQueue(tmp_path / "queue")
    removed.push(b"a")
    (tmp_path / "queue").rename(tmp_path / "removed")
    queue = FifoQueue(tmp_path / "queue")
    assert queue.pop() is None
    queue.push(b"b")
    removed.close()
    queue.close()
    queue = FifoQueue(tmp_path / "queue")
    assert queue.pop() == b"b"
    queue.close()


def test_the_other_order_is_refused(tmp_path):
    queue = FifoQueue(tmp_path / "queue")
    queue.push(b"a")
    queue.close()
    with pytest.raises(ConfigError, match="other order"):
        LifoQueue(tmp_path / "queue")
    queue = FifoQueue(tmp_path / "queue")
    assert queue.pop() == b"a"
    queue.close()


def test_a_directory_of_something_else_stays_as_it_is(tmp_path):
    (tmp_path / "letter").write_text("mine")
    with pytest.raises(ConfigError, match="the directory of such a queue"):
        FifoQueue(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["letter"]
    open_store(tmp_path / "store").close()
    with pytest.raises(ConfigError, match="the directory of such a queue"):
        FifoQueue(tmp_path / "store")


def test_dead_letters_keep_the_store(tmp_path):
    home = named_queues(tmp_path / "store")
    home.bury("queue", b"unreadable")
    home.leave()
    with open_store(tmp_path / "store", mode="r") as store:
        assert [bytes(m.body) for m in store.messages(DEAD_LETTERS)] == [b"unreadable"]


@pytest.mark.process
def test_a_child_that_was_forked_does_not_touch_the_queue(tmp_path):
    queue = FifoQueue(tmp_path / "queue")
    for number in range(3):
        queue.push(b"%d" % number)
    assert queue.peek() == b"0"

    def pop():
        with pytest.raises(StoreForkedError):
            queue.pop()
        queue.close()

    in_child(pop)
    assert drained(queue) == [b"0", b"1", b"2"]
    queue.close()


@KINDS
def test_a_full_disk_is_an_error_of_the_system_and_nothing_is_pushed(make, tmp_path):
    queue = make(tmp_path / "queue")
    queue.push(b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    pushed = 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with suppress(DiskFullError):
            while pushed < 100:
                queue.push(bytes(1 << 20))
                pushed += 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert pushed < 100
    assert len(queue) == pushed
    assert len(drained(queue)) == pushed
    queue.close()


def test_durability_disk_has_what_is_held_on_the_disk_before_it_is_popped(tmp_path, monkeypatch):
    synced = []
    flush = WordsFile.flush
    monkeypatch.setattr(
        WordsFile, "flush", lambda file: (synced.append(file.path.name), flush(file))[1]
    )
    queue = LifoQueue(tmp_path / "queue", durability="disk")
    synced.clear()
    queue.push(b"a")
    queue.push(b"b")
    assert queue.pop() == b"b"
    assert synced == [TABLE]
    taken, release = queue.hold()
    assert (taken, synced) == (b"a", [TABLE, HELD, TABLE])
    release()
    queue.close()


def test_durability_disk_is_reached_by_pushes_and_pops(tmp_path):
    queue = FifoQueue(tmp_path / "queue", durability="disk")
    for number in range(3):
        queue.push(b"%d" % number)
    assert queue.pop() == b"0"
    assert queue._home.store.config.flush_disk_type == "SYNC_FLUSH"
    with pytest.raises(ConfigError, match="durability"):
        FifoQueue(tmp_path / "other", store=tmp_path / "queue")
    queue.close()


def log_files(path):
    """How many log files there are."""
    return len(list((path / "commitlog").iterdir()))


def test_log_files_go_when_all_in_them_was_taken(tmp_path):
    queue = FifoQueue(tmp_path / "queue")
    body = bytes(1 << 20)
    for _ in range(100):
        queue.push(body)
        queue.push(body)
        assert queue.pop() == body
        assert queue.pop() == body
    assert log_files(tmp_path / "queue") <= 4
    queue.close()


def test_what_stays_long_keeps_no_log_files_behind_it(tmp_path):
    """A stack whose bottom is taken last, and a queue that nobody has open at the time."""
    store = tmp_path / "store"
    resting = FifoQueue(tmp_path / "resting", store=store)
    for number in range(10):
        resting.push(b"%d" % number)
    resting.pop()
    resting.close()
    stack = LifoQueue(tmp_path / "stack", store=store)
    stack.push(b"bottom")
    body = bytes(1 << 20)
    for number in range(200):
        stack.push(b"%d" % number + body)
        if number != 50:
            stack.pop()
    assert log_files(store) <= 8
    taken, release = stack.hold()
    assert taken == b"50" + body
    stack.close()
    # one that was held while its file would have gone
    stack = LifoQueue(tmp_path / "stack", store=store)
    resting = FifoQueue(tmp_path / "resting", store=store)
    assert drained(resting) == [b"%d" % n for n in range(1, 10)]
    resting.close()
    assert drained(stack) == [b"50" + body, b"bottom"]
    release()
    stack.close()
    assert not store.exists()


@KINDS
def test_a_copy_that_was_cut_off_leaves_the_queue_as_it_was(make, tmp_path):
    path = tmp_path / "queue"
    queue = make(path)
    for number in range(5):
        queue.push(b"%d" % number)
    queue._home.empty_copy(queue._queue).push(b"0")
    cut = make(_copied(path, tmp_path / "cut"))
    assert drained(cut) == drained(queue)
    cut.close()
    queue.close()


@KINDS
def test_a_move_that_was_cut_off_at_its_end_leaves_a_whole_queue(make, tmp_path, monkeypatch):
    store = tmp_path / "store"
    first = make(tmp_path / "first", store=store)
    queue = make(tmp_path / "queue", store=store)
    for number in range(5):
        queue.push(b"%d" % number)
    queue.pop()
    queue.push(b"5")
    first.close()
    home = queue._home
    end_of = partial(home.store.max_queue_offset, TOPIC)
    # killed before the entry that is left is free
    monkeypatch.setattr(home, "_vacate", lambda entry: home.set_end(entry, end_of(entry)))
    home._may_copy = 1 << 30
    home._copy(queue._queue)
    monkeypatch.undo()
    cut = make(tmp_path / "cut/queue", store=_copied(store, tmp_path / "cut/store"))
    assert drained(cut) == drained(queue)
    cut.close()
    queue.close()


def noting(steps, what, call):
    def noted(*arguments):
        steps.append(what)
        return call(*arguments)

    return noted


def test_a_move_is_on_the_disk_before_the_old_place_is_free(tmp_path, monkeypatch):
    queue, steps = FifoQueue(tmp_path / "queue"), []
    queue.push(b"0")
    home = queue._home
    for what, owner, name in (
        ("log", home.store, "flush"),
        ("entry", home, "_enter"),
        ("table", home._table, "flush"),
        ("free", home, "_vacate"),
    ):
        monkeypatch.setattr(owner, name, noting(steps, what, getattr(owner, name)))
    home._may_copy = 1 << 30
    home._copy(queue._queue)
    monkeypatch.undo()
    assert steps == ["log", "entry", "table", "free"]
    assert drained(queue) == [b"0"]
    queue.close()


@KINDS
def test_a_last_element_that_cannot_be_read_frees_no_queue(make, tmp_path, monkeypatch):
    queue = make(tmp_path / "queue")
    queue.push(b"1")
    path = _copied(tmp_path / "queue", tmp_path / "copy")
    nothing = queue._home.store.get_message(TOPIC, 0, 1)
    with monkeypatch.context() as patched:
        patched.setattr(type(queue._home.store), "get_message", lambda *_, **__: nothing)
        with pytest.raises(CorruptConsumeQueueError, match="element 0 is gone"):
            make(path)
    again = make(path)
    assert drained(again) == drained(queue) == [b"1"]
    again.close()
    queue.close()


def test_a_top_that_was_about_to_be_held_is_in_once(tmp_path):
    stack = LifoQueue(tmp_path / "stack")
    stack.push(b"bottom")
    stack.push(b"held")
    stack.hold()
    stack.push(b"top")
    # killed when the top was noted as held, and not taken yet
    home = stack._home
    home._held.words[home._free_slots[-1]] = stack._queue.first().phy_offset + 1
    again = LifoQueue(_copied(tmp_path / "stack", tmp_path / "copy"))
    assert sorted(drained(again)) == [b"bottom", b"held", b"top"]
    again.close()
    stack.close()


def test_the_name_of_what_is_held_is_on_the_disk(tmp_path, monkeypatch):
    made, synced = set(), set()
    real_open = os.open

    def opened(path, flags, *more, **named):
        if flags & os.O_CREAT and not Path(path).exists():
            made.add(Path(path).name)
            synced.clear()
        return real_open(path, flags, *more, **named)

    def sync(call, fd):
        synced.add(Path(f"/proc/self/fd/{fd}").readlink().name)

    monkeypatch.setattr(os, "open", opened)
    for name in ("namedQueues", "heldElements"):
        config = tmp_path / name / "config"
        config.mkdir(parents=True)
        made.clear()
        with watched(sync):
            WordsFile(config / name, b"RMQHELD1", 4096).close()
        assert (made, synced) == ({name}, {"config"})
