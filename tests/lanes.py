"""Lanes: a marker says what a test depends on, and a test that does more fails at once.

Each test has one lane: the marker nearest to it, so `pytestmark` of its file unless it has one of
its own. `tests/README.md` says which lane a test belongs to.
"""

import asyncio
import ipaddress
import multiprocessing.process
import sys
import threading
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
#: The markers of which every test has one, and what a test of each lane may depend on.
LANES = {
    "logic": "plain values and files: no thread, no process, no socket, no sleep",
    "engine": "stores and brokers in one process: no other process, no sleep, no far socket",
    "process": "kills, forks, signals, several processes; waits for events, has no upper times",
    "measure": "processor time, memory, latency: alone, compared with its own history",
    "storm": "fresh seeds, random kills, whole machines of load",
    "peers": "Java, Go, other projects' suites, releases of Spark",
    "asan": "means something only under the address sanitizer",
    "tsan": "means something only under the thread sanitizer",
    "debug": "means something only with the native assertions",
}
#: The marker of tests with a seed: a storm runs them again with fresh ones.
SEEDED = "seeded"

_PROCESS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "subprocess.Popen"}
_FORBIDDEN = {
    "logic": {
        **dict.fromkeys(_PROCESS, "starts a process"),
        "socket.__new__": "opens a socket",
    },
    "engine": {
        **dict.fromkeys(_PROCESS, "starts a process"),
        "socket.bind": "opens a socket beyond this machine",
        "socket.connect": "opens a socket beyond this machine",
    },
}


def lane_of(item):
    """Return the lane of a test: that of its nearest marker, None without one."""
    # of a parameter's marker and its function's the parameter's counts, which stands behind
    names = [
        mark.name
        for node in reversed(item.listchain())
        for mark in reversed(node.own_markers)
        if mark.name in LANES
    ]
    # a test of another file that is run beside Java, too, needs Java there
    return "peers" if "peers" in names else next(iter(names), None)


def is_here(address):
    """Tell whether a socket's address is on this machine: a path, or of the loopback range."""
    if not isinstance(address, tuple):
        return True
    host = address[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_simulated():
    """Tell whether the time of whoever asks is simulated: then nothing sleeps."""
    return getattr(asyncio._get_running_loop(), "is_simulated", False)


class Guard:
    """Fails the running test at what its lane forbids, and again when the test swallowed that.

    Watched are what Python tells audit hooks, which of threads is nothing before Python 3.12, the
    start of a thread, `time.sleep` and `asyncio.sleep`. Threads that an earlier test has left
    behind are not: only what the test's own thread starts counts, and sleeps that are written in
    a test's file.
    """

    def __init__(self):
        self._forbidden = {}
        self._lane = None
        self._thread = None
        self._broken = []
        sys.addaudithook(self._audit)
        threading.Thread.start = self._watched_start(threading.Thread.start, "thread", {"logic"})
        process = multiprocessing.process.BaseProcess
        process.start = self._watched_start(process.start, "process", _FORBIDDEN)
        time.sleep = self._watched_sleep(time.sleep)
        asyncio.sleep = self._watched_sleep(asyncio.sleep)

    def begin(self, lane):
        """Hold what follows to the rules of a lane."""
        self._broken = []
        self._lane = lane
        self._thread = threading.get_ident()
        self._forbidden = _FORBIDDEN.get(lane, {})

    def end(self):
        """Hold nothing to any rule; returns what the test did that it may not."""
        self._forbidden, self._lane = {}, None
        return self._broken

    def _audit(self, event, arguments):
        what = self._forbidden.get(event)
        if what is None or threading.get_ident() != self._thread:
            return
        if event in ("socket.bind", "socket.connect") and is_here(arguments[1]):
            return
        self._fail(what)

    def _watched_start(self, start, what, lanes):
        def watched(started):
            if self._lane in lanes and threading.get_ident() == self._thread:
                self._fail(f"starts a {what}")
            return start(started)

        return watched

    def _watched_sleep(self, sleep):
        def watched(seconds, *more, **named):
            if self._lane in _FORBIDDEN and seconds > 0 and not is_simulated():
                caller = Path(sys._getframe(1).f_code.co_filename)
                written_here = caller.is_relative_to(TESTS) and caller.stem != "patience"
                its_own = self._lane == "logic" and threading.get_ident() == self._thread
                if written_here or its_own:
                    self._fail("sleeps")
            return sleep(seconds, *more, **named)

        return watched

    def _fail(self, what):
        said = f"a test of the lane {self._lane} that {what}: tests/README.md, Lanes"
        self._broken.append(said)
        pytest.fail(said)


class LanePlugin:
    """Gives each test its lane and holds it to that."""

    def __init__(self):
        self.guard = Guard()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        """Leave each test the one marker of its lane, so that `-m` means the lane."""
        lanes = {item: lane_of(item) for item in items}
        without = sorted({item.nodeid.partition("[")[0] for item in items if lanes[item] is None})
        if without:
            told = "\n  ".join(without)
            raise pytest.UsageError(f"tests without a lane, one of {', '.join(LANES)}:\n  {told}")
        nodes = {node for item in items for node in item.listchain()}
        for node in nodes:
            node.own_markers = [mark for mark in node.own_markers if mark.name not in LANES]
        for item, lane in lanes.items():
            item.add_marker(lane)
            if has_seed(item):
                item.add_marker(SEEDED)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Watch a test with its fixtures."""
        self.guard.begin(lane_of(item))
        try:
            return (yield)
        finally:
            self.guard.end()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self):
        """Fail a test that swallowed the guard's own failure, or failed otherwise behind it."""
        try:
            return (yield)
        finally:
            if self.guard._broken:
                pytest.fail(self.guard._broken[0])


def has_seed(item):
    """Tell whether another seed would make another test of this one."""
    is_hypothesis = hasattr(getattr(item, "function", None), "hypothesis")
    return is_hypothesis or "seed" in getattr(item, "fixturenames", ())
