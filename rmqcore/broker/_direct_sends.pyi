from collections.abc import Callable

from typing_extensions import Buffer, disjoint_base

from rmqcore.native.format._receipt import PutMessageResult
from rmqcore.remoting import FrameLimits
from rmqcore.store.protocol import MessageStore

@disjoint_base
class DirectSends:
    def __init__(
        self,
        store: MessageStore,
        facts: Callable[[str], tuple[int, int, bytes, bytes, bytes] | None],
        stored: Callable[[str, int, PutMessageResult, bool], None],
    ) -> None: ...
    def answer(
        self, buffer: Buffer, at: int, limits: FrameLimits, born_host: str
    ) -> tuple[int, bytes]: ...
