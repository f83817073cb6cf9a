"""A call takes and refuses the same arguments in the process that owns a store and in a client."""

import array
import collections
import decimal
import enum
import fractions
import mmap
import types

import numpy as np
import pytest

import rmqcore
from rmqcore import ArgumentError, Lease, Message, RmqCoreError
from rmqcore.store.sharing.values import pack, unpack

pytestmark = pytest.mark.engine


class Bytes(bytes):
    pass


class Order(Message):
    pass


class Priority(enum.IntEnum):
    HIGH = 2


class Topic(str, enum.Enum):  # noqa: UP042 - its format is not its value
    T = "T"


def mapped():
    room = mmap.mmap(-1, 3)
    room[:] = b"mmp"
    return room


#: by name: what is given where a body, a number, a text, a list is expected
BODIES = [
    b"abc",
    Bytes(b"abc"),
    bytearray(b"abc"),
    memoryview(b"abc"),
    memoryview(b"abcdef")[::2],
    array.array("H", [1, 2, 3]),
    mapped(),
    np.bytes_(b"abc"),
    np.arange(3, dtype=np.uint8),
    np.arange(6, dtype=np.uint8)[::2],
    np.arange(4, dtype=np.uint8).reshape(2, 2).T,
    np.array([b"abc"], dtype=object),
    np.array(["2026-11-27"], dtype="M8[D]"),
    np.array(5),
    np.array(["a"]),
    np.zeros((0, 3)),
    np.zeros(1, dtype=[("a", "i4"), ("b", "O")]),
    "abc",
    None,
    7,
    object(),
    [b"abc"],
]
NUMBERS = [0, True, Priority.HIGH, np.int64(1), np.uint8(1), np.bool_(True), 1.0, "1", None, b"1"]
NUMBERS += [np.float32(1), decimal.Decimal(1), object(), 1 << 70, -1]
TEXTS = ["T", Topic.T, np.str_("T"), b"T", None, 7, object(), "\ud800", ["T"], ""]
LISTS = [
    ["k"],
    ("k",),
    {"k"},
    {"k": 1},
    "k",
    Topic.T,
    (each for each in ["k"]),
    np.array(["k"]),
    collections.deque(["k"]),
    None,
    7,
]
MAPPINGS = [
    {"a": "b"},
    collections.OrderedDict(a="b"),
    types.MappingProxyType({"a": "b"}),
    {"a": 1},
    {1: "a"},
    {"a": Topic.T},
    {Topic.T: "a"},
    7,
]
TIMES = [0, 0.0, np.int64(0), np.float32(0), fractions.Fraction(0), "0"]
MESSAGES = [Message("T", b"x"), Order("T", b"x"), b"x", None, object(), [Message("T", b"x")]]
PLACES = [
    Lease("T", 0, 0, 0, 0),
    ("T", 0, 0, 0, 0),
    ["T", 0, 0, 0, 0],
    Lease(Topic.T, np.int64(0), np.int64(0), 0, 0),
]

