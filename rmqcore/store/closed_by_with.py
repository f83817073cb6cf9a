"""What every store does at the end of a ``with`` block, and of an ``async with`` block."""

from __future__ import annotations

from typing import Protocol, TypeVar

from rmqcore.services.event_loop import in_thread


class _Closes(Protocol):
    def close(self) -> None: ...


_Store = TypeVar("_Store", bound=_Closes)


class ClosedByWith:
    """Closes a store at the end of a block."""

    def __enter__(self: _Store) -> _Store:
        return self

    def __exit__(self: _Closes, *_: object) -> None:
        self.close()

    async def __aenter__(self: _Store) -> _Store:
        return self

    async def __aexit__(self: _Closes, *_: object) -> None:
        await in_thread(self.close)
