"""Leases: one at a time, again when nobody acknowledges, after too many tries a dead letter."""

import asyncio
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from consume.conftest import TOPIC, bodies, places, put
from patience import TIMEOUT_S

import rmqcore
from rmqcore import (
    ArgumentError,
    DiskFullError,
    Lease,
    MessageIllegalError,
    QueueLag,
    Sql,
    StoreClosedError,
)
from rmqcore.message import EXPIRES_MS
from rmqcore.status import Durability
from rmqcore.store.consume import holders, lease_request
from rmqcore.store.consume.leases import Leases

pytestmark = pytest.mark.engine


def test_a_message_goes_to_one_at_a_time_until_its_lease_is_over(store, clock):
    put(store, 3)
    first = store.lease("g", TOPIC, max_messages=2, lease_ms=1000)
    assert bodies(first) == [b"0", b"1"]
    assert bodies(store.lease("g", TOPIC)) == [b"2"]
    assert store.lease("g", TOPIC) == []
    clock.pass_ms(1000)
    again = store.lease("g", TOPIC, max_messages=1)
    assert bodies(again) == [b"0"]
    assert again[0].reconsume_times == 1
    assert again[0].place.attempt == 1


def test_a_lease_never_ends_early(store, clock):
    put(store, 1)
    (message,) = store.lease("g", TOPIC, lease_ms=1000)
    assert message.place.due_ms == clock.now_ms + 1000
    for _ in range(100):
        clock.now_ms += 10
        if store.lease("g", TOPIC):
            break
    assert message.place.due_ms <= clock.now_ms < message.place.due_ms + 32


def test_what_two_threads_got_with_their_first_calls_comes_again_when_they_end(store, monkeypatch):
    put(store, 2)
    new_holder, begun, goes_on = holders.new_holder, threading.Event(), threading.Event()

    def slowly_at_first():
        name = new_holder()
        if not begun.is_set():
            begun.set()
            assert goes_on.wait(TIMEOUT_S)
        return name

    with rmqcore.Consumer(store, "g", {"T": "*"}) as consumer, ThreadPoolExecutor(1) as threads:
        monkeypatch.setattr(holders, "new_holder", slowly_at_first)
        first = threads.submit(consumer.receive)
        assert begun.wait(TIMEOUT_S)
        second = consumer.receive()
        goes_on.set()
        assert sorted(bodies(second + first.result(TIMEOUT_S))) == [b"0", b"1"]
    assert bodies(store.lease("g", TOPIC)) == [b"0", b"1"]


def test_groups_do_not_share(store):
    put(store, 2)
    assert bodies(store.lease("g", TOPIC)) == bodies(store.lease("h", TOPIC)) == [b"0", b"1"]


def test_what_is_acknowledged_does_not_come_again(store, clock):
    put(store, 5)
    found = store.lease("g", TOPIC)
    assert store.acknowledge("g", places(found)[1:3]) == 2
    assert store.acknowledge("g", places(found)[1:4]) == 1
    clock.pass_ms(30_000)
    assert bodies(store.lease("g", TOPIC)) == [b"0", b"4"]


def test_an_acknowledgement_counts_when_the_lease_is_over(store, clock):
    put(store, 1)
    (message,) = store.lease("g", TOPIC)
    clock.pass_ms(30_000)
    assert store.lease("g", TOPIC) != []
    assert store.acknowledge("g", [message.place]) == 1
    clock.pass_ms(30_000)
    assert store.lease("g", TOPIC) == []


def test_the_offset_is_that_of_the_first_that_is_not_acknowledged(store):
    put(store, 4)
    found = places(store.lease("g", TOPIC))
    offset = lambda: store.consumer_offsets.get("T", "g", 0)  # noqa: E731
    assert offset() == 0
    store.acknowledge("g", [found[2]])
    assert offset() == 0
    store.acknowledge("g", [found[0]])
    assert offset() == 1
    store.acknowledge("g", [found[1]])
    assert offset() == 3
    store.acknowledge("g", [found[3]])
    assert offset() == 4


def test_what_is_given_back_comes_before_what_is_newer(store, clock):
    put(store, 4)
    found = places(store.lease("g", TOPIC, max_messages=3))
    assert store.give_back("g", [found[2], found[0]], delay_ms=0) == 2
    assert bodies(store.lease("g", TOPIC, max_messages=3)) == [b"0", b"2", b"3"]


