"""RocketMQ's remoting protocol: frames, a server and a client for them. Never knows a store.

What others use: `RemotingCommand` with `success` and `failure`, the numbers `RequestCode`,
`ResponseCode`, `LanguageCode`; `RemotingServer`, `RemotingClient` and the `Connection` that a
processor gets, with their `ServerSettings`, `ClientSettings`, `ConnectionSettings`, `FrameLimits`;
`AclSigner` and `signature_is_right`; `load_accounts` and the `AccessGate` over them; `load_tls`;
`run` and `new_event_loop`; the errors below `RemotingError`.

    async def main() -> None:
        def route(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            return success(body=request.text("topic").encode())

        server = RemotingServer("127.0.0.1", 0)
        server.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
        await server.start()
        client = RemotingClient()
        ask = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        answer = await client.invoke(f"127.0.0.1:{server.port}", ask, timeout_ms=3000)
        await client.close()
        await server.stop()

A processor is a plain function or a coroutine function of (connection, request). It returns the
answer, or None: nothing for a oneway request; else `connection.answer(request, response)` is called
later, from the event loop. It may raise `RequestRefusedError(code, remark)` to answer so; any other
exception is logged and answered with SYSTEM_ERROR and no more. A plain function is answered without
a task, so it must not block. `connection.invoke` and `connection.notify` ask the peer.
`connection.attributes` is the processors' own place, `connection.writable` tells whether the peer
takes what it is sent. `command.parts` holds buffers that follow `body` without being copied.

Floor: beside, on errors and java/.
"""

from rmqcore.remoting.accounts import Account, Permission, admin_of, load_accounts
from rmqcore.remoting.acl import AclSigner, signature, signature_is_right
from rmqcore.remoting.client import ClientSettings, RemotingClient, split_address
from rmqcore.remoting.codec import FrameDecoder, FrameLimits, LaterAnswers, encode_command
from rmqcore.remoting.codes import LanguageCode, RequestCode, ResponseCode
from rmqcore.remoting.command import RemotingCommand, failure, success
from rmqcore.remoting.connection import Connection, ConnectionSettings, Gate, Processor
from rmqcore.remoting.errors import (
    FrameError,
    FrameTooLargeError,
    PortTakenError,
    RemotingClosedError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RequestRefusedError,
)
from rmqcore.remoting.loop import new_event_loop, run
from rmqcore.remoting.permissions import AccessGate
from rmqcore.remoting.server import RemotingServer, ServerSettings
from rmqcore.remoting.tls import Tls, TlsMode, load_tls

__all__ = [
    "AccessGate",
    "Account",
    "AclSigner",
    "ClientSettings",
    "Connection",
    "ConnectionSettings",
    "FrameDecoder",
    "FrameError",
    "FrameLimits",
    "FrameTooLargeError",
    "Gate",
    "LanguageCode",
    "LaterAnswers",
    "Permission",
    "PortTakenError",
    "Processor",
    "RemotingClient",
    "RemotingClosedError",
    "RemotingCommand",
    "RemotingConnectError",
    "RemotingError",
    "RemotingServer",
    "RemotingTimeoutError",
    "RequestCode",
    "RequestRefusedError",
    "ResponseCode",
    "ServerSettings",
    "Tls",
    "TlsMode",
    "admin_of",
    "encode_command",
    "failure",
    "load_accounts",
    "load_tls",
    "new_event_loop",
    "run",
    "signature",
    "signature_is_right",
    "split_address",
    "success",
]
