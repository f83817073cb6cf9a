"""JSON as fastjson writes it is read, whatever kind of keys it has."""

import json
import time

import pytest

from rmqcore.java import json as java_json
from rmqcore.java.json import parse_java_json

pytestmark = pytest.mark.logic


def test_a_key_that_is_an_object_comes_out_as_its_text():
    text = '{"offsetTable":{{"brokerName":"b:{}","queueId":0}:{"maxOffset":7},{"q":1}:8}}'
    table = parse_java_json(text)["offsetTable"]
    assert [json.loads(key) for key in table] == [
        {"brokerName": "b:{}", "queueId": 0},
        {"q": 1},
    ]
    assert list(table.values()) == [{"maxOffset": 7}, 8]


@pytest.mark.parametrize(
    "text", ['{"a":{"b":{"c":{}}},"d":[{}]}', '{"a":"{\\"b\\":1}:{x}:","c":"1:2"}']
)
def test_objects_and_texts_that_are_no_keys_stay(text):
    assert parse_java_json(text) == json.loads(text)


def test_keys_without_quotes_come_out_as_texts():
    assert parse_java_json('{1:{-2 : 3},"4:":[5,6.5]}') == {"1": {"-2": 3}, "4:": [5, 6.5]}
    # what looks like a key in a text stays one
    assert parse_java_json('{1:"{2:3","a\\"4:":"",\n-5\t:{}}') == {
        "1": "{2:3",
        'a"4:': "",
        "-5": {},
    }
    # keys within a key stay as they are
    assert parse_java_json('{{1:2,"a":-3}\n:4}') == {'{1:2,"a":-3}': 4}


@pytest.mark.parametrize("text", ['{1:"a"\0}', '{1:"a\0}', '\0{1:"a","b":2}'])
def test_a_zero_byte_is_no_json(text):
    refuse(text)


@pytest.mark.parametrize("text", ["1e400", "-1e400", "NaN", "Infinity", "{1:1e999}", "1" * 5000])
def test_a_number_that_no_java_double_or_4300_digits_hold_is_refused(text):
    refuse(text)


PIECES = [
    "{",
    '{"',
    "{a",
    '{"a":1,',
    '"\\',
    "{{",
    "1",
    "-",
    "-1",
    "1 ",
    "} ",
    "{1:",
    "[",
    "{{1:1}:",
    "{1:a",
    "{1:-",
]


def refuse(text):
    with pytest.raises(ValueError):
        parse_java_json(text)


@pytest.mark.parametrize("piece", PIECES)
def test_hostile_text_is_refused(piece):
    # in quadratic time this would take minutes
    refuse(piece * 200_000)


@pytest.mark.parametrize("text", ["{a:[{},{}]}", "[{},]x", '{"a":1,}', '{"a" x}', "["])
def test_what_is_not_fastjsons_either_is_looked_at_once(text, monkeypatch):
    monkeypatch.setattr(java_json, "_with_quoted_keys", None)
    refuse(text)


@pytest.mark.measure
@pytest.mark.parametrize("piece", PIECES)
def test_hostile_text_is_refused_in_linear_time(figure, piece):
    began = time.process_time()
    refuse(piece * 20_000)
    figure("processor time", time.process_time() - began, "s", at_most=1)
