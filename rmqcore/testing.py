"""A real broker for tests: the pytest plugin `rmqcore`, and what it is made of.

Fixtures: `rocketmq_broker`, one broker and name server a test session, on free ports of the
loopback address; `rocketmq_topic`, a topic that no other test has.

    def test_orders(rocketmq_broker, rocketmq_topic):
        with Producer(rocketmq_broker.namesrv_addr) as producer:
            producer.send(rocketmq_topic, b"one")

Without pytest's fixtures: ``with running_broker(path) as broker``.

The fixtures stand in `pytest_rmqcore`, which a test run loads whether it uses them or not.

Floor: F9.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_rmqcore import rocketmq_broker, rocketmq_topic
from rmqcore.arguments import directory_path
from rmqcore.broker import Broker
from rmqcore.errors import StoreError
from rmqcore.namesrv import NameServer, NamesrvConfig
from rmqcore.remoting import new_event_loop

if TYPE_CHECKING:
    from rmqcore.proxy import GrpcServer

__all__ = ["SMALL_FILES", "RunningBroker", "rocketmq_broker", "rocketmq_topic", "running_broker"]

_HOST: Final = "127.0.0.1"
_START_TIMEOUT_S: Final = 30.0
#: Sizes of files that the disk of a machine for tests has room for.
SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 6000 * 20,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
}


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker and its name server.

    Attributes:
        namesrv_addr: `host:port` that clients are given.
        broker_addr: `host:port` of the broker itself.
        store_path: the store's directory.
        grpc_addr: `host:port` for RocketMQ 5's own clients; empty without the extra `[grpc]`.
    """

    namesrv_addr: str
    broker_addr: str
    store_path: Path
    grpc_addr: str = ""


def _grpc_server(broker: Broker) -> GrpcServer | None:
    """What serves a broker over gRPC; None without the extra."""
    try:
        from rmqcore.proxy import GrpcServer, LocalBroker, Service  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    service = Service(LocalBroker(lambda: broker.local, lambda: broker.config.broker_name))
    broker.http2 = service.new_connection
    return GrpcServer(service, _HOST, 0)


class _Thread(threading.Thread):
    """Serves until it is told to stop."""

    def __init__(self, path: Path, properties: dict[str, object]) -> None:
        super().__init__(name="rmqcore-broker", daemon=True)
        self._path = path
        self._properties = properties
        self._loop = new_event_loop()
        self._stopping: asyncio.Event | None = None
        self.ready = threading.Event()
        self.served: RunningBroker | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Serve, on an event loop of this thread."""
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self.error = error
        finally:
            self.ready.set()

    def stop(self) -> None:
        """End serving, and wait until all is written."""
        if self._stopping is not None and self.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self.join(_START_TIMEOUT_S)

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        kept = self._path / "config" / "namesrv" / "kvConfig.json"
        name_server = NameServer(_HOST, 0, NamesrvConfig(kv_config_path=str(kept)))
        await name_server.start()
        try:
            namesrv_addr = f"{_HOST}:{name_server.port}"
            places = {"brokerIP1": _HOST, "listenPort": 0, "namesrvAddr": namesrv_addr}
            broker = Broker(self._path, {**SMALL_FILES, **self._properties, **places})
            grpc = _grpc_server(broker)
            await broker.start()
            try:
                grpc_addr = ""
                if grpc is not None:
                    await grpc.start()
                    grpc_addr = f"{_HOST}:{grpc.port}"
                self.served = RunningBroker(namesrv_addr, broker.address, self._path, grpc_addr)
                self.ready.set()
                await self._stopping.wait()
            finally:
                if grpc is not None:
                    await grpc.stop()
                await broker.stop()
        finally:
            await name_server.stop()


@contextmanager
def running_broker(path: str | Path, **properties: object) -> Iterator[RunningBroker]:
    """A broker and a name server on free ports of the loopback address, in a thread.

    Args:
        path: the store's directory, made when it is missing.
        properties: settings under RocketMQ's names, such as ``enablePropertyFilter=True``.

    Raises:
        StoreError: they do not start in time.
        RmqCoreError, OSError: the store or a port cannot be opened.
    """
    thread = _Thread(directory_path("path", path).absolute(), properties)
    thread.start()
    in_time = thread.ready.wait(_START_TIMEOUT_S)
    try:
        if thread.error is not None:
            raise thread.error
        if not in_time or thread.served is None:
            raise StoreError(f"the broker on {path} did not start in {_START_TIMEOUT_S:.0f} s")
        yield thread.served
    finally:
        thread.stop()
