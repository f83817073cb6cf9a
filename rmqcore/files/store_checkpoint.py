"""The checkpoint: up to which store time log, consume queues and index are on disk."""

from __future__ import annotations

import logging
import os
import struct
from pathlib import Path
from typing import Final

from rmqcore.errors import CorruptCheckpointError
from rmqcore.files.store_dir import room_at
from rmqcore.files.store_trace import Note, unnoted
from rmqcore.files.zeros import read_small
from rmqcore.native.base._lock import ReentrantLock
from rmqcore.native.format._numbers import CHECKPOINT_SIZE
from rmqcore.world import sync_data, sync_directory

#: The advice for a checkpoint whose times cannot be true.
CHECKPOINT_MEND = "remove the file: the next opening then compares the whole log"

SAFETY_MARGIN_MS = 3000
#: A time that is earlier than the known one by more than this is of a clock that was set back, and
#: counts; by less, the known one stays.
_CLOCK_STEP_BACK_MAX_MS = 10_000
_FIELDS = struct.Struct(">5q")


def later_of(known_ms: int, seen_ms: int) -> int:
    """The store time up to which all is on the disk, when what was put last at ``seen_ms`` is.

    Where the clock was set back it is ``seen_ms`` all the same: records of later times may follow
    that are not on the disk.

    Args:
        known_ms: what is known so far, Unix milliseconds; 0 for nothing.
        seen_ms: store time of what was put last, Unix milliseconds; 0 when nothing was.
    """
    went_on = seen_ms > known_ms or 0 < seen_ms < known_ms - _CLOCK_STEP_BACK_MAX_MS
    return seen_ms if went_on else known_ms


_log = logging.getLogger("rmqcore")
_DAY_MS: Final = 86_400_000


class StoreCheckpoint:
    """Five numbers in a file of 4096 bytes.

    - A time is advanced only after the bytes it speaks of are on disk.
    - What a missing or short file lacks reads as zero, as a kill may leave one without a byte:
      recovery then begins at the first log file.

    Attributes:
        physic_msg_timestamp_ms: store time up to which the commit log is on disk.
        logics_msg_timestamp_ms: the same of the consume queues.
        index_msg_timestamp_ms: the same of the index.
        master_flushed_offset, confirm_phy_offset: replication's.

    Layout: docs/format/checkpoint.md.
    Durability: `flush` returns after ``fdatasync``.
    Source: RocketMQ store/StoreCheckpoint.java.
    Differs: RocketMQ advances the consume queues' time when it writes them, before they are on
        disk.
    """

    def __init__(self, path: Path, note: Note = unnoted) -> None:
        self.path = path
        self._note = note
        #: the bytes that the file is known to begin with
        self._known = b""
        self._lock = ReentrantLock()
        self.physic_msg_timestamp_ms = 0
        self.logics_msg_timestamp_ms = 0
        self.index_msg_timestamp_ms = 0
        self.master_flushed_offset = 0
        self.confirm_phy_offset = 0

    @property
    def times_ms(self) -> tuple[int, int, int]:
        """Its times, of the log, of the consume queues and of the index."""
        return (
            self.physic_msg_timestamp_ms,
            self.logics_msg_timestamp_ms,
            self.index_msg_timestamp_ms,
        )

    def lower(self, time_ms: int) -> None:
        """Let no time be later than one, as where the log was cut."""
        self.physic_msg_timestamp_ms = min(self.physic_msg_timestamp_ms, time_ms)
        self.logics_msg_timestamp_ms = min(self.logics_msg_timestamp_ms, time_ms)
        self.index_msg_timestamp_ms = min(self.index_msg_timestamp_ms, time_ms)

    def load(self) -> bool:
        """Read the file; False when there is none.

        Raises:
            CorruptCheckpointError: it holds a negative time.
        """
        try:
            data = read_small(self.path)
        except FileNotFoundError:
            return False
        values = _FIELDS.unpack_from(data.ljust(_FIELDS.size, b"\0"))
        if min(values[:3]) < 0:
            raise CorruptCheckpointError(
                self.path, 0, f"negative times: {values[:3]}; {CHECKPOINT_MEND}"
            )
        (
            self.physic_msg_timestamp_ms,
            self.logics_msg_timestamp_ms,
            self.index_msg_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_phy_offset,
        ) = values
        self._known = data[: _FIELDS.size]
        return True

    def distrust_future(self, now_ms: int) -> None:
        """Forget every time when one is later than tomorrow, as bytes of something else give it.

        Such a time would stay for ever, and each recovery would take queues for written that a
        power cut has taken. Derived again, a store costs its opening some time.

        Args:
            now_ms: Unix time.
        """
        latest = max(self.times_ms)
        if latest > now_ms + _DAY_MS:
            _log.warning(
                "%s has a time that is still to come, %d ms: everything is derived again",
                self.path,
                latest,
            )
            self.reset()

    def reset(self) -> None:
        """Forget every time, so that everything is derived again."""
        self.physic_msg_timestamp_ms = self.logics_msg_timestamp_ms = 0
        self.index_msg_timestamp_ms = self.master_flushed_offset = self.confirm_phy_offset = 0

    def flush(self) -> None:
        """Write the numbers through to the disk.

        Raises:
            DiskFullError: no room for the file; the old one is whole.
            OSError: the disk refused.
        """
        with self._lock.within(), room_at(self.path):
            created = not self.path.exists()
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.fstat(fd).st_size < CHECKPOINT_SIZE:
                    os.ftruncate(fd, CHECKPOINT_SIZE)
                # a record's time may have rotted: with a negative one no store opens
                data = _FIELDS.pack(
                    *(max(0, time_ms) for time_ms in self.times_ms),
                    self.master_flushed_offset,
                    self.confirm_phy_offset,
                )
                os.pwrite(fd, data, 0)
                sync_data(fd)
            finally:
                os.close(fd)
            if created:
                sync_directory(self.path.parent)
            if data != self._known:
                self._known = data
                self._note("checkpoint", words=f"the disk has all up to {self.min_timestamp_ms} ms")

    @property
    def min_timestamp_ms(self) -> int:
        """Store time up to which log and consume queues surely agree on disk."""
        agreed = min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms)
        return max(0, agreed - SAFETY_MARGIN_MS)
