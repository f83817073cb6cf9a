"""The one way to wait: for what is named, a minute at most, and then every thread is shown.

A machine that does other work takes seconds for what takes milliseconds on a quiet one, so no
test says how long something may take; figures are what `make measure` is for.
"""

import asyncio
import inspect
import sys
import threading
import time
import traceback

import pytest

#: how long a test waits for what has to come
TIMEOUT_S = 60.0
_POLL_S = 0.002


def until(condition, what):
    """Wait until ``condition()`` is true; returns what it returned.

    Args:
        condition: called again and again in this thread; an exception of it ends the wait.
        what: what is waited for, said when it has not come within `TIMEOUT_S` seconds.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        if time.monotonic() > deadline:
            give_up(what)
        time.sleep(_POLL_S)
    return found


async def until_async(condition, what):
    """Wait as `until` does while the loop goes on; ``condition`` may be a coroutine function."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > deadline:
            give_up(what)
        await asyncio.sleep(_POLL_S)


def rounds(service, count=1):
    """Let a running service run so many whole rounds, each begun after this was called.

    What a service must not do, it has not done when it had `count` occasions to.

    Args:
        service: a `Service` that has been started.
        count: how many rounds.
    """
    ended = 0
    run = service.run

    def counted(now):
        nonlocal ended
        rest_s = run(now)
        ended += 1
        return rest_s

    def over():
        assert service.active, f"{service.name} has ended"
        return ended >= wanted

    # a round that has begun already runs the method that was there, and is not counted
    service.run = counted
    try:
        for wanted in range(1, count + 1):
            service.wakeup()
            until(over, f"round {wanted} of {service.name}")
    finally:
        del service.run


def give_up(what):
    """Fail, and print where every thread and every task of a running loop stands."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        print(f"--- {thread.name}")
        traceback.print_stack(frames.get(thread.ident), file=sys.stdout)
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        tasks = ()
    for task in tasks:
        task.print_stack(file=sys.stdout)
    pytest.fail(f"not within {TIMEOUT_S:.0f} s: {what}")
