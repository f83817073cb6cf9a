"""Ten thousand topics, a thousand connections, much traffic, kills: time and memory in figures.

`make storm ARGS=tests/broker/test_sizes.py` runs them. RMQCORE_SIZES_MIB says how much traffic
there is; its default is 1024 MiB.
"""

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from broker.serving import TOPIC, Traffic, serving
from patience import TIMEOUT_S, until_async

from rmqcore.client import Consumer
from rmqcore.java.json import format_compact_java_json
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode, ResponseCode
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.storm

TOPICS = 10_000
CONNECTIONS = 1000
KILLS = 10
TRAFFIC_MIB = int(os.environ.get("RMQCORE_SIZES_MIB", "1024"))
MIB = 1 << 20


def resident_mib(process, kind="VmRSS"):
    status = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith(f"{kind}:")]
    return int(line.split()[1]) / 1024


async def each(numbers, act, *, at_a_time=16):
    """Act on every number, so many at a time."""
    left = iter(numbers)

    async def one_after_the_other():
        for number in left:
            await act(number)

    await asyncio.gather(*(one_after_the_other() for _ in range(at_a_time)))


async def ask(client, address, code, fields=None, body=b""):
    answer = await client.invoke(address, RemotingCommand(code, fields or {}, body), 60_000)
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer


def send_fields(topic):
    return {
        **{"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "h": "0"},
        **{"g": str(wall_clock_ms()), "i": ""},
    }


async def create_topics(client, facts, figure):
    """Create them all, and wait until the name server knows the last one."""

    async def create(number):
        fields = {
            **{"topic": f"T{number:05}", "defaultTopic": "TBW102", "perm": "6"},
            **{"readQueueNums": "4", "writeQueueNums": "4", "topicFilterType": "SINGLE_TAG"},
            **{"topicSysFlag": "0", "order": "false"},
        }
        await ask(client, facts["broker"], RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    began = time.monotonic()
    await each(range(TOPICS), create)
    figure("created in", time.monotonic() - began, "s", at_most=60)
    route = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": f"T{TOPICS - 1:05}"})

    async def known():
        answer = await client.invoke(facts["namesrv"], route, 60_000)
        return answer.code == ResponseCode.SUCCESS

    created = time.monotonic()
    await until_async(known, "the name server knows the last topic")
    figure("all known behind the last", time.monotonic() - created, "s", at_most=15)
    figure("all known after", time.monotonic() - began, "s")


async def fill_topics(facts, process, figure):
    """Create the topics, list them, and send a message to each."""
    client, broker = RemotingClient(), facts["broker"]

    async def send(number):
        fields = send_fields(f"T{number:05}")
        await ask(client, broker, RequestCode.SEND_MESSAGE_V2, fields, b"x" * 100)

    try:
        before = resident_mib(process)
        await create_topics(client, facts, figure)
        began = time.monotonic()
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        listed = await ask(client, facts["namesrv"], code)
        assert bytes(listed.body).count(b'"T0') == TOPICS
        listed = await ask(client, broker, RequestCode.GET_ALL_TOPIC_CONFIG)
        assert int(listed.ext_fields["totalTopicNum"]) > TOPICS
        figure("listed in", time.monotonic() - began, "s")
        began = time.monotonic()
        await each(range(TOPICS), send)
        figure("one message each in", time.monotonic() - began, "s")
        figure("memory for them", resident_mib(process) - before, "MiB", at_most=200)
    finally:
        await client.close()


async def check_topics(facts):
    """Every hundredth topic has its message."""
    client = RemotingClient()
    try:
        for number in range(0, TOPICS, 100):
            fields = {"topic": f"T{number:05}", "queueId": "0"}
            answer = await ask(client, facts["broker"], RequestCode.GET_MAX_OFFSET, fields)
            assert answer.ext_fields["offset"] == "1"
    finally:
        await client.close()


def test_ten_thousand_topics(tmp_path, figure):
    for life, way in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL), 1):
        began = time.monotonic()
        with serving(tmp_path / "store") as (process, facts):
            figure(f"life {life}: started in", time.monotonic() - began, "s", at_most=60)
            if (tmp_path / "store" / "consumequeue" / "T00000").exists():
                asyncio.run(check_topics(facts))
            else:
                asyncio.run(fill_topics(facts, process, figure))
            began = time.monotonic()
            process.send_signal(way)
            process.wait(120)
            figure(f"life {life}: ended by {way.name} in", time.monotonic() - began, "s")


