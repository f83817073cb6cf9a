"""A child that does one thing, and is killed meanwhile or ends."""

import os
import traceback


def in_fork(work):
    """Call a function in a fork of this process; returns what became of that, as a number.

    0 after the function's end, 1 after an exception, -n when it was killed by the signal n.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - nothing of the parent's goes on in its child
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
