"""The doctor's commands: fsck's exit codes, JSON, questions that nobody answers."""

import json
import shutil
from types import SimpleNamespace

import pytest
from doctor.damage import log_files, overwrite
from typer.testing import CliRunner

import rmqcore
from golden.check import digest_tree
from rmqcore.cli.app import app
from rmqcore.doctor import log_survey
from rmqcore.files.log_walker import find_good_record

pytestmark = pytest.mark.engine


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)


@pytest.fixture
def store(store_path):
    with rmqcore.open_store(store_path, mapped_file_size_commit_log=1 << 16) as opened:
        for number in range(20):
            opened.put("T", b"%d" % number * 100, keys=f"k{number}")
    return store_path


@pytest.fixture
def damaged(store):
    overwrite(log_files(store)[0], 1000, bytes(200))
    return store


def test_codes_of_a_store_that_is_in_order(store, tmp_path):
    assert run("doctor", "plan", store).code == 0
    assert run("doctor", "repair", store, "--yes").code == 0
    assert run("doctor", "repair", store).code == 0
    assert run("doctor", "undo", store, "--yes").code == 0
    shutil.copytree(store, tmp_path / "copy")
    assert run("doctor", "diff", store, tmp_path / "copy").code == 0
    assert run("doctor", "explain", store, "--topic", "T", "--offset", 3).code == 0
    assert run("doctor", "explain", store).code == 0


def test_codes_of_a_damaged_store(damaged, tmp_path):
    before = digest_tree(damaged)
    shutil.copytree(damaged, tmp_path / "copy")
    plan = tmp_path / "plan.json"
    told = run("doctor", "plan", damaged, "--out", plan, "--json")
    assert told.code == 4
    assert json.loads(told.out) == json.loads(plan.read_text())
    lost = json.loads(told.out)["lost"][0]["queue_offset"]
    assert run("doctor", "explain", damaged, "--topic", "T", "--offset", lost).code == 4
    assert digest_tree(damaged) == before
    repaired = run("doctor", "repair", damaged, "--plan", plan, "--yes", "--json")
    assert repaired.code == 1
    assert json.loads(repaired.out)["clean"]
    assert run("verify", damaged).code == 0
    differs = run("doctor", "diff", damaged, tmp_path / "copy", "-n", 2, "--json")
    assert differs.code == 4
    assert len(json.loads(differs.out)["differences"]) == 1
    undone = run("doctor", "undo", damaged, "--yes", "--json")
    assert undone.code == 1
    assert json.loads(undone.out)["changes"] > 0
    assert digest_tree(damaged) == before


def test_a_store_that_is_served_is_looked_at_and_in_order(store):
    with rmqcore.open_store(store, mapped_file_size_commit_log=1 << 16):
        told = run("doctor", store)
        assert (told.code, told.err) == (0, "")
        assert "is open for writing in another handle" in told.out
        assert "damage: none" in told.out
        assert run("doctor", "plan", store).code == 0
        assert run("doctor", "explain", store).code == 4
        overwrite(log_files(store)[0], 1000, bytes(200))
        assert run("doctor", store).code == 4


def test_what_cannot_be_read_is_told_without_advice_that_leads_nowhere(store):
    config = store / "config"
    for name in ("consumerOffset.json", "storeMark.json", "storeMark.json.bak"):
        (config / name).write_bytes(b"")
    index = next((store / "index").iterdir())
    index.write_bytes(index.read_bytes()[:1000])
    found = [each["how"] for each in json.loads(run("verify", store, "--json").out)["findings"]]
    assert not any("takes its place" in how for how in found)
    told = run("doctor", "plan", store).out
    assert "gives up: how far each group has come" in told
    assert "cannot be told from their length\n" in told
    assert "doctor plan" not in told
    index.unlink()
    looked = run("doctor", store)
    assert looked.code == 4
    assert "nothing is against opening it" in looked.out
    assert "what helps" not in looked.out
    (config / "consumerOffset.json.bak").write_bytes(b'{"offsetTable":{}}')
    found = [each["how"] for each in json.loads(run("verify", store, "--json").out)["findings"]]
    assert "consumerOffset.json.bak takes its place at the next opening" in found


def test_what_a_writer_puts_while_it_is_looked_at_is_no_damage(store, monkeypatch):
    with rmqcore.open_store(store, mapped_file_size_commit_log=1 << 16) as opened:
        left = [1]

        def find(*place):
            """The writer has gone on since the walk came to the end."""
            if left:
                left.pop()
                opened.put("T", b"one")
                opened.put("T", b"two")
            return find_good_record(*place)

        monkeypatch.setattr(log_survey, "find_good_record", find)
        told = run("doctor", "plan", store)
        assert not left
        assert told.code == 0, told.out


def test_a_store_in_a_commands_place_is_looked_at(store, tmp_path, monkeypatch):
    told = run("doctor", store)
    assert (told.code, told.err) == (0, "")
    assert told.out.splitlines() == [
        "the store: nothing is against opening it for writing",
        f"what helps: rmqcore verify {store} says whether every record of it is whole",
        "damage: none",
    ]
    overwrite(log_files(store)[0], 1000, bytes(200))
    before = digest_tree(store)
    monkeypatch.chdir(store.parent)
    told = run("doctor", store.name)
    assert told.code == 4
    assert f"what helps: rmqcore doctor plan {store.name}" in told.out
    assert f"rmqcore doctor repair {store.name}, which undo takes back" in told.out
    facts = json.loads(run("doctor", store, "--json").out)
    assert (facts["store"]["found"], facts["plan"]["clean"]) == (False, False)
    assert digest_tree(store) == before
    assert run("doctor", tmp_path / "none").code == 8
    for words in ("nonsense", "--nonsense"):
        assert run("doctor", words).code == 16
    assert run("doctor").code == 16


def test_codes_of_what_cannot_be_done(damaged, tmp_path):
    assert run("doctor", "plan", tmp_path / "nothing").code == 8
    assert run("doctor", "undo", tmp_path / "nothing", "--yes").code == 8
    assert run("doctor", "plan", damaged, "--nonsense").code == 16
    assert run("doctor", "explain", damaged, "--topic", "T").code == 16
    with rmqcore.open_store(tmp_path / "open") as opened:
        assert run("doctor", "repair", opened.path, "--yes").code == 8
        refused = run("doctor", "repair", opened.path, "--json")
        assert refused.code == 8
        assert json.loads(refused.err)["exit_code"] == 8
        assert "handle of this process" in refused.err


def test_a_question_that_nobody_answers_changes_nothing(damaged):
    before = digest_tree(damaged)
    asked = run("doctor", "repair", damaged)
    assert asked.code == 16
    assert "give it" in asked.err
    assert run("doctor", "undo", damaged).code == 16
    assert digest_tree(damaged) == before


def test_a_plan_tells_what_is_lost(damaged):
    told = run("doctor", "plan", damaged).out
    assert "lost: T/0 offset" in told
    assert "gives up: " in told
    assert "nothing was changed" in told


def test_verify_takes_a_time_and_a_place_to_begin(store):
    assert run("verify", store, "--deep", "--max-duration", "10m").code == 0
    assert "up to" not in run("verify", store, "--max-duration", "10m").out.split("verdict")[1]
    assert run("verify", store, "--max-duration", "soon").code == 2
