"""Import of what waits in queuelib's own queues, by the command and for a crawl."""

import subprocess
import sys
from pathlib import Path

import pytest
from queuelib.queue import FifoDiskQueue, FifoSQLiteQueue, LifoDiskQueue, LifoSQLiteQueue

from rmqcore.adapters.queuelib import FifoQueue, LifoQueue

pytestmark = pytest.mark.peers


def command(*arguments):
    """Run `rmqcore import`; what it printed, and what it complained of."""
    line = [sys.executable, "-m", "rmqcore", "import", "--from", "queuelib", *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def drained(queue):
    """Everything that a queue gives, in order; it is closed."""
    found = list(iter(queue.pop, None))
    queue.close()
    return found


def fill(queue):
    """Push 20 elements of all sizes, pop 5; what it would give."""
    for number in range(20):
        queue.push(b"%d" % number * number)
    popped = [queue.pop() for _ in range(5)]
    assert None not in popped


@pytest.mark.parametrize(
    ("old", "new", "options"),
    [
        (lambda path: FifoDiskQueue(path, chunksize=3), FifoQueue, ()),
        (LifoDiskQueue, LifoQueue, ()),
        (FifoSQLiteQueue, FifoQueue, ("--sqlite-fifo",)),
        (LifoSQLiteQueue, LifoQueue, ()),
    ],
)
def test_one_queue_gives_what_the_old_one_would(tmp_path, old, new, options):
    queue = old(tmp_path / "old")
    fill(queue)
    queue.close()
    code, said = command(*options, tmp_path / "new", tmp_path / "old")
    assert code == 0, said
    assert "15 messages" in said
    code, said = command(*options, tmp_path / "new", tmp_path / "old")
    assert code != 0
    assert "has been imported" in said
    assert drained(new(tmp_path / "new")) == drained(old(tmp_path / "old"))


def test_all_queues_of_a_jobdir_keep_their_names(tmp_path):
    requests = tmp_path / "job/requests.queue"
    (requests / "site-1").mkdir(parents=True)
    (requests / "active.json").write_text('{"site": [0, -5]}')
    for name, old in (("0", LifoDiskQueue), ("-5", LifoSQLiteQueue), ("0s", FifoSQLiteQueue)):
        queue = old(requests / "site-1" / name)
        fill(queue)
        queue.close()
    code, said = command(requests / "rmqcore", requests)
    assert code == 0, said
    assert "45 messages" in said
    for name, old, new in (
        ("0", LifoDiskQueue, LifoQueue),
        ("-5", LifoSQLiteQueue, LifoQueue),
        ("0s", FifoSQLiteQueue, FifoQueue),
    ):
        path = requests / "site-1" / name
        assert drained(new(path, store=requests / "rmqcore")) == drained(old(path))


def test_a_disk_queue_that_was_killed_gives_all_that_is_in_its_files(tmp_path):
    queue = FifoDiskQueue(tmp_path / "old", chunksize=3)
    for number in range(8):
        queue.push(b"%d" % number)
    queue.headf.close()
    queue.tailf.close()
    with Path(tmp_path / "old/q00002").open("ab") as file:
        file.write(b"\0\0\0\x09cut")
    code, said = command(tmp_path / "new", tmp_path / "old")
    assert code == 0, said
    assert drained(FifoQueue(tmp_path / "new")) == [b"%d" % n for n in range(8)]


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\0\1abcdefghijk", b"SQLite format 3\0" + bytes(200)]
)
def test_what_is_no_queue_is_an_error_that_names_it(tmp_path, content):
    (tmp_path / "old").write_bytes(content)
    code, said = command(tmp_path / "new", tmp_path / "old")
    assert code != 0
    assert str(tmp_path / "old") in said.replace("\n", "")
    assert "Traceback" not in said
