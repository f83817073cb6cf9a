"""The hex vectors of `hex/`: bytes that RocketMQ wrote, laid out for a reader."""

from pathlib import Path

FOLDER = Path(__file__).parent / "hex"


def vector(name: str) -> bytes:
    """Return the bytes of `hex/NAME.hex`; a `#` begins a comment, line ends mean nothing."""
    lines = (FOLDER / f"{name}.hex").read_text("utf-8").splitlines()
    return bytes.fromhex("".join(line.partition("#")[0] for line in lines))


def vectors(prefix: str) -> list[str]:
    """Return the names of the vectors that begin with a prefix."""
    return sorted(path.stem for path in FOLDER.glob(f"{prefix}*.hex"))
