"""What one client may make a broker keep, or compute, while others are served."""

import asyncio
import json

import pytest
from broker.conftest import LONG_MS, held
from patience import until_async

from rmqcore import open_store
from rmqcore.broker.pop import waiting as pop_waiting
from rmqcore.broker.pop.waiting import WaitingPop, WaitingPops
from rmqcore.broker.pull import matching, waiting
from rmqcore.broker.pull.matching import get_matching
from rmqcore.broker.pull.waiting import WaitingPull, WaitingPulls
from rmqcore.broker.state.client_requests import ClientRequests
from rmqcore.broker.state.clients import ConsumerGroup
from rmqcore.broker.state.consumer_notices import TOLD_AT_ONCE, ConsumerNotices
from rmqcore.remoting import (
    Account,
    Connection,
    RemotingCommand,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    turns,
)
from rmqcore.remoting.json_body import ACKS_MAX
from rmqcore.remoting.permissions import note_account
from rmqcore.status import GetMessageStatus
from rmqcore.store.consume.sql92 import _COMPILED, _KEPT_LENGTH, compile_condition

pytestmark = pytest.mark.engine


class Waking:
    """Notes which of the requests that wait were woken, and with what."""

    def __init__(self):
        self.woken = []

    def pull(self, connection, name, queue=("T", 0)):
        return WaitingPull(connection, queue, lambda arrived: self.woken.append((name, arrived)))

    def pop(self, connection, name, key=("T", "G", 0)):
        return WaitingPop(connection, key, lambda arrived: self.woken.append((name, arrived)))


class Client:
    """A connection as far as those who wait know it."""

    closed = False

    def __init__(self):
        self.attributes = {}

    @property
    def owner(self):
        return self


@pytest.fixture(autouse=True)
def rounds_by_number(monkeypatch):
    """Let a round end when it has woken as many as it may, however long that takes here."""
    monkeypatch.setattr(waiting, "WOKEN_FOR_S", 3600)


@pytest.mark.parametrize("how", ["arrived", "comes again"])
def test_a_notification_takes_neither_a_pops_turn_nor_its_place(how, monkeypatch):
    monkeypatch.setattr(pop_waiting, "_OF_ONE_KEY_MAX", 2)

    async def scene():
        waking, pops = Waking(), WaitingPops()
        told = [waking.pop(Client(), f"told {number}") for number in range(3)]
        for each in told:
            each.takes = False
        assert [pops.add(each, 60) for each in told] == [True, True, False]
        assert pops.add(waking.pop(Client(), "pop"), 60)
        assert pops.waiting(("T", "G", 0)) == 1
        if how == "arrived":
            pops.arrived("T", 0)
        else:
            pops.wake_one(("T", "G", 0))
        await asyncio.sleep(0)
        assert sorted(waking.woken) == [("pop", True), ("told 0", True)]
        pops.release()
        assert ("told 1", False) in waking.woken

    asyncio.run(scene())


def test_a_round_of_those_that_are_woken_has_an_end_in_time(monkeypatch):
    """Each of them may look into very many queues."""
    monkeypatch.setattr(waiting, "WOKEN_FOR_S", -1)

    async def scene():
        waking, pulls, served = Waking(), WaitingPulls(), []
        for number in range(3):
            pulls.add(waking.pull(Client(), number), 60)
        pulls.arrived("T", 0)
        while len(pulls):
            served.append(len(waking.woken))
            await asyncio.sleep(0)
        assert served == [1, 2]

    asyncio.run(scene())


def test_between_the_pulls_that_a_message_wakes_others_are_served():
    async def scene():
        waking, pulls, served = Waking(), WaitingPulls(), []
        for number in range(5 * waiting.WOKEN_AT_ONCE):
            pulls.add(waking.pull(Client(), number), 60)
        pulls.arrived("T", 0)
        pulls.arrived("T", 0)
        while len(pulls):
            served.append(len(waking.woken))
            await asyncio.sleep(0)
        assert served == [waiting.WOKEN_AT_ONCE * rounds for rounds in (1, 2, 3, 4)]
        assert waking.woken == [(number, True) for number in range(5 * waiting.WOKEN_AT_ONCE)]

    asyncio.run(scene())


class Told(Client):
    """A connection that notes of which groups it is told."""

    def __init__(self, told):
        self.told = told

    def notify(self, command):
        self.told.append(command.ext_fields["consumerGroup"])


