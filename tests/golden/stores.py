"""The packed golden stores: which there are, and how to get a fresh copy of one."""

import hashlib
import json
import shutil
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from temporary import shared_directory

HERE = Path(__file__).parent
RELEASES = ("5.5.0", "4.9.7")


@dataclass(frozen=True, slots=True)
class GoldenStore:
    """A writable copy of one store, with what Apache RocketMQ read from it."""

    release: str
    name: str
    path: Path
    manifest: dict
    conf: Path


def packed_stores() -> list[tuple[str, str]]:
    """Return (release, name) of every packed store."""
    return [
        (release, archive.name.removesuffix(".tar.xz"))
        for release in RELEASES
        for archive in sorted((HERE / f"rocketmq-{release}").glob("*.tar.xz"))
    ]


@cache
def _unpacked(release: str, name: str) -> str:
    """What a store's archive holds; it goes with this process."""
    directory = shared_directory("golden")
    with tarfile.open(HERE / f"rocketmq-{release}" / f"{name}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory


def unpack(release: str, name: str, target: Path) -> GoldenStore:
    """Put a copy of one store into a directory that does not exist yet."""
    shutil.copytree(_unpacked(release, name), target, symlinks=True)
    manifest = json.loads((target / f"{name}.json").read_text("utf-8"))
    return GoldenStore(release, name, target / name, manifest, target / f"{name}.conf")


def changed_archives() -> list[str]:
    """Return the archives that differ from SHA256SUMS, are missing there, or are gone."""
    listed = {}
    for line in (HERE / "SHA256SUMS").read_text("ascii").splitlines():
        digest, _, name = line.partition("  ")
        listed[name] = digest
    present = {
        path.relative_to(HERE).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in HERE.glob("rocketmq-*/*.tar.xz")
    }
    names = sorted(listed.keys() | present.keys())
    return [name for name in names if listed.get(name) != present.get(name)]
