"""What a Spark user is told about a store that is not as it should be: the path, the offset, why.

Planned and read as driver and workers do it, in this process.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rmqcore
from rmqcore import open_store
from rmqcore.errors import (
    ConfigError,
    CorruptRecordError,
    CorruptStoreError,
    StoreNotFoundError,
)

pytestmark = pytest.mark.process

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

FILE_SIZE = 64 << 10
LENIENT = {"failOnDataLoss": "false"}


@pytest.fixture
def log(store_path):
    """The log files of a store of 1,000 messages."""
    fill(store_path, FILE_SIZE)
    return sorted((store_path / "commitlog").iterdir())


def fill(path, file_size):
    with open_store(path, mapped_file_size_commit_log=file_size) as store:
        for number in range(1000):
            store.put("T", b"%0200d" % number)


def rows(path, columns=("topic", "phy_offset"), **options):
    from rmqcore.spark.options import read_options
    from rmqcore.spark.planning import batch_partitions
    from rmqcore.spark.reading import read_partition
    from rmqcore.spark.schema import checked_columns, schema_of

    found = read_options({"path": str(path), **options})
    schema = checked_columns(schema_of(columns))
    parts = [read_partition(part, schema, found) for part in batch_partitions(found)]
    return sum(batch.num_rows for part in parts for batch in part)


def refusal(path, kind, **options):
    with pytest.raises(kind) as caught:
        rows(path, **options)
    return str(caught.value)


def test_a_torn_tail_is_no_row(store_path, log):
    with open_store(store_path, mode="r") as store:
        end = store.max_phy_offset
        record = bytes(list(store.messages())[-1].record)
    torn = record[:28] + end.to_bytes(8, "big") + record[36:100] + bytes(len(record) - 100)
    with log[end // FILE_SIZE].open("r+b") as stream:
        stream.seek(end % FILE_SIZE)
        stream.write(torn)
    assert rows(store_path) == 1000
    assert rows(store_path, failOnDataLoss="false", verifyCrc="fail") == 1000


def test_a_foreign_file_in_the_place_of_a_log_file(store_path, log):
    log[1].write_bytes(b"PK\3\4".ljust(FILE_SIZE, b"?"))
    text = refusal(store_path, CorruptRecordError)
    assert text.startswith(f"{log[1]} at {FILE_SIZE}: ")
    assert 700 < rows(store_path, failOnDataLoss="false") < 1000


def test_a_foreign_file_of_another_length(store_path, log):
    log[1].write_bytes(b"PK\3\4" * FILE_SIZE)
    text = refusal(store_path, CorruptStoreError)
    assert f"{log[1]}: the file has {4 * FILE_SIZE} bytes, files here have {FILE_SIZE}" in text


def test_a_foreign_file_beside_the_log_files(store_path, log):
    (store_path / "commitlog" / "notes.txt").write_text("mine")
    (store_path / "commitlog" / "00000000000000000000.bak").write_bytes(log[0].read_bytes())
    assert rows(store_path) == 1000


def test_a_file_that_was_lost_before_planning(store_path, log):
    log[1].unlink()
    text = refusal(store_path, CorruptStoreError)
    assert f"{store_path / 'commitlog'} at {FILE_SIZE}: a file is missing before" in text


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_what_is_no_store(tmp_path, make):
    make(tmp_path / "other")
    text = refusal(tmp_path / "other", StoreNotFoundError)
    assert text.startswith(f"{tmp_path / 'other'}: ")
    assert "store" in text


def test_a_log_file_that_is_none(tmp_path):
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(b"hello")
    text = refusal(tmp_path, CorruptStoreError)
    assert text == (
        f"{tmp_path}: its files have sizes that no store's have: "
        "mapped_file_size_commit_log=5: at least 256"
    )


@pytest.fixture
def flipped(store_path, log):
    """Where a bit of one body was flipped; its record is whole otherwise."""
    with open_store(store_path, mode="r") as store:
        message = list(store.messages())[17]
    at = message.phy_offset + bytes(message.record).index(message.body)
    with log[at // FILE_SIZE].open("r+b") as stream:
        stream.seek(at % FILE_SIZE)
        stream.write(b"1")
    return message.phy_offset


@pytest.mark.parametrize("column", ["body", "record"])
def test_a_damaged_body_is_not_handed_out_unless_asked_for(store_path, flipped, column):
    columns = ("phy_offset", column)
    with pytest.raises(CorruptRecordError) as caught:
        rows(store_path, columns)
    assert caught.value.phy_offset == flipped
    assert rows(store_path, columns, failOnDataLoss="false") == 999
    assert rows(store_path, columns, verifyCrc="off") == 1000
    assert rows(store_path, (*columns, "crc_ok"), verifyCrc="flag") == 1000
    assert rows(store_path) == 1000  # no body is handed out
    refusal(store_path, CorruptRecordError, verifyCrc="fail")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOffsets": '{"Tt": {"0": 3}}'}, "topic='Tt': unknown; did you mean T?"),
        ({"endingOffsets": '{"Tt": {"0": 3}}'}, "topic='Tt': unknown; did you mean T?"),
        ({"startingOffsets": '{"T": {"7": 3}}'}, "queue of T=7: there are 0"),
        ({"startingTimestamp": "1700000000"}, "seconds: did you mean 1700000000000?"),
        ({"endingTimestamp": "1700000000000000"}, "microseconds: did you mean 1700000000000?"),
        ({"startingTimestamp": "9", "endingTimestamp": "9"}, "expected a time behind 9"),
        ({"startingOffsets": f'{{"T": {{"0": {2**63}}}}}', **LENIENT}, "expected earliest"),
        ({"startingOffsets": f'{{"T": {{"{2**31}": 0}}}}'}, "expected earliest"),
        ({"endingPhyOffset": str(2**63), **LENIENT}, f"at most {2**63 - 1}"),
        ({"queueIds": str(2**31)}, f"at most {2**31 - 1}"),
        ({"assign": f'{{"T": [{2**31}]}}'}, "expected JSON"),
    ],
)
def test_offsets_and_times_that_were_meant_otherwise_are_refused(store_path, log, options, text):
    assert text in refusal(store_path, ConfigError, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": "T,Tt"}, "nothing matches topic='Tt': unknown; did you mean T?"),
        ({"subscribe": "Orders"}, "nothing matches topic='Orders': unknown; there are T"),
        ({"topics": "x" * 300}, "nothing matches topic='xxx"),
        ({"assign": '{"\\ud800": [0]}'}, "nothing matches topic='\\ud800'"),
        ({"subscribePattern": "T."}, "nothing matches subscribePattern='T.'"),
        ({"queueIds": "5"}, "nothing matches queueIds=5; there are 0"),
        ({"startingTimestamp": "99999999999999"}, "it lies in the future"),
        ({"endingTimestamp": "1"}, "the first message was stored at 1"),
    ],
)
def test_what_nothing_matches_is_named(store_path, log, caplog, options, text):
    assert rows(store_path, **options) in (0, 1000 * ("T," in text or "T," in str(options)))
    assert text in caplog.text


def test_what_something_matches_is_not_named(store_path, log, caplog):
    (store_path / "config").mkdir(exist_ok=True)
    table = {"topicConfigTable": {"New": {"topicName": "New"}}}
    (store_path / "config" / "topics.json").write_text(json.dumps(table))
    options = {"topics": "T,New", "queueIds": "0,1", "startingTimestamp": "1"}
    assert rows(store_path, **options, startingOffsets='{"T": {"0": -2}}') == 1000
    assert rows(store_path, endingTimestamp=str(2 * 10**12)) == 1000
    for offset in (-2, 0):  # a queue may be empty still
        assert rows(store_path, startingOffsets=f'{{"T": {{"7": {offset}}}}}') == 1000
    shutil.rmtree(store_path / "consumequeue")
    assert rows(store_path, topics="Tt") == 0
    assert caplog.text == ""


LIMITED = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_bad_input import rows
import rmqcore.spark.write
from rmqcore.spark.log_owner import append_staged
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (400 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(rows(sys.argv[1]))
try:
    append_staged(sys.argv[1], None, "run-x", 0, [])
except OSError as error:
    print(error)
"""


