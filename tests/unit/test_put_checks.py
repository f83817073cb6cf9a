"""What a put looks at before a byte is written."""

import struct

import pytest

from rmqcore import Message, MessageIllegalError, StoreNotWritableError, open_store
from rmqcore._codec import decode_batch, encode_batch
from rmqcore.status import PutMessageStatus

pytestmark = pytest.mark.engine


class ChangingBody:
    """A buffer whose conversion to bytes changes the message that it is the body of."""

    def __init__(self, message):
        self.message = message

    def __len__(self):
        return 4

    def __bytes__(self):
        self.message.properties["a"] = "short"
        self.message.tags = "other"
        self.junk = [f"Z{number:05}" * 2000 for number in range(50)]
        return b"body"


@pytest.mark.logic
def test_a_batch_holds_what_its_messages_hold_when_their_bodies_are_known():
    message = Message("T", b"", properties={"a": "v7" * 6000}, tags="".join(["tag"] * 4000))
    message.body = ChangingBody(message)
    encoded = encode_batch([message])
    (back,) = decode_batch(encoded)
    assert (back.body, back.properties) == (b"body", {"a": "short", "TAGS": "other"})


def test_a_slave_takes_its_masters_bytes_and_no_puts(tmp_path):
    with open_store(tmp_path / "master") as store:
        store.put("T", b"x", keys="K")
        record = bytes(store.message_at(0).record)
    with open_store(tmp_path / "slave", broker_role="SLAVE", deliver_delayed=True) as store:
        assert "SLAVE" in store.why_not_writable()
        with pytest.raises(StoreNotWritableError, match="SLAVE"):
            store.put("T", b"y")
        refused = [
            store.put_message(Message("T", b"y")),
            store.put_message(Message("T", b"y", delay_level=1)),
            store.put_messages([Message("T", b"y")]),
        ]
        assert {one.status for one in refused} == {PutMessageStatus.SERVICE_NOT_AVAILABLE}
        assert store.max_phy_offset == 0
        store.followed_log.append_data(record, 0)
        assert [message.body for message in store.messages("T", 0)] == [b"x"]
        assert store.query_message("T", "K").messages[0].body == b"x"
    with open_store(tmp_path / "slave") as store:
        assert store.put("T", b"y").queue_offset == 1


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"])
def test_without_a_timer_wheel_nothing_is_delivered_early(tmp_path, name):
    message = Message("T", b"x", properties={"p": "v", name: "4102444800000"})
    with open_store(tmp_path / "s", deliver_delayed=True) as store:
        for put in (store.put_message, lambda one: store.put_messages([one])):
            with pytest.raises(MessageIllegalError, match="TIMER_"):
                put(message)
        with pytest.raises(MessageIllegalError, match="delay_level"):
            store.put("T", b"x", properties=message.properties)
        assert store.max_phy_offset == 0
        assert store.put("T", b"y").queue_offset == 0


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"])
@pytest.mark.parametrize(
    "before", ["", "a\x01b\x02", "Madam\x01M\x02", "p\x01" + "M" * 99 + "\x02"]
)
def test_an_encoded_batch_asks_for_no_timer_wheel(tmp_path, name, before):
    def body(*texts):
        return b"".join(encoded(text.encode()) for text in texts)

    asks = f"{before}{name}\x011\x02"
    done = f"{asks}TIMER_OUT_MS\x011"
    near = [before, f"{before}{name}x\x011\x02", f"{before}x\x01{name}\x02", done]
    with open_store(tmp_path / "s") as store:
        for texts in ([asks], [*near, asks], [asks[:-1], *near]):
            with pytest.raises(MessageIllegalError, match="no timer wheel"):
                store.put_messages(body(*texts), topic="T")
        assert store.max_phy_offset == 0
        assert store.put_messages(body(*near), topic="T").message_count == len(near)
        assert store.put_messages(body(asks), topic="rmq_sys_wheel_timer").ok


def encoded(properties):
    """One message of an encoded batch body, with a body of one byte."""
    size = 4 + 4 + 4 + 4 + 4 + 1 + 2 + len(properties)
    return (
        struct.pack(">iiiii", size, 0, 0, 0, 1)
        + b"x"
        + struct.pack(">h", len(properties))
        + properties
    )


def test_what_a_timer_wheel_has_delivered_or_has_still_to_see_is_stored(tmp_path):
    asks = {"TIMER_DELIVER_MS": "4102444800000"}
    with open_store(tmp_path / "s") as store:
        receipts = [
            store.put("T", b"delivered", properties=asks | {"TIMER_OUT_MS": "1"}),
            store.put("rmq_sys_wheel_timer", b"waits", properties=asks),
            store.put("RMQ_SYS_TRANS_HALF_TOPIC", b"half", properties=asks, sys_flag=4),
            store.put("T", b"another", properties={"TIMER_ROLL_TIMES": "2"}),
        ]
        assert [store.message_at(one.phy_offset).body for one in receipts] == [
            b"delivered",
            b"waits",
            b"half",
            b"another",
        ]
