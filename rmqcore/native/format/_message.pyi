from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, final

from typing_extensions import disjoint_base

# the arguments of `Message`
PUT_NAMES: Final[tuple[str, ...]]

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
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int = 0,
        born_host: str | None = None,
        store_host: str | None = None,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        delay_level: int = 0,
        wait_store_msg_ok: bool = True,
        # named properties: typed_arguments
        expires_ms: int | None = None,
        sharding_key: str | None = None,
        # named properties end
    ) -> None: ...
    # named properties: typed_attributes
    @property
    def expires_ms(self) -> int | None: ...
    @property
    def sharding_key(self) -> str | None: ...
    # named properties end
    def to_dict(self) -> dict[str, Any]: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class StoredCopy(Message): ...
