"""What a scan gives is read as often as is wanted, and each time as a whole."""

import pyarrow
import pytest

import rmqcore
from rmqcore import scan

pytestmark = pytest.mark.engine


@pytest.fixture
def path(tmp_path):
    with rmqcore.open_store(tmp_path / "store") as store:
        for number in range(50):
            store.put("T", b"%d" % number, tags="a")
    return tmp_path / "store"


def test_a_store_is_read_once_more_by_each_query(path):
    rows = scan.read_store(path, batch_rows=7)
    tables = [pyarrow.table(rows), rows.to_arrow(), pyarrow.table(rows)]
    assert [table.num_rows for table in tables] == [50] * 3
    assert tables[0] == tables[1] == tables[2]
    assert sum(len(batch) for batch in rows) == sum(len(batch) for batch in rows) == 50


def test_a_split_is_read_by_two_at_a_time(path):
    (split,) = scan.plan(path)
    rows = scan.read(split, ["queue_offset"], batch_rows=7)
    pairs = list(zip(rows, rows, strict=True))
    assert len(pairs) == 8
    assert all(
        (one.numbers("queue_offset") == two.numbers("queue_offset")).all() for one, two in pairs
    )


def test_a_reading_that_was_given_up_begins_anew(path):
    rows = scan.read_store(path, batch_rows=7)
    for _ in rows:
        break
    assert rows.to_arrow().num_rows == 50


def test_what_comes_later_is_not_in_what_was_asked_for_before(path):
    rows = scan.read_store(path)
    before = rows.to_arrow()
    with rmqcore.open_store(path) as store:
        store.put("T", b"later")
    assert rows.to_arrow() == before
    assert scan.read_store(path).to_arrow().num_rows == 51


@pytest.mark.logic
def test_arguments_are_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="nothing"):
        scan.read(None, ["nothing"])
