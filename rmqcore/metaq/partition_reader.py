"""Reading a partition: offsets, views, copies, iteration. Never writes, never locks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rmqcore.errors import CorruptRecordError
from rmqcore.metaq.errors import MissingSegmentError
from rmqcore.metaq.file_message_set import FileMessageSet
from rmqcore.metaq.message import HEADER_SIZE, Message, Verdict, decode_messages
from rmqcore.metaq.segments import Segment, find_segment, nearest_offset

_READ_SIZE = 1 << 20
_DIRECTORY_NAME = re.compile(r"(.+)-(0|[1-9]\d{0,8})", re.ASCII | re.DOTALL)


def partition_named(name: str) -> tuple[str, int] | None:
    """Topic and number of the partition whose directory has a name; None for that of none."""
    match = _DIRECTORY_NAME.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


class PartitionReader:
    """The segments of one partition, as they were at the moment of each call.

    Attributes:
        topic: the topic.
        partition: number of the partition.
        path: its directory, ``<dataPath>/<topic>-<partition>``.
    """

    def __init__(self, topic: str, partition: int, data_path: Path) -> None:
        self.topic = topic
        self.partition = partition
        self.path = data_path / f"{topic}-{partition}"
        self._segments: tuple[Segment, ...] = ()

    @property
    def min_offset(self) -> int:
        """First offset of the log."""
        return self._segments[0].start if self._segments else 0

    @property
    def max_offset(self) -> int:
        """Offset behind the last durable byte."""
        return self._segments[-1].stop if self._segments else 0

    @property
    def message_count(self) -> int:
        """Messages counted in the newest segment; older segments are not counted."""
        return sum(segment.messages.message_count for segment in self._segments)

    @property
    def size_in_bytes(self) -> int:
        """Bytes in every segment."""
        return sum(segment.messages.size_in_bytes for segment in self._segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first."""
        return self._segments

    def slice(self, offset: int, max_size: int) -> FileMessageSet | None:
        """View at most ``max_size`` durable bytes from ``offset``, within one segment.

        Args:
            offset: position of the first byte in the partition.
            max_size: most bytes of the view.

        Returns:
            None at or behind the end. A view may end inside a message; the client asks again.

        Raises:
            OffsetTooSmallError: the offset was deleted.
            MissingSegmentError: the offset lies in a hole.
        """
        segment = find_segment(self._segments, offset, self.path)
        if segment is None:
            return None
        at = offset - segment.start
        return segment.messages.slice(at, at + max_size)

    def nearest_offset(self, offset: int) -> int:
        """Begin of the segment that holds an offset; outside the log its nearer end."""
        return nearest_offset(self._segments, offset)

    def read(self, offset: int, size: int) -> bytes:
        """Copy durable bytes out of one segment; fewer at its end.

        Args:
            offset: position of the first byte in the partition.
            size: how many bytes; fewer come at the end of a segment.

        Raises: as `slice`.
        """
        segment = find_segment(self._segments, offset, self.path)
        if segment is None:
            return b""
        at = offset - segment.start
        return segment.messages.slice(at, at + size).read()

    def messages(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        across_holes: bool = False,
        keep_malformed: bool = False,
    ) -> Iterator[Message]:
        """Iterate over whole messages in order.

        Args:
            start: offset of a record; None: the first.
            stop: end before the message that begins here; None: the end of the log at this call.
            across_holes: go on behind a hole instead of raising.
            keep_malformed: yield a message whose attribute block is wrong, see
                `Message.malformed`, instead of raising.

        Raises:
            CorruptRecordError: a record is damaged, or ``start`` is no record.
            MissingSegmentError: a hole, and not ``across_holes``.
        """
        offset = self.min_offset if start is None else start
        end = self.max_offset if stop is None else min(stop, self.max_offset)
        size = _READ_SIZE
        while offset < end:
            try:
                buffer = self.read(offset, size)
            except MissingSegmentError as hole:
                if not across_holes:
                    raise
                offset = hole.next_offset
                continue
            before = offset
            for message in decode_messages(
                self.topic,
                buffer,
                partition=self.partition,
                base_offset=offset,
                path=self.path,
                keep_malformed=keep_malformed,
            ):
                if message.offset >= end:
                    return
                yield message
                offset = message.offset + message.stored_size
            if offset == before:
                if size > len(buffer):
                    raise CorruptRecordError(self.path, offset, Verdict.TORN_DATA.sentence)
                size = HEADER_SIZE + int.from_bytes(buffer[:4], "big")
            else:
                size = _READ_SIZE