def test_what_is_given_back_with_a_delay_comes_after_it(store, clock):
    put(store, 1)
    store.give_back("g", places(store.lease("g", TOPIC)), delay_ms=5000)
    assert store.lease("g", TOPIC) == []
    clock.now_ms += 4999
    assert store.lease("g", TOPIC) == []
    clock.pass_ms(1)
    assert [m.reconsume_times for m in store.lease("g", TOPIC)] == [1]


def test_without_delayed_delivery_each_try_waits_as_long_as_its_level(store, clock):
    put(store, 1)
    for wait_ms in (10_000, 30_000, 60_000):
        (message,) = store.lease("g", TOPIC, lease_ms=1000)
        store.give_back("g", [message.place])
        clock.now_ms += wait_ms - 1
        assert store.lease("g", TOPIC) == []
        clock.pass_ms(1)


def test_with_delayed_delivery_it_comes_through_the_retry_topic(opened, clock):
    store = opened(deliver_delayed=True)
    store.put("T", b"x", tags="a", keys="k", properties={"p": "q"})
    (message,) = store.lease("g", {"T": "a"})
    assert store.give_back("g", [message.place]) == 1
    assert store.consumer_offsets.get("T", "g", 0) == 1
    clock.pass_ms(10_000)
    (again,) = store.lease("g", {"T": "a"}, timeout_ms=60_000)
    assert again.stored.topic == "%RETRY%g"
    assert again.topic == "T"
    assert again.body == b"x"
    assert (again.tags, again.keys, again.properties["p"]) == ("a", ("k",), "q")
    assert again.reconsume_times == 1
    assert again.properties["ORIGIN_MESSAGE_ID"] == message.offset_message_id
    assert store.acknowledge("g", [again.place]) == 1
    assert [each.ready + each.leased for each in store.lag("g", ["T"])] == [0, 0]


@pytest.mark.parametrize(("size", "topic"), [(30_000, "%RETRY%g"), (32_767, "%DLQ%g")])
def test_without_room_for_another_try_it_is_a_dead_letter(opened, clock, size, topic):
    store = opened(deliver_delayed=True)
    full = "x" * (size - len("p\x01\x02"))
    store.put("T", b"x", properties={"p": full})
    (message,) = store.lease("g", TOPIC)
    assert store.give_back("g", [message.place]) == 1
    clock.pass_ms(10_000)
    assert bodies(store.lease("g", TOPIC, timeout_ms=60_000 if "RETRY" in topic else 0)) == (
        [b"x"] if "RETRY" in topic else []
    )
    (copy,) = store.messages(topic)
    assert (copy.body, copy.properties["p"]) == (b"x", full)
    assert store.consumer_offsets.get("T", "g", 0) == 1


def test_after_too_many_tries_it_is_a_dead_letter(store, clock):
    put(store, 1)
    for times in range(3):
        (message,) = store.lease("g", TOPIC, max_reconsume_times=2)
        assert message.reconsume_times == times
        store.give_back("g", [message.place], delay_ms=0, max_reconsume_times=2)
    assert store.lease("g", TOPIC, max_reconsume_times=2) == []
    (dead,) = store.messages("%DLQ%g")
    assert dead.body == b"0"
    assert dead.properties["RETRY_TOPIC"] == "T"
    assert dead.reconsume_times == 2
    assert store.topics.get("%DLQ%g").perm == 6
    assert store.consumer_offsets.get("T", "g", 0) == 1


def test_leases_that_run_out_too_often_make_a_dead_letter_too(store, clock):
    put(store, 2)
    for _ in range(2):
        assert len(store.lease("g", TOPIC, max_reconsume_times=1, max_messages=1)) == 1
        clock.pass_ms(30_000)
    assert bodies(store.lease("g", TOPIC, max_reconsume_times=1)) == [b"1"]
    assert [bytes(m.body) for m in store.messages("%DLQ%g")] == [b"0"]


