"""Partitions in a fresh directory, and a server of them."""

import asyncio

import pytest
from patience import TIMEOUT_S

from rmqcore.metaq import (
    MessageStore,
    MessageStoreManager,
    MetaConfig,
    MetaServer,
    SystemConfig,
    TopicConfig,
    World,
)


@pytest.fixture
def config(tmp_path):
    """`config(unflush_threshold=0, topics=("t",))`: settings below a fresh data path."""

    def make(*, topics=("t",), own=None, **system):
        settings = {"unflush_threshold": 1000, "unflush_interval_ms": 3_600_000, **system}
        settings.setdefault("data_path", str(tmp_path / "meta"))
        base = SystemConfig(**settings)
        return MetaConfig(base, [TopicConfig.of(topic, base, **(own or {})) for topic in topics])

    return make


@pytest.fixture
def open_store(config):
    """`open_store(partition=0, repair=True, unflush_threshold=0)`; closed at the end."""
    opened = []
    options = {"mode", "repair", "fast_boot", "world", "delete_policy", "offset_if_create"}

    def make(partition=0, **settings):
        chosen = {name: settings.pop(name) for name in options & settings.keys()}
        store = MessageStore("t", partition, config(**settings), **chosen)
        opened.append(store)
        return store

    yield make
    for store in opened:
        try:
            store.close()
        except OSError:
            continue


@pytest.fixture
def serve(config):
    """`serve(test, **settings)`: run `test(server, host, port)` against a server."""

    def run(test, *, settings=None, world=None, **options):
        chosen = config(**{"unflush_threshold": 0, "num_partitions": 2, **(settings or {})})

        async def main():
            with MessageStoreManager(chosen, world=world or World()) as manager:
                server = MetaServer(manager, port=0, **options)
                host, port = await server.start()
                try:
                    return await asyncio.wait_for(test(server, host, port), 2 * TIMEOUT_S)
                finally:
                    await server.stop()

        return asyncio.run(main(), debug=False)

    return run
