"""Time that passes only when a test says so, and services that run in it."""

from rmqcore.services.runner import ByHand
from rmqcore.world import World


class HeldTime:
    """Clocks that move when somebody sleeps; `services` runs in their `world`."""

    def __init__(self):
        self.now_s = 0.0
        self.world = World(self.clock_ms, self.monotonic_s, self.sleep)
        self.services = ByHand(self.world)

    def clock_ms(self):
        """Return Unix time, milliseconds."""
        return 1_700_000_000_000 + int(1000 * self.now_s)

    def monotonic_s(self):
        """Return the time, seconds."""
        return self.now_s

    def sleep(self, seconds):
        """Let so many seconds pass."""
        self.now_s += seconds
