"""POP's receipts: what requests and checkpoints say about messages that were handed out.

Source: RocketMQ remoting/protocol/header/ExtraInfoUtil.java, store/pop/PopCheckPoint.java,
AckMsg.java, BatchAckMsg.java.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rmqcore.java.json import format_plain_object, parse_java_json
from rmqcore.message import RETRY_PREFIX
from rmqcore.remoting import RequestRefusedError, ResponseCode

#: A receipt's flag says whether its message lies in the topic itself or in its group's retry topic.
NORMAL: Final = 0
RETRY: Final = 1
#: A receipt names this revive queue for messages that went out in order: no record is kept of them.
ORDERED: Final = 999
REVIVE_QUEUES: Final = 8
COUNT_MAX: Final = 32
#: A pop that lies farther ahead than this was made by a clock that has been put back since.
AHEAD_MS_MAX: Final = 10_000
_NUMBER: Final = "(-?[0-9]{1,19})"
_WORDS: Final = re.compile(" ".join([_NUMBER] * 5) + f" ([^ ]*) {_NUMBER} {_NUMBER}(?: [^ ]*)?")
_INT64_MAX: Final = 2**63 - 1
#: A field of our own in the record of a checkpoint, see `Checkpoint.kept`.
_KEPT: Final = "kept"

#: A checkpoint is known by its topic, group, queue id, start offset and pop time.
CheckpointKey: TypeAlias = tuple[str, str, int, int, int]


def retry_topic_of(group: str, topic: str) -> str:
    """Where the messages of a topic go that a group did not acknowledge in time.

    Args:
        group: its name.
        topic: its name; a retry topic of the group stays as it is.
    """
    if topic.startswith(RETRY_PREFIX + group):
        return topic
    return f"{RETRY_PREFIX}{group}_{topic}"


@dataclass(frozen=True, slots=True)
class Receipt:
    """By what a consumer names a message that it was handed.

    Attributes:
        start_offset: where the pop began in the queue.
        pop_time_ms: when it was, Unix time.
        invisible_ms: for how long nobody else gets the message.
        revive_queue: where its checkpoint is.
        flag: `NORMAL` or `RETRY`.
        broker_name: of the broker that has handed it out.
        queue_id: its queue.
        queue_offset: its offset.
    """

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    flag: int
    broker_name: str
    queue_id: int
    queue_offset: int

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """Read ``extraInfo``; RocketMQ's proxy adds the message's place in the log behind it.

        Raises:
            RequestRefusedError: it is none; answers with code 1.
        """
        found = _WORDS.fullmatch(text)
        if found is None:
            remark = "extraInfo is no receipt of a pop"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
        start, popped, invisible, revive_queue, flag, broker_name, queue_id, offset = found.groups()
        return cls(
            int(start),
            int(popped),
            int(invisible),
            int(revive_queue),
            int(flag),
            broker_name,
            int(queue_id),
            int(offset),
        )

    def __str__(self) -> str:
        """As `parse` reads it."""
        return (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue} "
            f"{self.flag} {self.broker_name} {self.queue_id} {self.queue_offset}"
        )


@dataclass(slots=True)
class Checkpoint:
    """Messages of one queue that one pop has handed out.

    Attributes:
        topic: theirs; the retry topic for what came from there.
        group: who has them.
        queue_id: their queue.
        start_offset: where the pop began.
        pop_time_ms: when it was, Unix time.
        invisible_ms: for how long nobody else gets them.
        open_offsets: those that are not acknowledged.
        revive_queue: where the checkpoint is stored.
        suspended: coming again does not count as an attempt.
        place: its offset in the revive queue.
        end: where the group went on in the queue; of one that was read back, and is not kept.
        kept: its one message was handed out before, and another time was agreed for it.
    """

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    open_offsets: list[int]
    revive_queue: int
    suspended: bool = False
    place: int = -1
    end: int = -1
    kept: bool = False

    @property
    def key(self) -> CheckpointKey:
        """What names it."""
        return self.topic, self.group, self.queue_id, self.start_offset, self.pop_time_ms

    @property
    def due_ms(self) -> int:
        """When its messages come again, Unix time."""
        return self.pop_time_ms + self.invisible_ms

    def to_java(self, broker_name: str) -> bytes:
        """The body of its record."""
        # RocketMQ passes over a field that it does not know
        kept: dict[str, object] = {_KEPT: True} if self.kept else {}
        return _body(
            {
                "bm": 0,
                "bn": broker_name,
                "c": self.group,
                "d": [offset - self.start_offset for offset in self.open_offsets],
                "it": self.invisible_ms,
                **kept,
                "n": len(self.open_offsets),
                "pt": self.pop_time_ms,
                "q": self.queue_id,
                "reviveTime": self.due_ms,
                "ro": 0,
                "so": self.start_offset,
                "sp": self.suspended,
                "t": self.topic,
            }
        )

    @classmethod
    def from_java(cls, body: bytes, revive_queue: int, place: int) -> Checkpoint:
        """Read the body of a record.

        Args:
            body: JSON.
            revive_queue: queue of the revive topic that the record lies in.
            place: queue offset of the record there.

        Raises:
            ValueError: it is none.
        """
        fields = _fields(body)
        start, count, acked = _whole(fields, "so"), _whole(fields, "n"), _whole(fields, "bm")
        distances = fields.get("d")
        if distances is None:
            distances = range(count)
        if not 0 <= count <= COUNT_MAX or len(distances) < count:
            raise ValueError(f"a checkpoint of {count} messages with {len(distances)} offsets")
        offsets = [
            start + int(distance)
            for bit, distance in enumerate(distances[:count])
            if not acked >> bit & 1
        ]
        kept = bool(fields.get(_KEPT, False))
        following = start + int(distances[count - 1]) + 1 if count else start
        return cls(
            str(fields["t"]),
            str(fields["c"]),
            _whole(fields, "q"),
            start,
            _whole(fields, "pt"),
            _whole(fields, "it"),
            offsets,
            revive_queue,
            bool(fields.get("sp", False)),
            place,
            -1 if kept else following,
            kept,
        )


def done_body(
    topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int, broker_name: str
) -> bytes:
    """The body of a checkpoint of one message that is acknowledged: its group goes on behind it.

    Args:
        topic: the message's.
        group: who has acknowledged it.
        queue_id: the message's queue.
        offset: its place in the queue.
        pop_time_ms: when it was handed out, Unix time.
        broker_name: this broker's.
    """
    handed_out = Checkpoint(topic, group, queue_id, offset, pop_time_ms, 0, [offset], 0)
    return _body({**_fields(handed_out.to_java(broker_name)), "bm": 1})


def ack_body(key: CheckpointKey, offsets: Sequence[int], broker_name: str) -> bytes:
    """The body of a record that acknowledges messages of a checkpoint.

    Args:
        key: (topic, group, queue id, start offset, time of the pop) of the checkpoint.
        offsets: queue offsets, at least one; several make a batch.
        broker_name: of this broker.
    """
    topic, group, queue_id, start_offset, pop_time_ms = key
    single = len(offsets) == 1
    body: dict[str, object] = {
        "ao": offsets[0] if single else -1,
        "bn": broker_name,
        "c": group,
        "pt": pop_time_ms,
        "q": queue_id,
        "so": start_offset,
        "t": topic,
    }
    if not single:
        body["aol"] = list(offsets)
    return _body(body)


def read_ack(body: bytes) -> tuple[CheckpointKey, list[int]]:
    """Which checkpoint a record is about, and which of its offsets it acknowledges.

    Raises:
        ValueError: it is none.
    """
    fields = _fields(body)
    key = (
        str(fields["t"]),
        str(fields["c"]),
        _whole(fields, "q"),
        _whole(fields, "so"),
        _whole(fields, "pt"),
    )
    many = fields.get("aol")
    if isinstance(many, list):
        return key, [int(offset) for offset in many]
    return key, [_whole(fields, "ao")]


def _body(fields: dict[str, object]) -> bytes:
    return format_plain_object(fields).encode(errors="replace")


def _fields(body: bytes) -> dict[str, Any]:
    fields = parse_java_json(body.decode())
    if not isinstance(fields, dict) or not {"t", "c"} <= fields.keys():
        raise ValueError("no object with a topic and a group")
    f"{fields['t']} {fields['c']}".encode()  # what is no text can be named in no record
    return fields


def _whole(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    if type(value) is not int or not -_INT64_MAX <= value <= _INT64_MAX:
        raise ValueError(f"{name}={value!r} is no number")
    return value
