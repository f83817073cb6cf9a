"""The system calls of this process, seen before and after each is made.

They are seen where the file of this module was preloaded: `preload()` is its place in the
environment of a process that is to be watched.

Threads: the watcher is called in the thread that makes the call, and never for its own calls.
"""

import os

cdef extern from "_system_calls.h" nogil:
    ctypedef int (*Ask "rmq_ask")(
        int call, int fd, long long at, long long size, const char* path) noexcept
    ctypedef void (*Tell "rmq_tell")(
        int call, int fd, long long at, long long size, long long result) noexcept
    void rmq_listen(Ask ask, Tell tell)
    void rmq_keep_quiet(int quiet)

#: names of the calls, as the kernel has them
CALLS = (
    "msync", "fsync", "fdatasync", "fallocate", "mmap", "mlock",
    "open", "write", "ftruncate", "rename", "link", "unlink", "mkdir",
)

cdef object watcher = None
cdef list raised = []


cdef int ask(int call, int fd, long long at, long long size, const char* path) noexcept with gil:
    try:
        if watcher is None:
            return 0
        name = None if path == NULL else os.fsdecode(<bytes>path)
        return watcher.before(CALLS[call], fd, at, size, name)
    except BaseException as error:
        raised.append(error)
        return 0


cdef void tell(int call, int fd, long long at, long long size, long long result) noexcept with gil:
    try:
        if watcher is not None:
            watcher.after(CALLS[call], fd, at, size, result)
    except BaseException as error:
        raised.append(error)


def watch(new_watcher) -> None:
    """Let one object hear of every call from now on; None ends it.

    Args:
        new_watcher: its ``before(call, fd, at, size, path)`` answers with 0 (the call is made), an
            errno that it is to fail with, or below 0 the bytes that a write is cut to; its
            ``after(call, fd, at, size, result)`` is told what came of it. ``at`` is an address, of
            ``mmap`` and writes the file's offset, of ``open`` its flags. What they raise,
            `raise_again` raises.
    """
    global watcher
    watcher = new_watcher
    if new_watcher is None:
        rmq_listen(NULL, NULL)
    else:
        rmq_listen(ask, tell)


def raise_again() -> None:
    """Raise the first error that a watcher has raised since the last time."""
    if raised:
        first = raised[0]
        raised.clear()
        raise first


def keep_quiet(bint quiet) -> None:
    """While true, the watcher hears nothing of this thread's calls."""
    rmq_keep_quiet(quiet)


def preload() -> dict:
    """What the environment of a process needs in which calls are to be watched."""
    others = os.environ.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{__file__}:{others}" if others else __file__}
