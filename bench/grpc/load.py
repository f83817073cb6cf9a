"""A load over gRPC that costs its own process little: calls by ngh2 on one socket, no event loop.

It prints one JSON line. The server's processor time is read from /proc before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from ngh2 import Connection, Role, events

from rmqcore.proxy.messages import SERVICE, v2_class

_PREFIX = struct.Struct(">?I")
_TICKS = os.sysconf("SC_CLK_TCK")
#: OK, and nothing new
_GOOD = (20000, 40401)
_SETTINGS = {3: 1000, 4: 1 << 20}


class Load:
    """One connection, and calls on it.

    Args:
        port: of the server, on this machine.
        pid: of the server's process.
    """

    def __init__(self, port: int, pid: int) -> None:
        self.pid = pid
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.http2 = Connection(Role.CLIENT)
        self.http2.initiate_connection(_SETTINGS)
        self.http2.set_local_window_size(1 << 30)

    def settle(self, group: str, topic: str) -> None:
        """Tell what kind of client it is, which Apache's proxy wants to know."""
        entry = {"topic": {"name": topic}, "expression": {"type": 1, "expression": "*"}}
        settings = {
            "client_type": 3,
            "subscription": {"group": {"name": group}, "subscriptions": [entry]},
        }
        message = v2_class("TelemetryCommand")(settings=settings).SerializeToString()
        stream_id = self.http2.send_request(headers_of("Telemetry"))
        self.http2.send_data(stream_id, _PREFIX.pack(False, len(message)) + message)
        answered = False
        while not answered:
            if out := self.http2.data_to_send():
                self.socket.sendall(out)
            self.http2.receive_data(self.received())
            for event in self.http2.events():
                answered |= isinstance(event, events.DataReceived)

    def run(
        self, name: str, messages: Iterator[bytes], outstanding: int, take: Callable[[bytes], None]
    ) -> dict[str, float]:
        """Make calls, so many at a time, until there are no more messages for them."""
        headers = (*headers_of(name), (b"grpc-timeout", b"9S"))
        open_calls: dict[int, bytearray] = {}
        calls, more, began, before = 0, True, time.perf_counter(), self.server_s()
        own = time.process_time()
        while more or open_calls:
            while more and len(open_calls) < outstanding:
                message = next(messages, None)
                if message is None:
                    more = False
                    break
                stream_id = self.http2.send_request(headers)
                data = _PREFIX.pack(False, len(message)) + message
                self.http2.send_data(stream_id, data, end_stream=True)
                open_calls[stream_id] = bytearray()
            if out := self.http2.data_to_send():
                self.socket.sendall(out)
            if not open_calls:
                break
            self.http2.receive_data(self.received())
            for event in self.http2.events():
                if getattr(event, "stream_id", None) not in open_calls:
                    continue
                if isinstance(event, events.DataReceived):
                    open_calls[event.stream_id] += event.data
                elif isinstance(event, events.StreamClosed):
                    take(bytes(open_calls.pop(event.stream_id)))
                    calls += 1
        elapsed_s = time.perf_counter() - began
        return {
            "calls/s": calls / elapsed_s,
            "server ms/call": 1000 * (self.server_s() - before) / calls,
            "load ms/call": 1000 * (time.process_time() - own) / calls,
        }

    def received(self) -> bytes:
        """What has come.

        Raises:
            SystemExit: the server has closed the connection.
        """
        data = self.socket.recv(1 << 18)
        if not data:
            raise SystemExit("the server has closed the connection")
        return data

    def server_s(self) -> float:
        """Processor time of the server until now, seconds."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


def headers_of(name: str) -> tuple[tuple[bytes, bytes], ...]:
    """The headers of a call, as RocketMQ's clients send them."""
    return (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", f"/{SERVICE}/{name}".encode()),
        (b":authority", b"127.0.0.1"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"load/1"),
        (b"x-mq-language", b"PYTHON"),
        (b"x-mq-protocol", b"GRPC_V2"),
        (b"x-mq-client-version", b"5.1.2"),
        (b"x-mq-client-id", b"load@1"),
        (b"x-mq-date-time", b"20261126T120000Z"),
        (b"x-mq-request-id", b"3b0ff4e2-62a8-4d60-8d33-0b7d8e2f1a11"),
    )


