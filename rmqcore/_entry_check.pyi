from typing import Self, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

@final
class EntryCheck:
    def __new__(
        cls,
        buffer: Buffer,
        slot_count: int,
        entry_count: int,
        *,
        by_header: bool,
        before_ms: int = 0,
    ) -> Self: ...
    @property
    def next_entry(self) -> int: ...
    @property
    def limit(self) -> int: ...
    def take(
        self,
        key_hashes: Buffer | NDArray[np.int32],
        phy_offsets: Buffer | NDArray[np.int64],
        store_timestamps_ms: Buffer | NDArray[np.int64],
        start: int,
        stop: int,
    ) -> int: ...
    def pass_over(self, below: int) -> bool: ...
    def fits(self) -> bool: ...
    def mend(self) -> None: ...
