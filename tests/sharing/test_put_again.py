"""The owner dies in the middle of a put: the client's put is stored once, and answered."""

import asyncio
import os
from threading import Event, Thread

import pytest
from children import die
from patience import TIMEOUT_S, until
from sharing.processes import owner_of

import rmqcore
from rmqcore import Message, OwnerLostError
from rmqcore.store.sharing import owner as owner_module
from rmqcore.store.sharing.calls import request_of, result_of
from rmqcore.store.sharing.channel import OwnerChannel
from rmqcore.store.sharing.owner import StoreServer
from rmqcore.store.sharing.put_again import find_put
from rmqcore.store.sharing.unique_keys import UniqueKeys

pytestmark = pytest.mark.process

SETTINGS = {
    "deliver_delayed": True,
    "message_delay_level": "1h 2h",
    "mapped_file_size_commit_log": 1 << 16,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}
#: what is put, and how many messages that is
PUTS = {
    "put": (lambda store: store.put("T", b"x", keys="k"), 1),
    "pairs": (lambda store: store.put("T", b"x", properties=[("a", "b")]), 1),
    "put_message": (lambda store: store.put_message(Message("T", b"x", tags="a")), 1),
    "put_messages": (lambda store: store.put_messages([Message("T", b"x")] * 3), 3),
    "encoded": (
        lambda store: store.put_messages(
            rmqcore._codec.encode_batch([Message("T", b"x")] * 3), topic="T"
        ),
        3,
    ),
    "put_async": (lambda store: asyncio.run(store.put_async("T", b"x")), 1),
    "delayed": (lambda store: store.put("T", b"x", delay_level=1), 1),
    "batch without room": (lambda store: store.put_messages([Message("T", b"x")] * 600), 600),
    "own key": (lambda store: store.put("T", b"x", properties={"UNIQ_KEY": "mine"}), 1),
}


def die_when_stored():
    """Make this process, the owner, die in place of answering a put."""
    answer_of = owner_module.answer_of

    def answer_or_die(value):
        if isinstance(value, rmqcore.PutMessageResult):
            die()
        return answer_of(value)

    owner_module.answer_of = answer_or_die


def die_when_asked():
    """Make this process, the owner, die before it stores what it is asked to."""
    StoreServer._put = die


def dying_owner(path, prepare, **settings):
    """A forked process that owns a store and dies when it gets a put."""
    return owner_of(path, prepare, **SETTINGS, **settings)


@pytest.mark.parametrize("prepare", [die_when_stored, die_when_asked])
@pytest.mark.parametrize(
    ("name", "index"), [*((name, True) for name in PUTS), ("put", False), ("delayed", False)]
)
def test_a_put_in_flight_is_stored_once(store_path, prepare, name, index):
    put, count = PUTS[name]
    settings = {"message_index_enable": index}
    with (
        dying_owner(store_path, prepare, **settings) as owner,
        rmqcore.open_shared(store_path, **SETTINGS, **settings) as store,
    ):
        assert store.owner == owner.pid
        receipt = put(store)
        assert store.owner == os.getpid()
        found = list(store.messages())
        assert [each.body for each in found] == [b"x"] * count
        assert (receipt.status.name, receipt.message_count) == ("PUT_OK", count)
        assert receipt.phy_offset == found[0].phy_offset
        assert receipt.queue_offset == 0
        assert receipt.message_id == ",".join(each.message_id for each in found)
        assert receipt.store_size == sum(each.store_size for each in found)
        assert receipt.durability == "page_cache"


def test_a_put_that_waits_for_the_disk_is_on_the_disk_when_it_is_found(store_path):
    with (
        dying_owner(store_path, die_when_stored),
        rmqcore.open_shared(store_path, **SETTINGS) as store,
    ):
        assert store.put("T", b"x", durability="disk").durability == "disk"
        assert store.max_queue_offset("T", 0) == 1


def test_the_same_key_may_be_put_a_second_time(store_path):
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        store.put("T", b"x", properties={"UNIQ_KEY": "mine"})
    with (
        dying_owner(store_path, die_when_asked),
        rmqcore.open_shared(store_path, **SETTINGS) as store,
    ):
        (first,) = store.messages("T")
        store.put_message(first)
        assert [each.unique_key for each in store.messages("T")] == ["mine", "mine"]


def test_a_put_without_room_for_a_key_is_an_error_when_its_owner_dies(store_path):
    with (
        dying_owner(store_path, die_when_stored),
        rmqcore.open_shared(store_path, **SETTINGS) as store,
    ):
        with pytest.raises(OwnerLostError, match="put"):
            store.put("T", b"x", properties={"a": "x" * 32_760})
        assert [len(each.properties["a"]) for each in store.messages()] == [32_760]
        store.put("T", b"x", properties=iter([("a", "x" * 32_760)]))
        assert store.max_queue_offset("T", 0) == 2


