"""What a put looks at before a byte is written."""

import pytest

from rmqcore import Message, StoreNotWritableError, open_store
from rmqcore._codec import decode_batch, encode_batch
from rmqcore.status import PutMessageStatus


class ChangingBody:
    """A buffer whose conversion to bytes changes the message that it is the body of."""

    def __init__(self, message):
        self.message = message

    def __len__(self):
        return 4

    def __bytes__(self):
        self.message.properties["a"] = "short"
        self.message.tags = "other"
        self.junk = ["Z%05d" % number * 2000 for number in range(50)]
        return b"body"


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
        assert store._tail.append_data(record, 0) is True
        assert [message.body for message in store.messages("T", 0)] == [b"x"]
        assert store.query_message("T", "K").messages[0].body == b"x"
    with open_store(tmp_path / "slave") as store:
        assert store.put("T", b"y").queue_offset == 1
