"""The sanitizer lane tests what it says it tests."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmqcore import _codec

pytestmark = pytest.mark.asan

OVER_READ = """
import ctypes
source = bytes(100)
ctypes.memmove(ctypes.create_string_buffer(1000), id(source), 1000)
"""


def test_the_native_modules_are_instrumented():
    assert b"__asan_" in Path(_codec.__file__).read_bytes()
    assert hasattr(ctypes.CDLL(None), "__asan_init")


def test_an_over_read_ends_the_process():
    here = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, "-c", OVER_READ]
    done = subprocess.run(command, env=here, capture_output=True, check=False)
    assert done.returncode != 0
    assert b"heap-buffer-overflow" in done.stderr