def test_too_little_address_space_for_a_map(store_path):
    """`spark.executor.pyspark.memory` limits it: reading does without maps, appending says why."""
    fill(store_path, 1 << 30)
    command = [sys.executable, "-c", LIMITED, store_path, Path(__file__).parent]
    # 120 MiB more are taken then: else each thread sets 128 apart, and there is one a processor
    env = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = str(Path(rmqcore.__file__).parents[1])
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    count, text = done.stdout.splitlines()
    assert int(count) == 1000
    assert "Cannot allocate memory" in text
    assert str(store_path / "commitlog" / f"{0:020d}") in text


def test_what_the_log_has_lost_is_said(log, caplog):
    whole = rows(log[0].parents[1])
    assert caplog.messages == []
    log[-1].unlink()
    assert rows(log[0].parents[1]) < whole
    (told,) = caplog.messages
    assert f"the log ends at {len(log[:-1]) * FILE_SIZE}, and has ended at" in told
    assert "rmqcore doctor" in told


def test_a_queue_that_the_disk_refuses_to_read_leaves_no_row_out(log, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied", "consumequeue/T/0/00000000000000000000")

    whole = rows(log[0].parents[1])
    monkeypatch.setattr("rmqcore.spark.planning.open_store", refused)
    assert rows(log[0].parents[1]) == whole
