from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, final

from typing_extensions import Buffer

from rmqcore.native.columns._arrow import ColumnBatch, ColumnBatches
from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.native.format._message import MessageExt
from rmqcore.native.read._log_map import LogMap
from rmqcore.status import GetMessageStatus

@final
class GetMessageResult:
    status: GetMessageStatus
    next_queue_offset: int
    min_queue_offset: int
    max_queue_offset: int
    def __init__(
        self,
        status: GetMessageStatus,
        next_queue_offset: int,
        min_queue_offset: int,
        max_queue_offset: int,
    ) -> None: ...
    @property
    def buffer_total_size(self) -> int: ...
    @property
    def messages(self) -> list[MessageExt]: ...
    def collect(
        self,
        buffer: Buffer,
        end: int,
        path: str | Path | None,
        base_offset: int,
        units: bytes,
        first: int,
        max_messages: int,
        max_bytes: int,
        tags_codes: bytes | None = None,
    ) -> tuple[int, int]: ...
    def batches(self, columns: Iterable[str] = ...) -> ColumnBatches: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def to_arrow(self) -> Any: ...
    def to_pandas(self) -> Any: ...
    def to_polars(self) -> Any: ...
    def collect_mapped(
        self, log: LogMap, units: bytes, max_messages: int, max_bytes: int
    ) -> int: ...
    def expect(self, topic: str, queue_id: int, least_offset: int, demand_crc: bool) -> None: ...
    def slices(self) -> list[memoryview]: ...
    def sizes(self) -> list[int]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[MessageExt]: ...

def decoded(slices: Iterable[memoryview], decoder: ColumnDecoder) -> Iterator[ColumnBatch]: ...
