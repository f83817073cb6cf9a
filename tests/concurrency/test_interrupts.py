"""A put that is interrupted, or begun inside another put, loses nothing and blocks nothing."""

import subprocess
import sys

import pytest
from patience import TIMEOUT_S

import rmqcore

pytestmark = pytest.mark.process

#: how often it happens in one child: each put that waits for the disk takes its time
TIMES = {"ASYNC_FLUSH": 600, "SYNC_FLUSH": 200}

#: What each child begins with: a store whose log rolls every few dozen messages.
OPENING = """
import faulthandler, gc, os, random, signal, sys
import rmqcore
faulthandler.dump_traceback_later(540, exit=True)
path, seed, how, times = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
rng = random.Random(seed)
store = rmqcore.open_store(path, flush_disk_type=how, sync_flush_timeout_ms=60_000,
    mapped_file_size_commit_log=8192, max_hash_slot_num=50, max_index_num=200)
def acknowledge(body):
    os.write(1, body + b"\\n")
"""

#: Ctrl-C at random moments, so many times.
INTERRUPTED = """
armed = False
def interrupt(number, frame):
    if armed:
        raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
number = interrupted = 0
while interrupted < times:
    number += 1
    body = b"%d" % number
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, rng.choice([2e-6, 1e-5, 5e-5, 2e-4, 1e-3]))
        receipt = store.put("T", body, keys=("k%d" % number, "all"))
        armed = False
    except KeyboardInterrupt:
        armed = False
        interrupted += 1
        continue
    assert receipt.ok
    acknowledge(body)
signal.setitimer(signal.ITIMER_REAL, 0)
store.put("T", b"last", keys="last")
acknowledge(b"last")
assert store.query_message("T", "last").messages[0].body == b"last"
assert store.why_not_writable() is None
store.close()
"""

#: Time limits that a signal handler sets to puts, reads and flushes, by errors of all kinds.
LIMITED = """
kinds = (TimeoutError, OSError, RuntimeError, rmqcore.StoreNotWritableError)
armed, seen, limited = False, set(), 0
def limit(number, frame):
    if armed:
        raise rng.choice(kinds)("too long")
signal.signal(signal.SIGALRM, limit)
number = 0
while limited < times or len(seen) < len(kinds):
    number += 1
    body = b"%d" % number
    receipt = None
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, rng.choice([2e-6, 5e-5, 2e-4, 1e-3, 2e-3]))
        receipt = store.put("T", body, keys=("k%d" % number, "all"))
        store.get_message("T", 0, receipt.queue_offset)
        store.query_message("T", "k%d" % number)
        store.flush()
        armed = False
    except kinds as error:
        armed = False
        assert str(error) == "too long", repr(error)
        seen.add(type(error))
        limited += 1
    if receipt is not None:
        acknowledge(body)
signal.setitimer(signal.ITIMER_REAL, 0)
assert store.why_not_writable() is None
store.put("T", b"last")
acknowledge(b"last")
store.close()
"""

#: A handler that puts, whatever the main thread is doing; some are refused, none waits for ever.
HANDLING = """
number = inner = 0
def handle(signum, frame):
    global inner
    inner += 1
    body = b"h%d" % inner
    try:
        if store.put("T", body, keys="all").ok:
            acknowledge(body)
    except rmqcore.StoreNotWritableError as error:
        assert "again" in str(error), error
    signal.setitimer(signal.ITIMER_REAL, rng.choice([2e-5, 1e-4, 1e-3]))
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 1e-4)
while inner < times:
    number += 1
    body = b"%d" % number
    assert store.put("T", body, keys="all").ok
    acknowledge(body)
# a handler that is still due would set the timer again
signal.signal(signal.SIGALRM, signal.SIG_IGN)
assert store.why_not_writable() is None
store.close()
"""

