"""Bars appear where standard error is a terminal, and nowhere else is anything drawn or loaded."""

import io

import pytest

from rmqcore.cli.progress import Bars
from rmqcore.recovery.report import RecoveryProgress

pytestmark = pytest.mark.engine


class Terminal(io.StringIO):
    def isatty(self):
        return True


def drawn(stream, monkeypatch):
    monkeypatch.setattr("sys.stderr", stream)
    with Bars() as bars:
        bars.show("read", 1, 4)
        bars.show("count", 2, 3)
        bars.recovery(RecoveryProgress("log", 1, 2))
        bars.hide_recovery()
        bars.show("read", 4, 4)
        bars.hide("read", "never there")
    return stream.getvalue()


def test_a_terminal_gets_bars(monkeypatch):
    text = drawn(Terminal(), monkeypatch)
    assert "count" in text


def test_a_file_gets_none(monkeypatch):
    assert drawn(io.StringIO(), monkeypatch) == ""
