"""put: what went in comes out, and what cannot go in is named with its line."""

import json

import pytest

from rmqcore import open_shared, open_store

pytestmark = pytest.mark.engine


def stored(path):
    with open_store(path, mode="r") as opened:
        return list(opened.messages())


def test_put_reads_lines_from_standard_input(rmqcore, store_path):
    outcome = rmqcore("put", store_path, "T", stdin="one\ntwo\r\n\nfour")
    assert outcome.exit_code == 0
    assert outcome.stdout.startswith("4 messages, ")
    assert [message.body for message in stored(store_path)] == [b"one", b"two", b"", b"four"]


def test_a_dash_is_standard_input(rmqcore, store_path, tmp_path):
    (tmp_path / "a").write_bytes(b"1\n")
    rmqcore("put", store_path, "T", tmp_path / "a", "-", stdin="2\n")
    assert [message.body for message in stored(store_path)] == [b"1", b"2"]


def test_put_reads_files_and_takes_tags_keys_and_a_queue(rmqcore, store_path, tmp_path):
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"3")
    words = ("--tags", "t", "--key", "k", "--key", "l", "--queue", 5)
    rmqcore("put", store_path, "T", tmp_path / "a", tmp_path / "b", *words)
    found = stored(store_path)
    assert [message.body for message in found] == [b"1", b"2", b"3"]
    assert {(m.queue_id, m.tags, m.keys) for m in found} == {(5, "t", ("k", "l"))}


def test_put_spreads_over_queues_in_turn(rmqcore, store_path):
    rmqcore("put", store_path, "T", "--queues", 3, stdin="a\nb\nc\nd\n")
    assert [message.queue_id for message in stored(store_path)] == [0, 1, 2, 0]


def test_put_takes_whole_files(rmqcore, store_path, tmp_path):
    (tmp_path / "a").write_bytes(b"\0\n\xff")
    rmqcore("put", store_path, "T", "--as", "files", tmp_path / "a")
    assert [message.body for message in stored(store_path)] == [b"\0\n\xff"]


def test_put_takes_every_field_of_a_json_line(rmqcore, store_path):
    lines = [
        {
            "body": "text",
            "keys": ["a", "b"],
            "tags": "t",
            "properties": {"p": "v"},
            "queue_id": 0,
            "flag": 7,
            "born_timestamp_ms": 1234,
            "born_host": "10.1.2.3:4",
            "reconsume_times": 2,
        },
        {"body_base64": "/wA=", "keys": "one"},
        {"body": {"as": "json"}},
    ]
    text = "\n\n".join(json.dumps(line) for line in lines)
    rmqcore("put", store_path, "T", "--as", "jsonl", "--queue", 3, stdin=text)
    first, second, third = stored(store_path)
    assert (first.body, first.keys, first.tags, first.queue_id) == (b"text", ("a", "b"), "t", 0)
    assert (first.properties["p"], first.flag, first.reconsume_times) == ("v", 7, 2)
    assert (first.born_timestamp_ms, first.born_host) == (1234, "10.1.2.3:4")
    assert (second.body, second.keys, second.queue_id) == (b"\xff\x00", ("one",), 3)
    assert json.loads(third.body) == {"as": "json"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "body or body_base64"),
        ('{"body": "a", "body_base64": ""}', "body or body_base64"),
        ('{"body_base64": "?"}', "the body"),
        ('{"body": "a", "flags": 1}', "'flags' is none of"),
        ('{"body": "a", "flag": "1"}', "flag='1' is no int"),
        ('{"body": "a", "flag": true}', "flag=True is no int"),
    ],
)
def test_a_wrong_json_line_is_named_and_what_came_before_stays(rmqcore, store_path, line, reason):
    outcome = rmqcore("put", store_path, "T", "--as", "jsonl", stdin=f'{{"body": "ok"}}\n{line}\n')
    assert outcome.exit_code == 2
    assert "standard input, line 2: " in outcome.stderr
    assert reason in outcome.stderr
    assert "1 messages were put before" in outcome.stderr
    assert [message.body for message in stored(store_path)] == [b"ok"]


def test_put_json_says_what_was_done(rmqcore, store_path):
    done = rmqcore("put", store_path, "T", "--json", stdin="a\nbc\n").json
    first, last = stored(store_path)
    assert (done["messages"], done["body_bytes"], done["topic"]) == (2, 3, "T")
    assert (done["first_phy_offset"], done["last_phy_offset"]) == (
        first.phy_offset,
        last.phy_offset,
    )
    assert done["durability"] == "page_cache"


def test_put_waits_for_the_disk_when_asked_to(rmqcore, store_path):
    words = ("--durability", "disk", "--json")
    assert rmqcore("put", store_path, "T", *words, stdin="a\n").json["durability"] == "disk"


def test_put_of_nothing_is_no_error(rmqcore, store_path):
    assert rmqcore("put", store_path, "T", "--json", stdin="").json["messages"] == 0


def test_put_makes_a_store_of_the_configured_sizes(rmqcore, store_path, tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=65536\nbrokerName=b\nmaxHashSlotNum=50\n")
    words = ("--config", conf, "-c", "maxHashSlotNum=100", "-c", "max_index_num=400")
    rmqcore("put", store_path, "T", *words, stdin="a\n")
    sizes = {file.stat().st_size for file in (store_path / "commitlog").iterdir()}
    assert sizes == {65536}
    assert {file.stat().st_size for file in (store_path / "index").iterdir()} <= {40 + 400 + 8000}


def test_put_goes_through_the_process_that_shares_the_store(rmqcore, store_path):
    with open_shared(store_path) as owner:
        outcome = rmqcore("put", store_path, "T", stdin="one\ntwo\n")
        assert outcome.exit_code == 0
        assert [message.body for message in owner.messages()] == [b"one", b"two"]
        assert owner.put("T", b"three").queue_offset == 2
