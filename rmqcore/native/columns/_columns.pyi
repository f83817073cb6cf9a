from collections.abc import Iterable, Sequence
from typing import Self, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from rmqcore.native.columns._arrow import ColumnBatch
from rmqcore.native.columns._row_filter import RowFilter

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
        rows: RowFilter | None = None,
        verify_crc: bool = False,
        plain_bodies: bool = False,
        delays_ms: Sequence[int] = (),
    ) -> Self: ...
    @property
    def row_count(self) -> int: ...
    def decode(
        self, buffer: Buffer, at: int, stop: int, *, base_offset: int | None
    ) -> tuple[int, int]: ...
    def decode_stretches(
        self, buffer: Buffer, stretches: Buffer | NDArray[np.int64], number: int, phy_offset: int
    ) -> tuple[int, int, int]: ...
    def take(self) -> ColumnBatch: ...
