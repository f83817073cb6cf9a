"""Conditions on properties: what matches, what is refused and where, and pulls by them."""

import asyncio

import pytest
from broker.conftest import LONG_MS, held, records
from patience import until_async

from rmqcore.broker.pull.matching import SCANNED_MAX
from rmqcore.broker.pull.pull import PullMessages
from rmqcore.java.json import format_java_json
from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.store.consume.sql92 import LENGTH_MAX, ExpressionError, compile_condition

pytestmark = pytest.mark.engine

MESSAGE = {"a": "2", "f": "2.5", "s": "x", "t": "true", "q": "it's", "word": "abc"}


@pytest.mark.parametrize(
    "expression",
    [
        "a = 2",
        "a = '2'",
        "2 = a",
        "a <> 3",
        "a != 3",
        "a > 1 AND a < 3",
        "a >= 2 and a <= 2",
        "a > 1.5",
        "f > 2.25",
        "f = 2.5",
        "a > -1",
        "a < +3",
        "a = 2L",
        "f < .3e1",
        "a < f",
        "a BETWEEN 2 AND 3",
        "f NOT BETWEEN 1.0 AND 2.0",
        "s IN ('x', 'y')",
        "s NOT IN ('z')",
        "none IS NULL",
        "s IS NOT NULL",
        "t = TRUE",
        "t <> FALSE",
        "TRUE",
        "q = 'it''s'",
        "word CONTAINS 'b'",
        "word NOT CONTAINS 'x'",
        "word STARTSWITH 'ab'",
        "word ENDSWITH 'bc'",
        "a = 1 OR s = 'x' AND t = TRUE",
        "(a = 1 OR s = 'x') AND t = TRUE",
        "NOT a = 1",
        "NOT (a = 1 AND none = 1)",
        "none = 1 OR a = 2",
        "none = other",
        "(a = 2) = (s = 'x')",
        "a = 2 -- said twice",
        "/* said */ a = 2",
        " AND ".join(["a = 2"] * 1000),
    ],
)
def test_a_message_matches(expression):
    assert compile_condition(expression)(MESSAGE)


