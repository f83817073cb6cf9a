"""Help, manual pages and completion: what they name is there, and every example parses."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from cli.test_exit_codes import commands
from typer.main import get_command

from rmqcore import open_store
from rmqcore.cli import complete
from rmqcore.cli.app import app
from rmqcore.cli.contents import EXAMPLES, PANELS, SHORT
from rmqcore.testing import rocketmq_broker, rocketmq_topic  # noqa: F401 - fixtures

pytestmark = pytest.mark.logic

ALL = {" ".join(words): command for words, command in commands()}


def test_every_command_is_in_one_panel_and_says_shortly_what_it_does():
    known = [name for names in PANELS.values() for name in names]
    assert len(set(known)) == len(known)
    top = {name for name in ALL if " " not in name}
    assert top <= set(known)
    for name in top:
        first = set(re.findall(r"\w+", (ALL[name].help or "").partition("\n\n")[0]))
        said = set(re.findall(r"\w+", SHORT[name]))
        assert first & said, name


def test_every_command_has_examples_and_no_example_is_of_none():
    assert set(ALL) <= set(EXAMPLES)
    assert {name.split()[0] for name in EXAMPLES if name} <= set(SHORT)
    for name, command in ALL.items():
        assert EXAMPLES[name][0] in (command.epilog or "").replace("\\[", "["), name


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_example_parses(name):
    for line in EXAMPLES[name]:
        words = shlex.split(re.split(r" [|<>] (?!now)", line[line.index("rmqcore") :])[0])[1:]
        if words[0] not in {each.split()[0] for each in ALL}:
            continue  # of an extra that is not installed
        command, rest = get_command(app).commands[words[0]], words[1:]
        while hasattr(command, "commands") and rest:
            if rest[0] not in command.commands and words[0] == "doctor":
                rest = ["look", *rest]
            command, rest = command.commands[rest[0]], rest[1:]
        context = command.make_context(words[0], rest)
        assert context.args == [], line


def test_every_command_whose_output_is_data_prints_json():
    leaves = {name for name, command in ALL.items() if not hasattr(command, "commands")}
    without = {
        name for name in leaves if not any("--json" in param.opts for param in ALL[name].params)
    }
    assert without == {"man", "metaq serve"}


def test_the_help_has_panels_examples_and_times(rmqcore, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    top = rmqcore("--help").stdout
    places = [top.index(f"─ {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    cat = rmqcore("cat", "--help").stdout
    assert "rmqcore cat STORE Orders --since 15m -l" in cat
    assert r"--format '%t/%p@%o %k %s\n'" in cat
    assert "TIME is one of:" in cat
    assert "TIME is one of:" not in rmqcore("stat", "--help").stdout
    assert "usage: rmqcore" in " ".join(rmqcore("stat", "--help").stdout.lower().split())


def test_the_help_breaks_lines_where_the_terminal_ends(rmqcore, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = rmqcore("doctor", "repair", "--help").stdout.partition("Goes on where")[2]
    paragraph = text.partition("\n \n")[0].partition("╭")[0].rstrip().splitlines()
    assert len(paragraph) > 1
    assert all(len(line.rstrip()) > 60 for line in paragraph[:-1]), paragraph


@pytest.mark.process
def test_the_list_of_commands_imports_none():
    program = "import sys; sys.argv[1:] = ['--help']; from rmqcore.cli.main import run; run()"
    traced = [sys.executable, "-X", "importtime", "-c", program]
    done = subprocess.run(traced, capture_output=True, text=True, check=True)
    loaded = {line.split()[-1] for line in done.stderr.splitlines()}
    assert {f"rmqcore.cli.{name}" for name in ("stat", "admin", "serve")}.isdisjoint(loaded)


# ---- manual pages


def test_a_manual_page_has_every_option_and_is_made_for_every_command(rmqcore, tmp_path):
    page = rmqcore("man", "cat").stdout
    assert page.startswith('.TH "RMQCORE-CAT" "1"')
    for section in (
        "NAME",
        "SYNOPSIS",
        "DESCRIPTION",
        "OPTIONS",
        "EXAMPLES",
        "TIMES",
        "EXIT STATUS",
    ):
        assert f"\n.SH {section}\n" in page
    for param in ALL["cat"].params:
        if param.opts[0].startswith("--") and param.opts[0] != "--help":
            assert param.opts[0].replace("-", r"\-") in page
    assert r"--skip-damaged".replace("-", r"\-") in page
    doctor = rmqcore("man", "doctor").stdout
    assert '.SH "rmqcore doctor repair"' in doctor
    assert "\n16\n" in doctor
    said = rmqcore("man", "--out", tmp_path).stdout
    top = {name for name in ALL if " " not in name}
    assert {path.name for path in tmp_path.iterdir()} == {
        "rmqcore.1",
        *(f"rmqcore-{name}.1" for name in top),
    }
    assert said.startswith(f"{len(top) + 1} pages")
    assert rmqcore("man", "nonsense").exit_code == 2


def test_no_line_of_a_manual_page_is_taken_for_a_request(rmqcore):
    requests = {"TH", "SH", "SS", "TP", "PP", "nf", "fi"}
    for name in ("", "cat", "admin"):
        page = rmqcore("man", *filter(None, [name])).stdout
        begins = {line.split()[0][1:] for line in page.splitlines() if line[:1] in {".", "'"}}
        assert begins <= requests


# ---- completion


def completed(words, cwd):
    program = "import sys; sys.argv = ['rmqcore']; from rmqcore.cli.main import run; run()"
    asked = {
        "_RMQCORE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["rmqcore", *words]),
        "COMP_CWORD": str(len(words)),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | asked,
        capture_output=True,
        cwd=cwd,
        check=False,
    )
    assert done.stderr == b""
    return done.stdout.decode().split()


@pytest.mark.process
def test_the_shell_completes_stores_topics_and_groups(tmp_path, monkeypatch):
    (tmp_path / "stuff").mkdir()
    (tmp_path / "storey.txt").touch()
    with open_store(tmp_path / "store") as store:
        store.put("Orders", b"x")
        store.put("Others", b"x")
        store.consumer_offsets.commit("Orders", "billing", 0, 1)
        store.consumer_offsets.commit("Orders", "audit", 0, 1)
    assert completed(["stat", "st"], tmp_path) == ["store", "stuff/"]
    assert completed(["query", "store", "--topic", "O"], tmp_path) == ["Orders", "Others"]
    assert completed(["doctor", "st"], tmp_path) == ["store", "stuff/"]
    assert completed(["consume", "-n", "127.0.0.1:1", "O"], tmp_path) == []
    monkeypatch.chdir(tmp_path)
    assert complete.stores(f"{tmp_path}/sto") == [f"{tmp_path}/store"]
    assert complete.stores("none/") == []
    offsets = ALL["offsets"].make_context("offsets", ["store"])
    assert complete.groups(offsets, "b") == ["billing"]
    assert complete.groups(ALL["offsets"].make_context("offsets", ["stuff"]), "") == []


@pytest.mark.engine
def test_the_shell_completes_what_a_name_server_knows(
    rocketmq_broker,  # noqa: F811 - the fixture
    rocketmq_topic,  # noqa: F811 - the fixture
    rmqcore,
):
    from rmqcore.cli.named import remote_groups, remote_topics

    address = rocketmq_broker.namesrv_addr
    assert rmqcore("admin", "updateTopic", "-t", rocketmq_topic, "-n", address).exit_code == 0
    assert rmqcore("admin", "updateSubGroup", "-g", "billing", "-n", address).exit_code == 0
    context = ALL["consume"].make_context("consume", ["T", "-n", address])
    assert remote_topics(context, rocketmq_topic[:-1]) == [rocketmq_topic]
    assert remote_groups(context, "bill") == ["billing"]
