"""A broker's runtime info: the answer to request 28.

Source: RocketMQ broker/processor/AdminBrokerProcessor.java, prepareRuntimeInfo.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rmqcore.broker.state.bodies import java_body
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.remoting import (
    Connection,
    RemotingCommand,
    RequestCode,
    needs,
    success,
)
from rmqcore.remoting.codes import VERSION
from rmqcore.remoting.serves import serves
from rmqcore.version import __version__

_POOLS: Final = ("send", "pull", "litePull", "query", "ack")
#: These figures have no counterpart here or are not measured; monitors fail where they are missing.
_OF_OTHERS: Final = {
    **{f"{pool}ThreadPoolQueueSize": "0" for pool in _POOLS},
    **{f"{pool}ThreadPoolQueueCapacity": "0" for pool in _POOLS},
    **{f"{pool}ThreadPoolQueueHeadWaitTimeMills": "0" for pool in _POOLS},
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "getMessageEntireTimeMax": "0",
    "pageCacheLockTimeMills": "0",
    "remainTransientStoreBufferNumbs": "0",
    "startAcceptSendRequestTimeStamp": "0",
    "timerDequeueTps": "0.0",
    "timerEnqueueTps": "0.0",
}


class RuntimeInfo:
    """Counters and rates under RocketMQ's names.

    Args:
        state: the broker's.
        more: each gives further names and values.
    """

    def __init__(self, state: BrokerState, more: Sequence[Callable[[], Mapping[str, str]]]) -> None:
        self._more = more
        self._store, self._config = state.store, state.config

    @serves(RequestCode.GET_BROKER_RUNTIME_INFO, needs=needs.ADMIN)
    def runtime_info(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Counters and rates under RocketMQ's names."""
        return success(body=java_body({"table": self.table()}))

    def table(self) -> dict[str, str]:
        """The names and values of request 28."""
        store, config = self._store, self._config()
        disk = shutil.disk_usage(store.path)
        ratio = f"{disk.used / disk.total:.4f}"
        info = dict(store.stats())
        for facts in self._more:
            info.update(facts())
        oldest = store.message_at(store.min_phy_offset)
        info.update(
            {
                "brokerVersionDesc": f"rmqcore {__version__}",
                "brokerVersion": str(VERSION),
                "brokerActive": "true",
                "brokerRole": store.config.broker_role.value,
                "clusterName": config.broker_cluster_name,
                "brokerName": config.broker_name,
                "commitLogDiskRatio": ratio,
                "consumeQueueDiskRatio": ratio,
                "commitLogDirCapacity": f"Total : {disk.total} B, Free : {disk.free} B.",
                "earliestMessageTimeStamp": str(oldest.store_timestamp_ms if oldest else -1),
                # the name of 4.9 and before
                "getTransferedTps": info["getTransferredTps"],
            }
        )
        return _OF_OTHERS | info
