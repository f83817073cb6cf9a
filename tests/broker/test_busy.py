"""A log that cannot take messages for a while: who waits is served, who comes then is told."""

import asyncio
import re
import threading

import pytest
from patience import TIMEOUT_S, until_async

from rmqcore.remoting import ResponseCode
from rmqcore.world import World

pytestmark = pytest.mark.engine


def test_sends_are_refused_while_one_waits_for_the_log_for_too_long(with_broker):
    now_s = 1000.0

    async def scenario(broker, peer):
        nonlocal now_s
        waiters = []
        store, goes_on = broker.store, threading.Event()
        await peer.send("T", b"before")
        append_now, append_later = store.append_now, store.append_later

        async def slowly(message):
            waiters.append(message)
            await asyncio.to_thread(goes_on.wait, TIMEOUT_S)
            return await append_later(message)

        store.append_now, store.append_later = (lambda _: None), slowly
        waiting = [asyncio.ensure_future(peer.send("T", b"early"))]
        await until_async(lambda: len(waiters) == 1, "a send waits for the log")
        now_s += 2
        waiting.append(asyncio.ensure_future(peer.send("T", b"in time")))
        await until_async(lambda: len(waiters) == 2, "another waits behind it")
        now_s += 0.5
        late = await peer.send("T", b"late")
        assert late.code == ResponseCode.SYSTEM_BUSY
        waited, count = re.fullmatch(
            r"\[PCBUSY_CLEAN_QUEUE\]broker busy, start flow control for a while, "
            r"period in queue: (\d+)ms, size of queue: (\d+)",
            late.remark,
        ).groups()
        assert (waited, count) == ("2500", "2")
        goes_on.set()
        assert [answer.code for answer in await asyncio.gather(*waiting)] == [0, 0]
        store.append_now = append_now
        assert (await peer.send("T", b"after")).code == ResponseCode.SUCCESS
        bodies = [bytes(message.body) for message in store.messages("T")]
        assert sorted(bodies) == [b"after", b"before", b"early", b"in time"]

    world = World(monotonic_s=lambda: now_s)
    with_broker(scenario, world, osPageCacheBusyTimeOutMills=2000)
