"""Registration: tells the name servers which topics this broker has, and that it is alive.

Source: RocketMQ broker/out/BrokerOuterAPI.java, registerBrokerAll.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from rmqcore.broker.state.bodies import java_body
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.files.config_tables import DataVersion, TopicConfig, TopicConfigTable
from rmqcore.remoting import (
    RemotingClient,
    RemotingCommand,
    RemotingError,
    RequestCode,
    ResponseCode,
)
from rmqcore.remoting.codes import PERM_READ, PERM_WRITE
from rmqcore.remoting.errors import shortened

logger = logging.getLogger(__name__)

_PERIOD_MS_MIN: Final = 10_000
_PERIOD_MS_MAX: Final = 60_000
_FIRST_PERIOD_S: Final = 10.0
#: A name server that has not taken the registration is asked again after this: no client finds the
#: broker there until it has.
_RETRY_S: Final = 3.0
#: A start, or a change of a topic, goes on after this although a name server has not answered.
_START_TIMEOUT_MS: Final = 1000
#: A registration of all topics is followed by a pause of this many times its own duration, but no
#: longer than the seconds below.
_REST_FACTOR: Final = 4
_REST_S_MAX: Final = 1.0
_CRC_MASK: Final = 0x7FFFFFFF


class Registration:
    """Registers with every name server by itself: at the start, after changes, and again.

    One that hangs keeps no other from hearing of a change.

    Attributes:
        master_address: of a slave, where its master is served; empty as long as no name server
            knows one. One that is gone is remembered.
        master_ha_address: of a slave, its master's replication port; likewise.

    Args:
        config: the broker's settings at this moment.
        topics: the topics to tell.
        client: sends the requests.
    """

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        topics: TopicConfigTable,
        client: RemotingClient,
    ) -> None:
        self._config = config
        self._topics = topics
        self._client = client
        #: by name server: set when it has still to hear of a change
        self._changed: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._refused: dict[str, str] = {}
        #: of registrations of some topics
        self._numbers = itertools.count(1)
        self.master_address = self.master_ha_address = ""

    async def start(self) -> None:
        """Go on registering until `stop`; returns when all have answered, or soon after."""
        loop = asyncio.get_running_loop()
        self._changed = {address: asyncio.Event() for address in self._config().name_servers}
        first = [loop.create_task(self._register(address)) for address in self._changed]
        self._tasks = [
            loop.create_task(self._run(address, once))
            for address, once in zip(self._changed, first, strict=True)
        ]
        if first:
            await asyncio.wait(first, timeout=_START_TIMEOUT_MS / 1000)

    def topics_changed(self) -> None:
        """Register anew, soon."""
        for changed in self._changed.values():
            changed.set()

    async def stop(self) -> None:
        """Take the broker's name out of every name server."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []
        await self._send_to_all(RequestCode.UNREGISTER_BROKER, b"", timeout_ms=3000)

    async def register_topics(self, topics: Sequence[TopicConfig]) -> None:
        """Tell all name servers of some topics at once; the others stay as they know them.

        A name server takes nothing new of a topic that it knows from a version that it has heard,
        and others may have changed with the table's: this has one of its own.

        Source: BrokerController, registerIncrementBrokerData.
        """
        version = self._topics.data_version
        version = replace(version, timestamp_ms=version.timestamp_ms - next(self._numbers))
        body = self._body(self._config(), topics, version)
        await self._send_to_all(RequestCode.REGISTER_BROKER, body, timeout_ms=_START_TIMEOUT_MS)

    async def _run(self, address: str, first: asyncio.Task[None]) -> None:
        await first
        loop, wait_s = asyncio.get_running_loop(), _FIRST_PERIOD_S
        while True:
            refused = address in self._refused
            try:
                async with asyncio.timeout(min(wait_s, _RETRY_S) if refused else wait_s):
                    await self._changed[address].wait()
            except TimeoutError:
                period_ms = self._config().register_name_server_period
                wait_s = max(_PERIOD_MS_MIN, min(_PERIOD_MS_MAX, period_ms)) / 1000
            began_s = loop.time()
            await self._register(address)
            await asyncio.sleep(min(_REST_S_MAX, _REST_FACTOR * (loop.time() - began_s)))

    async def _register(self, address: str) -> None:
        """Register with one name server; waits for it as long as settings say."""
        self._changed[address].clear()
        # the version first: what changes meanwhile is told again, with a later one
        config, version = self._config(), self._topics.data_version
        body = await asyncio.to_thread(self._body, config, self._topics, version)
        timeout_ms = config.register_broker_timeout_mills
        answer = await self._send(address, RequestCode.REGISTER_BROKER, body, timeout_ms)
        if answer is not None:
            fields = answer.ext_fields
            self.master_address = fields.get("masterAddr") or self.master_address
            self.master_ha_address = fields.get("haServerAddr") or self.master_ha_address

    async def _send_to_all(self, code: RequestCode, body: bytes, *, timeout_ms: float) -> None:
        await asyncio.gather(
            *(self._send(address, code, body, timeout_ms) for address in self._changed)
        )

    async def _send(
        self, address: str, code: RequestCode, body: bytes, timeout_ms: float
    ) -> RemotingCommand | None:
        """Ask one name server; None when it did not take it, which is logged once."""
        command = RemotingCommand(code, self._header(body), body)
        try:
            answer = await self._client.invoke(address, command, timeout_ms)
        except RemotingError as error:
            self._log_refusal(address, str(error))
            return None
        if answer.code != ResponseCode.SUCCESS:
            self._log_refusal(address, f"code {answer.code}: {answer.remark}")
            return None
        if self._refused.pop(address, None) is not None:
            logger.info("name server %s: takes the registration again", address)
        return answer

    def _log_refusal(self, address: str, reason: str) -> None:
        reason = shortened(reason)
        if self._refused.get(address) != reason:
            self._refused[address] = reason
            logger.warning("name server %s: does not take the registration: %s", address, reason)

    def _header(self, body: bytes) -> dict[str, str]:
        config = self._config()
        fields = {
            "brokerName": config.broker_name,
            "brokerAddr": config.address,
            "clusterName": config.broker_cluster_name,
            "haServerAddr": config.ha_address,
            "brokerId": str(config.broker_id),
        }
        if body:
            fields["compressed"] = "false"
            fields["bodyCrc32"] = str(zlib.crc32(body) & _CRC_MASK)
        return fields

    def _body(
        self, config: BrokerConfig, topics: Iterable[TopicConfig], version: DataVersion
    ) -> bytes:
        allowed = config.broker_permission
        table: dict[str, Any] = {}
        for topic in topics:
            fields = topic.to_java()
            if allowed & (PERM_READ | PERM_WRITE) != PERM_READ | PERM_WRITE:
                fields["perm"] = topic.perm & allowed
            table[topic.topic_name] = fields
        wrapper = {
            "dataVersion": version.to_java(),
            "mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
            "topicConfigTable": table,
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
        return java_body({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
