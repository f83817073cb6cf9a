"""`NamedProducers`: which groups of producers a broker was told over one connection."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rmqcore.java.json import format_compact_java_json
from rmqcore.proxy.codes import RefusedError
from rmqcore.remoting import RemotingCommand, RequestCode, ResponseCode

logger = logging.getLogger(__name__)

#: A broker takes no more groups of producers in one heart-beat; rmqcore's none over one connection.
_PRODUCERS_MAX: Final = 1024

#: Asks a broker over the connection.
Ask = Callable[[RemotingCommand], RemotingCommand | Awaitable[RemotingCommand]]


def parts_of(groups: Sequence[str]) -> list[Sequence[str]]:
    """Groups of producers in as many parts as it takes heart-beats to name them."""
    return [groups[at : at + _PRODUCERS_MAX] for at in range(0, len(groups), _PRODUCERS_MAX)]


class NamedProducers:
    """Used from one event loop.

    A group that is not named any more is taken back: brokers close a connection over which they
    were told of one that has been silent since.

    Args:
        client_id: what the heart-beats say.
        ask: asks the broker; raises `RefusedError` when it does not answer.
    """

    def __init__(self, client_id: str, ask: Ask) -> None:
        self._client_id = client_id
        self._ask = ask
        self._groups: set[str] = set()

    async def name(self, groups: Sequence[str]) -> None:
        """Tell the broker that clients of these groups are here, and of no others; logs a refusal.

        To be repeated, as heart-beats are.

        Args:
            groups: by name; may be empty.
        """
        try:
            for group in sorted(self._groups.difference(groups)):
                fields = {"clientID": self._client_id, "producerGroup": group}
                await self._told(RemotingCommand(RequestCode.UNREGISTER_CLIENT, fields))
                self._groups.remove(group)
            for part in parts_of(groups):
                self._groups.update(part)
                producers = [{"groupName": group} for group in part]
                body = {
                    "clientID": self._client_id,
                    "consumerDataSet": [],
                    "producerDataSet": producers,
                }
                told = format_compact_java_json(body).encode()
                await self._told(RemotingCommand(RequestCode.HEART_BEAT, {}, told))
        except RefusedError as error:
            logger.info("a broker does not know of producers: %s", error)

    async def _told(self, request: RemotingCommand) -> None:
        answer = self._ask(request)
        done = await answer if inspect.isawaitable(answer) else answer
        if done.code != ResponseCode.SUCCESS:
            logger.warning("producers are not known to a broker: %s", done.remark)
