#!/usr/bin/env python3
"""Pack a folder of golden stores into the archives beside this file: `pack.py STORES_DIR`.

STORES_DIR holds one folder a release (`rocketmq-5.5.0`), and in each, for every store, the folder
`NAME`, the manifest `NAME.json` and the sizes `NAME.conf`. The same input always gives the same
bytes: entries are sorted, owners and times are fixed, and empty directories are kept.
"""

import argparse
import hashlib
import io
import lzma
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
#: Modification time of every packed file, Unix seconds: shortly after the stores were written.
PACKED_TIME_S = 1_795_248_000


def normalise(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Take everything out of an entry that depends on the machine that packs."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = PACKED_TIME_S
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry


def pack(store: Path) -> bytes:
    """Return one store, its manifest and its sizes as the bytes of a `.tar.xz`."""
    members = [store, *sorted(store.rglob("*"))]
    members += [store.with_suffix(".conf"), store.with_suffix(".json")]
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            name = member.relative_to(store.parent).as_posix()
            archive.add(member, arcname=name, recursive=False, filter=normalise)
    return lzma.compress(plain.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    """Pack every store of every release and write SHA256SUMS."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", type=Path)
    sums = []
    for release in sorted(parser.parse_args().stores.glob("rocketmq-*")):
        (HERE / release.name).mkdir(exist_ok=True)
        for store in sorted(path for path in release.iterdir() if path.is_dir()):
            archive = HERE / release.name / f"{store.name}.tar.xz"
            archive.write_bytes(pack(store))
            digest = hashlib.sha256(archive.read_bytes()).hexdigest()
            sums.append(f"{digest}  {release.name}/{archive.name}\n")
    (HERE / "SHA256SUMS").write_text("".join(sums), "ascii")


if __name__ == "__main__":
    main()
