"""A file of a queue with a name that none has there: it is named, and nothing walks there."""

import shutil
from pathlib import Path

import pytest

from rmqcore import CorruptStoreError, Message, doctor, open_store
from rmqcore._codec import encode_batch
from rmqcore.doctor import verify
from rmqcore.scan import unit_files

pytestmark = pytest.mark.engine

FAR = f"{2**62:020d}"
SIZE = 2000


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "s", mapped_file_size_consume_queue=SIZE) as store:
        for number in range(150):
            store.put("T", b"%d" % number)
    return tmp_path / "s"


@pytest.fixture(autouse=True)
def bounded(monkeypatch):
    """More reads of units than a walk over these queues needs are a failure."""
    reads, read = [], unit_files.UnitFiles.units

    def counted(self, key, first, count):
        reads.append(count)
        assert len(reads) < 500
        assert count <= unit_files.LOOK_UNITS + 2
        return read(self, key, first, count)

    monkeypatch.setattr(unit_files.UnitFiles, "units", counted)


@pytest.mark.parametrize("content", ["zeros", "units"])
def test_it_is_said_of_a_queue_and_the_opening_derives_that_again(store, content):
    queue = store / "consumequeue" / "T" / "0"
    if content == "zeros":
        (queue / FAR).write_bytes(bytes(SIZE))
    else:
        shutil.copy(queue / f"{0:020d}", queue / FAR)
    report = verify(store)
    assert any(f"a file is missing before {FAR}" in str(one) for one in report.findings)
    assert doctor.explain(store, topic="T", queue_offset=149).found
    assert doctor.plan(store).steps
    with open_store(store) as opened:
        assert opened.max_queue_offset("T", 0) == 150
    assert not verify(store).findings
    assert not (queue / FAR).exists()


@pytest.mark.parametrize("mend", [open_store, doctor.repair])
@pytest.mark.parametrize("root", ["consumequeue/T", "batchconsumequeue/B"])
def test_a_queue_file_where_none_can_begin_is_told_and_its_queue_derived_again(
    store_path, root, mend
):
    """What was written of it lay in a file beside, which no later opening took."""
    settings = {"topic_queue_types": (("B", "BatchCQ"),)}
    two = encode_batch([Message("B", b"one"), Message("B", b"two")])
    with open_store(store_path, **settings) as opened:
        for _ in range(3):
            opened.put("T", b"body")
            opened.put("B", two, sys_flag=0xC0, properties={"INNER_NUM": "2"})
    (path,) = (store_path / root / "0").iterdir()
    path.rename(path.with_name(f"{100:020d}"))
    assert path.with_name(f"{100:020d}") in [one.path for one in doctor.verify(store_path).findings]
    with open_store(store_path, mode="r") as opened, pytest.raises(CorruptStoreError):
        opened.max_queue_offset(Path(root).name, 0)
    done = mend(store_path)
    if mend is open_store:
        done.close()
    for mode in ("r", "a", "r"):
        with open_store(store_path, mode=mode) as opened:
            assert [opened.max_queue_offset(topic, 0) for topic in "TB"] == [3, 6]
            assert len(list(opened.messages())) == 6
