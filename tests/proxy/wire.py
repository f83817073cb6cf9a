"""A client that speaks gRPC over ngh2, on the test's own event loop."""

import asyncio
import itertools
import struct

from ngh2 import Connection, Role, events
from patience import TIMEOUT_S

from rmqcore.proxy.messages import SERVICE, v2_class

_PREFIX = struct.Struct(">?I")
_INITIAL_WINDOW_SIZE = 4
_CLIENTS = itertools.count(1)


class Ended(Exception):
    """A call has ended with another status than OK."""

    def __init__(self, status, reason):
        self.status, self.reason = status, reason
        super().__init__(f"{status}: {reason}")


class Stream:
    """One call: messages out, messages in."""

    def __init__(self, wire, stream_id):
        self.wire, self.stream_id = wire, stream_id
        self.headers, self.trailers, self.data = {}, {}, bytearray()
        self.closed = False
        self.error_code = None
        self.changed = asyncio.Event()

    def send(self, data, end=False):
        self.wire.http2.send_data(
            self.stream_id, _PREFIX.pack(False, len(data)) + data, end_stream=end
        )
        self.wire.flush()

    def cancel(self):
        self.wire.http2.reset_stream(self.stream_id)
        self.wire.flush()

    def messages(self):
        """The whole messages that have come, as bytes."""
        found, at = [], 0
        while len(self.data) >= at + _PREFIX.size:
            size = _PREFIX.unpack_from(self.data, at)[1]
            if len(self.data) < at + _PREFIX.size + size:
                break
            found.append(bytes(self.data[at + _PREFIX.size : at + _PREFIX.size + size]))
            at += _PREFIX.size + size
        return found

    async def until(self, true):
        """Wait until something is so of the stream."""
        async with asyncio.timeout(TIMEOUT_S):
            while not true():
                self.changed.clear()
                await self.changed.wait()

    async def end(self):
        """Wait until the call has ended; its messages.

        Raises:
            Ended: not with OK.
        """
        await self.until(lambda: self.closed)
        last = self.trailers or self.headers
        status = last.get(b"grpc-status")
        if status != b"0":
            raise Ended(None if status is None else int(status), last.get(b"grpc-message"))
        return self.messages()


class Wire(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, client_id=None, headers=(), window_size=None):
        self.client_id = client_id or f"client-{next(_CLIENTS)}"
        self.more = tuple(headers)
        self.settings = {} if window_size is None else {_INITIAL_WINDOW_SIZE: window_size}
        self.http2 = Connection(Role.CLIENT)
        self.streams = {}
        self.lost = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, port, client_id=None, headers=(), tls=None, window_size=None):
        _, wire = await asyncio.get_running_loop().create_connection(
            lambda: cls(client_id, headers, window_size),
            "127.0.0.1",
            port,
            ssl=tls,
            server_hostname="localhost" if tls else None,
        )
        return wire

    def connection_made(self, transport):
        self.transport = transport
        self.http2.initiate_connection(self.settings)
        self.flush()

    def data_received(self, data):
        self.http2.receive_data(data)
        for event in self.http2.events():
            stream = self.streams.get(getattr(event, "stream_id", None))
            if stream is None:
                continue
            if isinstance(event, events.ResponseReceived):
                stream.headers = dict(event.headers)
            elif isinstance(event, events.DataReceived):
                stream.data += event.data
            elif isinstance(event, events.TrailersReceived):
                stream.trailers = dict(event.headers)
            elif isinstance(event, events.StreamClosed):
                stream.closed, stream.error_code = True, event.error_code
            stream.changed.set()
        self.flush()

    def connection_lost(self, exc):
        for stream in self.streams.values():
            stream.closed = True
            stream.changed.set()
        if not self.lost.done():
            self.lost.set_result(None)

    def flush(self):
        data = self.http2.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def open(self, path, headers=(), content_type=b"application/grpc"):
        given = (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", content_type),
            (b"x-mq-client-id", self.client_id.encode()),
            *self.more,
            *headers,
        )
        stream_id = self.http2.send_request(tuple(each for each in given if each[1]))
        stream = self.streams[stream_id] = Stream(self, stream_id)
        self.flush()
        return stream

    def begin(self, name, request, headers=()):
        """Make a call of one message; its stream."""
        stream = self.open(f"/{SERVICE}/{name}".encode(), headers)
        stream.send(request.SerializeToString(), end=True)
        return stream

    async def call(self, name, *, headers=(), **fields):
        """Make a call that has one answer."""
        stream = self.begin(name, v2_class(f"{name}Request")(**fields), headers)
        (answer,) = await stream.end()
        return v2_class(f"{name}Response").FromString(answer)

    async def calls(self, name, *, headers=(), **fields):
        """Make a call whose answer has several messages."""
        stream = self.begin(name, v2_class(f"{name}Request")(**fields), headers)
        made = v2_class(f"{name}Response")
        return [made.FromString(each) for each in await stream.end()]

    # ---- what most tests call

    async def send(self, topic, body, **system):
        """Send one message; its entry."""
        system.setdefault("message_id", f"01{next(_CLIENTS):032X}")
        user = system.pop("user_properties", {})
        message = {
            "topic": {"name": topic},
            "user_properties": user,
            "system_properties": system,
            "body": body,
        }
        answer = await self.call("SendMessage", messages=[message])
        return answer.entries[0] if answer.entries else answer

    async def receive(self, topic, group="G", *, wait_s=0, count=32, invisible_s=30, **more):
        """Receive once; status and messages."""
        headers = more.pop("headers", ())
        request = {
            "group": {"name": group},
            "message_queue": {"topic": {"name": topic}, "id": -1},
            "batch_size": count,
            "long_polling_timeout": {"seconds": wait_s},
            **more,
        }
        if not request.get("auto_renew"):
            request["invisible_duration"] = {"seconds": invisible_s}
        answers = await self.calls("ReceiveMessage", headers=headers, **request)
        status = next(each.status for each in answers if each.HasField("status"))
        return status, [each.message for each in answers if each.HasField("message")]

    async def ack(self, topic, message, group="G"):
        """Acknowledge one message; its entry."""
        entry = {
            "message_id": message.system_properties.message_id,
            "receipt_handle": message.system_properties.receipt_handle,
        }
        answer = await self.call(
            "AckMessage", group={"name": group}, topic={"name": topic}, entries=[entry]
        )
        return answer.entries[0]

    async def close(self):
        self.transport.abort()
        await self.lost