#: Finalizers that put, run by the garbage collector in the middle of puts.
FINALIZING = """
number = inner = 0
class Last:
    def __init__(self):
        self.self = self
    def __del__(self):
        global inner
        inner += 1
        body = b"d%d" % inner
        try:
            if store.put("T", body, keys="all").ok:
                acknowledge(body)
        except rmqcore.StoreNotWritableError as error:
            assert "again" in str(error), error
gc.set_threshold(3, 2, 2)
while inner < times:
    Last()
    number += 1
    body = b"%d" % number
    assert store.put("T", body, keys=["all"], properties={"a": "b"}).ok
    acknowledge(body)
gc.set_threshold(0)
assert store.why_not_writable() is None
store.close()
"""


def run(script, path, seed, how, times, *more):
    """Run one child, in which as much happens as asked; give back what it acknowledged."""
    done = subprocess.run(
        [sys.executable, "-c", OPENING + script, str(path), str(seed), how, str(times), *more],
        capture_output=True,
        timeout=10 * TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.split()


def check(path, acknowledged):
    """All that was acknowledged is there, once, in order, and found by key."""
    with rmqcore.open_store(path) as store:
        assert store.recovery_report.clean_shutdown
        assert not store.recovery_report.findings
        bodies = [bytes(message.body) for message in store.messages("T", 0)]
        wanted = set(acknowledged)
        assert len(wanted) == len(acknowledged)
        assert wanted <= set(bodies)
        # what is put inside another put may be acknowledged before it
        outer = [int(body) for body in bodies if body.isdigit()]
        assert outer == sorted(outer)
        assert len(bodies) == len(set(bodies))
        found = store.query_message("T", acknowledged[0].decode(), max_messages=10).messages
        assert not found or bytes(found[0].body) == acknowledged[0]


@pytest.mark.parametrize("how", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("script", [INTERRUPTED, LIMITED, HANDLING, FINALIZING])
def test_puts_that_are_interrupted(store_path, seed, script, how):
    check(store_path, run(script, store_path, seed, how, TIMES[how]))


@pytest.mark.storm
@pytest.mark.parametrize("how", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("script", [INTERRUPTED, HANDLING, FINALIZING])
@pytest.mark.parametrize("round_number", range(5))
def test_puts_that_are_interrupted_for_long(store_path, seed, script, how, round_number):
    check(store_path, run(script, store_path, seed + round_number, how, 100 * TIMES[how]))


#: A handler that reads, flushes or closes, whatever the main thread is doing.
CALLING = """
what = sys.argv[5]
handled = 0
def handle(signum, frame):
    global handled
    handled += 1
    if what == "close":
        store.close()
        raise SystemExit(0)
    try:
        if what == "flush":
            store.flush()
        else:
            store.get_message("T", 0, max(0, number - 2))
            store.query_message("T", "all", max_messages=1)
    except rmqcore.StoreNotWritableError as error:
        assert "again" in str(error), error
    signal.setitimer(signal.ITIMER_REAL, rng.choice([2e-5, 1e-4, 1e-3]))
number = 0
signal.signal(signal.SIGALRM, handle)
if what != "close":
    signal.setitimer(signal.ITIMER_REAL, 1e-4)
while what == "close" or handled < times:
    body = b"%d" % number
    assert store.put("T", body, keys="all").ok
    acknowledge(body)
    number += 1
    if what == "close" and number == 1:
        # however slow the disk is, one put is acknowledged
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + rng.random() * 0.05)
    store.get_message("T", 0, number - 1)
    if number % 20 == 0:
        store.consumer_offsets.commit("T", "G", 0, number)
        store.flush()
signal.signal(signal.SIGALRM, signal.SIG_IGN)
assert store.why_not_writable() is None
store.close()
"""


@pytest.mark.parametrize("how", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("what", ["read", "flush"])
def test_a_handler_that_calls_the_store_ends(store_path, seed, what, how):
    check(store_path, run(CALLING, store_path, seed, how, TIMES[how], what))


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("how", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_handler_that_closes_the_store_closes_it(store_path, seed, number, how):
    check(store_path, run(CALLING, store_path, seed + number, how, 1, "close"))
