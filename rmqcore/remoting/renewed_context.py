"""`RenewedContext`: TLS whose certificates are renewed while a server runs."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from rmqcore.errors import ConfigError

logger = logging.getLogger(__name__)

_Stamps: TypeAlias = list[tuple[int, int, int] | None]


class RenewedContext(ssl.SSLContext):
    """A context that takes its files anew when they have changed.

    Each new connection looks at them; those that are open go on. What cannot be used, such as a
    certificate whose key is not written yet, is said once in the log, and the former files count.

    Source: RocketMQ FileWatchService.java, BrokerController.java.
    """

    _fill: Callable[[ssl.SSLContext], None]
    _files: Sequence[Path]
    _stamps: _Stamps
    _newest: ssl.SSLContext | None = None

    @classmethod
    def filled(
        cls, protocol: int, fill: Callable[[ssl.SSLContext], None], files: Sequence[Path]
    ) -> RenewedContext:
        """Make one.

        Args:
            protocol: ``ssl.PROTOCOL_TLS_SERVER`` or ``ssl.PROTOCOL_TLS_CLIENT``.
            fill: sets a context as the settings say, and reads the files.
            files: what it reads.
        """
        context = cls(protocol)
        context._fill, context._files = fill, files
        context._stamps = _stamps(files)
        fill(context)
        return context

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a connection.

        Args:
            incoming: what has come of it.
            outgoing: where what is to be sent goes.
            server_side: whether it is a server's.
            server_hostname: whom a client calls.
            session: to be gone on with.
        """
        self._renew()
        begin = super().wrap_bio if self._newest is None else self._newest.wrap_bio
        return begin(incoming, outgoing, server_side, server_hostname, session)

    def _renew(self) -> None:
        stamps = _stamps(self._files)
        if stamps == self._stamps:
            return
        self._stamps = stamps
        newest = ssl.SSLContext(self.protocol)
        try:
            self._fill(newest)
        except (ConfigError, OSError) as error:
            logger.warning("the certificates stay as they were: %s", error)
        else:
            self._newest = newest


def _stamps(files: Sequence[Path]) -> _Stamps:
    return [_stamp(file) for file in files]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """What changes with a file, also with one that another one takes the place of."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