def test_a_lease_can_be_kept_longer_and_shorter(store, clock):
    put(store, 1)
    (message,) = store.lease("g", TOPIC, lease_ms=1000)
    assert store.change_lease("g", [message.place], 5000) == 1
    clock.pass_ms(4000)
    assert store.lease("g", TOPIC) == []
    assert store.change_lease("g", [message.place], 1) == 1
    clock.pass_ms(1)
    assert len(store.lease("g", TOPIC)) == 1
    assert store.change_lease("g", [message.place], 1) == 0
    assert store.give_back("g", [message.place]) == 0


def test_what_a_holder_leaves_comes_again_at_once(store):
    put(store, 4)
    store.lease("g", TOPIC, holder="a", max_messages=2)
    store.lease("h", TOPIC, holder="a", max_messages=1)
    store.lease("g", TOPIC, holder="b", max_messages=1)
    assert store.release_leases("a") == 3
    assert store.release_leases("nobody") == 0
    assert bodies(store.lease("g", TOPIC)) == [b"0", b"1", b"3"]


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("*", [0, 1, 2, 3, 4, 5]),
        ("a", [0, 3]),
        ("a || c", [0, 2, 3, 5]),
        (Sql("n >= 2 AND n < 5"), [2, 3, 4]),
        ("none", []),
    ],
)
def test_an_expression_says_which_messages_are_wanted(store, expression, wanted):
    for number in range(6):
        store.put("T", b"%d" % number, tags="abc"[number % 3], properties={"n": str(number)})
    found = store.lease("g", {"T": expression}, max_messages=10)
    assert bodies(found) == [b"%d" % number for number in wanted]
    assert store.lease("g", {"T": expression}) == []
    store.acknowledge("g", places(found))
    assert store.consumer_offsets.get("T", "g", 0) == 6


def test_tags_with_one_hash_are_told_apart(store):
    store.put("T", b"1", tags="Aa")
    store.put("T", b"2", tags="BB")
    assert bodies(store.lease("g", {"T": "BB"})) == [b"2"]


def test_queues_with_higher_ids_come_first_by_priority(store):
    for queue_id in (0, 2, 1):
        put(store, 2, queue_id=queue_id)
    found = store.lease("g", TOPIC, by_priority=True, max_messages=3)
    assert [m.queue_id for m in found] == [2, 2, 1]
    store.put("T", b"x", queue_id=3)
    found = store.lease("g", TOPIC, by_priority=True)
    assert [m.queue_id for m in found] == [3, 1, 0, 0]


def test_topics_take_turns_within_a_priority(store):
    for topic in ("T", "U"):
        put(store, 4, topic=topic)
        put(store, 4, topic=topic, queue_id=9)
    both = {"T": "*", "U": "*"}
    found = [store.lease("g", both, by_priority=True, max_messages=1)[0] for _ in range(8)]
    assert {m.queue_id for m in found} == {9}
    assert {m.topic for m in found[:2]} == {"T", "U"}
    assert {m.topic for m in found[2:4]} == {"T", "U"}
    assert store.lease("g", both, by_priority=True)[0].queue_id == 0


def test_queues_take_turns_otherwise(store):
    for queue_id in range(3):
        put(store, 2, queue_id=queue_id)
    found = [store.lease("g", TOPIC, max_messages=1)[0].queue_id for _ in range(6)]
    assert sorted(found[:3]) == sorted(found[3:]) == [0, 1, 2]


def test_what_has_expired_is_dropped_where_that_is_asked_for(store, clock):
    store.put("T", b"old", properties={"EXPIRES_MS": str(clock.now_ms)})
    store.put("T", b"new", properties={"EXPIRES_MS": str(clock.now_ms + 1)})
    store.put("T", b"odd", properties={"EXPIRES_MS": "tomorrow"})
    assert bodies(store.lease("h", TOPIC)) == [b"old", b"new", b"odd"]
    assert bodies(store.lease("g", TOPIC, drop_expired=True)) == [b"new", b"odd"]
    store.release_leases("")
    clock.pass_ms(1)
    assert bodies(store.lease("g", TOPIC, drop_expired=True)) == [b"odd"]
    assert store.consumer_offsets.get("T", "g", 0) == 2


