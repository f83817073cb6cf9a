"""What processes that use one store do: run with its name and the store's path."""

import asyncio
import itertools
import os
import signal
import sys
from pathlib import Path

import rmqcore
from rmqcore.store.consume.holders import new_holder


def hold(path):
    """Own the store, or be a client, until the input ends."""
    with rmqcore.open_shared(path) as store:
        print(store.owner, flush=True)
        sys.stdin.read()


def hold_alone(path):
    """Have the store open without sharing it."""
    with rmqcore.open_store(path):
        print("open", flush=True)
        sys.stdin.read()


def fork(path):
    """Own the store and have a child that does nothing; say its process id."""
    with rmqcore.open_shared(path):
        pid = os.fork()
        if pid:
            print(pid, flush=True)
        signal.pause()


def lease(path):
    """Lease as many messages as it is told, a line each, until the input ends; say their bodies."""
    with rmqcore.open_shared(path) as store:
        holder = new_holder()
        print(store.owner, flush=True)
        for line in sys.stdin:
            got = store.lease(
                "g", {"T": "*"}, holder=holder, max_messages=int(line), lease_ms=600_000
            )
            print([bytes(each.body).decode() for each in got], flush=True)


def program_number():
    """The number that the name of a holder here has of this program."""
    return new_holder().partition("-")[2].partition(".")[0]


def begin_anew(*command):
    """Run this file again, in this process."""
    os.execv(sys.executable, [sys.executable, __file__, *command])


def restart(path, before=""):
    """Lease a message, begin anew as another program, and say so.

    Of 65,536 programs one has the same number as the one before, or none.
    """
    if program_number() in ("0", before):
        begin_anew("restart", path, before)
    if before:
        print("again", flush=True)
        sys.stdin.read()
        return
    store = rmqcore.open_shared(path)
    (got,) = store.lease("g", {"T": "*"}, holder=new_holder(), lease_ms=600_000)
    print(store.owner, bytes(got.body).decode(), flush=True)
    begin_anew("restart", path, program_number())


def load(path, name):
    """Put until a file says stop; note each message that was acknowledged, in a file of its own."""
    directory = Path(path).parent
    noted = os.open(directory / f"{name}.acknowledged", os.O_CREAT | os.O_WRONLY)
    with rmqcore.open_shared(path) as store:
        print("ready", flush=True)
        for number in itertools.count():
            queue_id = number % 4
            bodies = [f"{name}-{number}-{part}".encode() for part in range(1 + number % 3)]
            if len(bodies) == 1:
                receipt = store.put("T", bodies[0], queue_id=queue_id)
            elif len(bodies) == 2:
                putting = [store.put_async("T", body, queue_id=queue_id) for body in bodies]
                receipt = asyncio.run(all_of(putting))[0]
            else:
                messages = [rmqcore.Message("T", body, queue_id=queue_id) for body in bodies]
                receipt = store.put_messages(messages)
            assert receipt.ok
            os.write(noted, b"".join(body + b"\n" for body in bodies))
            if number % 8 == 0 and (directory / "stop").exists():
                break


async def all_of(putting):
    """Wait for coroutines side by side."""
    return await asyncio.gather(*putting)


if __name__ == "__main__":
    {each.__name__: each for each in (hold, hold_alone, fork, lease, restart, load)}[sys.argv[1]](
        *sys.argv[2:]
    )
