"""The build with assertions tests what it says it tests: a broken invariant ends the process."""

import importlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.debug

PUT = """
from rmqcore.message import Message
from rmqcore.native.log._tail import LogTail
tail = LogTail("127.0.0.1:10911", 4096)
tail.attach(bytearray(8192), 0, 0)
tail.writable = True
{}
tail.put_message(Message("T", b"body", born_timestamp_ms=1))
print("put")
"""


def run(code):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_nothing_ends_a_process_that_breaks_no_invariant():
    done = run(PUT.format(""))
    assert (done.stdout, done.returncode) == ("put\n", 0)


@pytest.mark.parametrize(
    ("broken", "where"),
    [
        ("tail.end.move_to(4096)", "native/log/_log_end.pxd"),
        ("tail.set_next_queue_offset('T', 0, -1)", "native/format/_record.pxd"),
    ],
    ids=["the published offset goes back", "a negative queue offset"],
)
def test_a_broken_invariant_ends_the_process_and_says_where(broken, where):
    done = run(PUT.format(broken))
    assert done.returncode == -signal.SIGABRT
    assert "RMQ_ASSERT(" in done.stderr
    assert where in done.stderr


@pytest.mark.parametrize("name", ["log._tail", "log._commit_group", "derive._dispatch"])
def test_a_native_module_has_its_assertions_and_its_symbols(name):
    library = Path(importlib.import_module(f"rmqcore.native.{name}").__file__).read_bytes()
    assert b"RMQ_ASSERT(" in library
    assert b".debug_info" in library
