from collections.abc import Iterable, Sequence
from typing import Self, final

from typing_extensions import Buffer

from rmqcore.native.columns._arrow import ColumnBatch

COLUMNS: tuple[str, ...]
NULLABLE: frozenset[str]

@final
class ColumnDecoder:
    def __new__(
        cls,
        columns: Iterable[str],
        *,
        row_max: int = 16384,
        byte_max: int = 16777216,
        topics: Iterable[str] | None = None,
        queue_ids: Iterable[int] | None = None,
        begin_ms: int = -9223372036854775808,
        end_ms: int = 9223372036854775807,
        uncommitted: bool = True,
        verify_crc: bool = False,
        plain_bodies: bool = False,
        delays_ms: Sequence[int] = (),
    ) -> Self: ...
    @property
    def row_count(self) -> int: ...
    def decode(
        self, buffer: Buffer, at: int, stop: int, *, base_offset: int
    ) -> tuple[int, int]: ...
    def take(self) -> ColumnBatch: ...
