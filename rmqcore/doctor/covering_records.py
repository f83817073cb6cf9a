"""Records that cover a damaged stretch of the log, so that every walk passes over it.

RocketMQ ends its log at the first place that is no record, so a stretch that was damaged has to
become records again:

- where a consume queue knows of a message, a *placeholder*: a record of its topic, queue and queue
  offset with the flag `LOST_FLAG`, where there is room the property `LOST_PROPERTY`, and a body of
  zeros. Whoever derives the queues anew, RocketMQ too, keeps the number of every message behind it.
- everywhere else a *filler*: a record of the topic `GAP_TOPIC` that says of itself that it is a
  transaction that was rolled back. Neither RocketMQ nor rmqcore gives such a record a place in a
  queue or in the index.
- an end-of-file record where the stretch comes to the end of its file.

Source: RocketMQ store/CommitLog.java, checkMessageAndReturnSize; store/DefaultMessageStore.java,
CommitLogDispatcherBuildConsumeQueue; store/index/IndexService.java, buildIndex.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rmqcore._codec import BLANK_SIZE, blank_record, encode_record
from rmqcore.doctor.lost_messages import LostMessage
from rmqcore.errors import MessageIllegalError
from rmqcore.message import Message
from rmqcore.native.format._numbers import SMALLEST_RECORD_SIZE, SysFlag

#: The topic of records that stand for nothing; cut to the room that a gap has.
GAP_TOPIC = "rmqcore_gap"
#: flag of a record that stands in the place of a message that was lost: LOST in ASCII
LOST_FLAG = int.from_bytes(b"LOST", "big")
#: property of such a record, where there is room for one: the bytes that were lost
LOST_PROPERTY = "RMQCORE_LOST"
#: No filler is larger: RocketMQ takes twice a record's size of memory to read it.
FILLER_MAX = 1 << 20
#: RocketMQ reads what it wrote itself in these topics, so no placeholder is put there.
_OWN_PREFIXES = ("SCHEDULE_TOPIC_", "RMQ_SYS_", "rmq_sys_", "%LMQ%", "rmq_")
#: bytes of the property with a record's CRC
_CRC_SIZE = len("__CRC32#\x01") + 10 + len("\x02")


class _Part(NamedTuple):
    start: int
    size: int
    kind: str
    lost: LostMessage | None = None


def has_placeholder(lost: LostMessage) -> bool:
    """False for messages whose topics only RocketMQ itself reads, and for stored batches."""
    return lost.count == 1 and not lost.topic.startswith(_OWN_PREFIXES)


class CoveringRecords:
    """The records that cover one stretch of one log file.

    Args:
        start, stop: physical offsets; at least `SMALLEST_RECORD_SIZE` bytes, or at least
            `BLANK_SIZE` up to the file's end.
        file_start, file_end: of the file.
        timestamp_ms: store time of every record.
        lost: the messages that are known to have been here, in log order.
        append_crc: every record ends in its ``__CRC32#`` property where that fits, rather than in
            any other: a store may read none without it.
    """

    def __init__(
        self,
        start: int,
        stop: int,
        *,
        file_start: int,
        file_end: int,
        timestamp_ms: int,
        lost: list[LostMessage],
        append_crc: bool,
    ) -> None:
        self._stop = stop
        self._file_end = file_end
        self._timestamp_ms = timestamp_ms
        self._append_crc = append_crc
        self._smallest = SMALLEST_RECORD_SIZE + (_CRC_SIZE if append_crc else 0)
        self._parts: list[_Part] = []
        at = start
        for message in lost:
            if message.phy_offset >= at and has_placeholder(message) and self._fits(message):
                at = self._place(at, message)
        self._finish(at, begins_file=start == file_start)

    @staticmethod
    def _fits(message: LostMessage) -> bool:
        """True when a record of the message's size has room for its topic."""
        return message.size >= SMALLEST_RECORD_SIZE + len(message.topic.encode())

    def _place(self, at: int, message: LostMessage) -> int:
        space = message.phy_offset - at
        if 0 < space < SMALLEST_RECORD_SIZE and not self._parts:
            return at
        self._fill(at, space)
        self._parts.append(_Part(message.phy_offset, message.size, "lost", message))
        return message.phy_offset + message.size

    def _fill(self, at: int, space: int) -> None:
        """A filler, or what is too small for one to the record before."""
        if space >= SMALLEST_RECORD_SIZE:
            self._parts.append(_Part(at, space, "filler"))
        elif space:
            self._parts[-1] = self._parts[-1]._replace(size=self._parts[-1].size + space)

    def _finish(self, at: int, *, begins_file: bool) -> None:
        if self._stop < self._file_end:
            self._fill(at, self._stop - at)
            return
        if begins_file and not self._parts and self._stop - at >= self._smallest + BLANK_SIZE:
            # RocketMQ looks at the first record of a file for the time when it was written
            size = self._smallest + len(GAP_TOPIC) - 1
            self._parts.append(_Part(at, size, "filler"))
            at += size
        while self._stop - at < BLANK_SIZE:
            at = self._parts.pop().start
        self._parts.append(_Part(at, self._stop - at, "blank"))

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """(physical offset, bytes) of everything that is to be written, in order."""
        for part in self._parts:
            if part.kind == "blank":
                yield part.start, blank_record(part.size)
            elif part.lost is not None:
                yield part.start, self._placeholder(part, part.lost)
            else:
                yield from self._fillers(part.start, part.size)

    def _placeholder(self, part: _Part, lost: LostMessage) -> bytes:
        message = Message(
            lost.topic,
            queue_id=lost.queue_id,
            flag=LOST_FLAG,
            properties={LOST_PROPERTY: str(part.size)},
        )
        try:
            return self._sized(message, lost.queue_offset, part.start, part.size)
        except MessageIllegalError:
            # the name of a directory that is no topic
            return b"".join(data for _, data in self._fillers(part.start, part.size))

    def _fillers(self, at: int, size: int) -> Iterator[tuple[int, bytes]]:
        while size:
            take = min(size, FILLER_MAX)
            if 0 < size - take < self._smallest:
                take -= self._smallest
            topic = GAP_TOPIC[: max(1, take - self._smallest + 1)]
            message = Message(topic, sys_flag=SysFlag.TRANSACTION_MASK)
            yield at, self._sized(message, 0, at, take)
            at, size = at + take, size - take

    def _sized(self, message: Message, queue_offset: int, phy_offset: int, size: int) -> bytes:
        """A record of exactly this many bytes; properties go where there is no room for them."""
        for properties, append_crc in (
            (message.properties, self._append_crc),
            (None, self._append_crc),
            (message.properties, False),
            (None, False),
        ):
            message.properties = properties
            message.body = b""
            bare = self._encoded(message, queue_offset, phy_offset, append_crc)
            if len(bare) <= size:
                break
        message.body = bytes(size - len(bare))
        return self._encoded(message, queue_offset, phy_offset, append_crc)

    def _encoded(
        self, message: Message, queue_offset: int, phy_offset: int, append_crc: bool
    ) -> bytes:
        message.born_timestamp_ms = self._timestamp_ms
        return encode_record(
            message,
            queue_offset=queue_offset,
            phy_offset=phy_offset,
            store_timestamp_ms=self._timestamp_ms,
            append_crc=append_crc,
        )
