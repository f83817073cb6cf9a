"""The command, run inside the test process or beside it, and a small store to look at."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from patience import TIMEOUT_S
from typer.testing import CliRunner

from rmqcore import open_store
from rmqcore.cli.app import app

COMMAND = [sys.executable, "-m", "rmqcore"]


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self):
        """Standard output as one JSON value."""
        return json.loads(self.stdout)

    @property
    def json_lines(self):
        """Standard output as one JSON value a line."""
        return [json.loads(line) for line in self.stdout.splitlines()]


@pytest.fixture
def rmqcore():
    """`rmqcore("stat", path, ...)`: run a command in this process."""

    def run(*words, stdin=None):
        result = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def rmqcore_process():
    """`rmqcore_process("stat", path, ...)`: run a command as a user does."""

    def run(*words, stdin=b""):
        done = subprocess.run(
            [*COMMAND, *map(str, words)],
            input=stdin,
            capture_output=True,
            timeout=2 * TIMEOUT_S,
            check=False,
        )
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def store(store_path):
    """A closed store: Letters/0 a to e, Letters/1 A to E, Bytes/0 with one body that is no text."""
    with open_store(store_path, mapped_file_size_commit_log=1 << 20) as opened:
        for number, letter in enumerate("abcde"):
            opened.put("Letters", letter.encode(), tags=f"t{number % 2}", keys=("letter", letter))
            opened.put("Letters", letter.upper().encode(), queue_id=1, keys=f"upper-{letter}")
        opened.put("Bytes", b"\xff\x00", properties={"UNIQ_KEY": "0A01"}, born_host="10.0.0.1:5")
    return store_path
