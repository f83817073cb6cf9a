"""Any bytes on a connection for gRPC: an answer, a refusal or an end; nothing is kept of them."""

import asyncio
import struct

import pytest
from ngh2 import Connection, Role

from rmqcore.proxy import Http2Settings, LocalBroker, Service
from rmqcore.proxy.codes import RefusedError
from rmqcore.proxy.messages import SERVICE, v2_class
from rmqcore.proxy.popped import popped_of
from rmqcore.proxy.receipts import ReceiptHandle
from rmqcore.proxy.transaction_id import TransactionId
from rmqcore.remoting import RemotingCommand

pytestmark = [pytest.mark.engine, pytest.mark.seeded]

ROUNDS = 300


class Transport:
    """What a connection writes to; it takes everything."""

    def __init__(self):
        self.closing = False
        self.size = 0

    def get_extra_info(self, _):
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, high):
        pass

    def write(self, data):
        self.size += len(data)

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    abort = close

    def pause_reading(self):
        pass

    resume_reading = pause_reading


def conversation():
    """What a client says that sends, acknowledges and keeps a stream open."""
    http2 = Connection(Role.CLIENT)
    http2.initiate_connection()
    parts = [http2.data_to_send()]

    def call(name, message, *, end=True):
        path = f"/{SERVICE}/{name}".encode()
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path)]
        fields += [(b":authority", b"a"), (b"content-type", b"application/grpc")]
        stream_id = http2.send_request(
            (*fields, (b"x-mq-client-id", b"c"), (b"grpc-timeout", b"3S"))
        )
        data = message.SerializeToString()
        http2.send_data(stream_id, struct.pack(">?I", False, len(data)) + data, end_stream=end)
        parts.append(http2.data_to_send())

    settings = {"client_type": 1, "publishing": {"topics": [{"name": "T"}]}}
    call("Telemetry", v2_class("TelemetryCommand")(settings=settings), end=False)
    system = {"message_id": "01", "tag": "tag", "keys": ["k"], "message_group": "g"}
    message = {"topic": {"name": "T"}, "system_properties": system, "body": b"body"}
    call("SendMessage", v2_class("SendMessageRequest")(messages=[message]))
    entry = {"message_id": "1", "receipt_handle": "4 1795318207648 10000 1 0 b 3 5 19278"}
    names = {"group": {"name": "G"}, "topic": {"name": "T"}}
    call("AckMessage", v2_class("AckMessageRequest")(entries=[entry], **names))
    call("ReceiveMessage", v2_class("ReceiveMessageRequest")(auto_renew=True, group={"name": "G"}))
    return parts


def damaged(data, rng):
    """Bytes with one to four wrong places."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, kind = rng.randrange(len(data) + 1), rng.randrange(4)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.randint(1, 24)]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randint(1, 24))
        else:
            end = at + rng.randint(1, 40)
            data[at:at] = data[at:end]
    return bytes(data)


def test_any_bytes_of_a_connection_are_answered_or_end_it(rng):
    said = conversation()

    async def main():
        service = Service(LocalBroker(lambda: None, lambda: "b"), None, Http2Settings())
        for _ in range(ROUNDS):
            connection = service.new_connection()
            connection.connection_made(Transport())
            data = b"".join(damaged(part, rng) if rng.random() < 0.4 else part for part in said)
            while data and not connection.closed:
                size = rng.randint(1, 400)
                connection.data_received(data[:size])
                data = data[size:]
                await asyncio.sleep(0)
            connection.connection_lost(None)
            while connection._tasks:
                await asyncio.wait(connection._tasks)
            assert connection.unfinished.size == 0
            assert connection._calls == {}

    asyncio.run(main())


def test_any_text_is_a_handle_or_refused(rng):
    good = b"4 1795318207648 10000 1 0 broker-a 3 5 19278"
    for _ in range(20 * ROUNDS):
        text = damaged(good, rng).decode("utf-8", "replace")
        for read in (ReceiptHandle.parse, TransactionId.parse):
            try:
                assert read(str(read(text))) == read(text)
            except RefusedError:
                continue


def test_any_answer_to_a_pop_is_read_or_refused(rng):
    good = {
        "popTime": b"1795318207648",
        "invisibleTime": b"10000",
        "reviveQid": b"1",
        "startOffsetInfo": b"0 0 0;0 1 0",
        "msgOffsetInfo": b"0 0 0,1;0 1 0",
        "orderCountInfo": b"0 qo0%1 1;0 0 0",
    }
    for _ in range(5 * ROUNDS):
        fields = {
            name: (damaged(value, rng) if rng.random() < 0.3 else value).decode("utf-8", "replace")
            for name, value in good.items()
        }
        try:
            assert (
                popped_of(RemotingCommand(0, fields, rng.randbytes(rng.randrange(60))), "b") == []
            )
        except RefusedError:
            continue
