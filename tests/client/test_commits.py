"""How far a group is, as its consumers tell brokers: in time, in order, and no other's queue."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from client.test_failures import name_server, started
from client.test_produce_and_consume import receive
from patience import TIMEOUT_S, until_async

from rmqcore.client import Admin, Consumer, Producer
from rmqcore.client.assignment import Assignment
from rmqcore.client.group_requests import GroupRequests
from rmqcore.remoting import RemotingTimeoutError, RequestCode

pytestmark = pytest.mark.engine


@asynccontextmanager
async def consuming(path):
    """A consumer that has received the only message of a broker."""
    async with name_server() as namesrv, Producer(namesrv) as producer:
        broker = await started(path, namesrv)
        await producer.send("T", b"x", queue_id=0)
        async with Consumer(namesrv, "G", {"T": "*"}, start="first") as consumer:
            await receive(consumer, 1)
            yield consumer
        await broker.stop()


def test_offsets_that_a_broker_has_lost_are_told_again(tmp_path, run, monkeypatch):
    monkeypatch.setattr("rmqcore.client.assignment._COMMIT_INTERVAL_S", 0.05)

    async def scenario():
        async with name_server() as namesrv, Producer(namesrv) as producer:
            broker = await started(tmp_path / "s", namesrv)
            for _ in range(3):
                await producer.send("T", b"m", queue_id=0)
            table = broker.store.consumer_offsets
            async with Consumer(namesrv, "G", {"T": "*"}, start="first") as consumer:
                for message in await receive(consumer, 3):
                    await consumer.ack(message)

                def is_told():
                    return table.get("T", "G", 0) == 3

                await until_async(is_told, "the offset")
                table.commit("T", "G", 0, 0)
                await until_async(is_told, "the offset again")
            await broker.stop()

    run(scenario())


def test_a_broker_that_takes_no_offset_is_told_no_other_in_the_same_round(
    tmp_path, run, monkeypatch
):
    monkeypatch.setattr("rmqcore.client.assignment._COMMIT_INTERVAL_S", 0.01)
    commit, refused, taken, refuses = GroupRequests.commit, [], set(), [True]

    async def told(requests, queue, offset, *, wait):
        if refuses and not wait:
            refused.append(queue)
            raise RemotingTimeoutError("127.0.0.1:1", RequestCode.UPDATE_CONSUMER_OFFSET, 3000)
        taken.add(queue)
        await commit(requests, queue, offset, wait=wait)

    async def scenario():
        async with consuming(tmp_path / "s") as consumer:
            monkeypatch.setattr(GroupRequests, "commit", told)
            await until_async(lambda: len(refused) >= 3, "three rounds")
            refuses.clear()
            all_here = {each.queue for each in consumer.assigned}
            await until_async(lambda: taken >= all_here, "each queue's offset is told")
        return all_here

    assert len(run(scenario())) > len(set(refused)) == 1


def test_a_queue_that_is_left_meanwhile_is_not_committed_with_the_others(
    tmp_path, run, monkeypatch
):
    monkeypatch.setattr("rmqcore.client.assignment._COMMIT_INTERVAL_S", 0.01)
    begun, goes_on, late = asyncio.Event(), asyncio.Event(), []

    async def told(requests, queue, offset, *, wait):
        if wait:
            return
        if begun.is_set() and not goes_on.is_set():
            pytest.fail("two at a time")
        begun.set()
        await goes_on.wait()
        late.append(queue)

    async def scenario():
        async with consuming(tmp_path / "s") as consumer:
            monkeypatch.setattr(GroupRequests, "commit", told)
            await begun.wait()
            had = [each.queue for each in consumer.assigned]
            await consumer._assignment._leave(had[1:])
            goes_on.set()
            await until_async(lambda: late, "the first one's offset is told")
        return had

    had = run(scenario())
    assert set(late).isdisjoint(had[1:])


def test_the_first_commit_of_a_topic_is_answered_before_there_is_another(tmp_path, run):
    async def scenario():
        open_now, seen = Counter(), []
        async with name_server() as namesrv:
            broker = await started(tmp_path / "s", namesrv)
            async with Admin(namesrv) as admin:
                for topic in ("T", "U"):
                    await admin.create_topic(topic, queues=4)
            consumer = Consumer(namesrv, "G", {"T": "*", "U": "*"}, start="first")
            commit = GroupRequests.commit

            def begun(topic):
                return sum(name == topic for name, _ in seen)

            async def watched(requests, queue, offset, *, wait):
                seen.append((queue.topic, open_now[queue.topic]))
                open_now[queue.topic] += 1
                await commit(requests, queue, offset, wait=wait)
                if begun(queue.topic) == 1:
                    # whoever began beside it has been answered what it asks before, too
                    for _ in range(3):
                        await requests.stored_offset(queue)
                else:
                    await until_async(
                        lambda: begun(queue.topic) == 4, f"the commits of {queue.topic}"
                    )
                open_now[queue.topic] -= 1

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(GroupRequests, "commit", watched)
                await consumer.start()
            await consumer.close()
            await broker.stop()
        return [[beside for topic, beside in seen if topic == name] for name in ("T", "U")]

    for beside in run(scenario()):
        assert beside == [0, 0, 1, 2]


def test_an_offset_of_the_start_does_not_overtake_the_last_one(tmp_path, run, monkeypatch):
    monkeypatch.setattr("rmqcore.client.assignment._COMMIT_INTERVAL_S", 10 * TIMEOUT_S)

    async def scenario():
        late, closed = set(), asyncio.Event()
        async with name_server() as namesrv, Producer(namesrv) as producer:
            broker = await started(tmp_path / "s", namesrv)
            commit = broker._server.processors[RequestCode.UPDATE_CONSUMER_OFFSET]

            async def by_threads(connection, request):
                # RocketMQ hands requests to many threads: what nobody waits for may come late
                if request.is_oneway:
                    late.add(asyncio.current_task())
                    await closed.wait()
                return commit(connection, request)

            broker._server.processors[RequestCode.UPDATE_CONSUMER_OFFSET] = by_threads
            await producer.send("T", b"x", queue_id=0)
            async with Consumer(namesrv, "G", {"T": "*"}, start="first") as consumer:
                await receive(consumer, 1)
            closed.set()
            await asyncio.gather(*late)
            stored = broker.store.consumer_offsets.get("T", "G", 0)
            await broker.stop()
        return stored

    assert run(scenario()) == 1


def test_what_was_settled_is_committed_by_a_consumer_that_closes_as_it_leaves_its_queues(
    tmp_path, run, monkeypatch
):
    monkeypatch.setattr("rmqcore.client.assignment._COMMIT_INTERVAL_S", 10 * TIMEOUT_S)
    commit, leaves, goes_on = GroupRequests.commit, asyncio.Event(), asyncio.Event()

    async def slowly(requests, queue, offset, *, wait):
        leaves.set()
        await goes_on.wait()
        await commit(requests, queue, offset, wait=wait)

    async def nothing(assignment, topic):
        return []

    async def scenario():
        async with name_server() as namesrv, Producer(namesrv) as producer:
            broker = await started(tmp_path / "s", namesrv)
            await producer.send("T", b"x", queue_id=0)
            consumer = Consumer(namesrv, "G", {"T": "*"}, start="first")
            await consumer.start()
            await receive(consumer, 1)
            # others have come, for whom it leaves its queues
            monkeypatch.setattr(GroupRequests, "commit", slowly)
            monkeypatch.setattr(Assignment, "_share_of", nothing)
            consumer._assignment._wanted.set()
            await leaves.wait()
            closing = asyncio.ensure_future(consumer.close())
            await until_async(lambda: not consumer._assignment._tasks, "nothing else goes on")
            goes_on.set()
            await closing
            stored = broker.store.consumer_offsets.get("T", "G", 0)
            await broker.stop()
        return stored

    assert run(scenario()) == 1
