from pathlib import Path
from typing import Self, final

from typing_extensions import Buffer

@final
class BufferHold:
    def __new__(
        cls, buffer: Buffer, path: str | Path | None = None, base_offset: int = 0
    ) -> Self: ...
    @property
    def path(self) -> str | Path | None: ...
    @property
    def base_offset(self) -> int: ...

@final
class HeldBytes:
    def __new__(cls, hold: BufferHold, start: int, size: int) -> Self: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
