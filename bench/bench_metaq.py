"""MetaQ beside its limits: one write(2), the engine's batches, the checksum, the loopback.

Each figure and its yardstick are taken alternately in one run; the best of the rounds counts, as
other work on the machine can only make it worse.
``pytest bench/bench_metaq.py`` runs short and checks nothing but that it works;
``python bench/bench_metaq.py`` prints the table of docs/metaq.md.
"""

import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from rmqcore import Message, open_store
from rmqcore.metaq import MessageStore, MetaConfig, SystemConfig
from rmqcore.metaq._message_set import encode_many, scan_file

pytestmark = pytest.mark.measure

BODY = 256
ROUNDS = 7
NEVER = 2**31 - 1


def open_partition(folder, partition):
    config = MetaConfig(
        SystemConfig(
            data_path=str(folder),
            unflush_threshold=NEVER,
            unflush_interval_ms=NEVER,
            max_segment_size=NEVER,
        )
    )
    return MessageStore("bench", partition, config)


def bodies(count):
    return [os.urandom(BODY) for _ in range(count)]


def bare_writes(folder, count):
    """Microseconds of one os.write of a record's bytes, to a fresh file."""
    records = [encode_many([(i + 1, body, 0)]) for i, body in enumerate(bodies(count))]
    path = folder / "bare"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    write = os.write
    begin = time.perf_counter()
    for record in records:
        write(fd, record)
    seconds = time.perf_counter() - begin
    os.close(fd)
    path.unlink()
    return seconds / count * 1e6


def single_appends(folder, partition, count):
    """Microseconds of one `MessageStore.append`, to a fresh partition."""
    payloads = bodies(count)
    with open_partition(folder, partition) as store:
        append = store.append
        begin = time.perf_counter()
        for i, payload in enumerate(payloads, 1):
            append(i, payload)
        seconds = time.perf_counter() - begin
        drop(store)
    return seconds / count * 1e6


def batch_appends(folder, partition, count):
    """Microseconds a message of `append_many` of 64."""
    batches = [[(i + 1, body, 0) for i, body in enumerate(bodies(64))] for _ in range(count // 64)]
    with open_partition(folder, partition) as store:
        append_many = store.append_many
        begin = time.perf_counter()
        for batch in batches:
            append_many(batch)
        seconds = time.perf_counter() - begin
        drop(store)
    return seconds / len(batches) / 64 * 1e6


def engine_batches(store, count):
    """Microseconds a message of the RocketMQ engine's `put_messages` of 64."""
    batches = [[Message("bench", body) for body in bodies(64)] for _ in range(count // 64)]
    put = store.put_messages
    begin = time.perf_counter()
    for batch in batches:
        put(batch, topic="bench")
    return (time.perf_counter() - begin) / len(batches) / 64 * 1e6


def drop(store):
    """Empty the segment, so that closing does not write it to the disk."""
    segment = store.segments[-1].messages
    segment.abandon()
    os.truncate(segment.path, 0)
    segment.path.unlink()


def recovery(path, size):
    """GB/s of the CRC scan that opening a partition runs."""
    with path.open("rb") as file:
        begin = time.perf_counter()
        end, _, _ = scan_file(file.fileno(), 0, size)
        seconds = time.perf_counter() - begin
    assert end == size
    return size / seconds / 1e9


def transfer(store, rounds):
    """GB/s of `FileMessageSet.send` over a loopback connection to a thread that receives it."""
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()

    def receive():
        room = bytearray(1 << 20)
        while receiver.recv_into(room):
            pass

    thread = threading.Thread(target=receive)
    thread.start()
    view = store.slice(0, 1 << 30)
    begin = time.perf_counter()
    sent = sum(view.send(sender) for _ in range(rounds))
    sender.close()
    thread.join()
    seconds = time.perf_counter() - begin
    receiver.close()
    listener.close()
    return sent / seconds / 1e9


def idle_cpu(folder, seconds):
    """Share of one core that an open, idle partition with group commit uses."""
    config = MetaConfig(SystemConfig(data_path=str(folder), unflush_threshold=0))
    with MessageStore("idle", 0, config) as store:
        store.append(1, b"x")
        before = time.process_time()
        time.sleep(seconds)
        return (time.process_time() - before) / seconds


def measure(folder, *, count=100_000, rounds=ROUNDS, file_size=256 << 20):
    """Every figure with its yardstick: name -> (ours, yardstick or None, unit, target)."""
    bare, single, ours, engine = [], [], [], []
    with open_store(folder / "engine", mapped_file_size_commit_log=64 << 20) as log:
        for turn in range(rounds):
            bare.append(bare_writes(folder, count))
            single.append(single_appends(folder, 4 * turn, count))
            ours.append(batch_appends(folder, 4 * turn + 1, count))
            engine.append(engine_batches(log, count))
    with open_partition(folder, 4 * rounds) as store:
        batch = encode_many([(i + 1, body, 0) for i, body in enumerate(bodies(4096))])
        while store.size_in_bytes < file_size:
            store.segments[-1].messages.append_buffer(batch, 4096)
        path, size = store.segments[-1].messages.path, store.size_in_bytes
        store.flush()
        scans = [recovery(path, size) for _ in range(rounds)]
        sends = [transfer(store, 4) for _ in range(rounds)]
    return {
        "single append": (min(single), min(bare), "us", "<= 1.5 x one write(2)"),
        "append of 64": (min(ours), min(engine), "us/message", "<= 1.5 x engine batch"),
        "recovery by CRC": (max(scans), None, "GB/s", ">= 1"),
        "sendfile, loopback": (max(sends), None, "GB/s", ">= 2"),
        "idle": (idle_cpu(folder, 0.5) * 100, None, "% CPU", "none"),
    }


def test_smoke(tmp_path):
    figures = measure(tmp_path, count=640, rounds=1, file_size=4 << 20)
    assert all(value[0] >= 0 for value in figures.values())


def main():
    base = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        print(f"{'what':20}{'ours':>9}{'beside':>9}{'ratio':>7}  unit, target")
        for name, (ours, beside, unit, target) in measure(Path(folder)).items():
            more = f"{beside:9.3f}{ours / beside:7.2f}" if beside else " " * 16
            print(f"{name:20}{ours:9.3f}{more}  {unit}, {target}")


if __name__ == "__main__":
    main()
