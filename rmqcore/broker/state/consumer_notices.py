"""`ConsumerNotices`: tells the clients of a group that they have to share the queues anew."""

from __future__ import annotations

import asyncio
import contextlib

from rmqcore.broker.state.clients import ConsumerGroup
from rmqcore.remoting import RemotingCommand, RequestCode
from rmqcore.remoting.errors import RemotingClosedError


class ConsumerNotices:
    """Tells every client of a group to share the queues anew (40), once for all that has changed.

    Else a thousand clients that come at the same moment were told half a million times.
    """

    def __init__(self) -> None:
        self._changed: dict[str, ConsumerGroup] = {}

    def __call__(self, group: ConsumerGroup) -> None:
        """Note that a group has changed; its clients are told when the event loop has a moment."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._notify)
        self._changed[group.name] = group

    def _notify(self) -> None:
        changed, self._changed = self._changed, {}
        for group in changed.values():
            for connection in list(group.clients):
                command = RemotingCommand(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name}
                )
                with contextlib.suppress(RemotingClosedError):
                    connection.notify(command)
