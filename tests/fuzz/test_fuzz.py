"""The corpus with what each decoder says of it, and mutations of it from a seed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.target import DECODERS, run

from golden.vectors import vector, vectors

pytestmark = pytest.mark.engine

CORPUS = Path(__file__).parent / "corpus"
TABLE = Path(__file__).parent / "expectations.tsv"


def load(name):
    lines = (CORPUS / f"{name}.hex").read_text("utf-8").splitlines()
    return bytes.fromhex("".join(line.partition("#")[0] for line in lines))


def expectations():
    """Input -> decoder -> ok or refused."""
    head, *rows = (line.split("\t") for line in TABLE.read_text("utf-8").splitlines())
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


INPUTS = {path.stem: load(path.stem) for path in sorted(CORPUS.glob("*.hex"))}
SEEDS = [*INPUTS.values(), *map(vector, vectors(""))]
ODD_WORDS = [0, 1, 7, 8, 127, 128, 255, 2**15 - 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1]


def mutate(data, rng):
    """Damage an input in one to four places."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data)) if data else 0
        kind = rng.randrange(6)
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at] = rng.randrange(256)
        elif kind == 2:
            del data[at : at + rng.randint(1, 24)]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randint(1, 12))
        elif kind == 4:
            data[at : at + 4] = rng.choice(ODD_WORDS).to_bytes(4, "big")
        else:
            other = rng.choice(SEEDS)
            data[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(data)


READS_TOO_FAR = """
import ctypes
from fuzz.guard import GuardedMemory
view = GuardedMemory(100).place(b"data")
start = ctypes.addressof(ctypes.c_char.from_buffer(view))
assert ctypes.string_at(start, 4) == b"data"
print("in time", flush=True)
ctypes.string_at(start, 5)
"""


@pytest.mark.process
def test_a_read_one_byte_too_far_is_seen():
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    child = subprocess.run(
        [sys.executable, "-c", READS_TOO_FAR], env=environment, capture_output=True, check=False
    )
    assert child.stdout == b"in time\n"
    assert child.returncode != 0


def test_the_table_covers_the_corpus():
    table = expectations()
    assert table.keys() == INPUTS.keys()
    for row in table.values():
        assert list(row) == [decode.__name__ for decode in DECODERS]


@pytest.mark.parametrize("name", INPUTS)
def test_corpus(name):
    assert run(INPUTS[name]) == expectations()[name]


@pytest.mark.parametrize("name", vectors(""))
def test_vectors(name):
    said = run(vector(name))
    if name.startswith("record-"):
        assert said["read_record"] == said["check_record"] == said["read_columns"] == "ok"
    if name == "batch-body":
        assert said["read_batch"] == said["put_batch"] == "ok"
    if name == "index-file":
        assert said["walk_index"] == said["index_of_any_size"] == "ok"


def test_mutations(rng):
    for _ in range(3000):
        run(mutate(rng.choice(SEEDS), rng))


def test_raw_bytes(rng):
    for _ in range(500):
        run(rng.randbytes(rng.randrange(400)))


@pytest.mark.storm
def test_many_mutations(rng):
    pool = list(SEEDS)
    for _ in range(100_000):
        data = mutate(rng.choice(pool), rng)
        run(data)
        if len(pool) < 2000 and rng.randrange(20) == 0:
            pool.append(data[:4096])