def test_between_the_clients_of_a_group_that_are_told_of_a_change_others_are_served():
    async def scene():
        told, tell, rounds = [], ConsumerNotices(), []
        large, small = (ConsumerGroup(name, "", "", "") for name in ("large", "small"))
        large.clients = dict.fromkeys([Told(told) for _ in range(2 * TOLD_AT_ONCE)])
        small.clients = dict.fromkeys([Told(told)])
        tell(large)
        tell(small)
        for _ in range(4):
            await asyncio.sleep(0)
            rounds.append(len(told))
            if len(rounds) <= 2:
                tell(large)
        assert rounds == [TOLD_AT_ONCE * n for n in (1, 2, 3, 4)]
        while told.count("large") < 4 * TOLD_AT_ONCE:
            await asyncio.sleep(0)
        assert told.index("small") == 2 * TOLD_AT_ONCE
        for _ in range(9):
            await asyncio.sleep(0)
        assert told.count("large") == 4 * TOLD_AT_ONCE
        tell(small)
        await asyncio.sleep(0)
        assert told.count("small") == 2

    asyncio.run(scene())


def test_the_pulls_of_one_client_do_not_keep_others_from_being_woken():
    async def scene():
        waking, pulls, greedy, honest = Waking(), WaitingPulls(), Client(), Client()
        for number in range(10 * waiting.WOKEN_AT_ONCE):
            pulls.add(waking.pull(greedy, number), 60)
        pulls.add(waking.pull(honest, "honest", ("T", 1)), 60)
        pulls.arrived("T", 0)
        pulls.arrived("T", 1)
        await asyncio.sleep(0)
        assert ("honest", True) in waking.woken
        assert len(waking.woken) <= 2 * waiting.WOKEN_AT_ONCE
        while len(pulls):
            await asyncio.sleep(0)
        assert len(waking.woken) == 10 * waiting.WOKEN_AT_ONCE + 1

    asyncio.run(scene())


def test_the_groups_of_one_client_do_not_keep_another_from_being_woken():
    async def scene():
        waking, pops, greedy, honest = Waking(), WaitingPops(), Client(), Client()
        for number in range(10 * waiting.WOKEN_AT_ONCE):
            pops.add(waking.pop(greedy, number, ("T", f"G{number}", 0)), 60)
        for number in (1, 2):
            pops.add(waking.pop(honest, f"honest {number}"), 60)
        pops.arrived("T", 0)
        pops.arrived("T", 0)
        assert len(waking.woken) == waiting.WOKEN_AT_ONCE
        await asyncio.sleep(0)
        assert {("honest 1", True), ("honest 2", True)} < set(waking.woken)
        assert len(waking.woken) == 2 * waiting.WOKEN_AT_ONCE
        while len(pops):
            await asyncio.sleep(0)
        assert len(waking.woken) == 10 * waiting.WOKEN_AT_ONCE + 2

    asyncio.run(scene())


@pytest.mark.parametrize("kind", ["pull", "pop"])
def test_long_texts_of_those_who_wait_have_a_bound_for_each_client_and_for_all(monkeypatch, kind):
    monkeypatch.setattr(waiting, "_TEXTS_OF_ONE_MAX", 1000)
    monkeypatch.setattr(waiting, "_TEXTS_MAX", 1500)

    async def scene():
        waking = Waking()
        held = WaitingPulls() if kind == "pull" else WaitingPops()

        def wait(client, size):
            before = len(held)
            one = getattr(waking, kind)(client, size)
            one.text_size = size
            held.add(one, 60)
            return len(held) - before

        first, second = Client(), Client()
        assert [wait(first, size) for size in (256 + 900, 256 + 101, 256)] == [1, 0, 1]
        assert [wait(second, size) for size in (256 + 601, 256 + 600, 256)] == [0, 1, 1]
        held.forget(first)
        assert wait(second, 256 + 400) == 1
        held.forget(second)
        assert held._texts._sizes == {}

    asyncio.run(scene())


