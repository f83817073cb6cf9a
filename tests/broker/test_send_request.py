"""The header of a send: short and long names, numbers, and what its properties ask for."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqcore.broker.send._send_request import SendRequest
from rmqcore.remoting import RemotingCommand, RequestCode, RequestRefusedError

pytestmark = pytest.mark.logic

SHORT = {
    "a": "group",
    "b": "topic",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "1",
    "g": "1763800000000",
    "h": "-5",
    "i": "TAGS\x01x\x02",
    "j": "2",
    "k": "false",
    "l": "16",
    "m": "true",
    "n": "broker-a",
}
NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "l": "maxReconsumeTimes",
    "m": "batch",
}
LONG = {NAMES[name]: value for name, value in SHORT.items() if name in NAMES}
ASKS = re.compile(r"(?:^|\x02)(?:POP_CK|DELAY|TRAN_MSG|TIMER_[^\x01\x02]+|INNER_[^\x01\x02]+)\x01")
PAIRS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "TAGS",
                "DELAY",
                "TRAN_MSG",
                "TIMER_DELAY_MS",
                "TIMER_",
                "INNER_X",
                "POP_CK",
                "XDELAY",
                "UNIQ_KEY",
                "WAIT",
                "é",
                "__SHARDINGKEY",
                "",
            ]
        ),
        st.sampled_from(["\x01", ""]),
        st.sampled_from(["", "1", "false", "FALSE", "true", "DELAY\x01", "é"]),
        st.sampled_from(["\x02", "\x02", ""]),
    ),
    max_size=5,
)


def request(fields, code=RequestCode.SEND_MESSAGE_V2):
    return RemotingCommand(code, dict(fields))


@pytest.mark.parametrize("fields", [SHORT, LONG], ids=["short", "long"])
def test_names_of_both_lengths_mean_the_same(fields):
    found = SendRequest(request(fields))
    assert (found.group, found.topic, found.default_topic) == ("group", "topic", "TBW102")
    assert (found.default_queue_count, found.queue_id, found.sys_flag) == (4, 3, 1)
    assert (found.born_timestamp_ms, found.flag, found.reconsume_times) == (1763800000000, -5, 2)
    assert (found.max_reconsume_times, found.batch) == (16, True)
    assert found.properties_text == "TAGS\x01x\x02"


def test_what_may_be_missing_has_a_default():
    least = {name: SHORT[name] for name in "abefgh"}
    found = SendRequest(request(least))
    assert (found.default_topic, found.default_queue_count, found.reconsume_times) == ("", 0, 0)
    assert (found.max_reconsume_times, found.batch, found.unique_key) == (None, False, None)
    assert SendRequest(request(least, RequestCode.SEND_BATCH_MESSAGE)).batch


@pytest.mark.parametrize("fields", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("name", "abefgh")
def test_what_is_missing_is_named(fields, name):
    key = name if fields is SHORT else NAMES[name]
    if key == "b":
        fields = {name: fields[name] for name in fields if name != "a"}  # short names need b
    with pytest.raises(RequestRefusedError, match=r"the header field \w+ is missing"):
        SendRequest(request({other: fields[other] for other in fields if other != key}))


@pytest.mark.parametrize("text", ["", "-", "1x", "9" * 19, "٣", "\ud83d", "1.0", " 1"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(RequestRefusedError, match="queueId has to be a whole number"):
        SendRequest(request(SHORT | {"e": text}))


@given(PAIRS)
def test_properties_are_looked_over_once_and_right(pairs):
    text = "".join(name + between + value + end for name, between, value, end in pairs)
    found = SendRequest(request(SHORT | {"i": text}))
    key = re.search(r"(?:^|\x02)UNIQ_KEY\x01([^\x02]+)", text)
    assert found.plain == (ASKS.search(text) is None)
    assert found.unique_key == (key[1] if key else None)
    assert found.ordered == bool(re.search(r"(?:^|\x02)__SHARDINGKEY\x01", text))
    stored = found.stored_properties(b"CLUSTER\x01c\x02", "K")
    front = "" if key else "UNIQ_KEY\x01K\x02"
    end = "" if text.endswith("\x02") else "\x02"
    assert stored.decode() == f"{front}{text}{end}CLUSTER\x01c\x02"


@pytest.mark.parametrize(
    ("text", "waits"),
    [("WAIT\x01false", False), ("A\x01b\x02WAIT\x01FALSE\x02", False), ("WAIT\x01true\x02", True)],
)
def test_a_producer_may_not_wait(text, waits):
    assert SendRequest(request(SHORT | {"i": text})).waits is waits


def test_half_a_character_is_stored_as_a_question_mark():
    found = SendRequest(request(SHORT | {"i": "A\x01\ud83d\x02"}))
    assert found.stored_properties(b"", "K") == b"UNIQ_KEY\x01K\x02A\x01?\x02"


def test_what_is_sent_again_to_a_retry_topic_is_not_plain():
    assert not SendRequest(request(SHORT | {"b": "%RETRY%group"})).plain
