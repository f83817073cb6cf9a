from collections.abc import Iterable, Mapping
from typing import Any

from typing_extensions import Buffer, disjoint_base

from rmqcore.native.format._message import Message, MessageExt, PutMessageResult
from rmqcore.native.log._commit_group import CommitGroup
from rmqcore.native.log._tail import LogTail
from rmqcore.status import Durability

@disjoint_base
class MessagePutter:
    _tail: LogTail
    _waits: bool
    _commits: CommitGroup
    _disk_timeout_s: float
    _stats: Any
    def _on_disk(self, receipt: PutMessageResult) -> PutMessageResult: ...
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
        durability: Durability | str | None = None,
    ) -> PutMessageResult: ...
    def put_message(
        self, message: Message | MessageExt, *, durability: Durability | str | None = None
    ) -> PutMessageResult: ...
