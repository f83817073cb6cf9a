"""CoilMQ's own suite, on our store: the store, the queue manager, and a server with sockets."""

import importlib

import pytest
from adapters import suites

import tests
from rmqcore.adapters.coilmq import RmqQueueStore

pytestmark = pytest.mark.peers

# its modules import each other from a package of this name
tests.__path__ = [*tests.__path__, str(suites.folder("coilmq") / "tests")]
functional = importlib.import_module("tests.functional.conftest")
managing = importlib.import_module("tests.queue_manager.conftest")

server, server_addr = functional.server, functional.server_addr
c1, c2, c3 = functional.c1, functional.c2, functional.c3
conn, queue_manager = managing.conn, managing.queue_manager


@pytest.fixture
def store(tmp_path):
    store = RmqQueueStore(tmp_path / "store")
    yield store
    store.close()


class TestStore(importlib.import_module("tests.store").BaseQueueTests):
    pass


class TestQueueManager(importlib.import_module("tests.queue_manager").QueueManagerTests):
    pass


class TestServer(
    importlib.import_module("tests.functional.test_memory").TestServerWithDefaultClasses
):
    pass
