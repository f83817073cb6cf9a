"""A broker for all tests of the client, as other projects get it from the plugin."""

import asyncio

import pytest

from rmqcore.client import Admin, Consumer, Producer
from rmqcore.testing import rocketmq_broker, rocketmq_topic  # noqa: F401 - fixtures

#: how long a test waits for what has to come, on a machine that has other things to do
PATIENCE_S = 60
#: a test of several such steps
_TEST_S = 180


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Clients wait as long for an answer, unless a test says how long: disks stop for seconds.

    What they do every half a minute by themselves does not help out meanwhile.
    """
    for client in (Admin, Consumer, Producer):
        monkeypatch.setitem(client.__init__.__kwdefaults__, "timeout_ms", 1000.0 * PATIENCE_S)
    monkeypatch.setattr("rmqcore.client.instance._GOOD_BYE_TIMEOUT_MS", 1000.0 * PATIENCE_S)
    monkeypatch.setattr("rmqcore.client.instance.HEART_BEAT_INTERVAL_S", 10 * PATIENCE_S)
    monkeypatch.setattr("rmqcore.client.assignment._REBALANCE_INTERVAL_S", 10 * PATIENCE_S)


async def until(condition, timeout_s=PATIENCE_S):
    """Wait until a coroutine function answers with something true."""
    async with asyncio.timeout(timeout_s):
        while not (found := await condition()):
            await asyncio.sleep(0.02)
        return found


@pytest.fixture
def run():
    """Run a coroutine to its end, in three minutes at most."""

    def run(main):
        async def limited():
            async with asyncio.timeout(_TEST_S):
                return await main

        return asyncio.run(limited())

    return run
