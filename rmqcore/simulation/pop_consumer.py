"""`PopConsumer`: one of a group that is handed messages by POP, from each master in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final, Self

from rmqcore.client.instance import ClientInstance
from rmqcore.errors import RmqCoreError
from rmqcore.proxy.codes import RefusedError
from rmqcore.proxy.popped import Popped, popped_of
from rmqcore.remoting import RequestCode
from rmqcore.remoting.codes import MASTER_ID
from rmqcore.simulation.loop import SimulatedLoop

#: Nobody else of the group gets what was handed out for this long.
_INVISIBLE_MS: Final = 10_000
#: A broker may wait this long for a message, and its answer may come so much later.
_POLL_MS: Final = 500
_LATE_MS: Final = 3000
_COUNT: Final = 8
#: A consumer rests this long when no master can be asked.
_AGAIN_S: Final = 0.5


class PopConsumer:
    """Asks for messages with request 200050 and acknowledges with 200051.

    Args:
        loop: the simulated one.
        namesrv_addr: of the name servers.
        group: whose it is.
        topics: what it consumes.
        in_order: a queue hands out nothing behind what is not acknowledged.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        namesrv_addr: str,
        group: str,
        topics: Sequence[str],
        *,
        in_order: bool = False,
    ) -> None:
        self._loop = loop
        self._group = group
        self._topics = topics
        self._in_order = in_order
        self._instance = ClientInstance("consumer", namesrv_addr)

    async def __aenter__(self) -> Self:
        await self._instance.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._instance.close()

    async def messages(self) -> AsyncIterator[tuple[str, str, Popped]]:
        """What it is handed, for ever: the topic that it asked for, the master's address."""
        while True:
            asked = False
            for topic in self._topics:
                for broker_name, address in (await self._masters(topic)).items():
                    asked = True
                    for each in await self._pop(topic, broker_name, address):
                        yield topic, address, each
            if not asked:
                await self._loop.pause(_AGAIN_S)

    async def acknowledge(self, topic: str, address: str, popped: Popped) -> bool:
        """Be done with a message; whether the broker says so.

        Args:
            topic: that it was sent to.
            address: ``host:port`` of the broker.
            popped: as the broker has handed it out.
        """
        fields = popped.handle.fields(self._group, topic)
        try:
            await self._instance.ask(address, RequestCode.ACK_MESSAGE, fields)
        except RmqCoreError:
            return False
        return True

    async def _masters(self, topic: str) -> dict[str, str]:
        """Addresses by broker name, as last told by a name server; asked where none was."""
        route = self._instance.routes.get(topic)
        if route is None:
            with suppress(RmqCoreError):
                route = await self._instance.update_route(topic)
        if route is None:
            return {}
        return {
            name: by_id[MASTER_ID] for name, by_id in route.brokers.items() if MASTER_ID in by_id
        }

    async def _pop(self, topic: str, broker_name: str, address: str) -> list[Popped]:
        fields = {
            "consumerGroup": self._group,
            "topic": topic,
            "queueId": "-1",
            "maxMsgNums": str(_COUNT),
            "invisibleTime": str(_INVISIBLE_MS),
            "pollTime": str(_POLL_MS),
            "bornTime": str(self._loop.wall_ms()),
            # from the first message on
            "initMode": "0",
            "expType": "TAG",
            "exp": "*",
            "order": "true" if self._in_order else "false",
        }
        try:
            answer = await self._instance.ask(
                address, RequestCode.POP_MESSAGE, fields, timeout_ms=_POLL_MS + _LATE_MS
            )
            return popped_of(answer, broker_name)
        except (RmqCoreError, RefusedError):
            self._instance.routes.pop(topic, None)
            await self._loop.pause(_AGAIN_S)
            return []
