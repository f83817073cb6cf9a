"""A terabyte is planned, repaired and brought back within a bounded memory."""

import tracemalloc

import pytest

from rmqcore import doctor
from rmqcore._codec import blank_record, encode_record
from rmqcore.message import Message
from rmqcore.rebuild import rebuild_consume_queues

pytestmark = pytest.mark.measure

GIB = 1 << 30
FILES = 1024
SIZES = {"mapped_file_size_commit_log": GIB, "message_index_enable": False}
MEMORY_MAX = 48 << 20


@pytest.fixture
def terabyte(store_path):
    """Sparse log files of 1 GiB, each with a record and what ends the file."""
    (store_path / "commitlog").mkdir(parents=True)
    for number in range(FILES):
        start = number * GIB
        record = encode_record(
            Message("T", b"x" * 1000),
            queue_offset=number,
            phy_offset=start,
            store_timestamp_ms=1000 + number,
        )
        with (store_path / "commitlog" / f"{start:020d}").open("wb") as log:
            log.write(record + blank_record(GIB - len(record)))
            log.truncate(GIB)
    rebuild_consume_queues(store_path)
    return store_path


def test_a_terabyte_is_repaired_within_a_bounded_memory(terabyte, figure):
    log = sorted((terabyte / "commitlog").iterdir())
    log[100].unlink()
    log[200].write_bytes(b"")
    with log[300].open("r+b") as file:
        file.write(bytes(4096))
    with log[-1].open("r+b") as file:
        file.seek(5000)
        file.write(b"behind the end-of-file record")
    told = []
    tracemalloc.start()
    try:
        plan = doctor.plan(terabyte, progress=lambda *facts: told.append(facts))
        report = doctor.repair(terabyte, plan=plan)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    figure("memory at most", peak / 2**20, "MiB", at_most=MEMORY_MAX / 2**20)
    assert told[-1] == ("log", FILES * GIB, FILES * GIB)
    covers = [step for step in plan.steps if step.kind is doctor.StepKind.COVER]
    assert [step.start // GIB for step in covers] == [100, 200, 300]
    assert [one.queue_offset for one in plan.lost] == [100, 200, 300]
    assert report.clean
    used = sum(path.stat().st_blocks * 512 for path in terabyte.rglob("*") if path.is_file())
    assert used < 256 << 20
    doctor.undo(terabyte)
    assert not log[100].exists()
    assert log[200].stat().st_size == 0


def test_two_terabytes_are_compared_within_a_bounded_memory(terabyte, tmp_path, figure):
    other = tmp_path / "other"
    (other / "commitlog").mkdir(parents=True)
    for path in (terabyte / "commitlog").iterdir():
        with path.open("rb") as log, (other / "commitlog" / path.name).open("wb") as copy:
            copy.write(log.read(4096))
            copy.truncate(GIB)
    with (other / "commitlog" / f"{(FILES - 1) * GIB:020d}").open("r+b") as file:
        file.seek(16)
        file.write(b"\x01")
    tracemalloc.start()
    try:
        report = doctor.diff(terabyte, other)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.first == (FILES - 1) * GIB
    assert [one.fields for one in report.differences] == [("flag",)]
    figure("memory at most", peak / 2**20, "MiB", at_most=MEMORY_MAX / 2**20)
