"""The pipeline of the demonstration, and the command."""

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import rmqcore

pytestmark = pytest.mark.peers

pytest.importorskip("pyspark")


def test_the_pipeline_agrees_with_itself_and_draws_a_picture(spark, large_store, tmp_path):
    from rmqcore.spark import run_pipeline

    shutil.copytree(large_store, tmp_path / "store")
    report = run_pipeline(spark, tmp_path / "store", tmp_path / "out")
    assert report.ok
    assert [step.messages for step in report.steps] == [60_000] * 5
    assert json.loads(json.dumps(report.as_dict()))["topics"][0]["messages"] == 15_000
    html = report.as_html()
    assert html.count("<svg") == 1
    assert "Topic3" in html


def test_the_pipeline_sees_damage(spark, large_store, tmp_path):
    from rmqcore.spark import run_pipeline

    shutil.copytree(large_store, tmp_path / "store")
    unit = next((tmp_path / "store" / "consumequeue" / "Topic0" / "0").iterdir())
    with unit.open("r+b") as stream:
        stream.write(bytes(range(20)))
    report = run_pipeline(spark, tmp_path / "store", tmp_path / "out")
    assert [step.ok for step in report.steps] == [False, False, True, True, True]


def test_the_command(spark, large_store):
    command = [sys.executable, "-m", "rmqcore", "spark", "trace", large_store]
    command += ["--key", "K4711", "--json", "--cores", "1", "--memory", "600m"]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
    env["PYTHONPATH"] = str(Path(rmqcore.__file__).parents[1])
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["keys"] == "K4711 G11"


class Kept:
    """The session of the tests, which a command may not stop."""

    def __init__(self, spark):
        self._spark = spark

    def __getattr__(self, name):
        return getattr(self._spark, name)

    def stop(self):
        pass


@pytest.fixture
def command(spark, monkeypatch, capfd):
    """`command("audit", path, code=1)`: what `rmqcore spark audit PATH` says, in this process."""
    from rmqcore.cli import spark as commands

    monkeypatch.setattr("rmqcore.spark.session.local_session", lambda **settings: Kept(spark))

    def run(*words, code=0):
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            commands.app([str(word) for word in words])
        assert ended.value.code == code
        printed = capfd.readouterr()
        return printed.out or printed.err

    return run


def test_each_command(command, large_store, tmp_path):
    store, out = tmp_path / "store", tmp_path / "out"
    shutil.copytree(large_store, store)
    assert json.loads(command("rebuild", store, "--json"))["identical"]
    assert json.loads(command("rebuild", store, "--index", "--json"))["identical"]
    assert "15,000 messages" in command("export", store, out, "--topic", "Topic1")
    assert "one of parquet, delta" in command("export", store, out, "--format", "orc", code=2)
    assert "15,000 messages" in command("compact", large_store, tmp_path / "c", "--topic", "Topic1")
    found = command("trace", store, "--key", "K4711", "--json")
    assert json.loads(found)["keys"] == "K4711 G11"
    command("trace", store, "--key", "K", code=1)
    command("traffic", store, "--hottest", 2, "--plot", tmp_path / "a.html", "--json")
    assert "<svg" in (tmp_path / "a.html").read_text("utf-8")
    (store / "consumequeue" / "Topic0" / "0" / f"{0:020d}").write_bytes(bytes(6_000_000))
    assert not json.loads(command("audit", store, "--json", code=1))["clean"]


MINUTES = [
    {
        "topic": f"T{topic}",
        "minute": datetime(2026, 11, 21, 10, minute, tzinfo=UTC),
        "messages": 100 * topic + minute,
        "p99_ms": float(minute),
    }
    for minute in range(30)
    for topic in range(10)
]


@pytest.mark.parametrize("rows", [MINUTES, []])
def test_a_picture_is_drawn_as_its_name_says(tmp_path, rows):
    from rmqcore.spark import save_traffic

    save_traffic(tmp_path / "a.html", "name & title", rows)
    text = (tmp_path / "a.html").read_text("utf-8")
    assert "name &amp; title" in text
    assert text.count("<rect") == (30 * 8 if rows else 0)
    image = pytest.importorskip("matplotlib.image")
    save_traffic(tmp_path / "a.PNG", "name & title", rows)
    assert image.imread(tmp_path / "a.PNG").shape[:2] == (320, 900)


def test_a_picture_of_another_kind_is_refused_before_any_work(tmp_path, monkeypatch):
    from rmqcore.errors import ConfigError, RmqCoreError
    from rmqcore.spark.plot import check_picture

    with pytest.raises(ConfigError, match=r"ends in .html or .png"):
        check_picture(tmp_path / "a.pdf")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RmqCoreError, match=r"rmqcore\[plot\]"):
        check_picture(tmp_path / "a.png")
