"""Errors travel between processes, and a lock error names the process that has the store."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import pickle
import pkgutil
import subprocess
import sys

import pytest

import rmqcore
from rmqcore import PutMessageStatus, RmqCoreError, StoreLockedError, open_store

pytestmark = pytest.mark.logic

#: values for constructor arguments, by their annotations; a status is one
VALUES = {"int": 7, "int | None": 7, "float": 1.5}


def error_classes() -> list[type[RmqCoreError]]:
    elsewhere = ("rmqcore.spark", "rmqcore.adapters")
    for module in pkgutil.walk_packages(rmqcore.__path__, "rmqcore."):
        # what begins with an underscore is native, and has no errors of its own
        if not (module.name.startswith(elsewhere) or "._" in module.name):
            importlib.import_module(module.name)
    found, queue = [], [RmqCoreError]
    while queue:
        kind = queue.pop()
        found.append(kind)
        queue += kind.__subclasses__()
    return sorted(found, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")


def made(kind: type[RmqCoreError]) -> RmqCoreError:
    parameters = inspect.signature(kind.__init__).parameters.values()
    values = {
        each.name: VALUES.get(str(each.annotation), f"some {each.name}")
        for each in parameters
        if each.name != "self" and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }
    if "status" in values:
        values["status"] = PutMessageStatus.UNKNOWN_ERROR
    return kind(**values)


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_every_error_survives_pickling_and_copying(kind):
    error = made(kind)
    error.add_note("seen in a worker")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.args == error.args
        assert vars(again) == vars(error)
        if isinstance(error, OSError):
            facts = (error.errno, error.strerror, error.filename)
            assert (again.errno, again.strerror, again.filename) == facts


def test_the_walk_finds_the_errors_of_every_room():
    names = {kind.__name__ for kind in error_classes()}
    assert {"ConfigError", "CorruptRecordError", "InputError", "MissingSegmentError"} <= names


class TestLockOwner:
    @pytest.mark.engine
    def test_another_handle_of_this_process(self, tmp_path):
        with open_store(tmp_path / "s"), pytest.raises(StoreLockedError) as error:
            open_store(tmp_path / "s")
        assert error.value.owner == os.getpid()
        assert f"another handle of this process ({os.getpid()})" in str(error.value)

    @pytest.mark.process
    @pytest.mark.parametrize("kind", ["ours", "as Java locks"])
    def test_another_process(self, tmp_path, kind):
        take = {
            "ours": "store = rmqcore.open_store(sys.argv[1])",
            "as Java locks": "f = open(sys.argv[1] + '/lock', 'r+b'); fcntl.lockf(f, 2 | 4, 1)",
        }
        open_store(tmp_path / "s").close()
        code = f"import fcntl, sys, rmqcore; {take[kind]}; print('has it'); sys.stdin.read()"
        with subprocess.Popen(
            [sys.executable, "-c", code, tmp_path / "s", "marker-of-this-test"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as holder:
            assert holder.stdout.readline() == "has it\n"
            with pytest.raises(StoreLockedError) as error:
                open_store(tmp_path / "s")
            holder.stdin.close()
        assert error.value.owner == holder.pid
        assert error.value.command.endswith("marker-of-this-test")
        assert f"in process {holder.pid} (" in str(error.value)
        assert pickle.loads(pickle.dumps(error.value)).command == error.value.command
