from collections.abc import Callable
from typing import Final, Self, final

from rmqcore.native.format._message import Message
from rmqcore.native.format._receipt import PutMessageResult
from rmqcore.native.log._log_end import LogEnd
from rmqcore.status import Durability

END_OF_FILE: Final[int]
REFUSED: Final[int]

@final
class LogTail(LogEnd):
    durability: Durability
    max_message_size: int
    took: Callable[[float], object] | None
    def __new__(
        cls,
        store_host: str,
        max_message_size: int,
        *,
        append_crc: bool = False,
        multi_dispatch: bool = False,
    ) -> Self: ...
    @property
    def append_crc(self) -> bool: ...
    @property
    def multi_dispatch(self) -> bool: ...
    def next_queue_offset(self, topic: str, queue_id: int) -> int: ...
    def set_next_queue_offset(self, topic: str, queue_id: int, offset: int) -> None: ...
    def set_batch_queue(self, topic: str, batch_queue: bool) -> None: ...
    def begin_topic_anew(self, topic: str, ends: dict[str, int]) -> None: ...
    def put_message(self, message: Message) -> PutMessageResult | int: ...
    def put_encoded(self, batch: Message) -> PutMessageResult | int: ...
