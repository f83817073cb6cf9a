"""Handles, ids, signatures, queues and how long is waited, as values."""

import asyncio
import hmac
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace

import pytest

from rmqcore.config import StoreConfig
from rmqcore.ha.settings import HAConfig
from rmqcore.proxy.callers import SIGNED_FOR_S, is_in_time, signature
from rmqcore.proxy.cluster import BrokerQueues, clock_of
from rmqcore.proxy.codes import Code, RefusedError
from rmqcore.proxy.consuming import ConsumerCalls
from rmqcore.proxy.messages import Resource
from rmqcore.proxy.popped import Popped
from rmqcore.proxy.queue_choice import QueueChoice, SlowBrokers, consistent_hash, java_hash
from rmqcore.proxy.receipts import ReceiptHandle
from rmqcore.proxy.renewal import Renewals
from rmqcore.proxy.settling import SettlingCalls
from rmqcore.proxy.transaction_id import TransactionId
from rmqcore.remoting import RemotingCommand, RequestCode, ResponseCode
from rmqcore.simulation.loop import SimulatedLoop
from rmqcore.world import REAL, World

pytestmark = pytest.mark.logic

#: as Apache's proxy 5.5.0 wrote it
APACHES = "4 1795318207648 10000 1 0 broker-a 3 5 19278"


def test_a_handle_is_the_one_of_apaches_proxy():
    handle = ReceiptHandle.parse(APACHES)
    assert str(handle) == APACHES
    assert (handle.broker_name, handle.queue_id, handle.queue_offset) == ("broker-a", 3, 5)
    assert handle.phy_offset == 19278
    assert handle.due_ms == 1795318217648


def test_a_changed_handle_of_apaches_keeps_its_place_in_the_log():
    assert ReceiptHandle.parse("4 1795318207648 10000 1 0 broker-a 3 5 0 19278").phy_offset == 19278


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1 2 3",
        "9" * 2000,
        f"{APACHES} 1 2",
        APACHES.replace("5 19278", "five 19278"),
        APACHES.replace("broker-a", ""),
        APACHES.replace(" 0 broker", " 7 broker"),
        APACHES.replace("19278", "9" * 30),
    ],
)
def test_what_is_no_handle_has_its_own_code(text):
    with pytest.raises(RefusedError) as raised:
        ReceiptHandle.parse(text)
    assert raised.value.code is Code.INVALID_RECEIPT_HANDLE


def test_a_handle_whose_time_is_over_is_refused():
    with pytest.raises(RefusedError) as raised:
        ReceiptHandle.parse("4 1000 10000 1 0 broker-a 3 5 19278").expect_open(11_000)
    assert raised.value.code is Code.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize(
    ("runtime", "passed_ms"),
    [
        ("[ 1,234 days, 5 hours, 6 minutes, 7 seconds ]", 106_635_967_000),
        ("[ 0 days, 0 hours, -5 minutes, 0 seconds ]", None),
        ("soon", None),
        (None, None),
    ],
)
def test_a_broker_says_what_time_it_is(runtime, passed_ms):
    said = {"table": {"bootTimestamp": "1700000000000", "runtime": runtime}}
    assert clock_of(said) == (None if passed_ms is None else 1_700_000_000_000 + passed_ms)
    assert clock_of({"table": []}) is None


@pytest.mark.parametrize(("kind", "topic"), [(0, "T"), (1, "%RETRY%G_T"), (2, "%RETRY%G+T")])
def test_a_handle_knows_which_topic_it_was_popped_from(kind, topic):
    assert (
        ReceiptHandle.parse(APACHES.replace("0 broker", f"{kind} broker")).topic_of("G", "T")
        == topic
    )


def test_a_transaction_id_carries_its_place():
    where = TransactionId("broker-a", 123, 4)
    assert TransactionId.parse(str(where)) == where


@pytest.mark.parametrize("text", ["", "x", "é" * 8, "djEgYQ", "A" * 1000, "djEgYSBiIGM"])
def test_what_is_no_transaction_id_has_its_own_code(text):
    with pytest.raises(RefusedError) as raised:
        TransactionId.parse(text)
    assert raised.value.code is Code.INVALID_TRANSACTION_ID


def test_the_hash_is_javas():
    assert java_hash("hello") == 99162322
    assert java_hash("polygenelubricants") == -(2**31)
    assert java_hash("\U0001f600") == 1772899


def test_a_group_keeps_its_queue_when_there_is_one_more_or_moves_to_the_new_one():
    for number in range(-50, 50):
        before, after = consistent_hash(number, 8), consistent_hash(number, 9)
        assert after in (before, 8)


def test_the_choice_among_buckets_is_guavas():
    # from Guava's HashingTest, testConsistentHash_linearCongruentialGeneratorCompatibility
    golden = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
    assert [consistent_hash(number, 100) for number in range(20)] == golden
    assert consistent_hash(10863919174838991, 11) == 6
    assert consistent_hash(2016238256797177309, 11) == 3
    assert consistent_hash(1673758223894951030, 11) == 5
    assert consistent_hash(2, 100001) == 80343
    assert consistent_hash(2201, 100001) == 22152
    assert consistent_hash(2202, 100001) == 15018


