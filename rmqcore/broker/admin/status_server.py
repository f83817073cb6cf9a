"""Health, readiness and metrics over HTTP, for probes and scrapers of this machine.

`/healthz` answers as long as the process does; `/readyz` says whether requests are served, and how
far the recovery is until then; `/metrics` is Prometheus'. Whatever else is asked gets 404, and who
asks by a name that is none of this machine for itself gets 403, see `host_header`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Final

from rmqcore.arguments import whole_number
from rmqcore.broker.admin.metrics import CONTENT_TYPE, Metrics
from rmqcore.remoting.host_header import is_named

logger = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S: Final = 5.0
#: A request with more bytes than this, header lines and all, is dropped.
_REQUEST_MAX: Final = 16 * 1024
#: When there are more connections, the one that has waited longest is closed.
_CONNECTIONS_MAX: Final = 32
_PORT_MAX: Final = 65535
_PLAIN: Final = "text/plain; charset=utf-8"


class StatusServer:
    """One port with three pages.

    Args:
        host: the address to listen on.
        port: 0 for any that is free.
        state: says whether requests are served, and what else is told of that.
        metrics: what `/metrics` answers with.

    Raises:
        ArgumentError: no port has that number.
    """

    def __init__(
        self,
        host: str,
        port: int,
        state: Callable[[], tuple[bool, Mapping[str, object]]],
        metrics: Metrics,
    ) -> None:
        self._host = host
        self.port = whole_number("port", port, 0, _PORT_MAX)
        self._state = state
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        #: the connections, in order of their coming
        self._open: dict[asyncio.StreamWriter, None] = {}

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        self._server = await asyncio.start_server(
            self._serve, self._host, self.port, limit=_REQUEST_MAX
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > _CONNECTIONS_MAX:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(request))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            logger.debug("a request for the state came to nothing")
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _answer(self, request: bytes) -> bytes:
        try:
            return await self._page(request)
        except Exception:
            logger.exception("what is asked of the state cannot be told")
            words = b"this cannot be told now; the log says why\n"
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR, _PLAIN, words)

    async def _page(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        if method not in (b"GET", b"HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, _PLAIN, b"GET and HEAD only\n")
        if not all(map(is_named, _hosts(request))):
            words = b"asked for by its address or as localhost, and by no other name\n"
            return _response(HTTPStatus.FORBIDDEN, _PLAIN, words)
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path == b"/healthz":
            answer = _response(HTTPStatus.OK, _PLAIN, b"ok\n")
        elif path == b"/readyz":
            ready, facts = self._state()
            status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
            answer = _response(status, "application/json", json.dumps(facts).encode() + b"\n")
        elif path == b"/metrics":
            text = await asyncio.to_thread(self._metrics.text)
            answer = _response(HTTPStatus.OK, CONTENT_TYPE, text)
        else:
            answer = _response(HTTPStatus.NOT_FOUND, _PLAIN, b"/healthz /readyz /metrics\n")
        return answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == b"HEAD" else answer


def _hosts(request: bytes) -> Iterator[str]:
    """The values of a request's Host; probes of HTTP 1.0 send none, browsers always one."""
    for line in request.split(b"\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"host":
            yield value.strip().decode("latin-1")


def _response(status: HTTPStatus, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