def messages_of(data: bytes) -> Iterator[bytes]:
    """The messages of an answer."""
    at = 0
    while at < len(data):
        size = _PREFIX.unpack_from(data, at)[1]
        yield data[at + _PREFIX.size : at + _PREFIX.size + size]
        at += _PREFIX.size + size


def sends(topic: str, count: int, body: bytes) -> Iterator[bytes]:
    made = v2_class("SendMessageRequest")
    for number in range(count):
        system = {
            "message_id": f"01{number:032X}",
            "message_type": 1,
            "tag": "tag",
            "keys": ["key"],
            "born_host": "127.0.0.1",
            "born_timestamp": {"seconds": int(time.time())},
            "body_encoding": 1,
        }
        message = {"topic": {"name": topic}, "system_properties": system, "body": body}
        yield made(messages=[message]).SerializeToString()


class Answers:
    """Looks into what came: what failed, and what has to be acknowledged."""

    def __init__(self, topic: str, group: str) -> None:
        self.names = {"group": {"name": group}, "topic": {"name": topic}}
        self.acks: list[bytes] = []
        self.failed: list[str] = []

    def check(self, status: Any) -> None:
        if status.code not in _GOOD:
            self.failed.append(status.message)

    def sent(self, data: bytes) -> None:
        for message in messages_of(data):
            self.check(v2_class("SendMessageResponse").FromString(message).status)

    def acked(self, data: bytes) -> None:
        for message in messages_of(data):
            self.check(v2_class("AckMessageResponse").FromString(message).status)

    def received(self, data: bytes) -> None:
        entries = []
        for message in messages_of(data):
            answer = v2_class("ReceiveMessageResponse").FromString(message)
            if answer.HasField("status"):
                self.check(answer.status)
            elif answer.HasField("message"):
                system = answer.message.system_properties
                entries.append(
                    {"message_id": system.message_id, "receipt_handle": system.receipt_handle}
                )
        if entries:
            made = v2_class("AckMessageRequest")(entries=entries, **self.names)
            self.acks.append(made.SerializeToString())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("pid", type=int)
    parser.add_argument("--topic", default="Load")
    parser.add_argument("--group", default="load")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--outstanding", type=int, default=32)
    parser.add_argument("--size", type=int, default=1024)
    given = parser.parse_args()
    load, answers = Load(given.port, given.pid), Answers(given.topic, given.group)
    receive = v2_class("ReceiveMessageRequest")(
        group={"name": given.group},
        message_queue={"topic": {"name": given.topic}, "id": -1, "broker": {"name": "broker-a"}},
        filter_expression={"type": 1, "expression": "*"},
        batch_size=1,
        invisible_duration={"seconds": 600},
        long_polling_timeout={"seconds": 5},
    ).SerializeToString()

    def send(count: int, outstanding: int) -> dict[str, float]:
        messages = sends(given.topic, count, bytes(given.size))
        return load.run("SendMessage", messages, outstanding, answers.sent)

    def take(count: int) -> dict[str, float]:
        messages = iter([receive] * count)
        return load.run("ReceiveMessage", messages, given.outstanding, answers.received)

    # the group is there before the messages are, and both sides are warm
    load.settle(given.group, given.topic)
    take(1)
    send(given.count // 4, given.outstanding)
    answers.acks.clear()
    rows = {
        "send": send(given.count, given.outstanding),
        "send, one at a time": send(given.count // 10, 1),
        "receive": take(given.count),
        "ack": load.run("AckMessage", iter([*answers.acks]), given.outstanding, answers.acked),
    }
    failed = answers.failed
    print(json.dumps({"failed": len(failed), "why": failed[:3], "acks": len(answers.acks), **rows}))


if __name__ == "__main__":
    main()