def test_without_a_group_the_next_queue_is_taken():
    choice = QueueChoice()
    assert [choice.place("T", "abc", None) for _ in range(4)] == list("abca")
    assert choice.place("U", "abc", None) == "a"


NOW_S = int(datetime(2026, 11, 26, 12, 0, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("signed", "right"),
    [
        ("20261126T120000Z", True),
        ("20261126T120459Z", True),
        ("20261126T115501Z", True),
        ("20261126T200130Z", True),  # local time of another zone, called UTC
        ("20261126T173000Z", True),  # India
        ("20261126T120730Z", False),
        ("20261127T120000Z", False),
        ("20261125T120000Z", False),
        ("not a time", False),
        ("", False),
    ],
)
def test_a_signature_is_good_for_a_time(signed, right):
    assert is_in_time(signed, NOW_S) is right
    assert SIGNED_FOR_S == 300


def test_the_signature_is_the_clients():
    made = hmac.new(b"sk", b"20261126T120000Z", "sha1").hexdigest().encode()
    assert signature("sk", "20261126T120000Z") == made


def test_a_dead_letter_is_waited_for_until_its_broker_has_waited():
    """Who is told that it is late asks once more, and there is one more."""
    asked = {}

    class Brokers:
        def ask(self, _, request, caller, *, timeout_ms=0):
            asked[request.code] = timeout_ms
            return RemotingCommand(ResponseCode.SUCCESS)

    settling = SettlingCalls(Brokers(), Renewals(None, REAL))
    handle = ReceiptHandle.parse(APACHES)
    SimulatedLoop(0).run_until_complete(settling.bury_one(None, "G", "T", handle, None, 1))
    waits_ms = HAConfig().slave_timeout, StoreConfig().sync_flush_timeout_ms
    assert asked[RequestCode.CONSUMER_SEND_MSG_BACK] > max(waits_ms)


class LateBrokers:
    """Brokers elsewhere, in which each pop is at the time of its number.

    Attributes:
        asked: the receipts of requests, in their order.
        meanwhile: awaited before the first answer.
    """

    def __init__(self):
        self.asked = []

    @staticmethod
    def clock_ms(_):
        return SOON.clock_ms()

    async def ask(self, _, request, caller):
        number = len(self.asked)
        self.asked.append(request.ext_fields["extraInfo"])
        if not number:
            await self.meanwhile()
        fields = {"popTime": str(number), "invisibleTime": "1", "reviveQid": "1"}
        return RemotingCommand(ResponseCode.SUCCESS, fields)


CALLER = SimpleNamespace(client=("", "client"))
#: in which the handle ends soon
SOON = World(lambda: 1_795_318_207_648, monotonic_s=lambda: 0.0)


def test_a_broker_that_does_not_answer_in_a_second_is_slow_for_ten_more():
    brokers = [BrokerQueues(name, 1, 1, 6) for name in "ab"]

    async def scenario():
        now, found, answered = [0.0], [], asyncio.Event()
        slow = SlowBrokers(lambda: now[0])
        waiting = asyncio.ensure_future(slow.answer_of("a", answered.wait()))
        await asyncio.sleep(0)
        for now[0] in (0.9, 1.1, 1.2, 11.1, 11.3):
            found.append(set(slow.among(brokers)))
            if now[0] == 1.2:
                answered.set()
                await waiting
        now[0] = 2.0
        return found, set(slow.among(brokers[:1]))

    found = SimulatedLoop(0).run_until_complete(scenario())
    assert found == ([set(), {"a"}, {"a"}, {"a"}, set()], set())


def test_what_is_settled_while_others_are_renewed_is_not_renewed():
    """A broker of RocketMQ would hand it out once more."""
    brokers = LateBrokers()
    renewals = Renewals(brokers, SOON)
    first, second = APACHES, APACHES.replace("5 19278", "6 19300")
    for given in (first, second):
        renewals.add(CALLER, "G", "T", given, ReceiptHandle.parse(given))

    async def meanwhile():
        async with renewals.settled(CALLER, "G", second):
            pass

    brokers.meanwhile = meanwhile
    SimulatedLoop(0).run_until_complete(renewals.renew())
    assert brokers.asked == [ReceiptHandle.parse(first).extra_info]


def test_what_a_client_leaves_behind_is_given_back_by_the_handle_that_counts():
    brokers = LateBrokers()
    renewals = Renewals(brokers, SOON)
    renewals.add(CALLER, "G", "T", APACHES, ReceiptHandle.parse(APACHES))

    async def meanwhile():
        renewals.work_on(renewals.give_back(CALLER.client))
        for _ in range(3):
            await asyncio.sleep(0)

    async def both():
        await renewals.renew()
        await renewals.finish(1)

    brokers.meanwhile = meanwhile
    SimulatedLoop(0).run_until_complete(both())
    renewed = ReceiptHandle.parse(APACHES).changed(0, 1, 1)
    assert brokers.asked == [ReceiptHandle.parse(APACHES).extra_info, renewed.extra_info]


def test_one_that_cannot_be_given_back_keeps_no_other_from_others():
    """A call has gone: what it was to be handed is nobody's until it is given back."""
    asked = []

    class Changing:
        async def change(self, _, __, ___, handle, *____, suspend):
            asked.append((handle.queue_offset, suspend))
            if len(asked) == 1:
                raise RefusedError(Code.INTERNAL_SERVER_ERROR, "no room")

    handle = ReceiptHandle.parse(APACHES)
    popped = [Popped(None, replace(handle, queue_offset=offset), 0) for offset in range(3)]
    consuming = ConsumerCalls(None, Changing(), None, None, None)
    wanted = SimpleNamespace(group="G", topic="T")
    SimulatedLoop(0).run_until_complete(consuming._return(CALLER, wanted, popped))
    assert asked == [(0, True), (1, True), (2, True)]


class BrokersAtOnce:
    """A broker in this process: its answers are there at once."""

    asked = 0

    @staticmethod
    def clock_ms(_):
        return SOON.clock_ms()

    def ask(self, _, __, ___):
        self.asked += 1
        fields = {"popTime": "1", "invisibleTime": "1", "reviveQid": "1"}
        return RemotingCommand(ResponseCode.SUCCESS, fields)


MANY = 100


def acknowledging(brokers, renewals, given):
    settling = SettlingCalls(brokers, renewals)
    entries = [SimpleNamespace(receipt_handle=each, message_id="") for each in given]
    names = {"group": Resource(name="G"), "topic": Resource(name="T")}
    return settling.acknowledge(None, CALLER, SimpleNamespace(entries=entries, **names))


@pytest.mark.parametrize(
    "work",
    [
        lambda _, renewals, __: renewals.renew(),
        lambda _, renewals, __: renewals.give_back(CALLER.client),
        acknowledging,
    ],
    ids=["renew", "give back", "acknowledge"],
)
def test_others_have_their_turn_while_many_messages_are_settled(work):
    brokers = BrokersAtOnce()
    renewals = Renewals(brokers, SOON)
    given = [APACHES.replace("5 19278", f"{offset} 19278") for offset in range(MANY)]
    if work is not acknowledging:
        for each in given:
            renewals.add(CALLER, "G", "T", each, ReceiptHandle.parse(each))
    asked = []

    async def main():
        settling = asyncio.ensure_future(work(brokers, renewals, given))
        while not settling.done():
            await asyncio.sleep(0)
            asked.append(brokers.asked)

    SimulatedLoop(0).run_until_complete(main())
    assert brokers.asked == MANY
    assert max(after - before for before, after in pairwise([0, *asked])) <= 16


def test_who_works_on_the_most_messages_keeps_nobody_from_having_his_kept(monkeypatch):
    monkeypatch.setattr("rmqcore.proxy.renewal._MAX", 4)
    renewals = Renewals(None, SOON)
    many, few = (SimpleNamespace(client=("", name)) for name in ("many", "few"))

    def kept(caller):
        given = [APACHES.replace("5 19278", f"{offset} 19278") for offset in range(6)]
        return [number for number in range(6) if renewals.is_kept(caller, "G", given[number])]

    def add(caller, offset):
        given = APACHES.replace("5 19278", f"{offset} 19278")
        renewals.add(caller, "G", "T", given, ReceiptHandle.parse(given))

    for offset in range(5):
        add(many, offset)
    assert kept(many) == [0, 1, 2, 3]
    for offset in range(2):
        add(few, offset)
    add(many, 5)
    assert (kept(many), kept(few), len(renewals)) == ([2, 3], [0, 1], 4)
    add(few, 2)
    assert (kept(many), kept(few), len(renewals)) == ([2, 3], [0, 1], 4)


def test_room_for_one_more_message_is_found_without_a_look_at_all_clients(monkeypatch):
    looked = []

    class Client(tuple):
        __slots__ = ()

        def __hash__(self):
            looked.append(self)
            return super().__hash__()

    monkeypatch.setattr("rmqcore.proxy.renewal._MAX", MANY)
    renewals = Renewals(None, SOON)
    handle = ReceiptHandle.parse(APACHES)
    for number in range(MANY // 2):
        caller = SimpleNamespace(client=Client(("", f"{number}")))
        for given in ("one", "two"):
            renewals.add(caller, "G", "T", given, handle)
    looked.clear()
    more = SimpleNamespace(client=Client(("", "more")))
    for given in ("one", "two", "three"):
        renewals.add(more, "G", "T", given, handle)
    assert [renewals.is_kept(more, "G", each) for each in ("one", "two", "three")] == [1, 1, 0]
    assert len(renewals) == MANY
    assert len(looked) < MANY // 2
