"""Wrong usage, missing parts and signals: one line, the documented code, nothing left behind."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from cli.test_failures import run_without
from patience import TIMEOUT_S, until

from rmqcore import DiskFullError, open_store
from rmqcore.cli.exit_codes import ExitCode
from rmqcore.store.message_store import DefaultMessageStore

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cat"], "Missing argument 'STORE'"),
        (["nonsense"], "No such command 'nonsense'"),
        (["cat", "S", "--nonsense"], "No such option: --nonsense"),
        (["cat", "S", "-n", "many"], "Invalid value for '-n'"),
        (["stat", "S", "-c", "[bold]x[/bold]"], "[bold]x[/bold]"),
        (["table", "S", "T", "--every", "0s"], "--every 0s is no time"),
        (["table", "S", "T", "--body", "text", "--schema", "F"], "--schema names columns"),
    ],
)
def test_wrong_usage_is_one_line_or_a_json_object(rmqcore, words, said):
    plain = rmqcore(*words)
    assert plain.exit_code == ExitCode.USAGE
    assert plain.stderr.startswith("rmqcore: error: ")
    assert plain.stderr.count("\n") == 1
    assert said in plain.stderr
    facts = json.loads(rmqcore(*words, "--json").stderr)
    assert facts["exit_code"] == ExitCode.USAGE
    assert said in facts["message"]


@pytest.mark.parametrize("words", [["cat"], ["tail"]])
def test_a_queue_of_no_topic_is_wrong_usage(rmqcore, store, words):
    outcome = rmqcore(*words, store, "--queue", 1)
    assert outcome.exit_code == ExitCode.USAGE
    assert "--queue" in outcome.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cat", "{}", "Leters"], "did you mean Letters?"),
        (["tail", "{}", "Nothing"], "one of Bytes, Letters"),
        (["cat", "{}", "Letters", "--queue", "7"], "queue=7: expected one of 0, 1"),
        (["query", "{}", "--key", "a", "--topic", "leters"], "did you mean Letters?"),
        (["export", "{}", "out", "--topic", "Leters"], "did you mean Letters?"),
    ],
)
def test_an_unknown_topic_or_queue_is_named(rmqcore, store, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    outcome = rmqcore(*(word.format(store) for word in words))
    assert outcome.exit_code == ExitCode.USAGE
    assert said in outcome.stderr
    assert outcome.stdout == ""
    assert not (tmp_path / "out").exists()


def test_extras_that_are_missing_are_named_whatever_was_asked():
    commands = ["metaq", "serve", "x.ini", "--port", "1"], ["spark", "audit", "STORE", "--help"]
    for outcome, extra in zip(
        run_without(["cronsim", "pyspark"], *commands), ("metaq", "spark"), strict=True
    ):
        assert outcome.exit_code == ExitCode.USAGE
        assert outcome.stderr == f"rmqcore: {extra} needs pip install 'rmqcore[{extra}]'\n"


def test_help_shows_what_stands_in_brackets(rmqcore):
    text = rmqcore("export", "--help").stdout
    assert all(name in text for name in ("[arrow]", "[delta]", "[iceberg]"))


def test_the_shell_completes_commands():
    code = "import sys; sys.argv = ['rmqcore']; from rmqcore.cli.main import run; run()"
    wanted = {"_RMQCORE_COMPLETE": "complete_bash", "COMP_WORDS": "rmqcore ve", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | wanted, capture_output=True, check=False
    )
    assert done.stdout.split() == [b"verify"]


def test_sigterm_ends_a_writer_as_ctrl_c_does(store_path):
    command = [sys.executable, "-m", "rmqcore", "put", store_path, "T"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        writer.stdin.write(b"one\ntwo\n" * 50_000)
        writer.stdin.flush()
        # the pipe holds the last of them: the others have been read
        until((store_path / "abort").exists, "the open store")
        writer.send_signal(signal.SIGTERM)
        stderr = writer.stderr.read()
        assert writer.wait(TIMEOUT_S) == ExitCode.INTERRUPTED
    assert stderr.endswith(b"rmqcore: interrupted\n")
    assert b"Traceback" not in stderr
    assert not (store_path / "abort").exists()


def test_messages_are_printed_as_a_format_says(rmqcore, store):
    with open_store(store, mode="r") as opened:
        (first, *_) = opened.messages("Letters", 0)
    wanted = r"%t/%p@%o %P %T %k|%K %s|%S %g %i 100%%\x21\n"
    outcome = rmqcore("cat", store, "Letters", "--queue", 0, "-n", 1, "--format", wanted)
    assert outcome.stdout == (
        f"Letters/0@0 {first.phy_offset} {first.store_timestamp_ms} letter,a|8 a|1 t0 "
        f"{first.message_id} 100%!\n"
    )
    properties = rmqcore("tail", store, "Bytes", "--format", "%h").stdout
    assert properties == "UNIQ_KEY=0A01"
    for wrong in ("%q", "\\q", "100%"):
        outcome = rmqcore("cat", store, "--format", wrong)
        assert outcome.exit_code == ExitCode.USAGE
        assert "--format" in outcome.stderr


def test_lost_queues_are_no_empty_store(rmqcore, store):
    shutil.rmtree(store / "consumequeue")
    for words in (["cat", store, "Letters"], ["tail", store], ["query", store, "--key", "a"]):
        outcome = rmqcore(*words)
        assert outcome.exit_code == ExitCode.DAMAGED
        assert f"rmqcore rebuild cq {store}" in outcome.stderr
    stat = rmqcore("stat", store)
    assert stat.exit_code == ExitCode.FINDINGS
    assert f"rmqcore rebuild cq {store}" in stat.stderr
    assert len(rmqcore("cat", store).stdout.splitlines()) == 11
    assert rmqcore("rebuild", "cq", store).exit_code == 0
    assert len(rmqcore("cat", store, "Letters").stdout.splitlines()) == 10


def test_offsets_and_lag_of_groups(rmqcore, store):
    assert rmqcore("offsets", store).exit_code == ExitCode.FINDINGS
    with open_store(store) as opened:
        opened.consumer_offsets.commit("Letters", "billing", 0, 2)
        opened.consumer_offsets.commit("Letters", "billing", 1, 5)
        opened.consumer_offsets.commit("Bytes", "audit", 0, 0)
    rows = rmqcore("offsets", store, "--json").json
    assert [(row["group"], row["queue_id"], row["lag"]) for row in rows] == [
        ("audit", 0, 1),
        ("billing", 0, 3),
        ("billing", 1, 0),
    ]
    assert rows[1] == {
        "group": "billing",
        "topic": "Letters",
        "queue_id": 0,
        "queue_offset": 2,
        "min_queue_offset": 0,
        "max_queue_offset": 5,
        "lag": 3,
    }
    assert len(rmqcore("offsets", store, "billing", "--topic", "Letters", "--json").json) == 2
    assert "billing" in rmqcore("offsets", store).stdout
    none = rmqcore("offsets", store, "biling")
    assert none.exit_code == ExitCode.FINDINGS
    assert none.stdout == "no consumer offsets of biling; did you mean billing?\n"


def test_the_same_export_is_not_imported_twice(rmqcore, store, tmp_path):
    assert rmqcore("export", store, tmp_path / "out").exit_code == 0
    words = ["import", tmp_path / "new", tmp_path / "out"]
    assert rmqcore(*words).exit_code == 0
    refused = rmqcore(*words)
    assert refused.exit_code == ExitCode.USAGE
    assert "has been imported" in refused.stderr
    with open_store(tmp_path / "new", mode="r") as opened:
        assert len(list(opened.messages())) == 11
    assert rmqcore(*words, "--again").exit_code == 0
    with open_store(tmp_path / "new", mode="r") as opened:
        assert len(list(opened.messages())) == 22


def test_an_import_that_ended_early_goes_on(rmqcore, store, tmp_path, monkeypatch):
    rmqcore("export", store, tmp_path / "out")
    (part,) = (tmp_path / "out").glob("*.jsonl")
    row = json.loads(part.read_text("utf-8").splitlines()[0])
    part = tmp_path / "two.jsonl"
    part.write_text("".join(json.dumps(row | {"body": body}) + "\n" for body in "ab"), "utf-8")
    words = ["import", tmp_path / "new", part]
    put, left = DefaultMessageStore.put_message, itertools.count(1, -1)

    def full(*given):
        if next(left) == 0:
            raise DiskFullError(tmp_path / "new")
        return put(*given)

    with monkeypatch.context() as while_full:
        while_full.setattr(DefaultMessageStore, "put_message", full)
        assert rmqcore(*words).exit_code == ExitCode.SYSTEM
    again = rmqcore(*words)
    assert again.stdout.startswith("1 messages, ")
    assert again.stdout.endswith("; 1 were there already\n")