def test_a_pop_that_is_to_look_again_at_a_time_has_that_timer_only_while_it_waits():
    async def scene():
        waking, pops, one = Waking(), WaitingPops(), Client()
        assert pops.add(waking.pop(one, "now"), 60, 0.0)
        await until_async(lambda: waking.woken == [("now", True)], "it is woken")
        later = waking.pop(one, "later")
        assert pops.add(later, 60, 30)
        pops.arrived("T", 0)
        assert waking.woken[1:] == [("later", True)]
        assert later.timer.cancelled()

    asyncio.run(scene())


def test_a_pull_that_waits_again_is_woken_by_the_next_message_only():
    async def scene():
        pulls, woken, one = WaitingPulls(), [], Client()

        def wake(arrived):
            woken.append(arrived)
            pulls.add(WaitingPull(one, ("T", 0), wake), 60)

        for _ in range(2 * waiting.WOKEN_AT_ONCE):
            pulls.add(WaitingPull(one, ("T", 0), wake), 60)
        for messages in (1, 2):
            pulls.arrived("T", 0)
            for _ in range(4):
                await asyncio.sleep(0)
            assert len(woken) == messages * 2 * waiting.WOKEN_AT_ONCE
        pulls.forget(one)
        assert (len(pulls), len(pulls._counts)) == (0, 0)

    asyncio.run(scene())


def test_a_connection_has_so_many_pulls_on_a_queue(monkeypatch):
    monkeypatch.setattr(waiting, "_OF_ONE_QUEUE_MAX", 3)

    async def scene():
        waking, pulls, one = Waking(), WaitingPulls(), Client()
        assert all(pulls.add(waking.pull(one, number), 60) for number in range(3))
        assert not pulls.add(waking.pull(one, "too many"), 60)
        assert pulls.add(waking.pull(one, "another queue", ("T", 1)), 60)
        assert pulls.add(waking.pull(Client(), "another client"), 60)
        assert len(pulls) == 5
        pulls.release()
        assert pulls.add(waking.pull(one, "late"), 60)
        await asyncio.sleep(0)
        assert ("late", False) in waking.woken
        assert len(waking.woken) == 6

    asyncio.run(scene())


def test_a_client_with_too_many_pulls_is_told_to_come_again_later(with_broker, monkeypatch):
    monkeypatch.setattr(waiting, "_OF_ONE_QUEUE_MAX", 1)

    async def scene(broker, peer):
        await peer.send("T", b"one")
        waiting = asyncio.ensure_future(peer.pull("T", offset=1, suspend_ms=LONG_MS))
        await held(broker.managers.waiting_pulls)
        busy = await peer.pull("T", offset=1, suspend_ms=LONG_MS)
        assert busy.code == ResponseCode.SYSTEM_BUSY
        assert (await peer.pull("T", suspend_ms=LONG_MS)).code == ResponseCode.SUCCESS
        await peer.send("T", b"two")
        assert (await waiting).code == ResponseCode.SUCCESS

    with_broker(scene)


def test_whose_pops_take_all_places_makes_room_for_another_client(monkeypatch):
    monkeypatch.setattr(pop_waiting, "_MAX", 4)

    async def scene():
        waking, pops, greedy, honest = Waking(), WaitingPops(), Client(), Client()
        for number in range(4):
            assert pops.add(waking.pop(greedy, number), 60)
        assert not pops.add(waking.pop(greedy, 4), 60)
        assert pops.add(waking.pop(honest, "a"), 60)
        assert pops.add(waking.pop(honest, "b"), 60)
        assert not pops.add(waking.pop(honest, "c"), 60)
        assert waking.woken == [(0, False), (1, False)]
        assert len(pops) == 4

    asyncio.run(scene())


def test_a_pop_waits_no_longer_than_the_broker_lets_it(monkeypatch):
    monkeypatch.setattr(pop_waiting, "WAIT_S_MAX", 0.0)

    async def scene():
        waking, pops = Waking(), WaitingPops()
        assert pops.add(waking.pop(Client(), "endless"), LONG_MS)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waking.woken == [("endless", False)]

    asyncio.run(scene())


