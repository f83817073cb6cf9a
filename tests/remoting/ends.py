"""Both ends of connections, on this machine's loopback, for tests."""

import asyncio
import contextlib
import importlib.util
import os
import socket

from patience import TIMEOUT_S, until_async

from rmqcore.remoting import (
    ClientSettings,
    ConnectionSettings,
    FrameDecoder,
    RemotingClient,
    RemotingCommand,
    RemotingServer,
    ServerSettings,
    encode_command,
    new_event_loop,
    success,
)

#: both event loops where uvloop is installed
LOOPS = {"asyncio": asyncio.new_event_loop}
if importlib.util.find_spec("uvloop"):
    LOOPS["uvloop"] = new_event_loop
PATIENCE_MS = 1000 * TIMEOUT_S
ECHO, SLOW, LATER, BROKEN, UNKNOWN = 105, 106, 107, 108, 77


def echo(connection, request):
    return success(dict(request.ext_fields), request.body)


class Held:
    """Answers requests with their bodies, each when it is released."""

    def __init__(self):
        self._asked = {}

    async def answer(self, connection, request):
        self._asked[bytes(request.body)] = go = asyncio.get_running_loop().create_future()
        await go
        return success(body=request.body)

    async def taken(self, body=b""):
        """Wait until a request with this body is worked on."""
        await until_async(lambda: body in self._asked, f"a request with the body {body}")

    async def release(self, body=b""):
        """Let the request with this body be answered, after it has come."""
        await self.taken(body)
        self._asked.pop(body).set_result(None)


@contextlib.asynccontextmanager
async def serving(processors=None, **settings):
    """A server with `echo` and what is given; ServerSettings, and hooks as `RemotingServer` has."""
    names = ("gate", "on_open", "on_close", "http2")
    hooks = {name: settings.pop(name, None) for name in names}
    server = RemotingServer(
        processors={ECHO: echo, **(processors or {})},
        settings=ServerSettings(**settings),
        **hooks,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop(1)


@contextlib.asynccontextmanager
async def calling(server, processors=None, sign=None, on_close=None, **settings):
    """A client, and a function (code, fields, body, timeout_ms) that asks the server with it."""
    client = RemotingClient(
        settings=ClientSettings(connect_timeout_ms=PATIENCE_MS, **settings),
        processors=processors or {},
        sign=sign,
        on_close=on_close,
    )

    async def call(code, fields=None, body=b"", timeout_ms=PATIENCE_MS):
        command = RemotingCommand(code, fields or {}, body)
        return await client.invoke(address_of(server), command, timeout_ms)

    try:
        yield client, call
    finally:
        await client.close()


def address_of(server):
    return f"127.0.0.1:{server.port}"


class Raw:
    """A peer that sends what it likes and reads when it likes."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.decoder = FrameDecoder()

    def send(self, *commands):
        for command in commands:
            self.writer.write(frame_of(command))

    async def receive(self):
        """Wait for the next command; None at the end of the connection."""
        async with asyncio.timeout(TIMEOUT_S):
            while (command := self.decoder.next()) is None:
                data = await self.reader.read(65536)
                if not data:
                    return None
                self.decoder.feed(data)
            return command

    async def at_end(self):
        """Tell whether the next that comes of the server is the connection's end."""
        try:
            return await self.receive() is None
        except ConnectionError:
            return True


@contextlib.asynccontextmanager
async def raw(server, **options):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, **options)
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def narrow(connection):
    """Let the system keep little of what is sent; else a setting of the machine says how much."""
    with socket.socket(fileno=os.dup(connection.fileno())) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)


def request(code, opaque, body=b"", **more):
    return RemotingCommand(code, body=body, opaque=opaque, **more)


def frame_of(command):
    return b"".join(encode_command(command, command.serialize_type)[0])


def bounds(**changes):
    return ConnectionSettings(**changes)
