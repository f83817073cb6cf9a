"""A broker for all tests of the client, as other projects get it from the plugin."""

import asyncio

import pytest

from rmqcore.testing import rocketmq_broker, rocketmq_topic  # noqa: F401 - fixtures


@pytest.fixture
def run():
    """Run a coroutine to its end, in half a minute at most."""

    def run(main):
        async def limited():
            async with asyncio.timeout(30):
                return await main

        return asyncio.run(limited())

    return run
