"""A session whose workers run another Python is refused in one line, with what to set."""

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from rmqcore.spark import read
from rmqcore.spark.session import SparkMissingError, check_workers

pytestmark = pytest.mark.process


def session(python):
    return SimpleNamespace(_sc=SimpleNamespace(pythonExec=str(python), defaultParallelism=1))


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_workers_without_rmqcore_are_refused_and_the_variable_is_named(tmp_path):
    other = script(tmp_path / "python3", "echo no module >&2; exit 1")
    with pytest.raises(SparkMissingError) as caught:
        read(session(other), "/data/store")
    text = str(caught.value)
    assert f"workers run {other}, where rmqcore[spark] is not installed" in text
    assert f"set PYSPARK_PYTHON={sys.executable} before the session is made" in text
    assert "\n" not in text


def test_workers_that_know_the_format_or_cannot_be_asked_are_not_refused(tmp_path):
    check_workers(session(sys.executable))
    check_workers(session(script(tmp_path / "other", f'exec "{sys.executable}" "$@"')))
    check_workers(session(tmp_path / "environment" / "bin" / "python"))
    check_workers(SimpleNamespace())
