"""A file of a queue whose name is far behind the others': it is named, and nothing walks there."""

import shutil

import pytest

from rmqcore import doctor, open_store
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
