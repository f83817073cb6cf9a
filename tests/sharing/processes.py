"""Processes that use one store: owners that are forked, and the programs of `programs.py`."""

import threading
from contextlib import contextmanager
from pathlib import Path

from children import Forked, Program
from patience import TIMEOUT_S, until

import rmqcore
from rmqcore.store.consume.holders import new_holder

PROGRAMS = Path(__file__).with_name("programs.py")
TIMEOUT_MS = TIMEOUT_S * 1000


def owner_of(path, prepare=None, **settings):
    """A forked process that owns a store; there at once.

    Args:
        path: of the store.
        prepare: called in that process first.
        settings: of the store.
    """

    def own(ready):
        if prepare is not None:
            prepare()
        with rmqcore.open_shared(path, **settings):
            ready()

    return Forked(own)


@contextmanager
def program(what, path):
    """A process that has said that it is ready: `program.ready` is what it said."""
    with Program(PROGRAMS, what, path) as started:
        started.ready = started.line()
        yield started


def told(process, count):
    """What the program `lease` leases when it is told how many."""
    process.say(count)
    return process.line()


def leased(store, **settings):
    settings = {"holder": new_holder(), "lease_ms": 600_000, "timeout_ms": 0} | settings
    return store.lease("g", {"T": "*"}, **settings)


@contextmanager
def while_asked(store, work):
    """Do something in another thread as soon as a call of a client is under way, or was."""
    asked, over = store.reach_owner()._waiting, threading.Event()

    def work_then():
        until(lambda: asked or over.is_set(), "a call of a client")
        work()

    thread = threading.Thread(target=work_then)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
