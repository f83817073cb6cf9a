"""CoilMQ's server by the configuration of the page as it is printed, killed and started again."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from coilmq.queue import QueueManager
from coilmq.util.frames import Frame, FrameBuffer
from patience import TIMEOUT_S, until

from rmqcore import DiskFullError, MessageIllegalError, StoreLockedError, open_store
from rmqcore.adapters.coilmq import RmqQueueStore, decode_frame, encode_frame
from rmqcore.adapters.named_queues import DEAD_LETTERS

pytestmark = pytest.mark.peers

#: a head that no parser gets to the end of
DEEP = (50_000).to_bytes(4) + b"[" * 50_000
PAGE = Path(__file__).parents[2] / "docs/adapters/coilmq.md"


class Client:
    """A STOMP client of one connection."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._buffer = FrameBuffer()
        self.send("CONNECT", {"accept-version": "1.0"})
        assert self.receive().cmd == "CONNECTED"

    def send(self, command, headers, body=b""):
        self._socket.sendall(Frame(command, headers, body).pack())

    def receive(self, timeout=TIMEOUT_S):
        self._socket.settimeout(timeout)
        while (frame := self._buffer.extract_frame()) is None:
            self._buffer.append(self._socket.recv(65536))
        return frame

    def close(self):
        self._socket.close()


@pytest.fixture
def server(tmp_path):
    """`server()` starts one, of the printed configuration, and returns (process, port)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = re.search(r"```ini\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[1]
    text = text.replace("61613", str(port)).replace("/var/lib/coilmq", str(tmp_path / "store"))
    (tmp_path / "coilmq.cfg").write_text(text, "utf-8")
    started = []

    def start():
        command = [Path(sys.executable).with_name("coilmq"), "-c", "coilmq.cfg"]
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
        started.append(process)

        def answers():
            assert process.poll() is None, (tmp_path / "log").read_text("utf-8")
            with socket.socket() as tried:
                return tried.connect_ex(("127.0.0.1", port)) == 0

        until(answers, f"a server, see {tmp_path / 'log'}")
        return process, port

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_what_waits_and_what_is_not_acknowledged_survives_kills(server):
    process, port = server()
    client = Client(port)
    for number in range(20):
        headers = {"destination": "/queue/work", "receipt": str(number)}
        client.send("SEND", headers, b"%d" % number)
        assert client.receive().headers["receipt-id"] == str(number)
    done = []
    for _ in range(4):
        client.close()
        process.kill()
        process.wait()
        process, port = server()
        client = Client(port)
        client.send("SUBSCRIBE", {"destination": "/queue/work", "ack": "client"})
        for _ in range(3):
            frame = client.receive()
            done.append(int(frame.body))
            client.send("ACK", {"message-id": frame.headers["message-id"]})
        # one more is on its way, and the server is killed before it is acknowledged
        client.receive()
    client.close()
    process.kill()
    process.wait()
    process, port = server()
    client = Client(port)
    client.send("SUBSCRIBE", {"destination": "/queue/work", "ack": "auto"})
    while set(done) != set(range(20)):
        done.append(int(client.receive().body))
    # an acknowledgement that the server had not read yet is one that was not given
    assert len(done) <= 20 + 4
    client.close()


def test_a_second_server_is_told_who_has_the_store(server, tmp_path):
    process, _ = server()
    with pytest.raises(StoreLockedError, match=f"process {process.pid}"):
        RmqQueueStore(tmp_path / "store")


class Connection:
    """A subscriber that acknowledges, as `QueueManager` has it."""

    reliable_subscriber = True

    def __init__(self):
        self.frames = []

    def send_frame(self, frame):
        self.frames.append(frame)


def test_a_subscriber_that_goes_while_the_disk_is_full_leaves_its_frame_to_one(
    tmp_path, monkeypatch
):
    store = RmqQueueStore(tmp_path / "store")
    manager, gone, other = QueueManager(store), Connection(), Connection()
    manager.send(Frame("SEND", {"destination": "/queue/a"}, "a"))
    for number, name in enumerate("ab"):
        manager.subscribe(gone, f"/queue/{name}", id=str(number))
    assert [frame.body for frame in gone.frames] == ["a"]
    gone.frames.clear()

    def full(*_):
        raise DiskFullError(tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(store._home, "put", full)
        manager.disconnect(gone)
    manager.send(Frame("SEND", {"destination": "/queue/b"}, "b"))
    manager.subscribe(other, "/queue/a", id="0")
    manager.ack(other, other.frames[0], id="0")
    assert [frame.body for frame in other.frames] == ["a"]
    assert not gone.frames
    other.frames.clear()
    manager.close()
    again = RmqQueueStore(tmp_path / "store")
    # what was acknowledged does not come again
    assert {name: again.size(name) for name in again.destinations()} == {"/queue/b": 1}
    again.close()


def test_what_is_no_frame_is_a_dead_letter_and_the_next_one_comes(tmp_path):
    store = RmqQueueStore(tmp_path / "store")
    for body in (b"", b"\xff\xff\xff\xff", b"\0\0\0\2{}", b"\0\0\0\1[", os.urandom(40), DEEP):
        store.enqueue("/queue/a", Frame("MESSAGE", {}, "x"))
        store._queue("/queue/a").push(body)
    store.enqueue("/queue/a", Frame("MESSAGE", {"message-id": "1"}, b"last"))
    frames = list(store.frames("/queue/a"))
    assert [frame.body for frame in frames] == ["x"] * 6 + [b"last"]
    del frames
    store.close()
    with open_store(tmp_path / "store", mode="r") as opened:
        assert len(list(opened.messages(DEAD_LETTERS))) == 6


def test_a_frame_is_the_same_after_encoding():
    for body in ("text", "Größe", b"bytes\0\xff", ""):
        frame = Frame("MESSAGE", {"message-id": "1", "a": "b:c"}, body)
        assert decode_frame(encode_frame(frame)) == frame


def test_a_frame_that_is_too_large_is_refused(tmp_path):
    store = RmqQueueStore(tmp_path / "store")
    with pytest.raises(MessageIllegalError):
        store.enqueue("/queue/a", Frame("MESSAGE", {}, bytes(17 << 20)))
    assert store.size("/queue/a") == 0
    store.close()
