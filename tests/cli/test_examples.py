"""The README's example and every script of examples/ run, and say what they are said to say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from client.patient import PATIENT
from patience import TIMEOUT_S

from rmqcore.cli.serve import NAMESRV_PORT
from rmqcore.testing import rocketmq_broker  # noqa: F401 - a fixture

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
SAID = {
    "durable_queue.py": "doing task 2 (queue offset 2)",
    "find_again.py": "the ten before: [80, 81, 82, 83, 84, 85, 86, 87, 88, 89]",
    "follow_a_live_store.py": "reader: tick 4",
    "receipts_on_disk.py": "durability {'disk'}",
}


def run(*words, cwd):
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=2 * TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


#: the demonstrations are commands, and a whole lake takes long, with tests of their own
ELSEWHERE = ("metaq_demo.py", "lake.py")
SCRIPTS = sorted(path.name for path in ROOT.glob("examples/*.py") if path.name not in ELSEWHERE)


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_runs_and_does_what_it_is_for(script, tmp_path):
    assert SAID[script] in run(ROOT / "examples" / script, tmp_path / "store", cwd=tmp_path)


def test_every_example_is_in_the_table():
    table = (ROOT / "examples" / "README.md").read_text("utf-8")
    assert [script for script in SAID if f"`{script}`" not in table] == []


def test_the_example_of_the_readme_runs(tmp_path):
    first, code, jobs, client, spark = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (shown,) = re.findall(r"^    jobs.done\(\)\n```\n\n```text\n(.*?)```", README, re.DOTALL | re.M)
    assert run("-W", "error", "-c", first, cwd=tmp_path) == shown
    assert "Consumer" in jobs  # the next test runs it
    assert "rmqcore.client" in client  # a test below runs it
    assert "spark" in spark  # tests/spark/test_docs.py runs that
    assert len(code.splitlines()) <= 20
    (said,) = re.findall(r"It prints:\n\n```text\n(.*?)```", README, re.DOTALL)
    assert run("-c", code, cwd=tmp_path) == said
    assert "b'order 3' is in queue 1 at 3" in run("-c", code, cwd=tmp_path)


def test_the_consumer_of_the_readme_goes_on_where_it_was(tmp_path):
    (code,) = re.findall(r"```python\n([^`]*?jobs.store.*?)```", README, re.DOTALL)
    first = run("-W", "error", "-c", code, cwd=tmp_path)
    assert first == "doing b'job 0' at 0\ndoing b'job 1' at 1\n1 left\n"
    second = run("-W", "error", "-c", code, cwd=tmp_path)
    assert second == "doing b'job 2' at 2\ndoing b'job 0' at 3\n2 left\n"


def test_the_client_of_the_readme_exchanges_a_message(rocketmq_broker, tmp_path):  # noqa: F811
    (code,) = re.findall(r"```python\n(from rmqcore.client.*?)```", README, re.DOTALL)
    addressed = code.replace("127.0.0.1:9876", rocketmq_broker.namesrv_addr)
    assert (
        run("-W", "error", "-c", PATIENT + addressed, cwd=tmp_path) == "SEND_OK\nb'from Python'\n"
    )


def test_the_clients_of_the_readme_have_ten_lines_and_one_address():
    for language in ("java", "go"):
        (code,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
        assert len(code.splitlines()) <= 10
        assert set(re.findall(r"127\.0\.0\.1:\d+", code)) == {f"127.0.0.1:{NAMESRV_PORT}"}


def test_the_commands_that_the_documents_name_exist(rmqcore):
    help_text = rmqcore("--help").stdout
    commands = set(re.findall(r"^│ ([a-z]+) ", help_text, re.MULTILINE))
    text = "\n".join((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/cli.md"))
    named = set(re.findall(r"^(?:\$ )?rmqcore ([a-z]+)", text, re.MULTILINE))
    assert named <= commands
    assert set(re.findall(r"^## `([a-z]+)", text, re.MULTILINE)) == commands
