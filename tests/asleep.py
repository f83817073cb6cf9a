"""`when_asleep`: something happens exactly while a thread or a coroutine waits for a message."""

import asyncio
import threading

import pytest
from patience import TIMEOUT_S, give_up

from rmqcore.store.consume.arrivals import AsyncSleeper, Sleeper


@pytest.fixture
def when_asleep(monkeypatch):
    """`when_asleep(work)`: do it in a thread as soon as somebody sleeps who waits for a message.

    Who sleeps sleeps until it is woken: what comes by the time that it was to sleep for, or by a
    look now and then, fails the test.
    """
    works, threads = [], []

    def begin():
        if works:
            threads.append(threading.Thread(target=works.pop(0)))
            threads[-1].start()

    def sleep(sleeper, _seconds):
        begin()
        if not sleeper._bell.wait(TIMEOUT_S):
            give_up("somebody who wakes a thread that waits for a message")

    async def sleep_async(sleeper, _seconds):
        begin()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await sleeper._woken.wait()
        except TimeoutError:
            give_up("somebody who wakes a coroutine that waits for a message")
        sleeper._woken.clear()

    monkeypatch.setattr(Sleeper, "sleep", sleep)
    monkeypatch.setattr(AsyncSleeper, "sleep", sleep_async)
    yield works.append
    for thread in threads:
        thread.join()
    assert not works, "nobody has slept"
