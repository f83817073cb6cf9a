"""Which nodes a broker keeps in ZooKeeper; against a real one: tests/interop/test_metaq.py."""

import asyncio
import sys
from types import SimpleNamespace

import pytest
from patience import until

from rmqcore.errors import ConfigError
from rmqcore.metaq import (
    MessageStoreManager,
    MetaClient,
    MetaConfig,
    MetaServer,
    SystemConfig,
    TopicConfig,
    ZkConfig,
)
from rmqcore.metaq import registry as registry_module
from rmqcore.metaq.registry import Registry, RegistryError, reachable_host

pytestmark = pytest.mark.engine


class Tree:
    """A ZooKeeper of one client, as far as a registry uses it."""

    def __init__(self):
        self.nodes = {}  # path -> (text, session)
        self.client_id = (1, b"")
        self.listener = None

    def add_listener(self, listener):
        self.listener = listener

    def exists(self, path):
        if path not in self.nodes:
            return None
        return SimpleNamespace(ephemeralOwner=self.nodes[path][1])

    def get(self, path):
        return self.nodes[path][0], None

    def set(self, path, text):
        self.nodes[path] = text, self.nodes[path][1]

    def create(self, path, text, *, ephemeral, makepath):
        assert ephemeral
        assert makepath
        assert path.isprintable()
        assert path not in self.nodes
        self.nodes[path] = text, self.client_id[0]
        parent = path.rpartition("/")[0]
        while parent:
            self.nodes.setdefault(parent, (b"", 0))
            parent = parent.rpartition("/")[0]

    def delete(self, path):
        del self.nodes[path]

    def lose(self, session):
        self.nodes = {p: n for p, n in self.nodes.items() if n[1] != self.client_id[0]}
        self.client_id = (session, b"")
        self.listener("LOST")
        self.listener("CONNECTED")

    def stop(self):
        self.nodes = {p: n for p, n in self.nodes.items() if n[1] != self.client_id[0]}

    def close(self):
        pass

    def own(self):
        # a copy: the registry's thread may go on
        return {p: t.decode() for p, (t, owner) in dict(self.nodes).items() if owner}

    def owners(self):
        return {owner for _, owner in dict(self.nodes).values() if owner}


@pytest.fixture
def tree(monkeypatch):
    made = Tree()
    monkeypatch.setattr(registry_module, "_connect", lambda zookeeper: made)
    return made


@pytest.fixture
def config(tmp_path):
    system = SystemConfig(data_path=str(tmp_path / "meta"), num_partitions=4, unflush_threshold=0)
    topics = [
        TopicConfig.of("t", system),
        TopicConfig.of("hidden", system, accept_subscribe=False),
        TopicConfig.of("any*", system, num_partitions=2),
    ]
    return MetaConfig(system, topics, ZkConfig(zk_connect="localhost:2181"))


PUB = "/meta/brokers/topics-pub"
SUB = "/meta/brokers/topics-sub"
BROKER = {
    "/meta/brokers/ids/0/master": "meta://h:1",
    "/meta/brokers/ids/0/master_config_checksum": "0",
}
FOUR = '{"broker":"0-m","numParts":4}'
EXPECTED = {
    **BROKER,
    "/meta/brokers/topics/t/0-m": "4",
    "/meta/brokers/topics/hidden/0-m": "4",
    f"{PUB}/t/0-m": FOUR,
    f"{SUB}/t/0-m": FOUR,
    f"{PUB}/hidden/0-m": FOUR,
}


def test_a_broker_and_its_topics_are_found_and_gone_when_it_stops(tree, config):
    with MessageStoreManager(config) as manager:
        registry = Registry(manager, "h", 1)
        assert tree.own() == EXPECTED
        assert tree.get("/meta/brokers/ids/0")[0] == b"meta://h:1"
        manager.get_or_create("anything", 1)
        until(lambda: f"{SUB}/anything/0-m" in tree.nodes, "the new topic")
        config.set_config_file_checksum(5)
        until(
            lambda: tree.get("/meta/brokers/ids/0/master_config_checksum")[0] == b"5",
            "the new checksum",
        )
        registry.close()
        assert tree.own() == {}
        assert manager.topic_listeners == []


