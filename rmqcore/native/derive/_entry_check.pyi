from typing import Self, final

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
    def compare(
        self,
        key_hashes: Buffer,
        phy_offsets: Buffer,
        store_timestamps_ms: Buffer,
        start: int,
        stop: int,
    ) -> int: ...
    def pass_over(self, below: int) -> bool: ...
    def fits(self) -> bool: ...
    def mend(self) -> None: ...
