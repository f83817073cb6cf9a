"""Who reads what is not in memory waits for the disk; nobody else does, and nothing is undone."""

import asyncio
import contextlib
import threading

import pytest
from patience import TIMEOUT_S, until_async

import rmqcore
from rmqcore.broker import Broker
from rmqcore.broker.pop import checkpoints
from rmqcore.files.config_tables import TopicConfig
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode, ResponseCode
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.testing import SMALL_FILES

pytestmark = pytest.mark.engine

QUEUES, EACH = 4, 20
PULL = {
    **{"consumerGroup": "CG", "topic": "T", "queueId": 1, "queueOffset": 2, "maxMsgNums": 32},
    **{"sysFlag": 5, "commitOffset": 2, "suspendTimeoutMillis": 0, "subVersion": 0},
    **{"subscription": "*"},
}
POP = {
    **{"consumerGroup": "CG", "topic": "T", "queueId": -1, "maxMsgNums": 8, "initMode": 0},
    **{"invisibleTime": 60_000, "pollTime": 0, "bornTime": 1 << 60, "expType": "TAG", "exp": "*"},
}
SEND = {
    **{"producerGroup": "PG", "topic": "T", "queueId": 0, "sysFlag": 0, "bornTimestamp": 0},
    **{"flag": 0, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4},
}
OFFSET = {"consumerGroup": "CG", "topic": "T", "queueId": 1}


