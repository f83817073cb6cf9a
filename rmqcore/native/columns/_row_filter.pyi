from collections.abc import Callable, Iterable, Mapping
from typing import Self, final

HIDDEN: int

@final
class RowFilter:
    def __new__(
        cls,
        *,
        topics: Iterable[str] | None = None,
        queue_ids: Iterable[int] | None = None,
        begin_ms: int = -9223372036854775808,
        end_ms: int = 9223372036854775807,
        begin_phy_offset: int = -9223372036854775808,
        end_phy_offset: int = 9223372036854775807,
        tags: Iterable[str] | None = None,
        keys: Iterable[str] | None = None,
        unique_keys: Iterable[str] | None = None,
        queue_offsets: Mapping[str, dict[int, tuple[int, int]]] | None = None,
        queue_times: Mapping[str, dict[int, tuple[int, int]]] | None = None,
        uncommitted: bool = False,
        topic_rule: Callable[[str], tuple[int, dict[int, int]]] | None = None,
    ) -> Self: ...
    @property
    def of_topics_count(self) -> int: ...
