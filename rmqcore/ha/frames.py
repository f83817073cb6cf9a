"""The bytes on the wire: what a slave reports, and what a master sends.

A slave sends 8 bytes, the offset up to which it has the log, again and again. A master sends
frames: 8 bytes offset, 4 bytes size, and this many bytes of its log; a frame of size 0 is a
heart-beat. All integers are big-endian.

Source: RocketMQ store/ha/DefaultHAConnection.java, DefaultHAClient.java.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from rmqcore.ha.errors import HAError
from rmqcore.native.base._mapped import MappedRegion

REPORT: Final = struct.Struct(">q")
HEADER: Final = struct.Struct(">qi")
#: A larger frame ends the connection: a slave of RocketMQ has a buffer of this size.
FRAME_SIZE_MAX: Final = 4 * 1024 * 1024
#: A master that is limited to some bytes a second may send nothing but heart-beats for this long,
#: although it has more.
QUIET_S: Final = 1.5
#: No log is as long as this; who names a larger offset speaks another protocol.
OFFSET_MAX: Final = 1 << 56


class Frame(NamedTuple):
    """One frame; its body is good until the reader reads on."""

    phy_offset: int
    body: memoryview


class ReportReader:
    """Finds the latest report in what a slave sends; earlier ones say nothing more."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(REPORT.size * 1024))
        self._filled = 0

    @property
    def free(self) -> memoryview:
        """Where the next bytes go."""
        return self._buffer[self._filled :]

    def received(self, size: int) -> int | None:
        """Take this many bytes into account; the latest offset reported, None when there is none.

        Raises:
            HAError: it is no slave that speaks.
        """
        self._filled += size
        whole = self._filled - self._filled % REPORT.size
        if not whole:
            return None
        (offset,) = REPORT.unpack_from(self._buffer, whole - REPORT.size)
        rest = bytes(self._buffer[whole : self._filled])
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)
        if not 0 <= offset < OFFSET_MAX:
            raise HAError("what it reports is no offset: it is no slave")
        return int(offset)


class FrameReader:
    """Cuts what a master sends into frames, which stay where they were received.

    Args:
        file_size: bytes of a log file. A log that is expected from 0 on may begin at any multiple.
    """

    def __init__(self, file_size: int = OFFSET_MAX) -> None:
        self._file_size = file_size
        # pages that the system gives when they are filled: most connections fill the first alone
        self._buffer = memoryview(MappedRegion(None, FRAME_SIZE_MAX))
        self._start = self._filled = 0

    @property
    def free(self) -> memoryview:
        """Where the next bytes go."""
        if self._start and self._start == self._filled:
            self._start = self._filled = 0
        elif self._filled > FRAME_SIZE_MAX // 2 and self._start:
            rest = self._filled - self._start
            # a memoryview copies as memmove does
            self._buffer[:rest] = self._buffer[self._start : self._filled]
            self._start, self._filled = 0, rest
        return self._buffer[self._filled :]

    def received(self, size: int, expected: int) -> Iterator[Frame]:
        """Take this many bytes into account; every whole frame, each where the one before ends.

        Args:
            size: bytes received.
            expected: the offset that the next frame must have.

        Raises:
            HAError: a frame has another one, or a size that no frame has; that is told before its
                body has come.
        """
        self._filled += size
        while self._filled - self._start >= HEADER.size:
            offset, body_size = HEADER.unpack_from(self._buffer, self._start)
            if offset != expected and (expected or not self._begins_log(offset)):
                raise HAError(f"a frame of offset {offset} came where {expected} goes on")
            if not 0 <= body_size <= FRAME_SIZE_MAX - HEADER.size:
                raise HAError(f"a frame of {body_size} bytes came: it is no master")
            begin = self._start + HEADER.size
            if self._filled < begin + body_size:
                return
            self._start = begin + body_size
            expected = offset + body_size
            yield Frame(offset, self._buffer[begin : self._start])

    def _begins_log(self, offset: int) -> bool:
        return 0 <= offset < OFFSET_MAX and offset % self._file_size == 0
