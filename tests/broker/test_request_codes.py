"""docs/broker.md says of every request code what the broker does with it."""

import re
from pathlib import Path

import pytest

from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine

PAGE = Path(__file__).parents[2] / "docs" / "broker.md"
ROW = re.compile(r"^\| (\d+) \| (\w+) \| (served|not supported) \| ([^|]+) \|$", re.MULTILINE)


def test_the_page_lists_every_code_as_it_is_served(with_broker):
    rows = ROW.findall(PAGE.read_text("utf-8"))
    assert [(int(code), name) for code, name, _, _ in rows] == [(c, c.name) for c in RequestCode]
    told = {int(code) for code, _, state, _ in rows if state == "served"}

    async def scenario(broker, _):
        served = set(broker._server.processors)
        assert sorted(served - told) == [], "served, and the page does not say so"
        assert sorted(told - served) == [], "the page says so, and they are not served"

    with_broker(scenario)


def test_what_is_not_served_is_answered_so(with_broker):
    rows = ROW.findall(PAGE.read_text("utf-8"))
    others = [int(code) for code, _, state, _ in rows if state != "served"]

    async def scenario(_, peer):
        for code in others:
            answer = await peer.ask(code)
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert str(code) in answer.remark

    with_broker(scenario)
