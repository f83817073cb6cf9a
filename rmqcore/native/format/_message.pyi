from collections.abc import Iterable
from pathlib import Path
from typing import Never, final

from typing_extensions import Buffer, disjoint_base

from rmqcore.status import Durability, PutMessageStatus

@disjoint_base
class Message:
    topic: str
    body: bytes | bytearray | memoryview
    queue_id: int
    tags: str | None
    keys: Iterable[str] | None
    properties: dict[str, str] | None
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: str | None
    store_host: str | None
    reconsume_times: int
    prepared_transaction_offset: int
    delay_level: int
    wait_store_msg_ok: bool
    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview = b"",
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Iterable[str] | None = (),
        properties: dict[str, str] | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int = 0,
        born_host: str | None = None,
        store_host: str | None = None,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        delay_level: int = 0,
        wait_store_msg_ok: bool = True,
    ) -> None: ...

@final
class MessageExt:
    def __init__(self, *args: Never, **settings: Never) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def phy_offset(self) -> int: ...
    @property
    def store_size(self) -> int: ...
    @property
    def flag(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def born_timestamp_ms(self) -> int: ...
    @property
    def store_timestamp_ms(self) -> int: ...
    @property
    def born_host(self) -> str: ...
    @property
    def store_host(self) -> str: ...
    @property
    def reconsume_times(self) -> int: ...
    @property
    def prepared_transaction_offset(self) -> int: ...
    @property
    def body_crc(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def tags(self) -> str | None: ...
    @property
    def unique_key(self) -> str | None: ...
    @property
    def message_id(self) -> str: ...
    @property
    def record(self) -> memoryview: ...
    @property
    def body_view(self) -> memoryview: ...
    def decompressed_body(self, *, max_size: int = 67108864) -> bytes: ...
    def has_key(self, topic: str, key: str) -> bool: ...
    def check_crc(self) -> bool: ...

@final
class PutMessageResult:
    def __init__(
        self,
        status: PutMessageStatus,
        *,
        phy_offset: int = -1,
        queue_offset: int = -1,
        store_size: int = 0,
        store_timestamp_ms: int = 0,
        message_count: int = 0,
        durability: Durability | None = None,
        reason: str = "",
        store_host: bytes | None = None,
        phy_offsets: Iterable[int] | None = None,
    ) -> None: ...
    @property
    def status(self) -> PutMessageStatus: ...
    @property
    def durability(self) -> Durability | None: ...
    @property
    def phy_offset(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def store_size(self) -> int: ...
    @property
    def store_timestamp_ms(self) -> int: ...
    @property
    def message_count(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def ok(self) -> bool: ...
    @property
    def message_id(self) -> str | None: ...
    def with_flush(
        self, status: PutMessageStatus, durability: Durability | None, reason: str = ""
    ) -> PutMessageResult: ...

def message_from(
    buffer: Buffer,
    at: int = 0,
    *,
    path: str | Path | None = None,
    base_offset: int = 0,
    check_crc: bool = True,
) -> MessageExt: ...
def find_message(
    buffer: Buffer, at: int, end: int, *, path: str | Path, base_offset: int
) -> MessageExt | int | None: ...
def status_text(status: int) -> str: ...
