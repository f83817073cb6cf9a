"""What kombu, huey and queuelib do on our storage and on their own, at the same durability.

``task_queues.py [--count N] [--rounds N]`` puts N messages, then takes and acknowledges them, on
one backend after the other, and prints the median rates. Redis is measured over loopback where
``redis-server`` is installed; its AOF is synced every second against page_cache, with every
command against disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty

BODY = "x" * 200

#: puts one, takes one and acknowledges it, ends
Backend = tuple[Callable[[], object], Callable[[], object], Callable[[], object]]


def _kombu(url: str, **options: object) -> Backend:
    from kombu import Connection

    connection = Connection(url, transport_options=options)
    # the file-system transport remembers what it has bound, whatever the folder
    queue = connection.SimpleQueue(f"bench{uuid.uuid4().hex}")

    def take() -> None:
        queue.get(block=False).ack()

    return lambda: queue.put(BODY), take, connection.close


def kombu_filesystem(folder: str) -> Backend:
    """Kombu's messages as files."""
    for name in ("messages", "control"):
        Path(folder, name).mkdir(parents=True)
    return _kombu(
        "filesystem://",
        data_folder_in=f"{folder}/messages",
        data_folder_out=f"{folder}/messages",
        control_folder=f"{folder}/control",
    )


def kombu_sqlite(folder: str) -> Backend:
    """Kombu's SQLAlchemy transport on SQLite, which syncs each commit."""
    Path(folder).mkdir()
    return _kombu(f"sqla+sqlite:///{folder}/queue.db")


def kombu_rmqcore(folder: str, flush: str) -> Backend:
    """Kombu on our transport."""
    import rmqcore.adapters.kombu  # noqa: F401 - registers it

    return _kombu(f"rmqcore://{folder}", store={"flush_disk_type": flush})


def _huey(storage: object) -> Backend:
    def take() -> None:
        if storage.dequeue() is None:
            raise Empty

    body = BODY.encode()
    return lambda: storage.enqueue(body), take, storage.close


def huey_sqlite(folder: str) -> Backend:
    """Huey's SQLite storage, which syncs each commit."""
    from huey.storage import SqliteStorage

    Path(folder).mkdir()
    return _huey(SqliteStorage("bench", filename=f"{folder}/queue.db", fsync=True))


def huey_file(folder: str) -> Backend:
    """Huey's storage of files."""
    from huey.storage import FileStorage

    return _huey(FileStorage("bench", path=folder))


def huey_rmqcore(folder: str, flush: str) -> Backend:
    """Huey on our storage."""
    from rmqcore.adapters.huey import RmqStorage

    return _huey(RmqStorage("bench", path=folder, blocking=False, flush_disk_type=flush))