@pytest.mark.parametrize("name", ["any\x01", "any\x9f", "any\U0001f600"])
def test_a_topic_that_no_node_can_be_named_after_keeps_no_other_out(tree, config, name):
    with MessageStoreManager(config) as manager:
        manager.get_or_create(name, 1)
        manager.get_or_create("anything", 1)
        registry = Registry(manager, "h", 1)
        assert tree.own().keys() == EXPECTED.keys() | {
            f"/meta/brokers/{kind}/anything/0-m" for kind in ("topics", "topics-pub", "topics-sub")
        }
        registry.close()


def test_a_lost_session_registers_everything_again(tree, config):
    with MessageStoreManager(config) as manager:
        registry = Registry(manager, "h", 1)
        tree.lose(2)
        until(lambda: tree.own() == EXPECTED, "the nodes again")
        assert tree.owners() == {2}
        registry.close()


def test_what_keeps_failing_is_said_once_and_tried_again(tree, config, caplog, monkeypatch):
    monkeypatch.setattr(registry_module, "_RETRY_S", 0.01)
    tries = []

    def refuses(*_, **__):
        tries.append(1)
        raise OSError("no quorum")

    with MessageStoreManager(config) as manager:
        registry = Registry(manager, "h", 1)
        with monkeypatch.context() as patch:
            patch.setattr(tree, "create", refuses)
            tree.lose(2)
            until(lambda: len(tries) > 5, "six tries")
        until(lambda: tree.own() == EXPECTED, "the nodes again")
        registry.close()
    assert len(caplog.records) == 1
    assert "no quorum" in caplog.text


def test_nodes_of_its_own_session_before_give_way(tree, config):
    tree.client_id = (9, b"")
    for path, text in EXPECTED.items():
        tree.create(path, text.encode(), ephemeral=True, makepath=True)
    tree.client_id = (1, b"")
    with MessageStoreManager(config) as manager:
        registry = Registry(manager, "h", 1)
        assert tree.own() == EXPECTED
        assert tree.owners() == {1}
        registry.close()


def test_another_broker_with_the_same_id_is_not_pushed_aside(tree, config):
    tree.create("/meta/brokers/ids/0/master", b"meta://other:1", ephemeral=True, makepath=True)
    tree.client_id = (2, b"")
    with MessageStoreManager(config) as manager:
        with pytest.raises(RegistryError, match="meta://other:1 is registered as broker 0"):
            Registry(manager, "h", 1)
        assert tree.own() == {"/meta/brokers/ids/0/master": "meta://other:1"}


def test_a_server_registers_where_it_listens(tree, config):
    async def main():
        with MessageStoreManager(config) as manager:
            server = MetaServer(manager, port=0)
            host, port = await server.start()
            assert tree.own()["/meta/brokers/ids/0/master"] == f"meta://{host}:{port}"
            async with MetaClient(host, port) as client:
                await client.put("anyone", b"x")
            until(lambda: f"{PUB}/anyone/0-m" in tree.nodes, "the new topic")
            await server.stop()
            assert tree.own() == {}

    asyncio.run(main())


def test_the_host_is_the_configured_one_or_the_one_listened_on():
    named, unnamed = MetaConfig(SystemConfig(host_name="broker.example")), MetaConfig()
    assert reachable_host(named, "127.0.0.1") == "broker.example"
    assert reachable_host(unnamed, "127.0.0.1") == "127.0.0.1"
    assert reachable_host(unnamed, "0.0.0.0") == unnamed.system.host_name


def test_without_the_extra_the_error_says_what_to_install(monkeypatch, config):
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    advice = r"pip install 'rmqcore\[zookeeper\]', or zk.zkEnable=false"
    with MessageStoreManager(config) as manager, pytest.raises(ConfigError, match=advice):
        Registry(manager, "h", 1)