def test_a_put_without_room_that_its_owner_did_not_store_is_stored_by_the_next(store_path):
    full = Message("T", b"x", properties={"a": "x" * 32_760})
    with (
        dying_owner(store_path, die_when_asked),
        rmqcore.open_shared(store_path, **SETTINGS) as store,
    ):
        assert store.put_message(full).ok
        assert store.owner == os.getpid()
        assert [len(each.properties["a"]) for each in store.messages()] == [32_760]


def die_when_done(value):
    """Make this process, the owner, die in place of giving an answer."""
    answer_of = owner_module.answer_of

    def prepare():
        owner_module.answer_of = lambda given: die() if given == value else answer_of(given)

    return prepare


def die_when_asked_for(method):
    """Make this process, the owner, die when it is asked for something."""
    work = StoreServer._work

    def work_or_die(self, store, connection, request):
        return die() if request.text("method") == method else work(self, store, connection, request)

    def prepare():
        StoreServer._work = work_or_die

    return prepare


@pytest.mark.parametrize(
    "prepare", [die_when_done(value=True), die_when_asked_for("kv_swap")], ids=["done", "asked"]
)
def test_a_swap_in_flight_is_done_once(store_path, prepare):
    with dying_owner(store_path, prepare), rmqcore.open_shared(store_path, **SETTINGS) as store:
        assert store.kv_swap("table", b"k", None, b"mine") is True
        assert store.owner == os.getpid()
        assert store.kv_swap("table", b"k", None, b"other") is False
        assert store.kv_list("table") == [(b"k", b"mine")]


TAKEN = [(b"a", b"1"), (b"b", b"2")]


@pytest.mark.parametrize(
    "prepare", [die_when_done(TAKEN), die_when_asked_for("kv_take")], ids=["done", "asked"]
)
@pytest.mark.parametrize("max_entries", [0, 2])
def test_what_a_take_in_flight_has_taken_is_given(store_path, prepare, max_entries):
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        for key, value in [*TAKEN, (b"c", b"3")]:
            store.kv_put("table", key, value)
    last = None if max_entries else b"c"
    with dying_owner(store_path, prepare), rmqcore.open_shared(store_path, **SETTINGS) as store:
        assert store.kv_take("table", last=last, max_entries=max_entries) == TAKEN
        assert store.owner == os.getpid()
        assert store.kv_list("table") == [(b"c", b"3")]


def test_a_call_whose_connection_was_lost_is_done_once_by_an_owner_that_lives(
    store_path, monkeypatch
):
    """As where a signal handler raises in one thread, in the middle of a frame that it reads."""
    take = OwnerChannel._receive
    with (
        rmqcore.open_shared(store_path, **SETTINGS) as owner,
        rmqcore.open_shared(store_path, **SETTINGS) as store,
    ):
        for key, value in [*TAKEN, (b"c", b"3")]:
            owner.kv_put("table", key, value)

        def losing(call):
            first = store.reach_owner()

            def take_or_lose(channel, data):
                channel.lose() if channel is first else take(channel, data)

            with monkeypatch.context() as patch:
                patch.setattr(OwnerChannel, "_receive", take_or_lose)
                return call()

        assert losing(lambda: store.kv_take("table", max_entries=2)) == TAKEN
        assert losing(lambda: store.kv_swap("table", b"c", b"3", b"4")) is True
        assert owner.kv_list("table") == [(b"c", b"4")]


def test_a_call_that_is_made_again_while_the_owner_works_on_it_is_one(store_path):
    with rmqcore.open_shared(store_path, **SETTINGS) as owner:
        for key, value in TAKEN:
            owner.kv_put("table", key, value)
        with rmqcore.open_shared(store_path, **SETTINGS) as store:
            first, second = store._new_channel(), store._new_channel()
            found = []

            def ask(channel):
                settings = {"max_entries": 1, "call": "one"}
                request = request_of("kv_take", ("table",), settings, name="one")
                found.append(result_of(channel.call(request)))

            threads = [Thread(target=ask, args=(each,)) for each in (first, second)]
            with owner._store.parts.key_values._tables_held():
                for thread in threads:
                    thread.start()
                until(lambda: len(owner._server._named) == 1, "a call that is worked on")
            for thread in threads:
                thread.join()
            assert found == [TAKEN[:1]] * 2
            assert owner.kv_list("table") == TAKEN[1:]
            first.end()
            second.end()


