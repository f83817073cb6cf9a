from collections.abc import Iterator

from typing_extensions import Buffer, disjoint_base

@disjoint_base
class WireMessage:
    def __init__(
        self,
        topic: str,
        queue_id: int,
        body: Buffer,
        properties: bytes | None,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: str,
        reconsume_times: int,
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def body(self) -> Buffer: ...
    @property
    def properties(self) -> bytes | None: ...
    @property
    def flag(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def born_timestamp_ms(self) -> int: ...
    @property
    def born_host(self) -> str: ...
    @property
    def reconsume_times(self) -> int: ...
    def __iter__(self) -> Iterator[object]: ...
