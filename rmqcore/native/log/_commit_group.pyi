from collections.abc import Callable
from typing import Self, final

@final
class CommitGroup:
    def __new__(cls, lead: Callable[[int], int]) -> Self: ...
    def wait(self, offset: int, seconds: float) -> bool: ...
