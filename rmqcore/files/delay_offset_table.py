"""`DelayOffsetTable`: how far each delay level is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rmqcore.files.config_tables import OFFSET_MAX, ConfigTable, numbered_offsets


class DelayOffsetTable(ConfigTable):
    """``delayOffset.json``: by delay level, the next queue offset of ``SCHEDULE_TOPIC_XXXX``.

    Source: RocketMQ broker/schedule/ScheduleMessageService.java.
    """

    file_name = "delayOffset.json"

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], int],
        end_of: Callable[[int], int] | None = None,
    ) -> None:
        """See `ConfigTable`.

        Args:
            directory: where the file lies.
            clock: Unix time in milliseconds.
            end_of: the end of a level's queue, beyond which nothing is taken over.
        """
        self._offsets: dict[int, int] = {}
        self._end_of = end_of
        super().__init__(directory, clock=clock)

    def get(self, level: int) -> int | None:
        """The next queue offset to deliver at a level; None when nothing was delivered yet."""
        return self._offsets.get(level)

    def commit(self, level: int, queue_offset: int) -> None:
        """Set the next queue offset to deliver at a level.

        Args:
            level: of ``messageDelayLevel``, whose first one is 1.
            queue_offset: in the level's queue; number of the first message that was not delivered.

        Raises:
            ValueError: the level is below 1 or the offset is negative.
        """
        if level < 1 or not 0 <= queue_offset <= OFFSET_MAX:
            raise ValueError(f"level {level}, offset {queue_offset}: at least 1 and 0")
        with self._lock.within():
            self._changed |= self._offsets.get(level) != queue_offset
            self._offsets[level] = queue_offset

    def levels(self) -> dict[int, int]:
        """A copy of all offsets, by level."""
        with self._lock.within():
            return dict(self._offsets)

    @staticmethod
    def _decode(content: dict[str, object]) -> dict[int, int]:
        return numbered_offsets("offsetTable", content.pop("offsetTable", {}))

    def _install(self, table: dict[int, int]) -> None:
        self._offsets = table

    def _fitted(self, told: dict[int, int]) -> dict[int, int]:
        """The same, and none behind the end of its queue: what is put there would not come."""
        if self._end_of is None:
            return told
        return {level: min(offset, self._end_of(level)) for level, offset in told.items()}

    def _with(self, told: dict[int, int]) -> dict[int, int]:
        return {**self._offsets, **told}

    def _encode(self) -> dict[str, object]:
        return {"offsetTable": dict(sorted(self._offsets.items()))}
