"""The messages that the benchmarks put."""

from __future__ import annotations

from rmqcore import Message

BODY_SIZE = 256
TOPIC = "TopicTest"


def message(number: int, *, body_size: int = BODY_SIZE) -> Message:
    """A message like RocketMQ's clients send: a tag, a key and a unique key, fresh bytes."""
    return Message(
        TOPIC,
        b"%0*d" % (body_size, number),
        queue_id=number & 3,
        tags="TagA",
        keys=f"K{number}",
        properties={"UNIQ_KEY": f"7F000001{number:024X}"},
    )
