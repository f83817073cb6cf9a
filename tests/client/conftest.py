"""A broker for all tests of the client, as other projects get it from the plugin."""

import asyncio

import pytest
from patience import TIMEOUT_S

from rmqcore.client import Admin, Consumer, Producer
from rmqcore.remoting import ClientSettings
from rmqcore.testing import rocketmq_broker, rocketmq_topic  # noqa: F401 - fixtures

#: a test of several steps, each of which may wait so long
_TEST_S = 3 * TIMEOUT_S


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Clients wait as long for an answer, unless a test says how long: disks stop for seconds.

    What they do every half a minute by themselves does not help out meanwhile.
    """
    for client in (Admin, Consumer, Producer):
        monkeypatch.setitem(client.__init__.__kwdefaults__, "timeout_ms", 1000.0 * TIMEOUT_S)
    defaults = ClientSettings.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "connect_timeout_ms", 1000.0 * TIMEOUT_S)
    monkeypatch.setattr("rmqcore.client.instance._GOOD_BYE_TIMEOUT_MS", 1000.0 * TIMEOUT_S)
    monkeypatch.setattr("rmqcore.client.instance.HEART_BEAT_INTERVAL_S", 10 * TIMEOUT_S)
    monkeypatch.setattr("rmqcore.client.assignment._REBALANCE_INTERVAL_S", 10 * TIMEOUT_S)


@pytest.fixture
def run():
    """Run a coroutine to its end, in three minutes at most."""

    def run(main):
        async def limited():
            async with asyncio.timeout(_TEST_S):
                return await main

        return asyncio.run(limited())

    return run
