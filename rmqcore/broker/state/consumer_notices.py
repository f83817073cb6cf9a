"""`ConsumerNotices`: tells the clients of a group that they have to share the queues anew."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from typing import Final

from rmqcore.broker.state.clients import ConsumerGroup
from rmqcore.remoting import Connection, RemotingCommand, RequestCode
from rmqcore.remoting.errors import RemotingClosedError

#: So many clients are told, then everybody else is served, then the next.
TOLD_AT_ONCE: Final = 64


class ConsumerNotices:
    """Tells every client of a group to share the queues anew (40), once for all that has changed.

    Else a thousand clients that come at the same moment were told half a million times.
    """

    def __init__(self) -> None:
        self._changed: dict[str, ConsumerGroup] = {}
        self._to_tell: Iterator[tuple[Connection, str]] | None = None

    def __call__(self, group: ConsumerGroup) -> None:
        """Note that a group has changed; its clients are told when the event loop has a moment.

        One that changes meanwhile is told again behind all that have changed before.
        """
        self._changed[group.name] = group
        if self._to_tell is None:
            self._to_tell = self._clients()
            asyncio.get_running_loop().call_soon(self._notify, self._to_tell)

    def _clients(self) -> Iterator[tuple[Connection, str]]:
        while self._changed:
            name = next(iter(self._changed))
            for connection in list(self._changed.pop(name).clients):
                yield connection, name
        self._to_tell = None

    def _notify(self, to_tell: Iterator[tuple[Connection, str]]) -> None:
        for connection, name in itertools.islice(to_tell, TOLD_AT_ONCE):
            command = RemotingCommand(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name}
            )
            with contextlib.suppress(RemotingClosedError):
                connection.notify(command)
        if self._to_tell is to_tell:
            asyncio.get_running_loop().call_soon(self._notify, to_tell)
