"""`WebServer`: the pages on a port, served in a thread and an event loop of their own."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any, Final

import uvicorn

from rmqcore.arguments import whole_number
from rmqcore.errors import RmqCoreError

_PORT_MAX: Final = 65535
#: While this many requests are being answered, another is refused.
_REQUESTS_MAX: Final = 64
#: A request whose head has more bytes is refused.
_HEAD_MAX: Final = 32 << 10
_STOP_S: Final = 5


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
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_REQUESTS_MAX,
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
