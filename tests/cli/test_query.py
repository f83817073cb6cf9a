"""query: by key, time, id and physical offset; why nothing was found."""

import pytest

from rmqcore import open_store

pytestmark = pytest.mark.engine


def bodies(outcome):
    return [message["body"] for message in outcome.json["messages"]]


def test_a_key_is_found_in_every_topic_or_in_one(rmqcore, store):
    assert bodies(rmqcore("query", store, "--key", "letter", "--json")) == list("abcde")
    assert bodies(rmqcore("query", store, "--key", "c", "--topic", "Letters", "--json")) == ["c"]
    assert rmqcore("query", store, "--key", "c", "--topic", "Bytes").exit_code == 1


def test_the_newest_hits_come_first_and_more_is_said(rmqcore, store):
    outcome = rmqcore("query", store, "--key", "letter", "-n", 2, "--json")
    assert bodies(outcome) == ["d", "e"]
    assert outcome.json["more"] is True
    assert "older messages" in rmqcore("query", store, "--key", "letter", "-n", 2).stderr


def test_an_offset_id_and_a_unique_key_are_both_ids(rmqcore, store):
    with open_store(store, mode="r") as opened:
        first = next(opened.messages())
    assert bodies(rmqcore("query", store, "--id", first.message_id, "--json")) == ["a"]
    assert bodies(rmqcore("query", store, "--id", first.message_id.lower(), "--json")) == ["a"]
    found = rmqcore("query", store, "--id", "0A01", "--json").json["messages"]
    assert [message["body_base64"] for message in found] == ["/wA="]


def test_an_id_of_another_store_is_not_found(rmqcore, store):
    other = "0A010203" + "00002A9F" + "0000000000000000"
    outcome = rmqcore("query", store, "--id", other, "--explain")
    assert outcome.exit_code == 1
    assert "the record there has the id 7F000001" in outcome.stderr


def test_a_physical_offset_is_found_or_explained(rmqcore, store):
    assert bodies(rmqcore("query", store, "--offset", 0, "--json")) == ["a"]
    outcome = rmqcore("query", store, "--offset", 1, "--explain")
    assert outcome.exit_code == 1
    assert "no record begins there" in outcome.stderr


def test_a_time_is_answered_with_an_offset_for_each_queue(rmqcore, store):
    with open_store(store, mode="r") as opened:
        stored = {(m.topic, m.queue_id): m for m in opened.messages()}
        rows = rmqcore("query", store, "--time", 0, "--json").json
        assert [(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows] == [
            ("Bytes", 0, 0),
            ("Letters", 0, 0),
            ("Letters", 1, 0),
        ]
        future = rmqcore("query", store, "--time", "2100-01-01", "--json").json
        assert [row["queue_offset"] for row in future] == [1, 5, 5]
        assert {row["phy_offset"] for row in future} == {None}
        words = ("--time", "2100-01-01", "--boundary", "upper", "--queue", 1, "--json")
        (last,) = rmqcore("query", store, *words).json
        assert last["phy_offset"] == stored["Letters", 1].phy_offset


def test_explain_says_which_index_files_were_looked_into(rmqcore, store):
    outcome = rmqcore("query", store, "--key", "nowhere", "--explain", "--json")
    assert outcome.exit_code == 1
    explanation = outcome.json["explanations"][0]
    assert explanation["index_key"] == "Bytes#nowhere"
    assert [file["candidates"] for file in explanation["files"]] == [0]
    assert "no entry has this hash" in rmqcore("query", store, "--key", "n", "--explain").stderr


def test_a_table_shows_the_properties_and_the_body(rmqcore, store):
    text = rmqcore("query", store, "--key", "b").stdout
    assert "Letters/0 at 1" in text
    assert "letter b" in text
    assert text.endswith("b\n\n")


@pytest.mark.parametrize("words", [(), ("--key", "a", "--offset", "0")])
def test_exactly_one_way_to_look_is_wanted(rmqcore, store, words):
    outcome = rmqcore("query", store, *words)
    assert outcome.exit_code == 2
    assert "give one of" in outcome.stderr
