"""A hundred power cuts of a broker on a disk of its own, while clients send and consume.

Needs root; a storm runs it.
"""

import asyncio
import contextlib
import random
import signal
import statistics
import time
from collections import Counter

import pytest
from broker.serving import TOPIC, Traffic, serving
from patience import TIMEOUT_S

import rmqcore
from rmqcore.doctor import verify
from rmqcore.doctor.selftest.mounted import mounted, run_as_root, why_not

pytestmark = [
    pytest.mark.storm,
    pytest.mark.skipif(bool(why_not("ext4")), reason=why_not("ext4")),
]
CUTS, PARTS = 100, 10
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "flushConsumerOffsetInterval": 300,
    "mappedFileSizeConsumeQueue": 60_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}


def cut_power(process, image):
    """End a broker with what its disk has now: what only the page cache had is gone.

    The process is stopped first, so that it acknowledges nothing that the copy is too early for.
    The copy is mounted from another device: on the same one, of a machine that was not started
    again, the store would take it that no page is lost.
    """
    live, copy, after = (image.with_name(name) for name in ("live", "cut", "after"))
    device = live.stat().st_dev
    process.send_signal(signal.SIGSTOP)
    run_as_root("cp", "--sparse=always", image, copy)
    process.kill()
    process.wait(TIMEOUT_S)
    run_as_root("mount", "-o", "loop", copy, after)
    run_as_root("umount", live)
    run_as_root("mount", "--bind", after, live)
    run_as_root("umount", after)
    copy.replace(image)
    assert live.stat().st_dev != device


@pytest.mark.parametrize("part", range(1, PARTS + 1))
def test_a_power_cut_takes_nothing_acknowledged(part, tmp_path, figure, seed):
    rng, restarts = random.Random(f"{seed}/{part}"), []
    options = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
    store = tmp_path / "live" / "store"

    async def main(image):
        async with contextlib.AsyncExitStack() as clients:
            traffic, places = None, ()
            for life in range(CUTS // PARTS + 1):
                began = time.monotonic()
                with serving(store, *options, *places) as (process, facts):
                    restarts.append(time.monotonic() - began)
                    if traffic is None:
                        ports = [facts[name].rpartition(":")[2] for name in ("namesrv", "broker")]
                        places = ("--namesrv-port", ports[0], "--port", ports[1])
                        traffic = Traffic(facts["namesrv"], senders=16)
                        await clients.enter_async_context(traffic)
                    await traffic.goes_on(1)
                    if life < CUTS // PARTS:
                        await asyncio.sleep(rng.random() / 2)
                        await asyncio.to_thread(cut_power, process, image)
                        traffic.life += 1
                        continue
                    await traffic.all_came()
                    process.terminate()
                    await asyncio.to_thread(process.wait, TIMEOUT_S)
        return traffic

    with mounted("ext4", tmp_path) as image:
        traffic = asyncio.run(main(image))
        figure("power cuts", traffic.life, "")
        figure("started again in", statistics.median(restarts[1:]), "s")
        figure("acknowledged", len(traffic.acknowledged), "messages")
        again = [lives for lives in traffic.got.values() if len(lives) > 1]
        figure("given out again", sum(len(lives) - 1 for lives in again), "times")
        assert not verify(store).findings
        with rmqcore.open_store(store, mode="r") as opened:
            stored = Counter(bytes(each.body) for each in opened.messages() if each.topic == TOPIC)
        assert traffic.acknowledged <= stored.keys()
        assert max(stored.values()) == 1, "a message that was sent once is stored twice"
        # a consumer is given a message again only where a cut took what it had settled
        assert all(len(set(lives)) == len(lives) for lives in again)
