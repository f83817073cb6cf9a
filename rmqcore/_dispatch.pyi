from collections.abc import Sequence
from typing import Self, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

@final
class DispatchBatch:
    index_tags: bool
    def __new__(
        cls,
        *,
        row_count_max: int = 32768,
        delays_ms: Sequence[int] = (),
        index_tags: bool = True,
        multi_dispatch: bool = False,
    ) -> Self: ...
    @property
    def row_count(self) -> int: ...
    @property
    def group_count(self) -> int: ...
    @property
    def key_count(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def store_timestamp(self) -> int: ...
    @property
    def key_hashes(self) -> NDArray[np.int32]: ...
    @property
    def key_offsets(self) -> NDArray[np.int64]: ...
    @property
    def key_timestamps(self) -> NDArray[np.int64]: ...
    def clear(self) -> None: ...
    def scan(
        self,
        buffer: Buffer,
        at: int,
        stop: int,
        *,
        base_offset: int,
        verify_crc: bool = False,
        verify_crc_property: bool = False,
    ) -> tuple[int, int]: ...
    def queue(self, index: int) -> tuple[str, int, int, memoryview, bool, bool, int, int]: ...
    def rows_of(self, index: int) -> list[tuple[int, int, int, int, int, int]]: ...
    def __len__(self) -> int: ...
