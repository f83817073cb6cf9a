from types import TracebackType
from typing import final

def locks_held() -> int: ...

@final
class ReentrantLock:
    def __init__(self, counted: bool = True) -> None: ...
    @property
    def depth(self) -> int: ...
    def within(self, seconds: float = 1e6) -> Attempt: ...

@final
class Attempt:
    def __enter__(self) -> bool: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
