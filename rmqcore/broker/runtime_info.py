"""A broker's runtime info: the answer to request 28.

Source: RocketMQ broker/processor/AdminBrokerProcessor.java, prepareRuntimeInfo.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping

from rmqcore.broker.bodies import java_body
from rmqcore.broker.settings import BrokerConfig
from rmqcore.clock import wall_clock_ms
from rmqcore.remoting import (
    Connection,
    RemotingCommand,
    RemotingServer,
    RequestCode,
    success,
)
from rmqcore.store.protocol import MessageStore
from rmqcore.version import __version__


class RuntimeInfo:
    """Request 28."""

    def __init__(
        self,
        store: MessageStore,
        config: Callable[[], BrokerConfig],
        more: Callable[[], Mapping[str, str]],
    ) -> None:
        self._more = more
        self._store = store
        self._config = config
        self._started_ms = wall_clock_ms()

    def register(self, server: RemotingServer) -> None:
        """Let the server hand these requests over."""
        server.register(RequestCode.GET_BROKER_RUNTIME_INFO, self.runtime_info)

    def runtime_info(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """28: counters and rates under RocketMQ's names."""
        return success(body=java_body({"table": self.table()}))

    def table(self) -> dict[str, str]:
        """The names and values of request 28."""
        store, config = self._store, self._config()
        disk = shutil.disk_usage(store.path)
        ratio = f"{disk.used / disk.total:.4f}"
        info = dict(store.stats())
        info.update(self._more())
        info.update(
            {
                "brokerVersionDesc": f"rmqcore {__version__}",
                "brokerVersion": __version__,
                "brokerActive": "true",
                "bootTimestamp": str(self._started_ms),
                "runtime": str(wall_clock_ms() - self._started_ms),
                "clusterName": config.broker_cluster_name,
                "brokerName": config.broker_name,
                "commitLogDiskRatio": ratio,
                "consumeQueueDiskRatio": ratio,
                "commitLogDirCapacity": f"Total : {disk.total} B, Free : {disk.free} B.",
            }
        )
        for name in ("putTps", "getTransferedTps", "getTransferredTps"):
            info.setdefault(name, "0 0 0")
        for name in (
            "sendThreadPoolQueueSize",
            "pullThreadPoolQueueSize",
            "queryThreadPoolQueueSize",
            "sendThreadPoolQueueHeadWaitTimeMills",
            "pullThreadPoolQueueHeadWaitTimeMills",
            "queryThreadPoolQueueHeadWaitTimeMills",
            "pageCacheLockTimeMills",
            "msgPutTotalYesterdayMorning",
            "msgPutTotalTodayMorning",
            "msgPutTotalTodayNow",
            "msgGetTotalYesterdayMorning",
            "msgGetTotalTodayMorning",
            "msgGetTotalTodayNow",
        ):
            info.setdefault(name, "0")
        info.setdefault("timerEnqueueTps", "0.0")
        info.setdefault("timerDequeueTps", "0.0")
        return info
