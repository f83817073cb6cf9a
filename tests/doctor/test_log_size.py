"""The size of a log's only file: whether it was cut short, or queues lead to another store's."""

import os
import shutil
from pathlib import Path

import pytest
from doctor.damage import FILE_SIZE, SIZES, assert_found, known_messages, log_files, whole

import rmqcore
from rmqcore import doctor
from rmqcore.errors import ConfigError, CorruptStoreError

pytestmark = pytest.mark.engine


def test_the_size_of_a_single_log_file_that_was_cut_is_asked_for(golden_store):
    golden = golden_store("5.5.0", "record-crc")
    (log,) = log_files(golden.path)
    os.truncate(log, 10_000)
    with pytest.raises(ConfigError, match="as in -c mappedFileSizeCommitLog=65536"):
        doctor.plan(golden.path)
    assert doctor.repair(golden.path, config=golden.conf).clean


def test_an_only_log_file_without_its_length_is_one_that_was_cut(golden_store):
    golden = golden_store("5.5.0", "record-crc")
    (log,) = log_files(golden.path)
    os.truncate(log, 0)
    with pytest.raises(ConfigError, match="has 0 bytes, but queues lead to"):
        doctor.plan(golden.path)
    told = doctor.explain(golden.path)
    assert "the log ends here, but consume queues know records" in told.reason
    with pytest.raises(CorruptStoreError, match="the log ends here, but consume queues know"):
        rmqcore.open_store(golden.path)
    assert doctor.repair(golden.path, config=golden.conf).clean


@pytest.mark.parametrize("count", [40, 80])
def test_the_only_log_file_was_not_cut_where_queues_lead_to_another_stores(tmp_path, count):
    path, longer = tmp_path / "ours", tmp_path / "another's"
    for store_path, puts in ((path, count), (longer, 200)):
        with rmqcore.open_store(store_path, config=SIZES) as store:
            for number in range(puts):
                store.put("T", b"%d" % number * 100, queue_id=number % 2)
    known = known_messages(path)
    for lost in log_files(path)[1:]:
        # what is left ends in an end-of-file record
        lost.unlink()
    queue = Path("consumequeue/T/1/00000000000000000320")
    shutil.copy(longer / queue, path / queue)
    doctor.repair(path)
    assert_found(path, whole(path, known, FILE_SIZE))
    with rmqcore.open_store(path) as store:
        assert store.config.mapped_file_size_commit_log == FILE_SIZE
