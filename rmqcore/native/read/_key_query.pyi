from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from typing_extensions import Buffer

from rmqcore.native.format._message import MessageExt

@final
class QueryMessageResult:
    def __init__(
        self,
        messages: list[MessageExt],
        next_page: int | None = None,
        explanation: object | None = None,
    ) -> None: ...
    @property
    def messages(self) -> list[MessageExt]: ...
    @property
    def buffer_total_size(self) -> int: ...
    @property
    def next_page(self) -> int | None: ...
    @property
    def explanation(self) -> Any: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[MessageExt]: ...

@final
class MappedIndex:
    def __init__(self, buffer: Buffer, path: Path, slot_count: int, entry_count: int) -> None: ...

def may_hold_hits(
    index_count: int, file_begin_ms: int, file_end_ms: int, begin_ms: int, end_ms: int
) -> bool: ...
def is_hit(message: MessageExt, topic: str, key: str, begin_ms: int, end_ms: int) -> bool: ...