def test_lag_counts_what_is_ready_and_what_is_leased(store, clock):
    assert store.lag("g", ["T"]) == []
    put(store, 5)
    assert store.lag("g", ["T"]) == [QueueLag("T", 0, 0, 5, 0)]
    found = places(store.lease("g", TOPIC, max_messages=3))
    store.acknowledge("g", found[:1])
    store.give_back("g", found[1:2], delay_ms=0)
    assert store.lag("g", ["T"]) == [QueueLag("T", 0, 1, 3, 1)]
    clock.pass_ms(30_000)
    assert store.lag("g", ["T"]) == [QueueLag("T", 0, 1, 4, 0)]


@pytest.mark.parametrize("group", ["", "a@b", "g" * 300])
def test_purge_begins_no_group_of_a_name_that_none_can_have(store, group):
    with pytest.raises(MessageIllegalError, match="group"):
        store.purge(group, "T")
    assert store.consumer_offsets.pairs() == []


def test_purge_leaves_what_is_leased(store, clock):
    put(store, 5)
    found = places(store.lease("g", TOPIC, max_messages=2))
    store.give_back("g", found[:1], delay_ms=0)
    assert store.purge("g", "T") == 4
    assert store.lag("g", ["T"]) == [QueueLag("T", 0, 1, 0, 1)]
    assert store.purge("g", "T") == 0
    clock.pass_ms(30_000)
    assert bodies(store.lease("g", TOPIC)) == [b"1"]


def test_an_offset_that_was_set_is_followed_either_way(store):
    put(store, 5)
    found = places(store.lease("g", TOPIC))
    store.acknowledge("g", found)
    store.consumer_offsets.commit("T", "g", 0, 1)
    assert bodies(store.lease("g", TOPIC, max_messages=2)) == [b"1", b"2"]
    store.consumer_offsets.commit("T", "g", 0, 4)
    assert bodies(store.lease("g", TOPIC)) == [b"4"]


def test_a_topic_that_was_deleted_begins_anew(opened, clock):
    store = opened()
    put(store, 5)
    store.acknowledge("g", places(store.lease("g", TOPIC)))
    store.delete_topic("T")
    put(store, 2)
    assert bodies(store.lease("g", TOPIC)) == [b"0", b"1"]
    store.close()
    clock.pass_ms(30_000)
    assert bodies(opened().lease("g", TOPIC)) == [b"0", b"1"]


def test_a_lease_is_plain_values(store):
    put(store, 1)
    (message,) = store.lease("g", TOPIC)
    lease = pickle.loads(pickle.dumps(message.place))
    assert lease == tuple(lease) == Lease("T", 0, 0, 0, lease.due_ms, message.phy_offset)
    assert store.acknowledge("g", [tuple(lease)]) == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"group": "a b"}, None),
        ({"group": 7}, "group"),
        ({"subscriptions": {}}, "subscriptions"),
        ({"subscriptions": "T"}, "subscriptions"),
        ({"subscriptions": {"T": None}}, "expression"),
        ({"subscriptions": {"T": Sql("n ==")}}, "expression"),
        ({"max_messages": 0}, "max_messages"),
        ({"lease_ms": 0}, "lease_ms"),
        ({"max_reconsume_times": -1}, "max_reconsume_times"),
        ({"holder": None}, "holder"),
        ({"holder": "h" * 1001}, "holder"),
        ({"holder": "h\udc80"}, "holder"),
    ],
)
def test_wrong_arguments_are_refused_by_name(store, arguments, named):
    with pytest.raises(rmqcore.MessageIllegalError) as caught:
        store.lease(**({"group": "g", "subscriptions": TOPIC} | arguments))
    if named:
        assert isinstance(caught.value, ArgumentError)
        assert caught.value.argument == named


def test_a_closed_store_leases_nothing(store):
    put(store, 1)
    (message,) = store.lease("g", TOPIC)
    store.close()
    with pytest.raises(StoreClosedError):
        store.lease("g", TOPIC)
    with pytest.raises(StoreClosedError):
        store.acknowledge("g", [message.place])


def test_many_threads_get_each_message_once(store):
    total, seen, lock = 400, [], threading.Lock()
    put(store, total, queue_id=0)

    def work():
        while found := store.lease("g", TOPIC, max_messages=3, timeout_ms=200):
            store.acknowledge("g", places(found))
            with lock:
                seen.extend(bodies(found))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(b"%d" % number for number in range(total))


