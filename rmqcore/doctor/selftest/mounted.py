"""Power cuts of a mounted file system: its image on a loop device is copied while a store is used.

The copy has what had reached the block layer, and nothing else. It is mounted, which replays the
file system's journal, and the store in it is opened.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rmqcore import Durability
from rmqcore.doctor.selftest.report import Progress, Row
from rmqcore.doctor.selftest.workload import MODES, check_store, open_for, put
from rmqcore.world import monotonic_s, sleep

#: The bytes of each file system's image, and the options that a copy of it is mounted with.
FILE_SYSTEMS = {"ext4": (64 << 20, "loop"), "xfs": (320 << 20, "loop,nouuid")}
_LOOP = Path("/dev/loop-control")
#: linux/sched.h: mounts of its own for this process
_CLONE_NEWNS = 0x00020000
_BETWEEN_S = 0.15
#: Each put is followed by this pause, so that a store stays small enough to be read after each
#: cut.
_PAUSE_S = 0.001
PROMISE = "what was acknowledged as disk is there, nothing is wrong, the store opens"


def why_not(file_system: str) -> str:
    """Why this process cannot mount images of a file system; empty when it can."""
    if os.geteuid() != 0:
        return "needs root, to mount an image; the replayed power cuts need none"
    if not _LOOP.exists():
        return f"needs loop devices: {_LOOP} is not there"
    if shutil.which(f"mkfs.{file_system}") is None:
        return f"needs mkfs.{file_system}"
    return ""


def mounted_cuts(file_system: str, cuts: int, seed: int, scratch: Path, progress: Progress) -> Row:
    """Cut the power of a mounted file system ``cuts`` times, in all modes in turn.

    What it mounts only this process sees, from now on for ever, and those that it starts: however
    they end, no mount is left behind.

    Args:
        file_system: one of `FILE_SYSTEMS`.
        cuts: how many copies are mounted and opened.
        seed: gives the moments of the cuts again; what the disk does in them it does not decide.
        scratch: a directory on a disk, for the images.
        progress: called as it goes on.
    """
    row = Row(f"power cuts, {file_system} on a loop device", PROMISE, skipped=why_not(file_system))
    begun = monotonic_s()
    try:
        if not row.skipped:
            _hide_mounts()
        for number, mode in enumerate(() if row.skipped else MODES):
            rng = random.Random(f"{seed}/{file_system}/{mode}")  # noqa: S311 - repeatable
            last = row.cases + cuts // len(MODES) + (number < cuts % len(MODES))
            with mounted(file_system, scratch) as image, _writer(image, mode) as side:
                while row.cases < last:
                    sleep(_BETWEEN_S * rng.random())
                    _cut(row, image, mode, side)
                    progress(row.name, row.cases, cuts)
    except subprocess.CalledProcessError as error:
        if row.cases:
            raise
        # a container may have root and no right to mount
        row.skipped = f"{error.cmd[0]} refuses: {error.stderr.decode().strip()}"
    except PermissionError as error:
        if row.cases:
            raise
        row.skipped = f"the system refuses: {error}"
    row.elapsed_s = monotonic_s() - begun
    return row


def _hide_mounts() -> None:
    """Let nobody else see what this process mounts: the last of those who do takes it along.

    Raises:
        PermissionError: this process may not mount.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise PermissionError(ctypes.get_errno(), "no mounts of its own for a process")
    run_as_root("mount", "--make-rprivate", "/")


def _cut(row: Row, image: Path, mode: str, side: Path) -> None:
    """Copy the image, mount the copy, and look for all that was acknowledged before."""
    durable = int(side.read_bytes() or b"0")
    copy, place = image.with_name("cut"), image.with_name("after")
    run_as_root("cp", "--sparse=always", image, copy)
    run_as_root("mount", "-o", FILE_SYSTEMS[image.name][1], copy, place)
    row.cases += 1
    row.acknowledged += durable
    try:
        with open_for(place / "store", mode) as store:
            check_store(store, range(durable))
    except Exception as error:  # noqa: BLE001 - whatever it is, the promise is broken
        row.fail(f"cut {row.cases}, {mode}: {type(error).__name__}: {error}")
    finally:
        run_as_root("umount", place)


@contextlib.contextmanager
def mounted(file_system: str, scratch: Path) -> Iterator[Path]:
    """A new image, mounted at ``live`` beside it, with room for a copy mounted at ``after``.

    Args:
        file_system: a key of `FILE_SYSTEMS`, such as ``ext4``.
        scratch: directory for the image and both places; has room for two images.

    Yields:
        path of the image.

    Raises:
        CalledProcessError: this process may not mount.
    """
    image, live = scratch / file_system, scratch / "live"
    for directory in (live, scratch / "after"):
        directory.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as file:
        file.truncate(FILE_SYSTEMS[file_system][0])
    run_as_root(f"mkfs.{file_system}", "-q", image)
    run_as_root("mount", "-o", "loop", image, live)
    try:
        yield image
    finally:
        run_as_root("umount", "-l", live)
        image.unlink()


@contextlib.contextmanager
def _writer(image: Path, mode: str) -> Iterator[Path]:
    """A process that puts for ever; the file that says how many messages are on the disk."""
    side = image.with_name("side")
    side.write_bytes(b"")
    child = os.fork()
    if child == 0:
        try:
            _put_for_ever(image.with_name("live") / "store", mode, side)
        finally:
            os._exit(1)
    try:
        while not side.read_bytes():
            sleep(0.01)
            if os.waitpid(child, os.WNOHANG) != (0, 0):
                raise ChildProcessError(f"the writer on {image.name} has ended")
        yield side
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _put_for_ever(path: Path, mode: str, side: Path) -> None:
    store = open_for(path, mode)
    told = os.open(side, os.O_WRONLY)
    parent = os.getppid()
    for number in range(sys.maxsize):
        if os.getppid() != parent:
            # the parent was killed: a writer that goes on would keep its file system mounted
            return
        durable = put(store, number).durability is Durability.DISK
        if not durable and number % 100 == 0:
            store.flush()
            durable = True
        if durable:
            os.pwrite(told, b"%020d" % (number + 1), 0)
        sleep(_PAUSE_S)


def run_as_root(*command: str | Path) -> None:
    """Run a program that only root may run.

    Raises:
        CalledProcessError: it ended with another code than 0; what it said is in ``stderr``.
    """
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - as root
