"""Watch the syncs of this process, for a test that wants to know of them or to end in one."""

import threading
from contextlib import contextmanager

from rmqcore.world import watch_syncs


class _Watcher:
    def __init__(self, call):
        self.call, self.thread = call, threading.get_ident()

    def before(self, call, fd, at, size, path):
        return self.call(call, fd) or 0 if threading.get_ident() == self.thread else 0

    def after(self, call, fd, at, size, result):
        pass


@contextmanager
def watched(call):
    """Call `call(name, fd)` before each sync of this thread.

    It answers with the errno of a refusal, or with None; what it raises, whoever syncs gets.
    """
    watch_syncs(_Watcher(call))
    try:
        yield
    finally:
        watch_syncs(None)
