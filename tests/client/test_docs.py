"""The examples of docs/client.md run, and print what they should."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from client.patient import PATIENT
from patience import TIMEOUT_S

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
CODES = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
SAID = [
    "0 SEND_OK\n",
    "three",
    "total 3\n",
    "COMMIT\nb'49'\n",
    "['broker-a']\n3\n",
    '"name": "process Bills"',
]


@pytest.fixture(scope="module")
def addressed(rocketmq_broker):
    """The examples in their order, with the address of a broker that is there."""
    return [code.replace("127.0.0.1:9876", rocketmq_broker.namesrv_addr) for code in CODES]


def test_the_examples_print_what_they_should(addressed):
    *examples, _ = addressed
    for code, expected in zip(examples, SAID, strict=True):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", PATIENT + code],
            capture_output=True,
            text=True,
            timeout=3 * TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout, code


def test_the_example_of_a_test_passes(tmp_path):
    (tmp_path / "test_orders.py").write_text(CODES[-1], "utf-8")
    (tmp_path / "conftest.py").write_text(PATIENT, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "rmqcore.testing", "-W", "error"]
    done = subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)],
        # as in an environment without others' plugins; an installed rmqcore brings its own
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT_S,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
