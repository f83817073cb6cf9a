from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from typing_extensions import Buffer, disjoint_base

from rmqcore.native.format._message import Message
from rmqcore.native.format._message_ext import MessageExt
from rmqcore.native.format._receipt import PutMessageResult
from rmqcore.native.format._wire_message import WireMessage
from rmqcore.native.log._commit_group import CommitGroup
from rmqcore.native.log._tail import LogTail
from rmqcore.status import Durability, DurabilityName

class _GeneralPath(Protocol):
    def put_generally(
        self, message: Message | MessageExt, durability: Durability | DurabilityName | None
    ) -> PutMessageResult: ...
    def confirmed_now(self, receipt: PutMessageResult) -> PutMessageResult: ...
    def not_waited_for(self, receipt: PutMessageResult) -> PutMessageResult: ...
    def raised(self, receipt: PutMessageResult) -> PutMessageResult: ...

@disjoint_base
class DiskWait:
    timeout_ms: float
    def __init__(
        self,
        group: CommitGroup,
        took: Callable[[float], object],
        *,
        disk: bool,
        timeout_ms: float,
    ) -> None: ...
    @property
    def disk(self) -> bool: ...
    @property
    def waits(self) -> bool: ...
    @property
    def slaves(self) -> Any: ...
    def wait_for(self, slaves: Any) -> None: ...
    def on_disk(self, receipt: PutMessageResult) -> PutMessageResult: ...
    def not_on_disk(self, receipt: PutMessageResult, failure: str) -> PutMessageResult: ...

@disjoint_base
class MessagePutter:
    def __init__(self, tail: LogTail, confirmation: DiskWait, general: _GeneralPath) -> None: ...
    def put(
        self,
        topic: str,
        body: Buffer,
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Iterable[str] | None = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int = 0,
        born_host: str | None = None,
        store_host: str | None = None,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        durability: Durability | DurabilityName | None = None,
        # named properties: typed_arguments
        expires_ms: int | None = None,
        sharding_key: str | None = None,
        # named properties end
    ) -> PutMessageResult: ...
    def put_message(
        self,
        message: Message | MessageExt,
        *,
        durability: Durability | DurabilityName | None = None,
    ) -> PutMessageResult: ...
    def append_wire(self, message: WireMessage) -> PutMessageResult | int: ...
    def append_now(self, message: WireMessage) -> PutMessageResult | None: ...
