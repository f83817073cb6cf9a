"""Messages and receipts as values: equality, dictionaries, pickles."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from rmqcore import ArgumentError, Message, MessageExt, MessageIllegalError, open_store
from rmqcore.message import PutSettings, ReceivedMessage, copy_to
from rmqcore.native.format._message import PUT_NAMES
from rmqcore.native.format._message_ext import STORED_NAMES
from rmqcore.native.format.named_properties import NAMED
from rmqcore.native.log._putter import MessagePutter

pytestmark = pytest.mark.engine

FULL = {
    "topic": "T",
    "body": b"body",
    "queue_id": 3,
    "tags": "a",
    "keys": ("k", "l"),
    "properties": {"p": "q"},
    "flag": 1,
    "sys_flag": 0,
    "born_timestamp_ms": 1_700_000_000_000,
    "born_host": "10.0.0.1:1",
    "store_host": "10.0.0.2:2",
    "reconsume_times": 4,
    "prepared_transaction_offset": 5,
    "delay_level": 0,
    "wait_store_msg_ok": False,
}


NAMED_VALUES = {each.attribute: {int: 7, str: "seven"}[each.kind] for each in NAMED}


class TestNames:
    """A field that is written at one of its places is missed at the others."""

    def test_a_message_names_what_it_has(self):
        found = {name for name, each in vars(Message).items() if inspect.isdatadescriptor(each)}
        assert found - set(NAMED_VALUES) == set(PUT_NAMES) == set(FULL)

    @pytest.mark.process
    def test_what_spells_the_named_properties_out_is_as_their_table_says(self):
        script = Path(__file__).parents[2] / "scripts" / "named_properties.py"
        check = [sys.executable, script, "--check"]
        done = subprocess.run(check, capture_output=True, text=True, check=False)
        assert (done.stdout, done.returncode) == ("", 0)

    def test_a_put_takes_all_that_a_message_has(self):
        assert set(PutSettings.__annotations__) - set(NAMED_VALUES) == set(PUT_NAMES) - {
            *("topic", "body", "wait_store_msg_ok")
        }
        put = set(inspect.signature(MessagePutter.put).parameters)
        assert put - {"self", "topic", "body", "durability"} == set(PutSettings.__annotations__)

    def test_a_stored_message_names_what_it_has(self):
        found = {name for name, each in vars(MessageExt).items() if inspect.isdatadescriptor(each)}
        assert found - {"record", "body_view", *NAMED_VALUES} == set(STORED_NAMES)


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "s") as opened:
        yield opened


class TestMessage:
    @pytest.mark.logic
    def test_its_dict_makes_it_again(self):
        message = Message(**FULL)
        assert message.to_dict() == FULL
        assert Message(**message.to_dict()) == message
        for again in (pickle.loads(pickle.dumps(message)), copy.copy(message)):
            assert again == message
            assert again is not message

    @pytest.mark.logic
    @pytest.mark.parametrize("name", FULL)
    def test_every_field_counts(self, name):
        other = {"topic": "U", "body": b"x", "tags": "b", "keys": "k", "properties": {}}.get(
            name, "10.0.0.9:9" if name.endswith("host") else 8
        )
        other = True if name == "wait_store_msg_ok" else other
        assert Message(**FULL | {name: other}) != Message(**FULL)

    @pytest.mark.logic
    def test_one_that_can_change_has_no_hash(self):
        with pytest.raises(TypeError, match="unhashable"):
            hash(Message("T"))
        assert Message("T") != "T"

    @pytest.mark.logic
    def test_a_body_that_cannot_be_pickled_becomes_bytes(self):
        message = Message("T", memoryview(b"view"), keys=["k"])
        again = pickle.loads(pickle.dumps(message))
        assert again.body == b"view"
        assert again == message


class TestMessageExt:
    def test_it_is_pickled_by_its_record(self, store):
        for number in range(3):
            store.put("T", b"%d" % number, tags="t", keys=("a", "b"), properties={"p": "q"})
        for stored in store.messages():
            again = pickle.loads(pickle.dumps(stored))
            assert bytes(again.record) == bytes(stored.record)
            assert again == stored
            assert hash(again) == hash(stored)
            assert again.to_dict() == stored.to_dict()
            assert again.phy_offset == stored.phy_offset
        assert len(set(store.messages()) | set(store.get_message("T", 0, 0))) == 3

    def test_its_dict_has_every_attribute(self, store):
        store.put("T", b"x", tags="t", keys="k")
        stored = store.message_at(0)
        facts = stored.to_dict()
        named = {
            name
            for name in dir(stored)
            if not name.startswith("_") and not callable(getattr(stored, name))
        }
        assert facts.keys() == named - {"record", "body_view", *NAMED_VALUES}
        assert all(getattr(stored, name) == value for name, value in facts.items())

    def test_a_message_of_another_place_is_another(self, store):
        store.put("T", b"x")
        store.put("T", b"x")
        first, second = store.messages()
        assert first != second
        assert first != first.to_dict()


class TestNamedProperties:
    """What `NAMED` has is an argument of each put, and an attribute of each message."""

    @pytest.mark.parametrize("way", ["put", "put_message", "put_messages", "put_async"])
    def test_what_was_put_is_read(self, store, way):
        if way == "put_async":
            asyncio.run(store.put_async("T", b"x", **NAMED_VALUES))
        elif way == "put":
            store.put("T", b"x", **NAMED_VALUES)
        else:
            message = Message("T", b"x", properties={"a": "b"}, **NAMED_VALUES)
            assert Message(**message.to_dict()) == message
            getattr(store, way)(message if way == "put_message" else [message])
        (stored,) = store.get_message("T", 0, 0)
        for message in (
            stored,
            ReceivedMessage(stored),
            copy_to("U", 0, stored, stored.properties),
        ):
            assert {name: getattr(message, name) for name in NAMED_VALUES} == NAMED_VALUES
        assert NAMED_VALUES.keys().isdisjoint(stored.to_dict())

    @pytest.mark.logic
    @pytest.mark.parametrize("each", NAMED)
    def test_what_a_message_lacks_is_none(self, each):
        assert getattr(Message("T"), each.attribute) is None
        unlike = getattr(Message("T", properties={each.name: "x" * 30}), each.attribute)
        assert unlike == (None if each.kind is int else "x" * 30)

    @pytest.mark.parametrize("each", NAMED)
    def test_one_given_twice_or_of_another_type_is_refused(self, store, each):
        given = {each.attribute: NAMED_VALUES[each.attribute]}
        with pytest.raises(MessageIllegalError, match="keep one"):
            store.put("T", b"x", properties={each.name: "1"}, **given)
        with pytest.raises(ArgumentError, match=each.attribute):
            store.put("T", b"x", **{each.attribute: b"7"})
        assert store.queues() == []


class TestReceipt:
    def test_it_survives_pickling(self, store):
        one = store.put("T", b"x")
        many = store.put_messages([Message("T", b"1"), Message("T", b"2")])
        for receipt in (one, many, one.with_flush(one.status, one.durability, "a reason")):
            again = pickle.loads(pickle.dumps(receipt))
            assert again == receipt
            assert hash(again) == hash(receipt)
            assert again.to_dict() == receipt.to_dict()
            assert again.message_id == receipt.message_id
        assert one != many
        assert many.message_id.count(",") == 1

    def test_its_dict_has_every_attribute(self, store):
        receipt = store.put("T", b"x")
        named = {
            name
            for name in dir(receipt)
            if not name.startswith("_") and not callable(getattr(receipt, name))
        }
        assert receipt.to_dict().keys() == named - {"ok"}


class TestCopies:
    KEPT = ("body", "flag", "sys_flag", "born_timestamp_ms", "born_host", "reconsume_times")

    @pytest.mark.logic
    def test_a_copy_has_the_place_it_is_given_and_the_rest_of_what_was_put(self):
        message = Message(**FULL)
        copied = copy_to("U", 7, message, {"TAGS": "b"}).to_dict()
        kept = {name: FULL[name] for name in self.KEPT}
        place = {"topic": "U", "queue_id": 7, "properties": {"TAGS": "b"}}
        assert copied == Message("U").to_dict() | kept | place
        assert message.to_dict() == FULL

    @pytest.mark.logic
    def test_what_is_named_goes_before_what_is_kept(self):
        copied = copy_to("U", 0, Message(**FULL), None, reconsume_times=9, tags="b")
        assert (copied.reconsume_times, copied.tags, copied.flag) == (9, "b", 1)

    def test_a_copy_of_a_stored_message_between_other_hosts_is_stored_as_such(self, store):
        store.put("T", b"body", born_host="[2001:db8::1]:1", reconsume_times=2, flag=3)
        (stored,) = store.get_message("T", 0, 0)
        store.put_message(copy_to("U", 0, stored, stored.properties, born_host="10.0.0.1:9"))
        (again,) = store.get_message("U", 0, 0)
        assert (again.body, again.born_host) == (b"body", "10.0.0.1:9")
        assert (again.reconsume_times, again.flag) == (2, 3)
        assert again.born_timestamp_ms == stored.born_timestamp_ms


def test_a_received_message_is_a_value_too(tmp_path):
    """One that comes back from a worker's process is the one that was sent there."""
    with open_store(tmp_path / "store") as store:
        for _ in range(2):
            store.put("T", b"x", born_timestamp_ms=1)
        first, second = store.lease("g", {"T": "*"})
        for again in (pickle.loads(pickle.dumps(first)), copy.copy(first), copy.deepcopy(first)):
            assert again == first != second
            assert hash(again) == hash(first)
            assert {again} == {first}
        assert first != first.stored
        store.give_back("g", [first.place], delay_ms=0)
        (once_more,) = store.lease("g", {"T": "*"})
        assert once_more != first
