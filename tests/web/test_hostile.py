"""What a producer has sent is shown and never run, whatever it is."""

import json
import zlib

import pytest
from web.conftest import reader_of
from web.test_pages import ROWS, words_of

from rmqcore import open_store
from rmqcore.native.format._numbers import SysFlag
from rmqcore.web import ColdSource, finding
from rmqcore.web.live import event_of
from rmqcore.web.traced import TRACE_TOPIC, trace_points

pytestmark = pytest.mark.engine

SCRIPT = "<script>alert(1)</script>"
TURNED = "invoice\u202efdp.exe\u2066\u200b"
ESCAPED = "invoice\\u202efdp.exe\\u2066\\u200b"
MIB = 1 << 20


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The pages over a store of hostile messages, and the store."""
    path = tmp_path_factory.mktemp("hostile") / SCRIPT.replace("/", "|")
    with open_store(path, mapped_file_size_commit_log=32 * MIB) as store:
        names = {"name": SCRIPT, SCRIPT: TURNED, "quote": "'\"><img src=x onerror=alert(1)>"}
        store.put("Hostile", SCRIPT.encode(), tags=SCRIPT, keys=SCRIPT, properties=names)
        store.put("Hostile", TURNED.encode(), tags=TURNED, keys=TURNED)
        store.put("Large", b"<b>" + b"x" * (4 * MIB - 6) + b"end")
        store.put("Deep", b"[" * 200_000)
        store.put("Nested", b"[" * 800 + b"1" + b",1" * 25_000 + b"]" * 800)
        bomb = zlib.compress(bytes(64 * MIB))
        store.put("Bomb", bomb, sys_flag=SysFlag.COMPRESSED)
        store.put("Odd", b'\xff\xfe{"\x00')
        store.consumer_offsets.commit("Hostile", "%|a-zA", 0, 1)
    with open_store(path, mode="r") as store:
        yield reader_of(ColdSource(store)), store


def page_of(read, topic, **params):
    at = ROWS.findall(read.text("/messages", by="time", topic=topic))[0]
    return at, read.text("/message", at=at, **params)


@pytest.mark.parametrize("path", ["/messages?by=time&topic=Hostile", "/live?topic=Hostile"])
def test_a_list_has_no_tag_of_a_producers(shown, path):
    page = shown[0].text(path)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert TURNED not in page
    assert ESCAPED in page


def test_a_message_has_no_tag_of_a_producers(shown):
    read, store = shown
    for message in store.messages("Hostile"):
        for form in ("text", "json", "hex"):
            page = read.text("/message", at=message.phy_offset, **{"as": form})
            assert "<script>alert" not in page
            assert "<img" not in page
            assert "\u202e" not in page


@pytest.mark.parametrize(
    "path",
    ["/topics", "/topic", "/group", "/messages?by=key&topic=x", "/messages?by=time", "/live"],
)
def test_what_a_link_says_is_no_tag_either(shown, path):
    names = {"/topics": "find", "/topic": "name", "/group": "name", "/live": "topic"}
    name = names.get(path, "key" if "by=key" in path else "topic")
    asked = {name: SCRIPT + TURNED}
    page = shown[0].get(path, **asked).text
    assert "<script>alert" not in page
    assert "\u202e" not in page


def test_no_page_may_run_or_load_what_is_not_the_servers(shown):
    headers = shown[0].get("/").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_a_body_of_4_mib_is_cut_and_a_link_leads_to_the_rest(shown):
    read = shown[0]
    at, page = page_of(read, "Large", **{"as": "text"})
    assert len(page) < MIB
    assert "the rest, from here on" in page
    assert f"from={64 << 10}" in page
    last = read.text("/message", at=at, **{"as": "text", "from": 4 * MIB - 100})
    assert "xxxend</pre>" in last
    assert "the rest" not in last
    assert "only up to 1 MiB" in read.text("/message", at=at, **{"as": "json"})


def test_a_body_is_downloaded_as_bytes_and_never_opened_as_a_page(shown):
    read = shown[0]
    at, _ = page_of(read, "Large")
    answer = read.get("/message/body", at=at)
    assert len(answer.body) == 4 * MIB
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


def test_json_without_an_end_is_shown_as_text(shown):
    assert "it is no JSON" in page_of(shown[0], "Deep", **{"as": "json"})[1]


def test_json_that_would_be_very_long_on_a_page_is_shown_as_text(shown):
    page = page_of(shown[0], "Nested", **{"as": "json"})[1]
    assert "nests too deeply" in page
    assert "[[[1,1,1," in page


def test_what_is_told_of_a_message_has_a_bound(tmp_path):
    told = "\x01".join(["EndTransaction", "1", "", "PG", *("KEY",) * 7, "COMMIT"]).encode()
    long = zlib.compress(b"\x02".join([told] * 20_000))

    def points(*bodies, **more):
        with open_store(tmp_path / "store", mapped_file_size_commit_log=32 * MIB) as store:
            place = store.put("Orders", b"one", properties={"UNIQ_KEY": "KEY"}).phy_offset
            for body in bodies:
                store.put(TRACE_TOPIC, body, keys="KEY", **more)
        with open_store(tmp_path / "store", mode="r") as store:
            return trace_points(ColdSource(store), store.message_at(place))

    assert points(long, long, sys_flag=SysFlag.COMPRESSED) == []
    assert len(points(*[b"\x02".join([told] * 900)] * 3)) == 1000


def test_an_unknown_topic_is_compared_with_some_names_only(shown, monkeypatch):
    compared = []

    def note(name, names, really=finding.difflib.get_close_matches, **more):
        compared.append(len(names))
        return really(name, names, **more)

    monkeypatch.setattr(finding.difflib, "get_close_matches", note)
    source = ColdSource(shown[1])
    names = {f"{'ab' * 40}{number:05d}": [0] for number in range(5000)}
    monkeypatch.setattr(source, "queues", lambda: {**names, "Orders": [0]})
    for typed, meant in (("Order", "Orders'"), (f"{'ab' * 40}0250", f"{'ab' * 40}02")):
        (why,) = finding.find(source, finding.Wanted(topic=typed)).why
        assert f"was '{meant}" in why
    assert max(compared) <= 200


def test_a_body_that_grows_too_far_is_shown_as_it_is_stored(shown):
    page = words_of(page_of(shown[0], "Bomb")[1])
    assert "shown as it is stored" in page


def test_bytes_that_are_no_text_are_shown_as_escapes(shown):
    page = page_of(shown[0], "Odd", **{"as": "text"})[1]
    assert "\\xff\\xfe{&#34;\\x00" in page


def test_an_event_of_the_tail_is_one_line_of_plain_texts(shown):
    first, second = shown[1].messages("Hostile")
    lines = event_of(second).splitlines()
    assert [line[:5] for line in lines] == ["id: " + lines[0][4], "data:", ""]
    told = json.loads(lines[1].removeprefix("data: "))
    assert told["tags"] == told["keys"] == told["body"] == ESCAPED
    assert json.loads(event_of(first).splitlines()[1][6:])["body"] == SCRIPT
