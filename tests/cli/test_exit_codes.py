"""One table of exit codes: in the help, in the document, and nothing ends by accident with one."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from cli.conftest import COMMAND
from typer.main import get_command

from rmqcore.cli.app import app
from rmqcore.cli.exit_codes import EXIT_CODES, FSCK_CODES, TABLE, ExitCode, FsckCode
from rmqcore.cli.main import run

pytestmark = pytest.mark.logic

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")


def commands(group=None, path=()):
    """(words, command) of every command, those in groups included."""
    group = group or get_command(app)
    for name in group.commands:
        command = group.commands[name]
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


def test_the_document_has_the_table_of_the_command():
    section = PAGE.split("## Exit codes")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.*?) \| ?(.*?) \|$", section, re.MULTILINE)
    assert rows == [(str(row.code), row.commands, row.doctor) for row in TABLE]


def test_the_table_has_every_code_of_both_kinds():
    assert {row.code for row in TABLE if row.commands} == set(ExitCode)
    beside = {ExitCode.DEFECT, ExitCode.INTERRUPTED, ExitCode.PIPE_CLOSED}
    assert {row.code for row in TABLE if row.doctor} == {*FsckCode, *beside}


def test_the_help_of_every_command_has_the_table():
    for words, command in commands():
        if words[0] in {"metaq"}:
            continue
        epilog = " ".join((command.epilog or "").split())
        table = FSCK_CODES if words[0] == "doctor" else EXIT_CODES
        assert " ".join(table.split()) in epilog, words


def test_a_defect_has_a_code_of_its_own_and_one_line(monkeypatch, capsys):
    def broken(_):
        raise KeyError("nobody expected it")

    monkeypatch.setattr("rmqcore.cli.main.import_module", broken)
    for wanted, lines in (("", 1), ("1", 5)):
        monkeypatch.setenv("RMQCORE_TRACEBACK", wanted)
        with pytest.raises(SystemExit) as ended:
            run()
        assert ended.value.code == ExitCode.DEFECT
        said = capsys.readouterr().err
        assert "KeyError: 'nobody expected it'" in said
        assert said.count("\n") >= lines
    assert "Traceback" in said


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["doctor", "repair", "{}"], FsckCode.USAGE),
        (["doctor", "undo", "{}/none", "--yes"], FsckCode.OPERATIONAL),
        (["stat", "{}/none"], ExitCode.STORE),
        (["query", "{}", "--key", "none"], ExitCode.FINDINGS),
    ],
)
def test_whoever_has_closed_standard_error_changes_no_code(store, words, code):
    if words[1] == "repair":
        (store / "config" / "topics.json").write_text("{")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, *(word.format(store) for word in words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=writing,
        check=False,
    )
    os.close(writing)
    assert done.returncode == code
