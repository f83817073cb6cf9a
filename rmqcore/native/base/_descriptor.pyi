from typing import Self, final

@final
class Descriptor:
    """Owns an open file descriptor; who drops it closes it.

    Args:
        fd: the number that the system gave.

    Threads: one closes, any may ask for the number.
    """

    def __new__(cls, fd: int) -> Self: ...
    def fileno(self) -> int:
        """The number.

        Raises:
            ValueError: it is closed.
        """

    def close(self) -> None:
        """Give the number back to the system; idempotent."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
