"""The README's example and every script of examples/ run, and say what they are said to say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAID = {
    "durable_queue.py": "doing task 2 (queue offset 2)",
    "find_again.py": "the ten before: [80, 81, 82, 83, 84, 85, 86, 87, 88, 89]",
    "follow_a_live_store.py": "reader: tick 4",
    "receipts_on_disk.py": "durability {'disk'}",
}


def run(*words, cwd):
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=cwd, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("script", sorted(path.name for path in ROOT.glob("examples/*.py")))
def test_an_example_runs_and_does_what_it_is_for(script, tmp_path):
    assert SAID[script] in run(ROOT / "examples" / script, tmp_path / "store", cwd=tmp_path)


def test_every_example_is_in_the_table():
    table = (ROOT / "examples" / "README.md").read_text("utf-8")
    assert [script for script in SAID if f"`{script}`" not in table] == []


def test_the_example_of_the_readme_runs(tmp_path):
    readme = (ROOT / "README.md").read_text("utf-8")
    code, *others = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert all("spark" in other for other in others)  # tests/spark/test_docs.py runs those
    assert len(code.splitlines()) <= 20
    (said,) = re.findall(r"It prints:\n\n```text\n(.*?)```", readme, re.DOTALL)
    assert run("-c", code, cwd=tmp_path) == said
    assert "b'order 3' is in queue 1 at 3" in run("-c", code, cwd=tmp_path)


def test_the_commands_that_the_documents_name_exist(rmqcore):
    help_text = rmqcore("--help").stdout
    commands = set(re.findall(r"^│ ([a-z]+) ", help_text, re.MULTILINE))
    text = "\n".join((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/cli.md"))
    named = set(re.findall(r"^(?:\$ )?rmqcore ([a-z]+)", text, re.MULTILINE))
    assert named <= commands
    assert set(re.findall(r"^## `([a-z]+)", text, re.MULTILINE)) == commands