@pytest.mark.usefixtures("long_hold")
def test_what_comes_with_a_pull_is_not_kept_while_it_waits(with_broker, monkeypatch):
    answered = []
    answer = Connection.answer

    def note(connection, request, command):
        answered.append(request)
        return answer(connection, request, command)

    async def scene(broker, peer):
        await peer.send("T", b"one")
        fields = {
            **{"consumerGroup": "CG", "topic": "T", "queueId": 0, "queueOffset": 1},
            **{"maxMsgNums": 1, "sysFlag": 6, "commitOffset": 0, "subVersion": 0},
            **{"suspendTimeoutMillis": LONG_MS, "subscription": "*"},
        }
        waiting = asyncio.ensure_future(peer.ask(11, fields, b"x" * 100_000))
        await held(broker.managers.waiting_pulls)
        monkeypatch.setattr(Connection, "answer", note)
        await peer.send("T", b"two")
        await waiting
        kept = [(request.body, request.ext_fields) for request in answered if request.code == 11]
        assert kept == [(b"", {})]

    with_broker(scene)


@pytest.fixture
def store(store_path):
    with open_store(store_path) as store:
        yield store


def test_a_look_makes_no_more_comparisons_than_it_may(store, monkeypatch):
    monkeypatch.setattr(matching, "_COMPARED_MAX", 100)
    for _ in range(60):
        store.put("T", b"x", properties={"a": "1"})
    store.flush()

    def look(expression, offset):
        condition = compile_condition(expression)
        return get_matching(store, "T", 0, offset, condition, max_messages=32, max_bytes=1 << 20)

    long = " OR ".join(["a < 0"] * 10)
    assert compile_condition(long).cost == 10
    found = look(long, 0)
    assert (found.status, found.next_queue_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 10)
    assert look(" OR ".join(["a < 0"] * 1000), 10).next_queue_offset == 11
    assert look("a < 0", 0).next_queue_offset == 60
    assert len(look(long + " OR a = 1", 0)) == 9


def test_the_conditions_that_are_kept_are_so_long_at_most():
    for number in range(40):
        compile_condition(f"a{number} = 1 OR " + " OR ".join(["a < 0"] * 900))
    assert _COMPILED._length == sum(map(len, _COMPILED._found)) <= _KEPT_LENGTH
    assert compile_condition("b = 1") is compile_condition("b = 1")


async def driven(coroutine):
    """How often others have their turn until a coroutine is done, and what it returns."""
    task, turns = asyncio.ensure_future(coroutine), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return turns, task.result()