def test_a_store_without_consumers_has_no_journal(store, store_path):
    put(store, 1)
    store.flush()
    assert not list(store_path.glob("config/consumerLeases*"))


@pytest.mark.parametrize("largest", [False, True])
def test_a_damaged_record_is_a_dead_letter_and_no_loop(store, store_path, largest):
    size = store.config.effective_max_message_size if largest else 7
    damaged = b"damaged".ljust(size, b" ")
    receipts = [store.put("T", body) for body in (b"first", damaged, b"last")]
    store.flush()
    base, at = divmod(receipts[1].phy_offset, store.config.mapped_file_size_commit_log)
    base *= store.config.mapped_file_size_commit_log
    with (store_path / "commitlog" / f"{base:020}").open("r+b") as log:
        log.seek(at)
        record = log.read(receipts[1].store_size)
        log.seek(at)
        log.write(record.replace(b"damaged", b"dAmaged"))
    assert bodies(store.lease("g", TOPIC)) == [b"first", b"last"]
    assert store.lease("g", TOPIC) == []
    (dead,) = store.messages("%DLQ%g")
    # of a long record as much as has room in a body
    assert record.replace(b"damaged", b"dAmaged").startswith(dead.body)
    assert len(dead.body) >= min(len(record), size - 8192)
    assert dead.properties["DAMAGED_AT"] == "T/0@1"
    assert "CRC" in dead.properties["DAMAGED"].upper()
    assert store.lag("g", ["T"])[0].leased == 2


def test_a_message_that_only_its_queue_does_not_lead_to_is_no_dead_letter(store, store_path):
    put(store, 3)
    store.flush()
    assert store.max_queue_offset("T", 0) == 3
    with (store_path / "consumequeue/T/0" / f"{0:020}").open("r+b") as queue:
        whole = queue.read(40)
        queue.seek(20)
        queue.write(bytes([*whole[20:27], whole[27] ^ 8]))
        queue.flush()
        (first,) = store.lease("g", TOPIC)
        assert first.queue_offset == 0
        with pytest.raises(rmqcore.CorruptConsumeQueueError, match="rebuild the consume queue"):
            store.lease("g", TOPIC)
        queue.seek(0)
        queue.write(whole)
    assert [message.queue_offset for message in store.lease("g", TOPIC)] == [1, 2]
    assert store.max_queue_offset("%DLQ%g", 0) == 0


def test_a_dead_letter_that_cannot_be_put_stays_where_it_is(store, clock, monkeypatch):
    put(store, 1)
    (message,) = store.lease("g", TOPIC)
    monkeypatch.setattr(store.parts.health, "why_not_writable", lambda: "no")
    store.parts.files.tail.writable = False
    with pytest.raises(rmqcore.StoreError):
        store.give_back("g", [message.place], max_reconsume_times=0)
    store.parts.files.tail.writable = True
    clock.pass_ms(60_000)
    assert bodies(store.lease("g", TOPIC)) == [b"0"]


def test_a_signal_handler_inside_a_call_is_refused(store, monkeypatch):
    put(store, 1)
    (message,) = store.lease("g", TOPIC)
    refused = []

    def interrupted(*args, **named):
        with pytest.raises(rmqcore.StoreNotWritableError) as caught:
            store.acknowledge("g", [message.place])
        refused.append(caught.value)
        return most(*args, **named)

    most = store.parts.inner.get_message
    monkeypatch.setattr(store.parts.inner, "get_message", interrupted)
    assert store.lease("g", TOPIC) == []
    assert refused
    assert store.acknowledge("g", [message.place]) == 1


def test_a_group_that_can_be_none_is_named_as_one(store):
    with pytest.raises(rmqcore.MessageIllegalError, match="group 'my group': only letters"):
        rmqcore.Consumer(store, "my group", {"T": "*"})


def put_message_that_refuses(store, monkeypatch, refused):
    """Let the store refuse its puts with some numbers; the durability that each one asks for."""
    put_message, asked = store.put_message, []

    def noted(message, *, durability=None):
        asked.append(durability)
        if len(asked) in refused:
            raise refused[len(asked)]
        return put_message(message, durability=durability)

    monkeypatch.setattr(store.parts.inner, "put_message", noted)
    return asked


