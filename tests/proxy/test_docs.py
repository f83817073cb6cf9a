"""docs/grpc.md says of every RPC and every code what the server does with it."""

import re
from pathlib import Path

import pytest

from rmqcore.proxy import Http2Settings, codes, messages

pytestmark = pytest.mark.logic

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "grpc.md").read_text("utf-8")
RPC = re.compile(r"^\| (\w+) \| (served|refused) \| [^|]*\|$", re.MULTILINE)
CODE = re.compile(r"^\| (\d+) \| (\w+) \| (sent|not sent) \| ([^|]*)\|$", re.MULTILINE)


def test_the_page_lists_every_rpc():
    published = messages.POOL.FindServiceByName(messages.SERVICE)
    assert [name for name, _ in RPC.findall(PAGE)] != []
    assert {name for name, _ in RPC.findall(PAGE)} == {each.name for each in published.methods}
    refused = {name for name, state in RPC.findall(PAGE) if state == "refused"}
    service = (ROOT / "rmqcore" / "proxy" / "service.py").read_text("utf-8")
    assert refused == set(re.findall(r'"(\w+)": _refuse', service))


def test_the_page_lists_every_code_as_it_is_sent():
    rows = CODE.findall(PAGE)
    assert [(int(number), name) for number, name, _, _ in rows] == [(c, c.name) for c in codes.Code]
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "rmqcore" / "proxy").glob("*.py"))
    used = set(re.findall(r"\bCode\.([A-Z_]+)", sources))
    assert {name for _, name, state, _ in rows if state == "sent"} == used


def test_the_bounds_are_the_settings():
    settings = Http2Settings()
    assert f"| calls at a time | {settings.stream_max:,} |" in PAGE
    assert f"of all connections together | {settings.call_total_max:,} |" in PAGE
    assert f"| headers of a call | {settings.header_size_max >> 10} KiB, 128 fields |" in PAGE
    assert f"| one message | {settings.message_size_max >> 20} MiB |" in PAGE
    unfinished = f"{settings.unfinished_size_max >> 20} MiB in all; each "
    assert f"{unfinished}{settings.request_timeout_s:.0f} s |" in PAGE
    assert f"does not take | {settings.queued_size_max >> 20} MiB |" in PAGE
    for kept in (settings.unfinished_total_max, settings.queued_total_max):
        assert f"of all connections together | {kept >> 20} MiB |" in PAGE
    assert f"| silence | {settings.idle_timeout_s:.0f} s |" in PAGE