def _redis(folder: str, sync: str) -> tuple[int, Callable[[], object]]:
    """A server of its own: its port, and what ends it."""
    Path(folder).mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
    command += ["--appendonly", "yes", "--appendfsync", sync, "--save", "", "--daemonize", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def end() -> None:
        process.terminate()
        process.wait()

    for _ in range(500):
        with suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
            return port, end
        time.sleep(0.01)
    end()
    raise TimeoutError("redis-server does not listen")


def kombu_redis(folder: str, sync: str) -> Backend:
    """Kombu's Redis transport."""
    port, end_server = _redis(folder, sync)
    put, take, end = _kombu(f"redis://127.0.0.1:{port}/0")
    return put, take, lambda: (end(), end_server())


def huey_redis(folder: str, sync: str) -> Backend:
    """Huey's Redis storage."""
    from huey.storage import RedisStorage

    port, end_server = _redis(folder, sync)
    put, take, end = _huey(RedisStorage("bench", blocking=False, host="127.0.0.1", port=port))
    return put, take, lambda: (end(), end_server())


def _queuelib(queue: object) -> Backend:
    def take() -> None:
        if queue.pop() is None:
            raise Empty

    body = BODY.encode()
    return lambda: queue.push(body), take, queue.close


def queuelib_disk(folder: str) -> Backend:
    """Queuelib's queue of files."""
    from queuelib import FifoDiskQueue

    return _queuelib(FifoDiskQueue(folder))


def queuelib_sqlite(folder: str) -> Backend:
    """Queuelib's SQLite queue, which syncs each commit."""
    from queuelib.queue import FifoSQLiteQueue

    Path(folder).mkdir()
    return _queuelib(FifoSQLiteQueue(f"{folder}/queue.db"))


def queuelib_rmqcore(folder: str, flush: str) -> Backend:
    """Our queue with queuelib's methods."""
    from rmqcore.adapters.queuelib import FifoQueue

    durability = "disk" if flush == "SYNC_FLUSH" else "page_cache"
    return _queuelib(FifoQueue(folder, durability=durability))


@dataclass
class Row:
    """A backend, ours at the same durability, and what was measured: puts and takes a second."""

    name: str
    durability: str
    theirs: Callable[[str], Backend]
    ours: Callable[[str, str], Backend]
    rates: list[tuple[float, float, float, float]] = field(default_factory=list)

    @property
    def flush(self) -> str:
        """How our store is opened."""
        return "SYNC_FLUSH" if self.durability == "disk" else "ASYNC_FLUSH"


ROWS = (
    Row("kombu filesystem", "page_cache", kombu_filesystem, kombu_rmqcore),
    Row("kombu SQLAlchemy-SQLite", "disk", kombu_sqlite, kombu_rmqcore),
    Row("huey FileStorage", "page_cache", huey_file, huey_rmqcore),
    Row("huey SqliteStorage", "disk", huey_sqlite, huey_rmqcore),
    Row("queuelib FifoDiskQueue", "memory", queuelib_disk, queuelib_rmqcore),
    Row("queuelib FifoSQLiteQueue", "disk", queuelib_sqlite, queuelib_rmqcore),
)
REDIS_ROWS = (
    Row(
        "kombu Redis, everysec", "page_cache", partial(kombu_redis, sync="everysec"), kombu_rmqcore
    ),
    Row("kombu Redis, always", "disk", partial(kombu_redis, sync="always"), kombu_rmqcore),
    Row("huey Redis, everysec", "page_cache", partial(huey_redis, sync="everysec"), huey_rmqcore),
    Row("huey Redis, always", "disk", partial(huey_redis, sync="always"), huey_rmqcore),
)


def rates(backend: Backend, count: int) -> tuple[float, float]:
    """Puts, and takes with their acknowledgements, a second."""
    put, take, end = backend
    try:
        # opens what is opened at the first use
        put()
        take()
        began = time.perf_counter()
        for _ in range(count):
            put()
        put_at = time.perf_counter()
        for _ in range(count):
            take()
        taken_at = time.perf_counter()
    finally:
        end()
    return count / (put_at - began), count / (taken_at - put_at)


def main() -> None:
    """Measure in turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {options.count} messages, medians of {options.rounds}")
    print(f"{'backend':28}{'durability':12}{'put/s':>9}{'ours':>9}{'take/s':>9}{'ours':>9}  ratios")
    rows = ROWS
    if shutil.which("redis-server"):
        rows += REDIS_ROWS
    else:
        print("Redis: redis-server is not installed")
    for row in rows:
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(prefix="bench-tasks-") as folder:
                theirs = rates(row.theirs(f"{folder}/theirs"), options.count)
                ours = rates(row.ours(f"{folder}/ours", row.flush), options.count)
                row.rates.append((theirs[0], ours[0], theirs[1], ours[1]))
        put, our_put, take, our_take = (
            statistics.median(each) for each in zip(*row.rates, strict=True)
        )
        print(
            f"{row.name:28}{row.durability:12}{put:9.0f}{our_put:9.0f}{take:9.0f}{our_take:9.0f}"
            f"  {our_put / put:.1f} {our_take / take:.1f}"
        )


if __name__ == "__main__":
    main()
