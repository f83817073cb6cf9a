"""The power fails: of a page that was written and not flushed, old or new content is left."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import rmqcore
from crash.small_store import SETTINGS, Sizes, check_against_log, numbers_in, put
from rmqcore.files.index_file import IndexFile
from rmqcore.files.mapped_file import MappedFile
from rmqcore.files.store_checkpoint import StoreCheckpoint

PAGE = 4096
#: Files of several pages, so that pages of one file are lost in any order.
PAGES = SETTINGS | {
    "mapped_file_size_commit_log": 10 * PAGE,
    "mapped_file_size_consume_queue": 3 * PAGE - 3 * PAGE % 20,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
SIZES = Sizes(
    consume_queue_file=PAGES["mapped_file_size_consume_queue"],
    slot_num=PAGES["max_hash_slot_num"],
    entry_num=PAGES["max_index_num"],
)


class FaultDisk:
    """Keeps each file's bytes as of its last flush, page by page."""

    def __init__(self, monkeypatch):
        self.flushed = {}
        self.lock = threading.Lock()
        for kind, method in (
            (MappedFile, "flush"),
            (MappedFile, "sync"),
            (MappedFile, "zero_from"),
            (IndexFile, "flush"),
            (StoreCheckpoint, "flush"),
        ):
            self.watch(monkeypatch, kind, method)

    def watch(self, monkeypatch, kind, method):
        original = getattr(kind, method)

        def flushing(file, *arguments):
            start, stop = 0, None
            if method == "flush" and kind is MappedFile:
                start, stop = file.flushed_position, file.read_position
            before = file.path.read_bytes() if file.path.exists() else b""
            answer = original(file, *arguments)
            if method == "zero_from" or kind is StoreCheckpoint:
                before = file.path.read_bytes()
            self.note(file.path, before, start, len(before) if stop is None else stop)
            return answer

        monkeypatch.setattr(kind, method, flushing)

    def note(self, path, data, start, stop):
        start, stop = start - start % PAGE, -(-stop // PAGE) * PAGE
        with self.lock:
            old = bytearray(self.flushed.get(path, b"").ljust(len(data), b"\0"))
            old[start:stop] = data[start:stop]
            self.flushed[path] = bytes(old)

    def cut(self, path, target, rng):
        """Copy a store as the power cut leaves it."""
        with self.lock:
            flushed = dict(self.flushed)
        target.mkdir()
        for file in sorted(path.rglob("*")):
            copy = target / file.relative_to(path)
            if file.is_dir():
                copy.mkdir(parents=True)
                continue
            now = file.read_bytes()
            old = flushed.get(file, b"").ljust(len(now), b"\0")
            if file.name in ("lock", "abort") or file.parent.name == "config":
                old = now
            likely = rng.choice([0.0, 0.1, 0.5, 0.9])
            pages = [
                (now if rng.random() < likely else old)[at : at + PAGE]
                for at in range(0, len(now), PAGE)
            ]
            copy.write_bytes(b"".join(pages))
        self.flushed |= {file: file.read_bytes() for file in target.rglob("*") if file.is_file()}


def check_after(path, durable, written):
    """What is there is a beginning of what was written, and all that was on the disk."""
    with rmqcore.open_store(path, **PAGES) as store:
        found = numbers_in(store)
        assert found == written[: len(found)]
        assert found[: len(durable)] == durable
        check_against_log(store, SIZES)
    return found


def cut_again_and_again(tmp_path, monkeypatch, rng, how, cuts):
    disk = FaultDisk(monkeypatch)
    path, found, number = tmp_path / "0", [], 0
    settings = {"flush_interval_commit_log_ms": 5, "flush_commit_log_least_pages": 1}
    settings |= {"flush_interval_consume_queue_ms": 5, "flush_disk_type": how}
    for generation in range(1, cuts + 1):
        store = rmqcore.open_store(path, **PAGES, **settings)
        written, durable = list(found), list(found)
        for _ in range(rng.choice([3, 40, 200])):
            number += 1
            receipt = put(store, number)
            written.append(number)
            if receipt.durability == "disk":
                durable = list(written)
            if rng.random() < 0.01:
                store.flush()
                durable = list(written)
            if rng.random() < 0.02:
                time.sleep(0.004)
        target = tmp_path / str(generation)
        disk.cut(path, target, rng)
        store.close()
        shutil.rmtree(path)
        path = target
        found = check_after(path, durable, written)


@pytest.mark.parametrize("how", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("_case", range(3))
def test_power_cut(tmp_path, monkeypatch, rng, how, _case):
    cut_again_and_again(tmp_path, monkeypatch, rng, how, 3)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("_case", range(50))
def test_power_cuts_for_long(tmp_path, monkeypatch, rng, how, _case):
    cut_again_and_again(tmp_path, monkeypatch, rng, how, 12)


# ---- a real one: what has reached the image of a mounted disk, and nothing else

#: Puts for ever; says outside of the disk what was acknowledged.
WRITER = """
import os, sys, rmqcore
from crash.small_store import SETTINGS, put
path, side = sys.argv[1:]
store = rmqcore.open_store(path, flush_disk_type="SYNC_FLUSH", **SETTINGS)
side = os.open(side, os.O_WRONLY | os.O_CREAT)
for number in range(10**9):
    put(store, number)
    os.pwrite(side, b"%020d" % (number + 1), 0)
"""


def run(*arguments):
    subprocess.run([*map(str, arguments)], check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts an image")
@pytest.mark.skipif(not Path("/dev/loop-control").exists(), reason="needs loop devices")
def test_real_power_cuts(tmp_path):
    image, live, copy = tmp_path / "image", tmp_path / "live", tmp_path / "copy"
    for directory in (live, copy):
        directory.mkdir()
    with image.open("wb") as file:
        file.truncate(128 << 20)
    run("mkfs.ext4", "-q", image)
    run("mount", "-o", "loop", image, live)
    side = tmp_path / "acknowledged"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, live / "store", side],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        cuts, last = 0, 0
        end = time.monotonic() + 25
        while time.monotonic() < end and writer.poll() is None:
            time.sleep(0.2)
            acknowledged = int(side.read_bytes() or b"0") if side.exists() else 0
            run("cp", "--sparse=always", image, tmp_path / "cut")
            run("mount", "-o", "loop", tmp_path / "cut", copy)
            try:
                if not acknowledged:
                    continue
                with rmqcore.open_store(copy / "store", **SETTINGS) as store:
                    found = numbers_in(store)
                    assert found[:acknowledged] == list(range(acknowledged))
                    check_against_log(store)
                cuts, last = cuts + 1, acknowledged
            finally:
                run("umount", copy)
        assert writer.poll() is None
        assert cuts > 3
        assert last > 50
    finally:
        writer.kill()
        writer.wait()
        run("umount", "-l", live)