@pytest.fixture
def store_path(tmp_path):
    """Some messages in each queue of a topic."""
    with rmqcore.open_store(tmp_path / "s", **SMALL_FILES) as store:
        topic = TopicConfig(topic_name="T", read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        store.topics.put(topic)
        for number in range(QUEUES * EACH):
            tags = "ab"[number // QUEUES % 2]
            store.put("T", b"%d" % number, queue_id=number % QUEUES, tags=tags)
    return tmp_path / "s"


class Disk:
    """A disk that has all, of which nothing is in memory; it can be held up."""

    def __init__(self, patch):
        self.fetched = []
        self.asked = threading.Event()
        self.goes_on = threading.Event()
        self._fetch = DefaultMessageStore.fetch
        patch.setattr(DefaultMessageStore, "is_cached", self._is_cached)
        patch.setattr(DefaultMessageStore, "get_cached", lambda *_: None)

        def fetch(store, *place, **bounds):
            self.fetch(store, *place, **bounds)

        patch.setattr(DefaultMessageStore, "fetch", fetch)

    def _is_cached(self, topic, queue_id, queue_offset, **_):
        return (topic, queue_id, queue_offset) in self.fetched

    def fetch(self, store, topic, queue_id, queue_offset, **bounds):
        self.asked.set()
        assert self.goes_on.wait(TIMEOUT_S)
        self._fetch(store, topic, queue_id, queue_offset, **bounds)
        self.fetched.append((topic, queue_id, queue_offset))


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


class Peer:
    """Two connections to a broker."""

    def __init__(self, broker):
        self.broker = broker
        self.clients = RemotingClient(), RemotingClient()

    async def ask(self, code, body=b"", *, client=0, **fields):
        texts = {name: str(value) for name, value in fields.items()}
        command = RemotingCommand(code, texts, body)
        return await self.clients[client].invoke(self.broker.address, command, TIMEOUT_S * 1000)

    async def meanwhile(self, disk, code, **fields):
        """The task of a request that waits for the disk now, while others are answered."""
        task = asyncio.create_task(self.ask(code, **fields))
        while not disk.asked.is_set():
            other = await self.ask(RequestCode.GET_MAX_OFFSET, client=1, topic="T", queueId=1)
            assert other.ext_fields["offset"] == str(EACH)
        assert not task.done()
        return task

    async def committed(self):
        answer = await self.ask(RequestCode.QUERY_CONSUMER_OFFSET, client=1, **OFFSET)
        return answer.ext_fields.get("offset")

    async def close(self):
        for client in self.clients:
            await client.close()


def served(path, scenario):
    async def run():
        broker = Broker(path, {"listenPort": 0, **SMALL_FILES})
        await broker.start()
        peer = Peer(broker)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await scenario(peer)
        finally:
            await peer.close()
            await broker.stop()

    return asyncio.run(run())


def offsets_in(answer):
    """The queue offsets that a POP has handed out, by queue."""
    entries = answer.ext_fields["msgOffsetInfo"].split(";")
    return {int(entry.split(" ")[1]): entry.split(" ")[2] for entry in entries}


@pytest.mark.parametrize("subscription", ["*", "a", "b || c"])
def test_others_are_answered_while_a_pull_waits_for_the_disk(store_path, disk, subscription):
    async def scenario(peer):
        wanted = {**PULL, "subscription": subscription}
        pull = await peer.meanwhile(disk, RequestCode.PULL_MESSAGE, **wanted)
        disk.goes_on.set()
        answer = await pull
        assert answer.code == ResponseCode.SUCCESS
        return answer.ext_fields["nextBeginOffset"]

    assert served(store_path, scenario) == str(EACH)
    assert disk.fetched == [("T", 1, 2)]


def test_what_is_committed_while_a_pull_waits_for_the_disk_stays(store_path, disk):
    async def scenario(peer):
        pull = await peer.meanwhile(disk, RequestCode.PULL_MESSAGE, **PULL)
        assert await peer.committed() == "2"
        update = RequestCode.UPDATE_CONSUMER_OFFSET
        assert (await peer.ask(update, client=1, **OFFSET, commitOffset=12)).code == 0
        disk.goes_on.set()
        assert (await pull).code == ResponseCode.SUCCESS
        return await peer.committed()

    assert served(store_path, scenario) == "12"


def test_a_reset_reaches_a_pull_that_waits_for_the_disk(store_path, disk):
    async def scenario(peer):
        pull = await peer.meanwhile(disk, RequestCode.PULL_MESSAGE, **PULL)
        offsets = peer.broker.managers.offsets
        offsets.commit("CG", "T", 1, 1)
        offsets.resets["CG", "T", 1] = 1
        disk.goes_on.set()
        answer = await pull
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        return answer.ext_fields["nextBeginOffset"], await peer.committed()

    assert served(store_path, scenario) == ("1", "1")


def test_a_topic_that_is_forbidden_meanwhile_is_not_read(store_path, disk):
    async def scenario(peer):
        pull = await peer.meanwhile(disk, RequestCode.PULL_MESSAGE, **PULL)
        peer.broker.managers.groups.set_readable("CG", "T", False)
        disk.goes_on.set()
        codes = [(await pull).code]
        peer.broker.managers.groups.set_readable("CG", "T", True)
        disk.asked.clear()
        disk.goes_on.clear()
        pop = await peer.meanwhile(disk, RequestCode.POP_MESSAGE, **{**POP, "queueId": 3})
        peer.broker.managers.groups.set_readable("CG", "T", False)
        disk.goes_on.set()
        answer = await pop
        assert answer.ext_fields["restNum"] == "0"
        return [*codes, answer.code]

    assert served(store_path, scenario) == [ResponseCode.NO_PERMISSION] * 2


def test_a_pop_that_finds_the_bound_reached_behind_the_disk_is_handed_nothing(
    store_path, disk, monkeypatch
):
    async def scenario(peer):
        pop = await peer.meanwhile(disk, RequestCode.POP_MESSAGE, **POP)
        for name in ("CHECKPOINTS_MAX", "RESERVED_CHECKPOINTS"):
            monkeypatch.setattr(checkpoints, name, 0)
        disk.goes_on.set()
        assert (await pop).code == ResponseCode.POLLING_FULL
        assert len(peer.broker.managers.checkpoints) == 0

    served(store_path, scenario)


def test_others_are_answered_while_a_pop_waits_for_the_disk(store_path, disk):
    async def scenario(peer):
        pop = await peer.meanwhile(disk, RequestCode.POP_MESSAGE, **POP)
        disk.goes_on.set()
        answer = await pop
        assert answer.code == ResponseCode.SUCCESS
        return offsets_in(answer)

    ((queue_id, given),) = served(store_path, scenario).items()
    assert given == "0,1,2,3,4,5,6,7"
    # one queue has enough: no other is read
    assert disk.fetched == [("T", queue_id, 0)]


def test_a_pop_hands_out_what_is_in_memory_before_it_reads_the_disk(store_path, disk):
    disk.fetched.append(("T", 2, 0))

    async def scenario(peer):
        return offsets_in(await peer.ask(RequestCode.POP_MESSAGE, **POP))

    assert served(store_path, scenario) == {2: "0,1,2,3,4,5,6,7"}


def test_pops_that_wait_together_each_read_their_own(store_path, disk):
    async def scenario(peer):
        wanted = {**POP, "queueId": 1, "maxMsgNums": 5}
        first = await peer.meanwhile(disk, RequestCode.POP_MESSAGE, **wanted)
        others = [
            asyncio.create_task(peer.ask(RequestCode.POP_MESSAGE, client=n % 2, **wanted))
            for n in range(3)
        ]
        # the loop has taken them in
        await peer.ask(RequestCode.GET_MAX_OFFSET, client=1, topic="T", queueId=1)
        disk.goes_on.set()
        return [offsets_in(await task)[1] for task in (first, *others)]

    given = served(store_path, scenario)
    starts = sorted(int(text.split(",")[0]) for text in given)
    assert starts == [0, 5, 10, 15]
    assert {("T", 1, start) for start in starts} == set(disk.fetched)


def test_who_has_gone_meanwhile_is_given_nothing(store_path, disk):
    async def scenario(peer):
        pop = await peer.meanwhile(disk, RequestCode.POP_MESSAGE, **{**POP, "queueId": 1})
        await peer.clients[0].close()
        with contextlib.suppress(OSError):
            await pop
        await until_async(
            lambda: len(peer.broker._server.connections) == 1, "one connection is closed"
        )
        disk.goes_on.set()
        again = await peer.ask(RequestCode.POP_MESSAGE, client=1, **{**POP, "queueId": 1})
        return offsets_in(again)

    assert served(store_path, scenario) == {1: "0,1,2,3,4,5,6,7"}


def test_a_disk_that_refuses_is_the_gets_to_tell(store_path, disk, monkeypatch):
    """A queue that is damaged holds no other up."""
    disk.goes_on.set()

    def refuse(*_, **__):
        raise OSError(5, "no")

    monkeypatch.setattr("rmqcore.store.parts.general_reads.GeneralReads.fetch", refuse)

    async def scenario(peer):
        pull = await peer.ask(RequestCode.PULL_MESSAGE, **PULL)
        return pull.code, (await peer.ask(RequestCode.POP_MESSAGE, **POP)).code

    assert served(store_path, scenario) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)


def test_others_are_answered_while_a_timer_message_is_read_from_the_disk(store_path, disk, clock):
    async def scenario(peer):
        properties = f"TIMER_DELIVER_MS\x01{clock.now_ms + 100}\x02"
        sent = await peer.ask(RequestCode.SEND_MESSAGE, b"x", **SEND, properties=properties)
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        clock.go_on(100, peer.broker)

        async def end():
            answer = await peer.ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)
            return int(answer.ext_fields["offset"])

        await until_async(disk.asked.is_set, "the message is read from the disk")
        assert await end() == EACH
        disk.goes_on.set()

        async def delivered():
            return await end() == EACH + 1

        await until_async(delivered, "the message is in its topic")

    served(store_path, scenario)
    assert disk.fetched == [("rmq_sys_wheel_timer", 0, 0)]
