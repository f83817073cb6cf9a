"""A reply goes to the producer that has asked, and is stored."""

import asyncio
import json
from dataclasses import replace

import pytest
from broker.conftest import records
from patience import TIMEOUT_S, until_async

from rmqcore._codec import decode_properties, encode_properties
from rmqcore.broker.send import reply
from rmqcore.remoting import RequestCode, ResponseCode, failure, success

pytestmark = pytest.mark.engine

CLIENT = "10.0.0.1@1#2"
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
LONG_NAMES = {
    "producerGroup": "RG",
    "topic": REPLY_TOPIC,
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 0,
    "sysFlag": 0,
    "bornTimestamp": 1,
    "flag": 7,
}


async def ask_as_producer(peer, answer=None):
    """Register as a producer that waits for replies; returns what it is pushed."""
    pushed = []

    def take(_, request):
        pushed.append(request)
        return answer or success()

    peer.client.register(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, take)
    body = {"clientID": CLIENT, "producerDataSet": [{"groupName": "PG"}]}
    await peer.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
    return pushed


def properties(client=CLIENT):
    named = {"CORRELATION_ID": "c1", "MSG_TYPE": "reply"}
    return named | ({"REPLY_TO_CLIENT": client} if client else {})


def test_a_reply_reaches_who_has_asked_and_is_stored(with_broker):
    async def scenario(broker, peer):
        pushed = await ask_as_producer(peer)
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        sent = await peer.send(REPLY_TOPIC, b"pong", code=code, properties=properties())
        assert sent.code == ResponseCode.SUCCESS
        assert (sent.ext_fields["queueId"], sent.ext_fields["queueOffset"]) == ("0", "0")
        (request,) = pushed
        assert request.body == b"pong"
        assert request.text("topic") == REPLY_TOPIC
        assert request.text("storeHost") == broker.address
        told = decode_properties(request.text("properties").encode())
        assert told.items() >= properties().items()
        assert int(told["PUSH_REPLY_TIME"]) == request.number("storeTimestamp")
        (stored,) = records((await peer.pull(REPLY_TOPIC)).body)
        assert (stored.body, stored.properties["CORRELATION_ID"]) == (b"pong", "c1")
        assert sent.ext_fields["msgId"] == stored.message_id

    with_broker(scenario)


def test_long_names_are_read_and_nothing_is_stored_when_settings_say_so(with_broker):
    async def scenario(_, peer):
        pushed = await ask_as_producer(peer)
        fields = LONG_NAMES | {"properties": encode_properties(properties()).decode()}
        sent = await peer.ask(RequestCode.SEND_REPLY_MESSAGE, fields, b"pong")
        assert (sent.code, sent.ext_fields["msgId"]) == (ResponseCode.SUCCESS, "0")
        assert pushed[0].number("flag") == 7
        assert (await peer.pull(REPLY_TOPIC)).code == ResponseCode.PULL_NOT_FOUND

    with_broker(scenario, storeReplyMessageEnable="false")


def test_a_reply_for_nobody_says_why(with_broker):
    async def scenario(_, peer):
        async def reply(client):
            code = RequestCode.SEND_REPLY_MESSAGE_V2
            return await peer.send(REPLY_TOPIC, b"x", code=code, properties=properties(client))

        for client, why in ((None, "REPLY_TO_CLIENT"), ("gone", "not found")):
            answer = await reply(client)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert why in answer.remark
        await ask_as_producer(peer, failure(ResponseCode.SYSTEM_ERROR, "no"))
        answer = await reply(CLIENT)
        assert (answer.code, "code 1" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)

    with_broker(scenario)


def test_large_replies_to_who_replies_too_are_brought(with_broker, monkeypatch):
    # their answers come over the connection that has so many replies under way
    monkeypatch.setattr(reply, "_PUSH_TIMEOUT_MS", 1000 * TIMEOUT_S)
    most, size, code = 1 << 16, 1 << 15, RequestCode.SEND_REPLY_MESSAGE_V2

    async def scenario(broker, peer):
        pushed = await ask_as_producer(peer)
        (connection,) = broker._server.connections
        settings = replace(connection._settings, worked_size_max=most)
        monkeypatch.setattr(connection, "_settings", settings)

        async def answer(body):
            return (await peer.send(REPLY_TOPIC, body, code=code, properties=properties())).code

        codes = await asyncio.gather(*(answer(bytes(size)) for _ in range(8)))
        assert (codes, len(pushed)) == ([ResponseCode.SUCCESS] * 8, 8)
        assert connection._worked_size == 0

    with_broker(scenario)


def test_a_client_that_says_nothing_of_its_replies_has_few_under_way(with_broker, monkeypatch):
    for name, size in (("_MAX", 10), ("_TOTAL_MAX", 4), ("_ALWAYS", 1)):
        monkeypatch.setattr(reply, f"_BROUGHT{name}", size)
    code = RequestCode.SEND_REPLY_MESSAGE_V2

    async def scenario(broker, peer):
        asked, go = [], asyncio.Event()

        async def take(_, request):
            asked.append(request.body)
            await go.wait()
            return success()

        peer.client.register(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, take)
        body = {"clientID": CLIENT, "producerDataSet": [{"groupName": "PG"}]}
        await peer.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())

        async def answer(body):
            return (await peer.send(REPLY_TOPIC, body, code=code, properties=properties())).code

        first = asyncio.create_task(answer(b"one"))
        await until_async(lambda: asked, "the first reply")
        # beside it nothing has room that would be more than all may have
        assert await answer(b"two") == ResponseCode.SYSTEM_ERROR
        second = asyncio.create_task(answer(b"2"))
        await until_async(lambda: len(asked) == 2, "the second reply")
        go.set()
        assert [await first, await second, await answer(b"again")] == [0, 0, 0]
        assert asked == [b"one", b"2", b"again"]

    with_broker(scenario)


def test_who_calls_itself_by_several_lines_writes_one_to_the_log(with_broker, monkeypatch, caplog):
    monkeypatch.setattr(reply, "_PUSH_TIMEOUT_MS", 1)
    client, code = "c\n2030-01-01 CRITICAL rmqcore: forged", RequestCode.SEND_REPLY_MESSAGE_V2

    async def scenario(_, peer):
        never = asyncio.Event()

        async def take(_, __):
            await never.wait()

        peer.client.register(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, take)
        body = {"clientID": client, "producerDataSet": [{"groupName": "PG"}]}
        await peer.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
        sent = await peer.send(REPLY_TOPIC, b"x", code=code, properties=properties(client))
        assert sent.code == ResponseCode.SYSTEM_ERROR
        never.set()

    with_broker(scenario)
    (said,) = [each.getMessage() for each in caplog.records if "a reply for" in each.getMessage()]
    assert len(said.splitlines()) == 1
