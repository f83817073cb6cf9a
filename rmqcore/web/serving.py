"""`WebServer`: the pages on a port, served in a thread and an event loop of their own."""

from __future__ import annotations

import asyncio
import socket
import threading
from functools import partial
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rmqcore.arguments import whole_number
from rmqcore.errors import RmqCoreError

_PORT_MAX: Final = 65535
#: When there are more connections, the oldest one goes over which no request is answered.
CONNECTIONS_MAX: Final = 64
#: A connection has this long for each request to come, and for some of an answer to be read.
PATIENCE_S: Final = 10.0
#: A request whose head has more bytes is refused.
_HEAD_MAX: Final = 32 << 10
_STOP_S: Final = 5


class _HttpConnection(H11Protocol):  # type: ignore[misc] # it has no types here
    """One connection, which somebody else's idle ones cannot keep out.

    Args:
        all_: the connections of the server, in order of their coming; this one is put behind them.
        settings: as of `H11Protocol`.
    """

    def __init__(self, all_: dict[_HttpConnection, None], **settings: Any) -> None:
        super().__init__(**settings)
        self._all = all_
        #: the request, and the bytes of answers that waited to be read, when it was looked at last
        self._before: tuple[object, int] = None, 0
        self._next_look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._all[self] = None
        if len(self._all) > CONNECTIONS_MAX:
            one = next((each for each in self._all if each.is_idle), self)
            del self._all[one]
            one.transport.abort()
        self._next_look = self.loop.call_later(PATIENCE_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.pop(self, None)
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no request has come whole that is still to be answered."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _look(self) -> None:
        """Close a connection that waits, or whose client reads nothing, as long as before."""
        now = self.cycle, self.transport.get_write_buffer_size()
        if now == self._before and (self.is_idle or now[1]):
            self.transport.abort()
            return
        self._before = now
        self._next_look = self.loop.call_later(PATIENCE_S, self._look)


class WebServer:
    """Serves an ASGI application; a broker's own event loop never waits for it.

    Args:
        app: what answers.
        host: the address to listen on.
        port: 0 for any that is free.

    Raises:
        ArgumentError: no port has that number.
        OSError: the port is taken; it is taken here, not at `start`.
    """

    def __init__(self, app: Any, host: str, port: int) -> None:
        whole_number("port", port, 0, _PORT_MAX)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=partial(_HttpConnection, dict[_HttpConnection, None]()),
            ws="none",
            loop="asyncio",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=_HEAD_MAX,
            timeout_graceful_shutdown=_STOP_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="WebServer", daemon=True)
        self._ready = threading.Event()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        while not (self._server.started or serving.done()):
            await asyncio.sleep(0.005)
        self._ready.set()
        await serving

    def start(self) -> None:
        """Serve, in a thread, until `stop`; returns when requests are answered.

        Raises:
            RmqCoreError: it could not be started.
        """
        self._thread.start()
        self._ready.wait()
        if not self._server.started:
            raise RmqCoreError("the pages cannot be served; the log says why")

    def stop(self) -> None:
        """Answer what was taken, and let the port go."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()
