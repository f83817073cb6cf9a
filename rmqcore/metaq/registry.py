"""A broker's nodes in ZooKeeper, from which MetaQ's clients know it. Layout: docs/metaq.md.

Needs the extra ``[zookeeper]``.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterable
from typing import Any, Final

from rmqcore.errors import ConfigError, StoreError
from rmqcore.metaq.manager import MessageStoreManager
from rmqcore.metaq.meta_config import CONFIG_FILE_CHECKSUM, TOPICS, MetaConfig
from rmqcore.metaq.settings import ZkConfig

_LOG = logging.getLogger(__name__)
_RETRY_S = 5.0
#: ZooKeeper takes no node with one of these in its name; what is above U+FFFF, Java has as two of
#: U+D800 to U+DFFF. Source: ZooKeeper PathUtils.java.
_NO_NODE: Final = re.compile("[\x01-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


class RegistryError(StoreError):
    """The broker cannot be registered in ZooKeeper; the text says why."""


def _broker_nodes(config: MetaConfig, host: str, port: int) -> dict[str, str]:
    """The nodes of a broker itself: path -> text. Source: MetaQ BrokerZooKeeper.java.

    Args:
        config: with the root in ZooKeeper and the broker's id.
        host: where clients reach it.
        port: where clients reach it.
    """
    ids = f"{_root(config)}/brokers/ids/{config.system.broker_id}"
    return {
        f"{ids}/master": _address(host, port),
        f"{ids}/master_config_checksum": str(config.config_file_checksum),
    }


def topic_nodes(config: MetaConfig, taken: Iterable[str], kept: Iterable[str]) -> dict[str, str]:
    """The nodes of a broker's topics: path -> text; none of a topic whose name no node can have.

    Args:
        config: partitions of each topic, and whether it takes puts and gets.
        taken: topics that take puts.
        kept: topics that have messages, and may not be configured any more.

    Source: MetaQ BrokerZooKeeper.java, registerTopicInZkInternal.
    """
    name = f"{config.system.broker_id}-m"
    taken = {topic for topic in taken if "*" not in topic}
    nodes = {}
    for topic in sorted({*taken, *kept}):
        if _NO_NODE.search(topic):
            continue
        own = config.topic_config(topic)
        text = json.dumps({"broker": name, "numParts": own.num_partitions}, separators=(",", ":"))
        begin = f"{_root(config)}/brokers"
        nodes[f"{begin}/topics/{topic}/{name}"] = str(own.num_partitions)
        if own.accept_publish and topic in taken:
            nodes[f"{begin}/topics-pub/{topic}/{name}"] = text
        if own.accept_subscribe:
            nodes[f"{begin}/topics-sub/{topic}/{name}"] = text
    return nodes


class Registry:
    """Keeps a broker's nodes true while it runs; they go with it.

    Invariants:
        - Another broker with the same id, on another address, is never pushed aside at the start.
        - After a lost session everything is registered again.

    Source: MetaQ BrokerZooKeeper.java.
    """

    def __init__(self, manager: MessageStoreManager, host: str, port: int) -> None:
        """Connect and register.

        Args:
            manager: the broker's partitions and configuration.
            host: where clients reach it.
            port: where clients reach it.

        Raises:
            ConfigError: the extra is not installed.
            RegistryError: no ZooKeeper answers, or another broker has this id.
        """
        self._manager = manager
        self._config = manager.config
        self._host, self._port = host, port
        zookeeper = manager.config.zookeeper or ZkConfig()
        self._mine: dict[str, str] = {}
        self._session = 0
        self._due = threading.Event()
        self._closing = threading.Event()
        self._client = _connect(zookeeper)
        try:
            self._client.add_listener(self._state_changed)
            self._register()
            self._thread = threading.Thread(target=self._run, name="metaq-registry", daemon=True)
            self._thread.start()
        except BaseException:
            self._client.stop()
            self._client.close()
            raise
        for event in (TOPICS, CONFIG_FILE_CHECKSUM):
            self._config.add_property_change_listener(event, self._due.set)
        manager.topic_listeners.append(self._due.set)

    def close(self) -> None:
        """Take the nodes away and disconnect."""
        self._config.remove_property_change_listener(self._due.set)
        self._manager.topic_listeners.remove(self._due.set)
        self._closing.set()
        self._due.set()
        try:
            self._client.stop()  # the nodes go with the session
            self._thread.join(_RETRY_S)
        finally:
            self._client.close()

    def _state_changed(self, state: str) -> None:
        if state == "CONNECTED":
            self._due.set()

    def _run(self) -> None:
        """Register again whenever something may have changed."""
        said = ""
        while True:
            self._due.wait()
            if self._closing.is_set():
                return
            self._due.clear()
            try:
                self._register()
                said = ""
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                if said != repr(error) and not self._closing.is_set():
                    _LOG.warning("not registered in ZooKeeper, it is tried again: %r", error)
                said = repr(error)
                self._closing.wait(_RETRY_S)
                self._due.set()

    def _register(self) -> None:
        broker = _broker_nodes(self._config, self._host, self._port)
        taken = [t for t in self._manager.all_topics() if self._manager.accepts(t)]
        nodes = {**broker, **topic_nodes(self._config, taken, self._manager.stores)}
        if self._session != self._client.client_id[0]:  # the nodes went with the session before
            self._session = self._client.client_id[0]
            self._mine.clear()
        self._refuse_another()
        for path in [path for path in self._mine if path not in nodes]:
            self._delete(path)
        for path, text in nodes.items():
            if self._mine.get(path) != text:
                self._write(path, text)
        # clients before 1.4.3 read the address here; the node stays, as its children are others'
        parent = f"{_root(self._config)}/brokers/ids/{self._config.system.broker_id}"
        self._client.set(parent, _address(self._host, self._port).encode())

    def _refuse_another(self) -> None:
        path, address = next(iter(_broker_nodes(self._config, self._host, self._port).items()))
        if path in self._mine or not self._client.exists(path):
            return
        found = self._client.get(path)[0].decode("utf-8", "replace")
        if found != address:
            raise RegistryError(
                f"{found} is registered as broker {self._config.system.broker_id} ({path}); give "
                "this one another brokerId, or wait until the session of the other has ended"
            )

    def _write(self, path: str, text: str) -> None:
        """Create a node of this session; one of an earlier session of this broker gives way."""
        found = self._client.exists(path)
        if found is not None and found.ephemeralOwner == self._session:
            self._client.set(path, text.encode())
        else:
            if found is not None:
                self._delete(path)
            self._client.create(path, text.encode(), ephemeral=True, makepath=True)
        self._mine[path] = text

    def _delete(self, path: str) -> None:
        if self._client.exists(path) is not None:
            self._client.delete(path)
        self._mine.pop(path, None)


def reachable_host(config: MetaConfig, bound: str) -> str:
    """Where clients reach a broker: its hostName, or the one address that it listens on.

    Args:
        config: whose ``hostName`` wins, where it says one.
        bound: the address that is listened on; ``0.0.0.0``, ``::`` and empty are all of them.
    """
    given = config.system.host_name
    everywhere = bound in {"0.0.0.0", "::", ""}  # noqa: S104 - compared, not listened on
    return given if everywhere or given != type(config.system)().host_name else bound


def _connect(zookeeper: ZkConfig) -> Any:
    try:
        from kazoo.client import KazooClient  # noqa: PLC0415
        from kazoo.exceptions import KazooException  # noqa: PLC0415
        from kazoo.handlers.threading import KazooTimeoutError  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigError(
            "[zookeeper] zk.zkConnect",
            zookeeper.zk_connect,
            "pip install 'rmqcore[zookeeper]', or zk.zkEnable=false to do without discovery",
        ) from None
    client = KazooClient(
        hosts=zookeeper.zk_connect, timeout=max(1.0, zookeeper.zk_session_timeout_ms / 1000)
    )
    try:
        client.start(timeout=max(1.0, zookeeper.zk_connection_timeout_ms / 1000))
    except (KazooTimeoutError, KazooException, OSError, ValueError) as error:
        client.stop()
        client.close()
        raise RegistryError(f"no ZooKeeper at {zookeeper.zk_connect}: {error}") from None
    return client


def _root(config: MetaConfig) -> str:
    root = (config.zookeeper or ZkConfig()).zk_root.strip("/")
    return f"/{root}" if root else ""


def _address(host: str, port: int) -> str:
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"meta://{host}:{port}"
