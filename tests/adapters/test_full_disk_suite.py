"""A disk that runs full below Celery's broker and huey's storage: an error, nothing lost."""

import contextlib
import os
import subprocess

import pytest
from kombu import Connection
from patience import TIMEOUT_S

import rmqcore.adapters.kombu  # noqa: F401 - registers the transport
from rmqcore import DiskFullError
from rmqcore.adapters.huey import RmqHuey

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system"),
]
SETTINGS = {"mapped_file_size_commit_log": 1 << 20, "message_index_enable": False}


@pytest.fixture
def disk(tmp_path):
    """A file system of 16 MiB in a file."""
    image, path = tmp_path / "image", tmp_path / "disk"
    image.touch()
    os.truncate(image, 16 << 20)
    path.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, path], check=True)
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(disk):
    """Take all room; remove the file to give it back."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)) == 4096:
            pass
    return ballast


def until_full(put, most=100_000):
    """Call with 0, 1, 2, ...; how many were taken, and the error."""
    for number in range(most):
        try:
            put(number)
        except OSError as error:
            return number, error
    raise AssertionError("the disk was never full")


def test_kombu(disk):
    options = {"store": SETTINGS}
    with Connection(f"rmqcore://{disk}/queue", transport_options=options) as connection:
        queue = connection.SimpleQueue("mail")
        queue.put({"number": 0})
        ballast = fill(disk)
        taken, error = until_full(lambda number: queue.put({"number": number + 1, "x": "x" * 999}))
        assert isinstance(error, DiskFullError)
        assert isinstance(error, connection.connection_errors)
        acknowledged = []
        with contextlib.suppress(DiskFullError):
            while len(acknowledged) < taken:
                message = queue.get(timeout=TIMEOUT_S)
                acknowledged.append(message.payload["number"])
                message.ack()
        ballast.unlink()
        queue.put({"number": taken + 1})
        queue.close()
    with Connection(f"rmqcore://{disk}/queue", transport_options=options) as connection:
        queue = connection.SimpleQueue("mail")
        rest = []
        while len(acknowledged) + len(rest) < taken + 2:
            message = queue.get(timeout=TIMEOUT_S)
            message.ack()
            rest.append(message.payload["number"])
        with pytest.raises(queue.Empty):
            queue.get(block=False)
        queue.close()
    assert acknowledged + rest == list(range(taken + 2))


def test_huey(disk):
    huey = RmqHuey("app", path=disk / "queue", blocking=False, lease_ms=60_000, **SETTINGS)
    storage = huey.storage
    storage.enqueue(b"0")
    ballast = fill(disk)
    taken, error = until_full(lambda number: storage.enqueue(b"%d" % (number + 1) + b" " * 999))
    assert isinstance(error, DiskFullError)
    _, error = until_full(lambda _: storage.put_data("key", bytes(9999)))
    assert isinstance(error, DiskFullError)
    ballast.unlink()
    storage.enqueue(b"%d" % (taken + 1))
    storage.put_data("after", b"1")
    storage.close()
    assert storage.queue_size() == taken + 2
    bodies = [int(storage.dequeue()) for _ in range(taken + 2)]
    assert bodies == list(range(taken + 2))
    assert storage.dequeue() is None
    assert storage.peek_data("after") == b"1"
    storage.close()
