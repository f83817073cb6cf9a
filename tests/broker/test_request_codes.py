"""docs/broker.md says of every request code who may send it, and what the broker does with it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "broker.md"
ROW = re.compile(r"^\| (\d+) \| (\w+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def rows():
    """The rows of the broker's own table: code, name, who may send it, what is done."""
    text = PAGE.read_text("utf-8").partition("## Requests of a name server")[0]
    return ROW.findall(text.partition("## Requests\n")[2])


@pytest.mark.process
def test_the_page_says_what_is_declared():
    check = [sys.executable, ROOT / "scripts" / "requests_page.py", "--check"]
    stale = subprocess.run(check, capture_output=True, text=True, check=False)
    assert stale.stdout == "", "run python scripts/requests_page.py"
    assert stale.returncode == 0, stale.stderr


def test_the_page_lists_every_code_as_it_is_served(with_broker):
    assert [(int(code), name) for code, name, _, _ in rows()] == [(c, c.name) for c in RequestCode]

    async def scenario(broker, _):
        told = {int(code) for code, _, who, _ in rows() if who != "not served"}
        assert told == set(broker._server.processors)

    with_broker(scenario)


def test_what_is_not_served_is_answered_so(with_broker):
    others = [int(code) for code, _, who, _ in rows() if who == "not served"]

    async def scenario(_, peer):
        for code in others:
            answer = await peer.ask(code)
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert str(code) in answer.remark

    with_broker(scenario)
