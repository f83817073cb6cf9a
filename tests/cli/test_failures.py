"""Errors are one line on standard error and an exit code; never a traceback."""

import json
import os
import re
import subprocess
import sys

import pytest
from cli.conftest import Outcome

from rmqcore import open_store
from rmqcore.cli.exit_codes import ExitCode, FsckCode
from rmqcore.cli.main import run

pytestmark = pytest.mark.process

READING = ["cat", "tail", "stat", "verify", "dump"]


def one_line(outcome):
    assert outcome.stderr.count("\n") == 1, outcome.stderr
    assert outcome.stderr.startswith("rmqcore: error: ")
    return outcome.stderr


@pytest.mark.parametrize("command", READING)
def test_a_missing_store_ends_with_3(rmqcore, tmp_path, command):
    outcome = rmqcore(command, tmp_path / "none")
    assert outcome.exit_code == ExitCode.STORE
    assert str(tmp_path / "none") in one_line(outcome)


def test_a_locked_store_ends_with_3_and_names_the_lock(rmqcore, store):
    with open_store(store):
        outcome = rmqcore("put", store, "T", stdin="a\n")
    assert outcome.exit_code == ExitCode.STORE
    assert "open for writing" in one_line(outcome)
    assert str(store / "lock") in outcome.stderr


def test_damage_ends_with_4_and_names_file_and_offset(rmqcore, store):
    log = store / "commitlog" / f"{0:020d}"
    with open_store(store, mode="r") as opened:
        offset = [message.phy_offset for message in opened.messages()][4]
    with log.open("r+b") as stream:
        stream.seek(offset + 4)
        stream.write(b"\0\0\0\0")
    outcome = rmqcore("cat", store)
    assert outcome.exit_code == ExitCode.DAMAGED
    assert f"{log} at {offset}: " in one_line(outcome)
    assert outcome.stdout == "a\nA\nb\nB\n"


def test_a_file_that_cannot_be_read_ends_with_5(rmqcore, store, tmp_path):
    outcome = rmqcore("put", store, "T", tmp_path / "none")
    assert outcome.exit_code == ExitCode.SYSTEM
    said = one_line(outcome)
    assert said.startswith(f"rmqcore: error: {tmp_path / 'none'}: no such file; ")
    assert "echo TEXT | rmqcore put" in said


def test_a_directory_that_is_not_there_is_no_unknown_command_of_the_doctor(rmqcore):
    outcome = rmqcore("doctor", "nothere")
    assert outcome.exit_code == FsckCode.USAGE
    assert "'nothere', and no directory of that name" in one_line(outcome)
    assert "did you mean plan?" in one_line(rmqcore("doctor", "plna", "S"))


def test_who_finds_a_store_locked_is_told_a_command_that_reads_it(rmqcore, store):
    with open_store(store):
        said = one_line(rmqcore("put", store, "T", stdin="one\n"))
    assert said.endswith(f"or read it with rmqcore cat {store}\n")


def test_an_index_that_was_cut_short_names_the_doctor(rmqcore, store):
    for file in (store / "index").iterdir():
        os.truncate(file, 1000)
    outcome = rmqcore("cat", store)
    assert outcome.exit_code == ExitCode.DONE
    assert "rmqcore: warning: " in outcome.stderr
    assert "no key is looked up: " in outcome.stderr
    outcome = rmqcore("query", store, "--topic", "Letters", "--key", "a")
    assert outcome.exit_code == ExitCode.USAGE
    assert f"rmqcore doctor plan {store}" in outcome.stderr


def test_a_restoration_of_no_archive_does_not_ask_to_archive_what_is_not_there(rmqcore, tmp_path):
    outcome = rmqcore("restore", tmp_path / "none", tmp_path / "again")
    assert one_line(outcome).endswith(": no archive is here; rmqcore archive makes one\n")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("mapedFileSizeCommitLog=1", "did you mean mappedFileSizeCommitLog?"),
        ("mappedFileSizeCommitLog=many", "'many': a whole number"),
        ("mappedFileSizeCommitLog=65536", "the store's files have 1048576 bytes"),
    ],
)
def test_a_wrong_setting_ends_with_2(rmqcore, store, setting, said):
    outcome = rmqcore("stat", store, "-c", setting)
    assert outcome.exit_code == ExitCode.USAGE
    assert said in one_line(outcome)


