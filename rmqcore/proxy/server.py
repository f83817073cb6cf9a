"""`GrpcServer`: a port of its own for gRPC; plain and TLS clients come to the same one."""

from __future__ import annotations

from rmqcore.proxy.service import Service
from rmqcore.remoting import RemotingServer, ServerSettings, Tls


class GrpcServer:
    """Serves a `Service` on one port.

    Args:
        service: what is served.
        host, port: where it listens; 0 is any port that is free.
        tls: its certificate; None serves plain connections.
    """

    def __init__(
        self,
        service: Service,
        host: str,
        port: int,
        *,
        tls: Tls | None = None,
    ) -> None:
        tls = tls or Tls()
        self._service = service
        self._server = RemotingServer(
            host,
            port,
            settings=ServerSettings(tls=tls.server, tls_mode=tls.mode),
            http2=service.new_connection,
        )

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    async def start(self) -> None:
        """Open the port.

        Raises:
            OSError: the address is not this machine's, or the port is taken.
        """
        await self._server.start()
        await self._service.start()

    async def stop(self) -> None:
        """Answer what was taken, and close the port."""
        self._service.release()
        await self._server.stop()
        await self._service.stop()
