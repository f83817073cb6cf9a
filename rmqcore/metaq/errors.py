"""Errors that only a MetaQ store knows; all of them are also errors of `rmqcore.errors`."""

from __future__ import annotations

from pathlib import Path

from rmqcore.errors import CorruptStoreError, MessageIllegalError, StoreError


class InvalidChecksumError(MessageIllegalError):
    """The checksum sent with a message differs from that of its bytes; nothing was stored.

    Attributes:
        expected: what the sender computed.
        actual: what arrived.

    Source: MetaQ InvalidCheckSumException.java.
    """

    def __init__(self, expected: int, actual: int) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(f"checksum {expected} was sent, but the bytes that arrived have {actual}")


class UnstorableRecordError(MessageIllegalError):
    """The record is larger than its length field can say, or has no data.

    Attributes:
        message_id: the broker's number of the message.
        size: bytes of data.
    """

    def __init__(self, message_id: int, size: int) -> None:
        self.message_id = message_id
        self.size = size
        super().__init__(
            f"{size} bytes of data do not fit one append"
            if size
            else "a message without data and attribute has the length and checksum of zeros, and "
            "after a power cut nobody could tell it from an unwritten record"
        )


class IllegalTopicError(MessageIllegalError):
    """No configured topic matches, or the name could leave the data directory.

    Source: MetaQ IllegalTopicException.java.
    """


class WrongPartitionError(MessageIllegalError):
    """The partition number is not below the topic's number of partitions.

    Source: MetaQ WrongPartitionException.java.
    """


class OffsetTooSmallError(StoreError, IndexError):
    """The offset lies before the first segment; it has been deleted.

    Attributes:
        offset: what was asked for.
        min_offset: the first offset there is.
    """

    def __init__(self, offset: int, min_offset: int) -> None:
        self.offset = offset
        self.min_offset = min_offset
        super().__init__(f"offset {offset} lies before the first one, {min_offset}")


class MissingSegmentError(CorruptStoreError):
    """The offset lies in a hole between two segments.

    Attributes:
        next_offset: where the log goes on.
    """

    def __init__(self, path: str | Path, offset: int, next_offset: int) -> None:
        self.next_offset = next_offset
        super().__init__(
            path, offset, f"no segment holds this offset; the log goes on at {next_offset}"
        )