def test_a_setting_without_a_value_is_wrong_usage(rmqcore, store):
    outcome = rmqcore("stat", store, "-c", "nonsense")
    assert outcome.exit_code == ExitCode.USAGE
    assert "NAME=VALUE" in outcome.stderr


def test_a_time_that_is_none_is_wrong_usage(rmqcore, store):
    assert rmqcore("cat", store, "--since", "yesterday").exit_code == ExitCode.USAGE


def test_an_illegal_topic_ends_with_2(rmqcore, store):
    outcome = rmqcore("put", store, "../up", stdin="a\n")
    assert outcome.exit_code == ExitCode.USAGE
    assert "'../up'" in outcome.stderr
    assert not (store.parent / "up").exists()


def test_with_json_an_error_is_a_json_object(rmqcore, tmp_path):
    outcome = rmqcore("stat", tmp_path / "none", "--json")
    facts = json.loads(outcome.stderr)
    assert facts["error"] == "StoreNotFoundError"
    assert facts["path"] == str(tmp_path / "none")
    assert facts["exit_code"] == outcome.exit_code == ExitCode.STORE


def test_the_process_ends_with_the_same_codes_and_no_traceback(
    rmqcore_process, store, tmp_path, monkeypatch
):
    outcome = rmqcore_process("cat", tmp_path / "none")
    assert outcome.exit_code == ExitCode.STORE
    one_line(outcome)
    for words, code in (
        (["cat", store, "Letters"], 0),
        (["cat"], ExitCode.USAGE),
        (["query", store, "--key", "none"], ExitCode.FINDINGS),
    ):
        monkeypatch.setattr(sys, "argv", ["rmqcore", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            run()
        assert ended.value.code == code


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_ends_with_5(rmqcore, store):
    (store / "commitlog").chmod(0)
    assert rmqcore("stat", store).exit_code == ExitCode.SYSTEM


#: runs commands one after the other, as if some packages were not there
WITHOUT = """
import contextlib, importlib.util, io, json, sys
packages, commands = json.loads(sys.argv[1])
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in packages else real(name, *more)
from rmqcore.cli.main import run
answers = []
for words in commands:
    sys.argv, code, out, err = ["rmqcore", *words], 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run()
        except SystemExit as ended:
            code = ended.code
    answers.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""


def run_without(packages, *commands):
    """Run commands in a process that lacks packages; returns the outcome of each."""
    asked = json.dumps([packages, commands])
    done = subprocess.run([sys.executable, "-c", WITHOUT, asked], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return [Outcome(*answer) for answer in json.loads(done.stdout)]


def test_without_the_extra_the_command_says_what_to_install():
    (stat,) = run_without(["typer"], ["stat"])
    assert stat.exit_code == ExitCode.USAGE
    assert stat.stderr == ("rmqcore: the command line needs typer: pip install 'rmqcore[cli]'\n")


def test_without_cronsim_only_metaq_is_missing():
    metaq, help_text, version = run_without(["cronsim"], ["metaq"], ["--help"], ["--version"])
    assert metaq.exit_code == ExitCode.USAGE
    assert "pip install 'rmqcore[metaq]'" in metaq.stderr
    assert "pip install 'rmqcore[metaq]'" in help_text.stdout
    assert version.exit_code == 0


def test_the_installed_version_is_printed(rmqcore_process):
    outcome = rmqcore_process("--version")
    assert outcome.stdout.strip()
    assert outcome.exit_code == 0


def test_every_command_takes_the_store_first_settings_and_json(rmqcore):
    commands = ["put", "cat", "tail", "query", "stat", "verify", "dump", "export", "import"]
    for words in [*([command] for command in commands), ["rebuild", "cq"], ["rebuild", "index"]]:
        text = rmqcore(*words, "--help").stdout
        assert f"{' '.join(words)} [OPTIONS] {{STORE}}" in text
        assert re.search("--config.*-c .*--json", text, re.DOTALL), words
        assert "Exit codes:" in text


def test_ctrl_c_before_a_command_begins_ends_with_130_and_one_line(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rmqcore.cli.main.import_module", interrupted)
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "rmqcore: interrupted\n"