CALLS = {
    "put body": (lambda store, it: store.put("T", it), BODIES),
    "put queue_id": (lambda store, it: store.put("T", b"x", queue_id=it), NUMBERS),
    "put topic": (lambda store, it: store.put(it, b"x"), TEXTS),
    "put tags": (lambda store, it: store.put("T", b"x", tags=it), TEXTS),
    "put keys": (lambda store, it: store.put("T", b"x", keys=it), LISTS),
    "put properties": (lambda store, it: store.put("T", b"x", properties=it), MAPPINGS),
    "put durability": (lambda store, it: store.put("T", b"x", durability=it), TEXTS),
    "put nothing": (lambda store, it: store.put(), [None]),
    "put by name": (lambda store, it: store.put(topic="T", body=it), [b"x"]),
    "put_message": (lambda store, it: store.put_message(it), MESSAGES),
    "put_message by name": (lambda store, it: store.put_message(message=it), MESSAGES),
    "put_message nothing": (lambda store, it: store.put_message(), [None]),
    "put_message two": (lambda store, it: store.put_message(it, it), MESSAGES),
    "put_messages": (lambda store, it: store.put_messages([it, it]), MESSAGES),
    "put_messages by name": (lambda store, it: store.put_messages(messages=[it]), MESSAGES),
    "get queue_id": (lambda store, it: store.get_message("T", it, 0), NUMBERS),
    "get offset": (lambda store, it: store.get_message("T", 0, it), NUMBERS),
    "get topic": (lambda store, it: store.get_message(it, 0, 0), TEXTS),
    "query": (lambda store, it: store.query_message("T", it), TEXTS),
    "lease max": (lambda store, it: store.lease("g", {"T": "*"}, max_messages=it), NUMBERS),
    "lease timeout": (lambda store, it: store.lease("g", {"T": "*"}, timeout_ms=it), TIMES),
    "lease holder": (lambda store, it: store.lease("g", {"T": "*"}, holder=it), TEXTS),
    "lease topics": (lambda store, it: store.lease("g", it), [{"T": "*"}, {Topic.T: "*"}, 7, {}]),
    "lease group": (lambda store, it: store.lease(it, {"T": "*"}), TEXTS),
    "acknowledge": (lambda store, it: store.acknowledge("g", [it]), PLACES),
    "give_back": (lambda store, it: store.give_back("g", [it], delay_ms=0), PLACES),
    "wait": (lambda store, it: store.wait("T", 0, 99, it), TIMES),
    "lag": (lambda store, it: store.lag("g", it), [["T"], "T", {"T"}]),
    "ready": (lambda store, it: store.ready("g", it), TEXTS),
    "purge": (lambda store, it: store.purge("g", it), TEXTS),
    "kv_put value": (lambda store, it: store.kv_put("t", b"k", it), BODIES),
    "kv_put key": (lambda store, it: store.kv_put("t", it, b"v"), BODIES),
    "kv_put ttl": (lambda store, it: store.kv_put("t", b"k", b"v", ttl_ms=it), NUMBERS),
    "kv_get key": (lambda store, it: store.kv_get("t", [it]), BODIES),
    "kv_get table": (lambda store, it: store.kv_get(it, [b"k"]), TEXTS),
    "kv_get by name": (lambda store, it: store.kv_get(keys=[it], table="t"), [b"k"]),
    "kv_list first": (lambda store, it: store.kv_list("t", first=it), BODIES),
}


def outcome(call, store, value):
    """What comes of a call: its error, or nothing."""
    try:
        call(store, value)
    except (RmqCoreError, TypeError, ValueError, AttributeError) as error:
        return type(error)
    return None


@pytest.fixture(scope="module")
def handles(tmp_path_factory):
    path = tmp_path_factory.mktemp("types") / "store"
    with rmqcore.open_shared(path) as owner, rmqcore.open_shared(path) as client:
        yield owner, client


@pytest.mark.parametrize("name", CALLS)
def test_arguments_of_any_type_are_the_same_to_owner_and_client(handles, name):
    call, values = CALLS[name]
    owner, client = handles
    differ = []
    for value in values:
        if isinstance(value, types.GeneratorType):
            here, there = (outcome(call, one, iter(["k"])) for one in (owner, client))
        else:
            here, there = (outcome(call, one, value) for one in (owner, client))
        alike = here and there and issubclass(there, (here, ArgumentError))
        if here is not there and not alike:
            differ.append((value, here, there))
    assert differ == []


#: what is put with this many bytes of properties
FULL = [
    lambda store, size: store.put("T", b"x", properties={"a": "x" * (size - 3)}),
    lambda store, size: store.put("T", b"x", properties={"UNIQ_KEY": "x" * (size - 10)}),
    lambda store, size: store.put_message(Message("T", b"x", properties={"a": "x" * (size - 3)})),
    lambda store, size: store.put_messages(
        [Message("T", b"x", properties={"a": "x" * (size - 3)})] * 2
    ),
]


@pytest.mark.parametrize("put", FULL)
def test_a_client_has_as_much_room_for_properties_as_the_owner(handles, put):
    for size in (32_700, 32_730, 32_765):
        assert all(put(store, size).ok for store in handles)
    for store in handles:
        with pytest.raises(rmqcore.MessageIllegalError, match="take more than 32767 bytes"):
            put(store, 32_780)


def test_the_bytes_of_a_body_are_the_same_from_owner_and_client(handles):
    for body in (np.array(5), np.array(["a"]), np.zeros((0, 3)), np.arange(3.0)):
        for store in handles:
            for receipt in store.put("T", body), store.put_message(Message("T", body)):
                found = store.get_message("T", 0, receipt.queue_offset, max_messages=1)
                assert [message.body for message in found] == [body.tobytes()]


@pytest.mark.logic
def test_what_no_store_takes_is_an_argument_error():
    with pytest.raises(ArgumentError, match="owns the store"):
        pack([object()])


@pytest.mark.logic
def test_buffers_that_are_no_bytes_stay_so():
    again = unpack(b"".join(bytes(part) for part in pack([b"a", bytearray(b"b"), Bytes(b"c")])))
    assert [type(each) for each in again] == [bytes, memoryview, bytes]
    assert [bytes(each) for each in again] == [b"a", b"b", b"c"]
