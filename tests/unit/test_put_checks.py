"""What a put looks at before a byte is written."""

from rmqcore import Message
from rmqcore._codec import decode_batch, encode_batch


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