def test_others_are_served_between_many_acknowledgements(with_broker, monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)

    def acknowledging(count):
        entry = {"c": "G", "t": "T", "so": 0, "q": 0, "pt": 1, "b": "AQ=="}
        return json.dumps({"acks": [entry] * count}).encode()

    async def scenario(broker, peer):
        request = RemotingCommand(RequestCode.BATCH_ACK_MESSAGE, body=acknowledging(3))
        given, answer = await driven(broker.managers.pop_acks.acknowledge_many(None, request))
        assert given > 3
        assert answer.code == ResponseCode.SUCCESS
        monkeypatch.setattr(turns, "TURN_S", 3600)
        for count, code in ((ACKS_MAX, 0), (ACKS_MAX + 1, 1)):
            body = acknowledging(count)
            assert (await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == code

    with_broker(scenario)


def test_others_are_served_between_many_locks(with_broker, monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def scenario(broker, _):
        locks = broker.managers.locks
        queues = [{"topic": "T", "queueId": number} for number in range(3)]
        named = {"consumerGroup": "G", "clientId": "c", "mqSet": queues}
        for code, done, held_then in (
            (RequestCode.LOCK_BATCH_MQ, locks.lock, 3),
            (RequestCode.UNLOCK_BATCH_MQ, locks.unlock, 0),
        ):
            request = RemotingCommand(code, body=json.dumps(named).encode())
            given, answer = await driven(done(Client(), request))
            assert given > 3
            assert (answer.code, len(locks)) == (ResponseCode.SUCCESS, held_then)
        assert not locks.holds_any("G")

    with_broker(scenario)


def beat_of(client_id, count):
    """The heart-beat of a client that is in so many groups, of consumers and of producers."""
    consumers = [{"groupName": f"g{number}"} for number in range(count)]
    producers = [{"groupName": f"p{number}"} for number in range(count)]
    body = {"clientID": client_id, "consumerDataSet": consumers, "producerDataSet": producers}
    return RemotingCommand(RequestCode.HEART_BEAT, body=json.dumps(body).encode())


def test_others_are_served_between_the_groups_of_a_heart_beat(with_broker, monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def scenario(broker, _):
        managers = broker.managers
        asked = ClientRequests(managers).heart_beat(Client(), beat_of("c", 3))
        given, answer = await driven(asked)
        assert given > 6
        assert answer.code == ResponseCode.SUCCESS
        assert (len(managers.consumers.members), len(managers.producers.members)) == (3, 3)
        monkeypatch.setattr(turns, "TURN_S", 3600)
        # that of few groups is answered before the request behind it is looked at
        answer = ClientRequests(managers).heart_beat(Client(), beat_of("d", 3))
        assert answer.code == ResponseCode.SUCCESS

    with_broker(scenario)


def test_a_client_that_goes_in_the_middle_of_its_heart_beat_is_in_no_group(
    with_broker, monkeypatch
):
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def scenario(broker, _):
        managers, client = broker.managers, Client()
        asked = asyncio.ensure_future(ClientRequests(managers).heart_beat(client, beat_of("c", 9)))
        await asyncio.sleep(0)
        client.closed = True
        managers.consumers.forget(client)
        managers.producers.forget(client)
        await asked
        assert (len(managers.consumers.members), len(managers.producers.members)) == (0, 0)

    with_broker(scenario)


def test_an_id_that_another_account_takes_in_the_middle_of_a_heart_beat_is_refused(
    with_broker, monkeypatch
):
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def scenario(broker, _):
        managers = broker.managers
        first, second = Client(), Client()
        for client, key in ((first, "one"), (second, "two")):
            note_account(client, Account(key, "secret"))
        asked = asyncio.ensure_future(ClientRequests(managers).heart_beat(first, beat_of("c", 3)))
        await asyncio.sleep(0)
        await ClientRequests(managers).heart_beat(second, beat_of("c", 1))
        with pytest.raises(RequestRefusedError, match="another account"):
            await asked
        assert managers.producers.by_client_id("c") is second

    with_broker(scenario)


def leaving_of(number):
    fields = {"clientID": "c", "consumerGroup": f"g{number}", "producerGroup": f"p{number}"}
    return RemotingCommand(RequestCode.UNREGISTER_CLIENT, fields)


def test_who_leaves_a_group_in_the_middle_of_a_heart_beat_is_not_in_it(with_broker, monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def scenario(broker, _):
        managers, client = broker.managers, Client()
        asked = ClientRequests(managers)
        answers = [
            asyncio.ensure_future(asked.heart_beat(client, beat_of("c", 5))),
            asyncio.ensure_future(asked.unregister(client, leaving_of(4))),
            asyncio.ensure_future(asked.unregister(client, leaving_of(3))),
            asyncio.ensure_future(asked.heart_beat(client, beat_of("d", 4))),
        ]
        assert all(answer.code == ResponseCode.SUCCESS for answer in await asyncio.gather(*answers))
        assert set(managers.consumers.groups) >= {"g0", "g1", "g2", "g3"}
        assert "g4" not in managers.consumers.groups
        assert sorted(managers.producers.groups) == ["p0", "p1", "p2", "p3"]
        # the later one is what counts
        assert managers.producers.by_client_id("d") is client
        assert managers.producers.by_client_id("c") is None
        # and nothing is waited for any more
        monkeypatch.setattr(turns, "TURN_S", 3600)
        assert asked.unregister(client, leaving_of(3)).code == ResponseCode.SUCCESS

    with_broker(scenario)


def test_a_heart_beat_behind_one_that_is_refused_is_taken(with_broker, monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def scenario(broker, _):
        managers = broker.managers
        first, second = Client(), Client()
        for client, key in ((first, "one"), (second, "two")):
            note_account(client, Account(key, "secret"))
        asked = ClientRequests(managers)
        refused = asyncio.ensure_future(asked.heart_beat(first, beat_of("c", 3)))
        taken = asyncio.ensure_future(asked.heart_beat(first, beat_of("d", 3)))
        await asyncio.ensure_future(asked.heart_beat(second, beat_of("c", 1)))
        with pytest.raises(RequestRefusedError, match="another account"):
            await refused
        assert (await taken).code == ResponseCode.SUCCESS
        assert managers.producers.by_client_id("d") is first
        # a consumer has no one else's id either
        with pytest.raises(RequestRefusedError, match="another account"):
            asked.heart_beat(second, beat_of("d", 0))

    with_broker(scenario)