def test_a_thousand_connections_that_wait(tmp_path, figure):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * CONNECTIONS)), hard))

    async def main(facts, process):
        broker, clients = facts["broker"], [RemotingClient() for _ in range(CONNECTIONS)]
        await ask(clients[0], broker, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"first")
        before, began = resident_mib(process), time.monotonic()
        subscription = {
            **{"classFilterMode": False, "codeSet": [], "expressionType": "TAG", "subString": "*"},
            **{"subVersion": 1, "tagsSet": [], "topic": "T"},
        }

        async def beat(number):
            consumer = {
                **{"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False},
                **{"consumeType": "CONSUME_PASSIVELY", "groupName": f"G{number % 50}"},
                **{"messageModel": "CLUSTERING", "subscriptionDataSet": [subscription]},
            }
            body = {"clientID": f"c{number}", "consumerDataSet": [consumer], "producerDataSet": []}
            text = format_compact_java_json(body).encode()
            await ask(clients[number], broker, RequestCode.HEART_BEAT, {}, text)

        async def pull(number):
            fields = {
                **{"consumerGroup": f"G{number % 50}", "topic": "T", "queueId": "0"},
                **{"queueOffset": "1", "maxMsgNums": "32", "sysFlag": "2", "commitOffset": "0"},
                **{"suspendTimeoutMillis": "30000", "subVersion": "1"},
            }
            return await ask(clients[number], broker, RequestCode.PULL_MESSAGE, fields)

        async def answered(number):
            fields = {"topic": "T", "queueId": "0"}
            await ask(clients[number], broker, RequestCode.GET_MAX_OFFSET, fields)

        try:
            await each(range(CONNECTIONS), beat, at_a_time=100)
            figure("connected, with heart-beats, in", time.monotonic() - began, "s")
            waiting = [asyncio.ensure_future(pull(number)) for number in range(CONNECTIONS)]
            # an answer behind a pull on its connection says that the pull is held
            await each(range(CONNECTIONS), answered)
            assert not any(pull.done() for pull in waiting)
            grown = resident_mib(process) - before
            figure("memory a connection", grown * 1024 / CONNECTIONS, "KiB", at_most=100)
            began = time.monotonic()
            await ask(clients[0], broker, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"second")
            answers = await asyncio.gather(*waiting)
            figure("one message to all in", time.monotonic() - began, "s", at_most=20)
            assert all(b"second" in bytes(answer.body) for answer in answers)
        finally:
            await asyncio.gather(*(client.close() for client in clients))

    with serving(tmp_path / "store") as (process, facts):
        asyncio.run(main(facts, process))


def test_much_traffic_in_little_memory(tmp_path, figure):
    """One consumer of the client reads all of it while it is sent, each queue in its order."""
    body = os.urandom(8192)
    count = TRAFFIC_MIB * MIB // len(body)

    async def main(facts, process):
        client, consumed, peak = RemotingClient(), Counter(), 0

        async def send(number):
            fields = {**send_fields(TOPIC), "e": str(number % 4)}
            await ask(client, facts["broker"], RequestCode.SEND_MESSAGE_V2, fields, body)

        async def consume():
            async with Consumer(facts["namesrv"], "G", {TOPIC: "*"}, start="first") as consumer:
                async for message in consumer:
                    assert message.queue_offset == consumed[message.queue_id]
                    assert message.body == body
                    consumed[message.queue_id] += 1
                    await consumer.ack(message)
                    if consumed.total() == count:
                        return

        async def watch():
            nonlocal peak
            while True:
                peak = max(peak, resident_mib(process, "RssAnon"))
                await asyncio.sleep(0.2)

        try:
            await send(0)
            watching = asyncio.ensure_future(watch())
            began = time.monotonic()
            reading = asyncio.ensure_future(consume())
            await each(range(1, count), send, at_a_time=32)
            figure("sent", TRAFFIC_MIB / (time.monotonic() - began), "MiB/s")
            sent = time.monotonic()
            async with asyncio.timeout(120):
                await reading
            figure("all read behind the last", time.monotonic() - sent, "s", at_most=120)
            figure("all read", TRAFFIC_MIB / (time.monotonic() - began), "MiB/s")
            watching.cancel()
            figure("own memory at most", peak, "MiB", at_most=200)
        finally:
            await client.close()

    big = ("-c", f"mappedFileSizeCommitLog={64 * MIB}")
    with serving(tmp_path / "store", *big) as (process, facts):
        asyncio.run(main(facts, process))


def test_consumers_go_on_by_themselves_while_the_broker_is_killed_ten_times(tmp_path, figure):
    """One producer and one consumer of the client live through it; nothing acknowledged is lost."""

    async def main():
        async with contextlib.AsyncExitStack() as clients:
            traffic, places = None, ("--namesrv-port", "0", "--port", "0")
            for life in range(KILLS + 1):
                with serving(tmp_path / "store", *places) as (process, facts):
                    if traffic is None:
                        ports = [facts[name].rpartition(":")[2] for name in ("namesrv", "broker")]
                        places = ("--namesrv-port", ports[0], "--port", ports[1])
                        traffic = await clients.enter_async_context(Traffic(facts["namesrv"]))
                    await traffic.goes_on(50)
                    if life < KILLS:
                        traffic.life += 1
                        process.kill()
                        await asyncio.to_thread(process.wait, TIMEOUT_S)
                        continue
                    began = time.monotonic()
                    await traffic.all_came()
                    figure("the rest came in", time.monotonic() - began, "s")
        figure("acknowledged", len(traffic.acknowledged), "messages")
        figure("given out again", sum(len(lives) - 1 for lives in traffic.got.values()), "times")

    asyncio.run(main())
