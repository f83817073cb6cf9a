"""A second thread for recovery: runs one piece of work at a time beside the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BesideThread:
    """Runs one function while its caller goes on; worth it for kernels that release the GIL.

    Threads: one caller.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin a piece of work; what was begun before is waited for."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(work,), name="rmqcore-beside")
        self._thread.start()

    def wait(self) -> None:
        """Return when the work is done; raises what it raised."""
        self._join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def end(self) -> None:
        """Wait, and end the thread; an exception that `wait` has not raised yet is dropped."""
        self._join()
        self._error = None

    def _join(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            self._error = error
