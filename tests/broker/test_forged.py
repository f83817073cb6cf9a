"""What looks like a record in the body of a message is nobody's message."""

import pytest
from broker.conftest import records
from broker.test_access import guarded  # noqa: F401 - the fixture

from rmqcore._codec import encode_record
from rmqcore.message import Message
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine

#: as much of the log behind a forged head is taken for its properties
TAKEN_IN = 600


async def forge(peer):
    """Store a body that holds the head of a record of one's own topic; where that begins."""
    first = await peer.send("A", b"-" * 10)
    view = {"offset": int(first.ext_fields["msgId"][-16:], 16)}
    seen = bytes((await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, view)).body)
    (stored,) = records(seen)
    at = view["offset"] + len(seen) + seen.index(b"-" * 10)
    record = encode_record(
        Message("A", b"f", properties={"K": "v" * (TAKEN_IN - 3)}),
        queue_offset=stored.queue_offset + 1,
        phy_offset=at,
        store_timestamp_ms=stored.store_timestamp_ms,
    )
    assert (await peer.send("A", bytes(record[:-TAKEN_IN]))).code == ResponseCode.SUCCESS
    return at


def test_who_forges_a_record_reads_nothing_of_what_lies_behind_it(guarded):  # noqa: F811
    async def scenario(peers):
        forger, others = peers["both"], peers["operator"]
        await others.send("A", b"there is a topic")
        await others.send("Secret", b"there is a topic")
        at = await forge(forger)
        for _ in range(3):
            await others.send("Secret", b"for others only" * 10)
        for code, fields in (
            (RequestCode.VIEW_MESSAGE_BY_ID, {}),
            (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "CG", "delayLevel": -1}),
            (RequestCode.END_TRANSACTION, {"producerGroup": "PG", "commitOrRollback": 8}),
        ):
            place = {"offset": at, "commitLogOffset": at, "tranStateTableOffset": 0}
            answer = await forger.ask(code, {**fields, **place})
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert b"for others" not in answer.body
        assert not [topic for topic, _ in forger.broker.store.queues() if topic.startswith("%")]

    guarded(scenario)


def test_what_was_just_sent_is_seen_by_its_id_and_given_back(guarded):  # noqa: F811
    async def scenario(peers):
        peer = peers["both"]
        await peers["operator"].send("A", b"there is a topic")
        for delay in ({}, {"DELAY": "3"}, {"TIMER_DELAY_MS": "60000"}):
            sent = await peer.send("A", b"mine", properties=delay)
            at = {"offset": int(sent.ext_fields["msgId"][-16:], 16)}
            (seen,) = records((await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, at)).body)
            assert seen.body == b"mine"
        sent = await peer.send("A", b"mine")
        back = {"offset": int(sent.ext_fields["msgId"][-16:], 16), "group": "CG", "delayLevel": 0}
        answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert answer.code == ResponseCode.SUCCESS

    guarded(scenario)