@pytest.mark.parametrize("lease_again", [False, True])
def test_dead_letters_wait_for_the_disk_once(store, monkeypatch, lease_again):
    put(store, 50)
    found = store.lease("g", TOPIC, holder="h", max_messages=50)
    asked = put_message_that_refuses(store, monkeypatch, {})
    if lease_again:
        store.release_leases("h")
        assert store.lease("g", TOPIC, max_messages=50, max_reconsume_times=0) == []
    else:
        assert store.give_back("g", places(found), max_reconsume_times=0) == 50
    assert asked == [Durability.PAGE_CACHE] * 49 + [Durability.DISK]
    assert store.parts.files.writer.flushed_offset == store.max_phy_offset
    assert store.max_queue_offset("%DLQ%g", 0) == 50
    assert store.lag("g", ["T"])[0].ready == 0


@pytest.mark.parametrize("waits", [False, True])
def test_what_lies_behind_dead_letters_is_handed_out_at_once(store, waits):
    put(store, 8)
    for message in store.lease("g", TOPIC, max_messages=7):
        store.give_back("g", [message.place], delay_ms=0)
    terms = {"max_messages": 2, "max_reconsume_times": 0}
    if waits:
        found = asyncio.run(store.lease_async("g", TOPIC, timeout_ms=None, **terms))
    else:
        found = store.lease("g", TOPIC, **terms)
    assert bodies(found) == [b"7"]
    dead = [bytes(each.body) for each in store.messages("%DLQ%g")]
    assert dead == [b"%d" % number for number in range(7)]


@pytest.mark.parametrize(
    "refused",
    [
        {3: DiskFullError("/disk"), 4: DiskFullError("/disk")},
        {5: MessageIllegalError("too long")},
        {2: MessageIllegalError("too long"), 5: DiskFullError("/disk")},
    ],
)
def test_dead_letters_that_are_refused_stay_and_the_others_are_on_the_disk(
    store, clock, monkeypatch, refused
):
    put(store, 5)
    found = store.lease("g", TOPIC, max_messages=5)
    with monkeypatch.context() as refuses:
        put_message_that_refuses(store, refuses, refused)
        with pytest.raises(type(refused[max(refused)])):
            store.give_back("g", places(found), max_reconsume_times=0)
    dead = [bytes(each.body) for each in store.messages("%DLQ%g")]
    assert store.parts.files.writer.flushed_offset == store.max_phy_offset
    clock.pass_ms(60_000)
    assert sorted(dead + bodies(store.lease("g", TOPIC))) == [b"0", b"1", b"2", b"3", b"4"]


def test_who_looks_for_few_among_many_looks_at_some_at_a_time(store, monkeypatch):
    for number in range(100):
        store.put("T", b"%d" % number, properties={"n": str(number)})
    looked = []
    take = Leases.hand_out

    def counted(leases, request):
        looked.append(take(leases, request))
        return looked[-1]

    monkeypatch.setattr(lease_request, "LOOKS_MAX", 10)
    monkeypatch.setattr(Leases, "hand_out", counted)
    wanted = {"T": Sql("n >= 90")}
    assert bodies(store.lease("g", wanted, max_messages=3)) == [b"90", b"91", b"92"]
    assert len(looked) > 1
    store.lease("g", wanted, max_messages=32)
    del looked[:]
    assert store.lease("g", wanted) == []
    assert len(looked) == 1


def test_a_coroutine_that_looks_for_few_among_many_lets_others_work(store, monkeypatch):
    for number in range(200):
        store.put("T", b"%d" % number, properties={"n": str(number)})
    monkeypatch.setattr(lease_request, "LOOKS_MAX", 10)
    ended = []

    async def lease():
        ended.append(bodies(await store.lease_async("g", {"T": Sql("n = 199")})))

    async def other():
        ended.append("other")

    async def both():
        await asyncio.gather(lease(), other())

    asyncio.run(both())
    assert ended == ["other", [b"199"]]


def test_messages_whose_time_is_over_are_passed_over_some_at_a_time(store, monkeypatch):
    for _ in range(50):
        store.put("T", b"late", properties={EXPIRES_MS: "1"})
    store.put("T", b"x")
    monkeypatch.setattr(lease_request, "LOOKS_MAX", 10)
    assert bodies(store.lease("g", TOPIC, drop_expired=True, max_messages=50)) == [b"x"]
