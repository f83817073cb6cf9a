from collections.abc import Callable

from typing_extensions import disjoint_base

from rmqcore.broker._direct import DirectRequests
from rmqcore.message import GetMessageResult

@disjoint_base
class DirectPulls(DirectRequests):
    def __init__(self, find: Callable[..., GetMessageResult | None], size_most: int) -> None: ...