@pytest.mark.parametrize(
    "expression",
    [
        "a = 3",
        "a = 2.5",
        "none = 1",
        "none <> 1",
        "NOT none = 1",
        "NOT (none = 1 OR a = 3)",
        "none = 1 AND a = 2",
        "none NOT IN ('z')",
        "none NOT BETWEEN 1 AND 3",
        "none CONTAINS 'b'",
        "none NOT CONTAINS 'b'",
        "word CONTAINS ''",
        "s > 1",
        "s = 1 OR a = 2",
        "f > 1",
        "none > 1",
        "NOT TRUE",
        "s IS NULL",
        "S = 'x'",
    ],
)
def test_a_message_does_not_match(expression):
    assert not compile_condition(expression)(MESSAGE)


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("", "at character 1: a property or a value is expected instead of the end"),
        ("a = 1 AND", "at character 10: .* instead of the end"),
        ("a", "at character 1: a condition is expected"),
        ("a = 1 XOR b = 2", "at character 7: XOR is not understood"),
        ("a LIKE 'x'", "at character 3: LIKE is not understood"),
        ("a + 1 = 2", r"at character 3: \+ is not understood"),
        ("a == 1", "at character 4: .* instead of ="),
        ("a = 1;", "at character 6: ';' is not understood"),
        ("a.b = 1", "at character 2: '.' is not understood"),
        ("a = 'x", "at character 5: "),
        ("a = 0x1F", "at character 6: x1F is not understood"),
        ("a > 'x'", "at character 5: a string cannot be compared by >"),
        ("a = NULL", "at character 5: "),
        ("'a' = 1", "at character 7: a string cannot be compared with a number"),
        ("a IN (1)", "at character 7: a string is expected instead of 1"),
        ("a IN ()", "at character 7: "),
        ("'x' IN ('x')", "at character 1: IN stands behind a property only"),
        ("a BETWEEN 3 AND 1", "at character 11: nothing lies between"),
        ("a BETWEEN 1 OR 3", "at character 13: AND is expected instead of OR"),
        ("a CONTAINS b", "at character 12: a string is expected"),
        ("a NOT = 1", "at character 7: BETWEEN, IN or CONTAINS is expected"),
        ("a = 9223372036854775808", "at character 5: a whole number has 64 bits"),
        ("a = " + "9" * 5000, "at character 5: a whole number has 64 bits"),
        ("a = -" + "9" * 5000 + "L", "at character 5: a whole number has 64 bits"),
        ("a=1 OR " * 2000 + "a=1", "at character 7001: more than 1000 comparisons"),
        ("a = 1 = TRUE", "at character 7: = is not understood"),
        ("(a = 1", r"at character 7: \) is expected instead of the end"),
        ("(" * 5000, "at character 33: more than 32"),
        ("NOT " * 4000, "at character 129: more than 32"),
        ("a" * (LENGTH_MAX + 1), "at most 16384 are read"),
        ("a = 1" + " " * 9000 + "#", "at character 9006: '#'"),
        ("a = 1 " + "-" * 9000 + "\n#", "at character 9008: '#'"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(expression, complaint):
    with pytest.raises(ExpressionError, match=complaint):
        compile_condition(expression)


def sql(expression):
    return {"subscription": expression, "expressionType": "SQL92"}


async def send_numbers(peer, count):
    for number in range(count):
        await peer.send("T", b"%d" % number, properties={"n": str(number)})


def test_a_pull_by_a_condition_gets_what_matches_and_goes_on_behind(with_broker):
    async def scenario(_, peer):
        await send_numbers(peer, 10)
        pulled = await peer.pull("T", **sql("n BETWEEN 3 AND 4 OR n = 8"))
        assert [m.body for m in records(pulled.body)] == [b"3", b"4", b"8"]
        assert pulled.ext_fields["nextBeginOffset"] == "10"
        two = await peer.pull("T", maxMsgNums=2, **sql("n > 2"))
        assert [m.body for m in records(two.body)] == [b"3", b"4"]
        assert two.ext_fields["nextBeginOffset"] == "5"
        none = await peer.pull("T", **sql("n > 100"))
        assert none.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert none.ext_fields["nextBeginOffset"] == "10"
        over = await peer.pull("T", offset=10, **sql("n > 100"))
        assert over.code == ResponseCode.PULL_NOT_FOUND

    with_broker(scenario, enablePropertyFilter="true")


def test_what_cannot_be_used_is_answered_and_closes_nothing(with_broker, monkeypatch):
    def fails(*_):
        raise RuntimeError("unexpected")

    async def scenario(broker, peer):
        await peer.send("T", b"x")
        code = ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert (await peer.pull("T", **sql("a = " + "9" * 5000))).code == code
        (connection,) = broker._server.connections
        monkeypatch.setattr("rmqcore.broker.state.subscription.compile_condition", fails)
        refused = await peer.pull("T", **sql("a = 1"))
        assert refused.remark == "request 11 failed; the log of the server says why"
        assert (await peer.pull("T")).code == ResponseCode.SUCCESS
        assert broker._server.connections == (connection,)

    with_broker(scenario, enablePropertyFilter="true")


def test_a_pull_looks_at_a_bounded_number_of_messages(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"first")
        for _ in range(SCANNED_MAX + 50):
            broker.store.put("T", b"x")
        broker.store.put("T", b"last", properties={"n": "1"})
        pulled = await peer.pull("T", **sql("n = 1"))
        assert pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert pulled.ext_fields["nextBeginOffset"] == str(SCANNED_MAX)
        pulled = await peer.pull("T", offset=SCANNED_MAX, **sql("n = 1"))
        assert [m.body for m in records(pulled.body)] == [b"last"]

    with_broker(scenario, enablePropertyFilter="true")


@pytest.fixture
def looks(monkeypatch):
    """Up to where pulls have looked in their queue; one that is held looks at what comes."""
    ends, look = [], PullMessages._look

    def noted(*given):
        result = look(*given)
        ends.append(result.next_queue_offset)
        return result

    monkeypatch.setattr(PullMessages, "_look", noted)
    return ends


@pytest.mark.usefixtures("long_hold")
def test_a_held_pull_stays_held_until_what_comes_matches(with_broker, looks):
    async def scenario(broker, peer):
        await send_numbers(peer, 1)
        waiting = asyncio.ensure_future(
            peer.pull("T", offset=1, suspend_ms=LONG_MS, **sql("n = 7"))
        )
        await held(broker.managers.waiting_pulls)
        await peer.send("T", b"other", properties={"n": "6"})
        await until_async(lambda: 2 in looks, "the pull looks at what has come")
        assert len(broker.managers.waiting_pulls) == 1
        assert not waiting.done()
        await peer.send("T", b"wanted", properties={"n": "7"})
        (message,) = records((await waiting).body)
        assert message.body == b"wanted"

    with_broker(scenario, enablePropertyFilter="true")


@pytest.mark.usefixtures("long_hold")
def test_a_held_pull_that_nothing_matches_is_answered_in_time_behind_what_it_saw(
    with_broker, looks
):
    async def scenario(broker, peer):
        await send_numbers(peer, 1)
        hold = broker.managers.waiting_pulls
        waiting = asyncio.ensure_future(
            peer.pull("T", offset=1, suspend_ms=LONG_MS, **sql("n = 7"))
        )
        await held(hold)
        for _ in range(3):
            await peer.send("T", b"other", properties={"n": "6"})
        await until_async(lambda: 4 in looks, "it waits behind what has come")
        ((waits,),) = hold._by_queue.values()
        # its time is over
        hold._answer(waits, False)
        answer = await waiting
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert answer.ext_fields["nextBeginOffset"] == "4"

    with_broker(scenario, enablePropertyFilter="true")


def beat(expression):
    fields = {
        "topic": "T",
        "subString": expression,
        "expressionType": "SQL92",
        "subVersion": 5,
    }
    return fields, {
        "clientID": "c",
        "consumerDataSet": [{"groupName": "CG", "subscriptionDataSet": [fields]}],
    }


def test_a_group_filters_by_the_condition_of_its_heart_beat(with_broker):
    async def scenario(_, peer):
        await send_numbers(peer, 5)
        _, body = beat("n = 3")
        await peer.ask(RequestCode.HEART_BEAT, body=format_java_json(body).encode())
        pulled = await peer.pull("T", sysFlag=0)
        assert [m.body for m in records(pulled.body)] == [b"3"]

    with_broker(scenario, enablePropertyFilter="true")


@pytest.mark.parametrize(
    ("enabled", "expression", "code", "remark"),
    [
        ("true", "n = 3", ResponseCode.SUCCESS, None),
        ("true", "n LIKE 3", ResponseCode.SUBSCRIPTION_PARSE_FAILED, "at character 3: LIKE"),
        ("false", "n = 3", ResponseCode.SYSTEM_ERROR, "does not support consumer to filter"),
    ],
)
def test_a_condition_is_judged_when_it_is_subscribed_and_when_it_is_pulled_by(
    with_broker, enabled, expression, code, remark
):
    async def scenario(_, peer):
        await send_numbers(peer, 5)
        fields, _ = beat(expression)
        body = {"clientId": "c", "group": "CG", "subscriptionData": fields}
        checked = await peer.ask(
            RequestCode.CHECK_CLIENT_CONFIG, body=format_java_json(body).encode()
        )
        pulled = await peer.pull("T", **sql(expression))
        assert (checked.code, pulled.code) == (code, code)
        for answer in (checked, pulled):
            assert remark is None or remark in answer.remark

    with_broker(scenario, enablePropertyFilter=enabled)