def test_a_long_call_is_known_whole_though_its_table_was_written_anew(store_path):
    taken = [(b"%04d" % number, b"") for number in range(3000)]
    with rmqcore.open_store(store_path) as store:
        store.parts.key_values.kv_swap_once("table", b"x", None, b"", call="before")
        for key, value in taken:
            store.kv_put("table", key, value)
        assert store.parts.key_values.kv_take_once("table", last=b"x", call="one") == taken
        # another client, while the first one still reads the answer
        store.kv_put("table", b"y", b"")
        assert store.parts.key_values._start_of("%KV%table") > 2 * len(taken)
    with rmqcore.open_store(store_path) as store:
        assert store.parts.key_values.kv_take_once("table", last=b"x", call="one") == taken
        assert store.kv_list("table") == [(b"x", b""), (b"y", b"")]


def test_a_call_is_known_though_its_table_was_written_anew(store_path):
    with rmqcore.open_store(store_path) as store:
        store.kv_put("table", b"a", b"1")
        assert store.parts.key_values.kv_take_once("table", call="one") == [(b"a", b"1")]
        assert store.parts.key_values.kv_swap_once("table", b"b", None, b"2", call="two")
        store.parts.key_values._compact("%KV%table", store.parts.key_values._table("table"))
    with rmqcore.open_store(store_path) as store:
        assert store.parts.key_values.kv_take_once("table", call="one") == [(b"a", b"1")]
        assert store.parts.key_values.kv_swap_once("table", b"b", None, b"2", call="two")
        assert not store.parts.key_values.kv_swap_once("table", b"b", None, b"2", call="three")
        assert store.kv_list("table") == [(b"b", b"2")]


def test_what_is_not_safe_to_do_twice_is_an_error(store_path):
    with (
        dying_owner(store_path, die_when_asked_for("append_later")),
        rmqcore.open_shared(store_path, **SETTINGS) as store,
    ):
        with pytest.raises(OwnerLostError, match="append_later"):
            asyncio.run(store.append_later(b""))
        assert store.kv_take("table") == []


def test_what_an_iterator_gave_is_asked_of_the_next_owner_too(store_path):
    with (
        dying_owner(store_path, die_when_asked_for("acknowledge")),
        rmqcore.open_shared(store_path, **SETTINGS) as store,
    ):
        store.put("T", b"x", keys=(key for key in ["a", "b"]))
        leased = store.lease("g", {"T": "*"})
        assert store.acknowledge("g", (each.place for each in leased)) == 1
        assert store.owner == os.getpid()
        assert [lag.ready + lag.leased for lag in store.lag("g", ["T"])] == [0]


@pytest.mark.parametrize("index", [True, False])
def test_a_put_is_found_however_often_its_key_was_put_since(store_path, index):
    properties = {"properties": {"UNIQ_KEY": "mine"}}
    args, settings = UniqueKeys().put(("T", b"x"), properties)
    with rmqcore.open_store(store_path, message_index_enable=index) as store:
        receipt = store.put(*args, **settings)
        for _ in range(200):
            store.put("T", b"another", **properties)
        found = find_put(store, "put", list(args), settings, receipt.store_timestamp_ms)
        assert found.phy_offset == receipt.phy_offset


def test_a_change_whose_connection_was_lost_does_not_undo_a_later_one(store_path, monkeypatch):
    with (
        rmqcore.open_shared(store_path, **SETTINGS) as owner,
        rmqcore.open_shared(store_path, **SETTINGS) as store,
    ):
        first = store.reach_owner()
        take = OwnerChannel._receive

        def lose_then_change(channel, data):
            if channel is not first:
                return take(channel, data)
            # the answer is there: what was asked for was done
            owner.kv_put("table", b"k", b"later")
            return channel.lose()

        monkeypatch.setattr(OwnerChannel, "_receive", lose_then_change)
        store.kv_put("table", b"k", b"mine")
        assert owner.kv_get("table", [b"k"]) == [b"later"]


def test_a_deletion_that_is_made_again_is_not_done_beside_itself(store_path, monkeypatch):
    """What is put behind its answer stays."""
    with (
        rmqcore.open_shared(store_path, **SETTINGS) as owner,
        rmqcore.open_shared(store_path, **SETTINGS) as store,
    ):
        store.put("T", b"old")
        delete, begun, may_go = type(owner._store).delete_topic, Event(), Event()

        def delete_late(of, topic):
            begun.set()
            may_go.wait(TIMEOUT_S)
            return delete(of, topic)

        monkeypatch.setattr(type(owner._store), "delete_topic", delete_late)
        first = store.reach_owner()
        deleting = Thread(target=store.delete_topic, args=("T",))
        deleting.start()
        until(begun.is_set, "a deletion that is worked on")
        monkeypatch.setattr(type(owner._store), "delete_topic", delete)
        first.lose()
        until(lambda: store.reach_owner() is not first, "another connection")
        until(lambda: store.reach_owner()._waiting, "the deletion asked for again")
        assert len(owner._server._named) == 1
        may_go.set()
        deleting.join()
        store.put("T", b"new")
        assert [bytes(each.body) for each in store.messages("T")] == [b"new"]
