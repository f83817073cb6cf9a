"""Processes that use one store: each is this file, told on its command line what to do."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import rmqcore

HERE = Path(__file__)


class Child:
    """A process with an open handle; it says a line when it is ready."""

    def __init__(self, what, path, *more):
        command = [sys.executable, str(HERE), what, str(path), *map(str, more)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid

    def line(self):
        """Wait for its next line."""
        return self.process.stdout.readline().rstrip("\n")

    def say(self, text):
        """Send it a line."""
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self):
        """End it as a power cut of its own would."""
        self.process.kill()
        self.process.wait()

    def end(self):
        """Let it close its handle and end; returns its exit code."""
        self.process.stdin.close()
        code = self.process.wait()
        self.process.stdout.close()
        return code


class Forked:
    """A forked process that owns a store until it is ended or killed; there at once."""

    def __init__(self, path):
        ready, said = os.pipe()
        told, self._tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                os.close(self._tell)
                with rmqcore.open_shared(path):
                    os.write(said, b"!")
                    os.read(told, 1)
                code = 0
            finally:
                os._exit(code)
        os.close(said)
        os.close(told)
        assert os.read(ready, 1) == b"!"
        os.close(ready)
        self._gone = False

    def kill(self):
        """End it as a power cut of its own would."""
        if not self._gone:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()

    def end(self):
        """Let it close its handle and end; returns its exit code."""
        os.write(self._tell, b"!")
        return self._wait()

    def _wait(self):
        self._gone = True
        os.close(self._tell)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def child(what, path, *more):
    """A child that has said that it is ready, and is gone afterwards."""
    started = Child(what, path, *more)
    try:
        started.ready = started.line()
        yield started
    finally:
        started.kill()
        started.process.stdin.close()
        started.process.stdout.close()


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
    {"hold": hold, "hold_alone": hold_alone, "fork": fork, "load": load}[sys.argv[1]](*sys.argv[2:])
