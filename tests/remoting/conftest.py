"""What the tests of the remoting room share."""

import asyncio

import pytest
from remoting.ends import LOOPS


@pytest.fixture(params=LOOPS)
def run(request):
    """Run a coroutine to its end, on each event loop there is."""

    def run(coroutine):
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(coroutine)

    return run
