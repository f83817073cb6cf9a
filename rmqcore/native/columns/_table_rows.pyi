from typing import Any, Self

from typing_extensions import disjoint_base

WRITTEN: tuple[str, ...]
PLACES: tuple[str, ...]
RULES: dict[int, str]

@disjoint_base
class TableRows:
    def __new__(
        cls,
        table: object,
        *,
        topic: str | None = None,
        queue_count: int = 1,
        unique_prefix: bytes = b"",
        copy: bool = False,
        light_queues: bool = False,
        body_max: int,
        append_crc: bool = False,
        **others: Any,
    ) -> Self: ...
    @property
    def row_count(self) -> int: ...
    @property
    def names_light_queues(self) -> bool: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def queues(self) -> list[tuple[str, int]]: ...
