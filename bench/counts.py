"""Instructions that five kernels take for one record, counted by callgrind, against baselines.

Wall time of a shared machine is no gate; instruction counts are. Each kernel runs in two processes,
in one of them once more than in the other: the difference is what its records take, without the
interpreter's start. More than 3 % above the committed baseline fails.

``counts.py`` compares; ``counts.py --update`` writes the baseline of this compiler and processor,
which is a commit of its own with the reason. Baselines hold for one compiler and one CRC path.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

ALLOWED = 1.03
BASELINES = Path(__file__).parent / "baselines"
_TIME_MS = 1_700_000_000_000


def _message(number: int):
    from payload import message

    return message(number)


def _region(count: int) -> bytes:
    from rmqcore._codec import encode_record

    parts, offset = [], 0
    for number in range(count):
        place = {"queue_offset": number, "phy_offset": offset, "store_timestamp_ms": _TIME_MS}
        parts.append(encode_record(_message(number), **place))
        offset += len(parts[-1])
    return b"".join(parts)


def encode_record(count: int) -> Callable[[], None]:
    """One message to the bytes of its record."""
    from rmqcore._codec import encode_record

    message = _message(1)

    def run() -> None:
        for _ in range(count):
            encode_record(message, queue_offset=1, phy_offset=1, store_timestamp_ms=_TIME_MS)

    return run


def tail_put(count: int) -> Callable[[], None]:
    """One message into a mapped log, receipt included: what `store.put` does."""
    from rmqcore.message import Message
    from rmqcore.native.log._tail import LogTail

    tail = LogTail("127.0.0.1:10911", 4 << 20)
    tail.attach(bytearray(512 * _TURNS * (count + 1)), 0, 0)
    tail.writable = True
    tail.fixed_time_ms = _TIME_MS
    message = Message("T", b"x" * 256, tags="TagA", keys="K1")

    def run() -> None:
        for _ in range(count):
            receipt = tail.put_message(message)
        assert not isinstance(receipt, int)

    return run


def scan_records(count: int) -> Callable[[], None]:
    """One record of the log to its consume-queue unit and keys, CRC checked."""
    from rmqcore.native.derive._dispatch import DispatchBatch

    data, batch = _region(count), DispatchBatch(row_count_max=count + 1)

    def run() -> None:
        batch.scan(data, 0, len(data), base_offset=0, verify_crc=True)
        assert batch.record_count == count
        batch.clear()

    return run


def put_keys(count: int) -> Callable[[], None]:
    """One key into an index file."""
    import numpy as np

    from rmqcore._index import index_file_size, put_keys

    slots, entries = 4 * count, _TURNS * count + 1
    data = bytearray(index_file_size(slots, entries))
    hashes = (np.arange(count, dtype=np.int64) * 2_654_435_761 % (1 << 31)).astype(np.int32)
    offsets = np.arange(count, dtype=np.int64)
    times = offsets + _TIME_MS

    def run() -> None:
        assert put_keys(data, slots, entries, hashes, offsets, times, 0, count) == count

    return run


def decode_columns(count: int) -> Callable[[], None]:
    """One record to the columns that most readers want."""
    from rmqcore.native.columns._columns import ColumnDecoder
    from rmqcore.scan import DEFAULT_COLUMNS

    data = _region(count)
    decoder = ColumnDecoder(DEFAULT_COLUMNS, row_max=count + 1, byte_max=len(data) + 1)

    def run() -> None:
        decoder.decode(data, 0, len(data), base_offset=0)
        assert len(decoder.take()) == count

    return run


KERNELS = (encode_record, tail_put, scan_records, put_keys, decode_columns)
#: what would make two equal runs differ: random hashes, byte code written once, spinning threads
_STEADY = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
#: records of one turn
_COUNT = 2_000
#: turns of the longer of both runs; the first ones also pay for what is done once
_TURNS = 3


def _instructions(name: str, turns: int) -> int:
    """Instructions of a process that prepares a kernel and runs it so often."""
    with tempfile.TemporaryDirectory() as directory:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={directory}/out"]
        command += [sys.executable, __file__, "--child", name, str(turns)]
        environment = {**os.environ, **_STEADY}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None:
        raise SystemExit(f"counts: {name} failed under valgrind:\n{done.stderr[-2000:]}")
    return int(found[1])


def measure(name: str) -> float:
    """Instructions a record, without what preparing it takes."""
    return (_instructions(name, _TURNS) - _instructions(name, _TURNS - 1)) / _COUNT


def build() -> dict[str, str]:
    """What the counts depend on beside the source: compiler, Python, the processor's path."""
    from rmqcore._codec import crc32_implementation

    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    command = [os.environ.get("CC", compiler), "-dumpfullversion"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return {
        "machine": platform.machine(),
        "compiler": f"{Path(compiler).name.split('-')[-1]} {version}",
        "python": platform.python_version(),
        "crc32": crc32_implementation(),
    }


def _baseline(facts: dict[str, str]) -> Path:
    words = (facts["machine"], facts["compiler"], f"python-{facts['python'].rpartition('.')[0]}")
    return BASELINES / ("-".join(words).replace(" ", "-") + ".json")


def _compare(counts: dict[str, float], baseline: dict) -> int:
    failed = 0
    for name, count in counts.items():
        before = baseline["instructions"][name]
        word = "TOO MANY" if count > before * ALLOWED else "ok"
        failed += word != "ok"
        print(
            f"{name:16} {count:10.1f}  baseline {before:10.1f}  {count / before - 1:+7.2%}  {word}"
        )
    return failed


def main() -> int:
    """Count, and compare or update."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--update", action="store_true", help="write the baseline")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, turns = options.child
        work = globals()[name](_COUNT)
        for _ in range(int(turns)):
            work()
        return 0
    if shutil.which("valgrind") is None:
        raise SystemExit("counts: valgrind is not here")
    facts = build()
    counts = {kernel.__name__: round(measure(kernel.__name__), 1) for kernel in KERNELS}
    path = _baseline(facts)
    if options.update:
        BASELINES.mkdir(exist_ok=True)
        path.write_text(json.dumps({**facts, "instructions": counts}, indent=1) + "\n", "utf-8")
        print(f"counts: wrote {path.name}")
        return 0
    if not path.exists():
        raise SystemExit(f"counts: no baseline for this build, {path.name}; --update writes one")
    baseline = json.loads(path.read_text("utf-8"))
    if baseline["crc32"] != facts["crc32"]:
        raise SystemExit(f"counts: CRC-32 is {facts['crc32']}, the baseline's {baseline['crc32']}")
    return min(1, _compare(counts, baseline))


if __name__ == "__main__":
    sys.exit(main())
