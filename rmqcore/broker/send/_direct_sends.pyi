from collections.abc import Awaitable, Callable

from typing_extensions import disjoint_base

from rmqcore.broker._direct import DirectRequests
from rmqcore.native.format._receipt import PutMessageResult
from rmqcore.store.protocol import MessageStore

@disjoint_base
class DirectSends(DirectRequests):
    def __init__(
        self,
        store: MessageStore,
        facts: Callable[[str], tuple[int, int, bytes, bytes, bytes] | None],
        stored: Callable[[str, int, PutMessageResult, bool], None],
        confirmed: Callable[[PutMessageResult, bytes], Awaitable[bytes]],
    ) -> None: ...
