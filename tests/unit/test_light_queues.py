"""Light queues (LMQ): whose numbers count in them, and what a record that made some up can do."""

import shutil
import struct

import pytest

from rmqcore import Message, MessageIllegalError, StoreConfig, open_store
from rmqcore._codec import blank_record, encode_batch, encode_record
from rmqcore.doctor import verify
from rmqcore.native.format._wire_message import WireMessage
from rmqcore.rebuild import rebuild_consume_queues

pytestmark = pytest.mark.engine

BLANK_SIZE = 8
FAR = "99999999999"
SMALL = {"mapped_file_size_commit_log": 1 << 20}
LIGHT = {**SMALL, "enable_lmq": True, "enable_multi_dispatch": True}


def bodies(store, topic, queue_id=0):
    return [bytes(message.body) for message in store.messages(topic, queue_id)]


def made_up(names, numbers, body=b"made up"):
    properties = {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": numbers}
    return Message("Mine", body, properties=properties)


@pytest.mark.parametrize("settings", [LIGHT, SMALL])
def test_a_batch_that_numbers_light_queues_is_refused(store_path, settings):
    body = encode_batch([Message("Mine", b"plain"), made_up("Victim", "0")])
    wire = WireMessage("Mine", 0, body, None, 0, 0, 1, "127.0.0.1:1", 0)
    with open_store(store_path, **settings) as store:
        for put in (
            lambda: store.put_messages([Message("Mine", b"plain"), made_up("Victim", "0")]),
            lambda: store.put_messages(body, topic="Mine"),
            lambda: store.append_now(wire),
        ):
            with pytest.raises(MessageIllegalError, match="INNER_MULTI"):
                put()
        assert store.put("Victim", b"real").queue_offset == 0
        assert bodies(store, "Mine") == []
        assert bodies(store, "Victim") == [b"real"]


def test_a_batch_that_names_light_queues_is_refused_where_there_are_some(store_path):
    named = Message("Mine", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
    with open_store(store_path, **LIGHT) as store:
        with pytest.raises(MessageIllegalError):
            store.put_messages([named, named])
        store.put_message(named)
        assert bodies(store, "%LMQ%a") == [b"x"]
    with open_store(store_path, **SMALL) as store:
        assert store.put_messages([named, named]).ok


@pytest.mark.parametrize("settings", [LIGHT, SMALL])
@pytest.mark.parametrize("topic", ["Mine", "%RETRY%g"])
def test_numbers_that_a_message_brings_are_dropped(store_path, settings, topic):
    brought = {"INNER_MULTI_QUEUE_OFFSET": FAR, "a": "b"}
    with open_store(store_path, **settings) as store:
        store.put(topic, b"x", properties=brought)
        store.put(topic, b"x", properties={**brought, "INNER_MULTI_DISPATCH": "%LMQ%a"})
        numbers = [m.properties.get("INNER_MULTI_QUEUE_OFFSET") for m in store.messages(topic, 0)]
    numbered = topic == "Mine" and settings is LIGHT
    assert numbers == [None, "0" if numbered else None]


def log_of(*messages):
    """Bytes of a log as RocketMQ stores it: numbers that came with a batch are kept."""
    log = b""
    for number, message in enumerate(messages):
        log += encode_record(
            message, queue_offset=number, phy_offset=len(log), store_timestamp_ms=number + 1
        )
    return log


LOGS = {
    "another's queue": [made_up("Victim", "0"), made_up("Victim", FAR)],
    "a light queue's beginning": [made_up("%LMQ%a", FAR), made_up("%LMQ%a", "0")],
    "a light queue's end": [made_up("%LMQ%a", "0"), made_up("%LMQ%a", FAR), made_up("%LMQ%a", "1")],
    "many": [made_up("%LMQ%a,%LMQ%b,Victim", f"{n},{FAR},{n}") for n in ("0", FAR, "7", "1")],
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_made_up_numbers_in_a_log_stop_nothing(store_path, log):
    with open_store(store_path, broker_role="SLAVE", **LIGHT) as store:
        store.followed_log.append_data(log_of(*log), 0)
        assert bodies(store, "Mine") == [b"made up"] * len(log)
    for lost in (False, True):
        if lost:
            for unit_file in store_path.glob("consumequeue/*/*/*"):
                unit_file.unlink()
        with open_store(store_path, **LIGHT) as store:
            put = [store.put("Victim", b"real"), store.put("Mine", b"real")]
            assert [receipt.ok for receipt in put] == [True, True]
            store.put("Mine", b"light", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
            assert bodies(store, "Victim")[-1] == b"real"
            assert bodies(store, "%LMQ%a")[-1] == b"light"
            assert store.why_not_writable() is None
            assert len(bodies(store, "Mine")) == len(log) + 2 * (1 + lost)
            assert len(bodies(store, "Victim")) == 1 + lost


@pytest.mark.engine
def test_a_batch_of_one_message_for_light_queues_is_put_by_itself(store_path):
    message = Message("Parent", b"one", tags="a", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
    forged = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "99"}
    with open_store(store_path, enable_lmq=True, enable_multi_dispatch=True) as store:
        store.put_messages([message], queue_id=2, reconsume_times=3)
        store.put_messages([Message("Parent", b"two", properties=forged)])
        first, second = store.messages("%LMQ%a", 0)
        assert (first.body, first.tags) == (b"one", "a")
        assert (first.queue_id, first.reconsume_times) == (2, 3)
        assert (second.body, second.properties["INNER_MULTI_QUEUE_OFFSET"]) == (b"two", "1")
        with pytest.raises(MessageIllegalError, match="in a batch"):
            store.put_messages([message, message])


@pytest.mark.parametrize(
    ("topic", "names", "kept", "number"),
    [
        ("Mine", "%LMQ%a,%LMQ%b,%LMQ%a", "%LMQ%a,%LMQ%b", "1,1"),
        ("%LMQ%a", "%LMQ%a", None, None),
        ("%LMQ%a", "%LMQ%a,%LMQ%b", "%LMQ%b", "1"),
    ],
    ids=["twice", "its own", "its own and another"],
)
def test_a_queue_that_is_named_twice_has_the_message_once(store_path, topic, names, kept, number):
    with open_store(store_path, **LIGHT) as store:
        for body in (b"0", b"1"):
            store.put(topic, body, properties={"INNER_MULTI_DISPATCH": names})
        for queue in store.queues():
            assert (bodies(store, *queue), store.max_queue_offset(*queue)) == ([b"0", b"1"], 2)
        last = list(store.messages(topic, 0))[-1].properties
        assert last.get("INNER_MULTI_DISPATCH") == kept
        assert last.get("INNER_MULTI_QUEUE_OFFSET") == number
    assert not verify(store_path).findings


@pytest.mark.parametrize("lost", ["%LMQ%a", "*"], ids=["the light queue", "all queues"])
def test_light_queues_are_derived_without_their_settings(store_path, lost):
    named = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
    plain = {"message_index_enable": False, "open_check_bytes": 1 << 16}
    plain["mapped_file_size_commit_log"] = 1 << 16
    light = {"enable_lmq": True, "enable_multi_dispatch": True, **plain}
    put = [b"%d" % number * 2000 for number in range(100)]
    with open_store(store_path, **light) as store:
        for body in put:
            store.put("Mine", body, properties=named)
    for unit_file in store_path.glob(f"consumequeue/{lost}/*/*"):
        unit_file.unlink()
    with open_store(store_path, **plain) as store:
        assert bodies(store, "%LMQ%a") == bodies(store, "Mine") == put
    with open_store(store_path, **light) as store:
        store.put("Mine", b"next", properties=named)
        assert bodies(store, "%LMQ%a") == [*put, b"next"]
    assert not verify(store_path).findings


@pytest.mark.parametrize("lost", ["consumequeue/%LMQ%a", "consumequeue"])
@pytest.mark.parametrize("rebuilt", [False, True])
def test_settings_that_say_that_there_are_none_hide_none(store_path, lost, rebuilt):
    """An opening with such settings is not the one that empties them."""
    named = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
    plain = {**SMALL, "open_check_bytes": 0}
    light = {**LIGHT, "open_check_bytes": 0}
    with open_store(store_path, **light) as store:
        for body in (b"0", b"1"):
            store.put("Mine", body, properties=named)
        for _ in range(3):
            store.put("Mine", bytes(1 << 19))
    shutil.rmtree(store_path / lost)
    if rebuilt:
        rebuild_consume_queues(store_path, config=StoreConfig(**plain, enable_lmq=False))
    with open_store(store_path, enable_lmq=False, **plain) as store:
        assert bodies(store, "%LMQ%a") == [b"0", b"1"]
    with open_store(store_path, **light) as store:
        store.put("Mine", b"2", properties=named)
        assert bodies(store, "%LMQ%a") == [b"0", b"1", b"2"]
    assert not verify(store_path).findings


def test_a_slave_without_their_settings_has_the_light_queues_of_its_master(store_path, tmp_path):
    with open_store(store_path, **LIGHT) as store:
        store.put("Mine", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
        end = store.max_phy_offset
    (log_file,) = (store_path / "commitlog").iterdir()
    for name, given, expected in (("said", {"enable_lmq": False}, []), ("unsaid", {}, [b"x"])):
        with open_store(tmp_path / name, broker_role="SLAVE", **SMALL, **given) as store:
            store.followed_log.append_data(log_file.read_bytes()[:end], 0)
            assert bodies(store, "%LMQ%a") == expected


def test_a_number_0_that_a_record_made_up_begins_no_light_queue_anew(store_path):
    """It ends a file of the log; RocketMQ leaves it out of a queue that has that number."""
    size = 1 << 16
    settings = {**LIGHT, "mapped_file_size_commit_log": size, "open_check_bytes": 0}
    put = [made_up("%LMQ%a", number, b"%d" % n) for n, number in enumerate("01203")]
    put[3].body += bytes(size - len(log_of(*put[:4])) - BLANK_SIZE)
    log = log_of(*put[:4]) + blank_record(BLANK_SIZE)
    log += encode_record(put[4], queue_offset=4, phy_offset=size, store_timestamp_ms=5)
    (store_path / "commitlog").mkdir(parents=True)
    for start in (0, size):
        file = store_path / "commitlog" / f"{start:020d}"
        file.write_bytes(log[start:][:size].ljust(size, b"\0"))
    with open_store(store_path, **settings) as store:
        records = list(store.messages("Mine", 0))
    (queue,) = store_path.glob("consumequeue/%LMQ%a/0/*")
    with queue.open("r+b") as units:
        for record in (*records[:3], records[4]):
            units.write(struct.pack(">qiq", record.phy_offset, record.store_size, 0))
    for _ in range(2):
        with open_store(store_path, **settings) as store:
            assert bodies(store, "%LMQ%a") == [b"0", b"1", b"2", b"4"]
            assert len(bodies(store, "Mine")) == 5
