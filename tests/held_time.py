"""Time that passes only when a test says so, and services that run in it."""

from rmqcore.services.runner import ByHand


class HeldTime:
    """A clock that moves when somebody sleeps; `services` runs in it."""

    def __init__(self):
        self.now_s = 0.0
        self.services = ByHand(self.monotonic_s, self.sleep)

    def monotonic_s(self):
        """Return the time, seconds."""
        return self.now_s

    def sleep(self, seconds):
        """Let so many seconds pass."""
        self.now_s += seconds
