"""The demonstration: its verdict is earned, and it sees what is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from client.conftest import patient  # noqa: F401 - a fixture: waits for answers
from demo import pipeline, steps
from demo.corpus import Corpus, Entry, Source
from demo.steps import Demo
from patience import TIMEOUT_S

import rmqcore
from rmqcore import open_store
from rmqcore.cli.options import configured
from rmqcore.cli.progress import Bars

pytestmark = pytest.mark.process

NAMES = [
    "append",
    "dispatch",
    "flush",
    "read by queue",
    "query by key",
    "query by time",
    "close, reopen",
    "kill -9, recover",
    "verify",
    "broker",
]


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setattr(steps, "_RECEIVE_TIMEOUT_S", TIMEOUT_S)


@pytest.fixture
def demo(tmp_path):
    """A demonstration whose corpus has been put."""
    made = Demo(tmp_path / "store", configured(None, None), Corpus(100_000), Bars())
    assert steps.append(made).ok
    yield made
    made.close()


def test_the_demonstration_passes_and_keeps_its_store(rmqcore, tmp_path):
    kept = tmp_path / "kept"
    outcome = rmqcore("demo", "--no-spark", "--size", 0.3, "--keep", kept, "--json")
    answer = outcome.json
    assert outcome.exit_code == 0
    assert answer["verdict"] == "ok"
    assert [step["name"] for step in answer["steps"]] == NAMES
    steps_by_name = {step["name"]: step for step in answer["steps"]}
    put, killed = steps_by_name["append"], steps_by_name["kill -9, recover"]
    with open_store(kept, mode="r") as opened:
        assert sum(1 for _ in opened.messages()) == killed["messages"]
        mine = [m for m in opened.messages() if m.queue_id < 4]
        assert len(mine) == put["messages"]
        assert sum(len(m.body) for m in mine) == put["bytes"]


def test_the_table_has_every_step_and_the_verdict(rmqcore):
    outcome = rmqcore("demo", "--no-spark", "--size", 0.1)
    assert [name for name in NAMES if name not in outcome.stdout] == []
    assert "verdict: OK" in outcome.stdout
    assert outcome.exit_code == 0


def test_a_directory_with_files_in_it_is_not_taken(rmqcore, tmp_path):
    (tmp_path / "mine").write_text("keep")
    outcome = rmqcore("demo", "--keep", tmp_path)
    assert outcome.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_installed_package_says_where_the_demonstrations_are(tmp_path):
    (tmp_path / "rmqcore").symlink_to(Path(rmqcore.__file__).parent)
    for words in (["demo", "--size", "3"], ["metaq", "demo"]):
        done = subprocess.run(
            [sys.executable, "-m", "rmqcore", *words],
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert "examples/" in done.stderr


def test_a_writer_that_has_put_all_before_it_is_killed_counts(demo, monkeypatch):
    # as on a machine that is busy: its receipts are looked at when there are no more to come
    monkeypatch.setattr(steps, "_KILL_AT", 1.0)
    step = steps.kill_and_recover(demo)
    assert step.ok
    assert f"after {demo.messages:,} receipts" in step.note


def test_a_body_that_is_not_what_was_put_is_seen(demo):
    demo.corpus = [
        [entry._replace(body=entry.body + b"!") for entry in part] for part in demo.corpus
    ]
    assert not steps.read_by_queue(demo).ok


def test_a_tag_that_is_not_what_was_put_is_seen(demo):
    demo.corpus = [[entry._replace(tags="x") for entry in part] for part in demo.corpus]
    assert not steps.read_by_queue(demo).ok


def test_a_message_too_many_is_seen(demo):
    demo.store.put("Licenses", b"never in the corpus", queue_id=1)
    assert not steps.read_by_queue(demo).ok
    assert not steps.dispatch(demo).ok


def test_a_key_that_answers_with_another_message_is_seen(demo):
    demo.sample = [entry._replace(body=b"?") for entry in demo.sample]
    assert not steps.query_by_key(demo).ok


def test_a_consume_queue_that_contradicts_the_log_is_seen(demo):
    assert steps.dispatch(demo).ok
    file = next((demo.path / "consumequeue" / "Licenses").rglob("0*0"))
    with file.open("r+b") as stream:
        stream.write(b"\0" * 7 + b"\7")
    assert not steps.verify(demo).ok


def test_a_broker_that_changes_a_body_is_seen(demo, monkeypatch):
    class Changing(steps.Producer):
        def send(self, topic, body, **settings):
            return super().send(topic, body + b"!", **settings)

    monkeypatch.setattr(steps, "Producer", Changing)
    demo.sample = demo.sample[:3]
    seen = steps.broker(demo)
    assert not seen.ok
    assert "3 WRONG" in seen.note


def test_a_broker_that_loses_a_message_is_seen(demo, monkeypatch):
    class Losing(steps.Producer):
        def send(self, topic, body, *, keys, **settings):
            if keys != demo.sample[1].key:
                super().send(topic, body, keys=keys, **settings)

    class Waiting(steps.Consumer):
        """Waits for the two that come, and a moment for the one that does not."""

        taken = 0

        def receive(self, timeout_s=None):
            message = super().receive(TIMEOUT_S if self.taken < 2 else 0.1)
            self.taken += 1
            return message

    monkeypatch.setattr(steps, "Producer", Losing)
    monkeypatch.setattr(steps, "Consumer", Waiting)
    demo.sample = demo.sample[:3]
    seen = steps.broker(demo)
    assert not seen.ok
    assert seen.messages == 2


def test_what_the_part_on_spark_lacks_is_said_to_the_letter(tmp_path, monkeypatch, capsys):
    missing = CompletedProcess([], 2, "", "rmqcore: spark needs pip install 'rmqcore[spark]'\n")
    monkeypatch.setattr(pipeline.subprocess, "run", lambda *_, **__: missing)
    assert pipeline.pipeline(tmp_path, tmp_path, None) == []
    assert "pip install 'rmqcore[spark]'" in capsys.readouterr().err


def test_a_failed_step_ends_with_1_and_says_failed(rmqcore, monkeypatch):
    def broken(demo):
        return steps.Step("broken", 0, 0, 0.0, "it is", ok=False)

    monkeypatch.setattr("demo.command.STEPS", (broken,))
    outcome = rmqcore("demo", "--json")
    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout)["verdict"] == "failed"
    assert "FAILED" in rmqcore("demo").stdout


def test_the_corpus_is_the_same_every_time_and_no_larger_than_asked():
    first, second = list(Corpus(200_000)), list(Corpus(200_000))
    assert first == second
    assert 100_000 < sum(len(entry.body) for part in first for entry in part) < 8_000_000


def test_the_corpus_leaves_out_what_is_no_text(tmp_path):
    (tmp_path / "binary").write_bytes(b"\0\1\2")
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8bnothing")
    (tmp_path / "picture.png").write_bytes(b"text")
    (tmp_path / "a text").write_bytes(b"one\n\ntwo\n")
    corpus = Corpus(1000, (Source("T", tmp_path, True, 1.0),))
    assert [[entry._replace(queue_id=0) for entry in part] for part in corpus] == [
        [Entry("T", 0, "a_text:1", "a_text", b"one"), Entry("T", 0, "a_text:3", "a_text", b"two")]
    ]


def test_python_alone_is_corpus_enough():
    python = [source for source in Corpus(1)._sources if source.topic.startswith("Python")]
    size = sum(len(entry.body) for part in Corpus(3_000_000, tuple(python)) for entry in part)
    assert size >= 3_000_000
