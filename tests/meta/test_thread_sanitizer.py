"""The thread sanitizer's lane tests what it says it tests."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.tsan

TWO_THREADS = """
import ctypes, sys, threading
from rmqcore import _codec
shared = bytearray(8 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(shared))
lock = threading.Lock() if sys.argv[1] == "locked" else None

def write():
    for value in range(20):
        if lock: lock.acquire()
        ctypes.memset(address, value, len(shared))
        if lock: lock.release()

def read():
    for _ in range(20):
        if lock: lock.acquire()
        _codec.crc32(shared)
        if lock: lock.release()

threads = [threading.Thread(target=run) for run in (write, read)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def in_two_threads(how):
    here = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    command = [sys.executable, "-P", "-c", TWO_THREADS, how]
    return subprocess.run(command, env=here, capture_output=True, check=False)


def test_a_race_of_native_code_without_the_gil_is_reported():
    done = in_two_threads("unlocked")
    assert done.returncode != 0
    assert b"data race" in done.stderr
    assert b"_codec" in done.stderr


def test_a_lock_of_python_is_seen():
    done = in_two_threads("locked")
    assert (done.returncode, done.stderr) == (0, b"")
