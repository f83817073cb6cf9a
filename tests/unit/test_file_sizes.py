"""Sizes of an existing store's files are what most of its files say, whatever has become of one."""

import os

import pytest

import rmqcore
from rmqcore import doctor
from rmqcore.config import StoreConfig
from rmqcore.errors import ConfigError
from rmqcore.files.store_dir import StoreDir
from rmqcore.recovery.geometry import fitted_config
from rmqcore.scan import plan
from rmqcore.transfer import export_store

pytestmark = pytest.mark.engine

QUEUE_FILE_SIZE = 40 * 20
SIZES = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": QUEUE_FILE_SIZE,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
}
TOPICS = [f"T{number}" for number in range(5)]


@pytest.fixture
def path(store_path):
    with rmqcore.open_store(store_path, **SIZES) as store:
        for number in range(40):
            store.put(TOPICS[number % len(TOPICS)], b"%d" % number, keys=f"k{number}")
    return store_path


def told(path, **settings):
    return fitted_config(StoreConfig.embedded().with_settings(settings), StoreDir(path))


@pytest.mark.parametrize("length", [0, 20, 401, 1600])
def test_one_queues_file_has_no_say_about_those_of_all_others(path, length):
    # whichever comes first in its directory
    for topic in TOPICS:
        damaged = path / "consumequeue" / topic / "0" / f"{0:020d}"
        units = damaged.read_bytes()
        os.truncate(damaged, length)
        assert told(path).mapped_file_size_consume_queue == QUEUE_FILE_SIZE
        wrong = [one for one in doctor.verify(path).findings if one.part == "consume queue"]
        assert {one.path for one in wrong} <= {damaged, damaged.parent}
        damaged.write_bytes(units)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("length", [41, 400, 1 << 30])
@pytest.mark.parametrize("given", [{}, {"max_hash_slot_num": 8, "max_index_num": 32}])
def test_of_two_index_files_the_whole_one_tells_the_geometry(path, which, given, length):
    os.truncate(sorted((path / "index").iterdir())[which], length)
    config = told(path, **given)
    assert (config.max_hash_slot_num, config.max_index_num) == (8, 32)


@pytest.mark.parametrize("given", [{}, {"max_hash_slot_num": 8, "max_index_num": 32}])
def test_an_index_of_which_nothing_is_known_hides_no_message(path, given):
    index = sorted((path / "index").iterdir())
    whole = [file.read_bytes() for file in index]
    for file in index:
        file.write_bytes(b"\x7f" * 500)
    with rmqcore.open_store(path, mode="r", **given) as store:
        assert sorted(int(bytes(each.body)) for each in store.messages()) == [*range(40)]
        assert store.get_message("T1", 0, 0).messages[0].body == b"1"
        with pytest.raises(ConfigError, match=r"maxHashSlotNum|they make index files"):
            store.query_message("T1", "k1")
        for file, data in zip(index, whole, strict=True):
            file.write_bytes(data)
        assert [bytes(each.body) for each in store.query_message("T1", "k1")] == [b"1"]
    index[0].write_bytes(b"\x7f" * 500)
    assert plan(path, config=StoreConfig.embedded().with_settings(given))[-1].end > 0
    (part,) = export_store(path, path / "out", file_format="jsonl")
    assert part.rows == 40
