from collections.abc import Mapping
from typing import final

from typing_extensions import disjoint_base

from rmqcore.native.base._published import PublishedOffset
from rmqcore.native.read._get_result import GetMessageResult
from rmqcore.native.read._key_query import QueryMessageResult
from rmqcore.native.read._log_map import LogMap

READ_ALONG_MAX: int

@disjoint_base
class UnitQueue:
    min_offset: int
    max_offset: int
    plain_files: object | None

def good_units(units: bytes, unit_size: int, floor: int) -> tuple[int, bool, int]: ...
def message_units(units: bytes, unit_size: int) -> tuple[int, int]: ...

@final
class FastReads:
    dispatched: object | None
    def __init__(
        self,
        queues: Mapping[tuple[str, int], UnitQueue],
        index: object | None,
        log: LogMap,
        log_files: object,
        end: PublishedOffset,
        *,
        index_files_max: int = 1024,
    ) -> None: ...
    @property
    def found_count(self) -> int: ...
    @property
    def transferred_count(self) -> int: ...
    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        may_wait: bool = True,
    ) -> GetMessageResult | None: ...
    def is_cached(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        tags_codes: bytes | None,
        max_scanned: int,
    ) -> bool: ...
    def query(
        self, topic: str, key: str, max_messages: int, begin_ms: int, end_ms: int | None
    ) -> QueryMessageResult | None: ...
    def query_many(
        self, topic: str, keys: list[str], max_messages: int, begin_ms: int, end_ms: int | None
    ) -> list[QueryMessageResult | None] | None: ...
