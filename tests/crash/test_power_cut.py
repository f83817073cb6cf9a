"""The power fails: of a page that was written and not flushed, old or new content is left.

Many more of them, and those of mounted file systems: `test_selftest.py`.
"""

import shutil

import pytest
from patience import rounds

import rmqcore
from crash.fault_disk import PAGE, FaultDisk
from crash.small_store import SETTINGS, Sizes, check_against_log, numbers_in, put

pytestmark = pytest.mark.engine

#: Files of several pages, so that pages of one file are lost in any order.
PAGES = SETTINGS | {
    "mapped_file_size_commit_log": 10 * PAGE,
    "mapped_file_size_consume_queue": 3 * PAGE - 3 * PAGE % 20,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
SIZES = Sizes(
    consume_queue_file=PAGES["mapped_file_size_consume_queue"],
    slot_num=PAGES["max_hash_slot_num"],
    entry_num=PAGES["max_index_num"],
)


def check_after(path, durable, written):
    """What is there is a beginning of what was written, and all that was on the disk."""
    with rmqcore.open_store(path, **PAGES) as store:
        found = numbers_in(store)
        assert found == written[: len(found)]
        assert found[: len(durable)] == durable
        check_against_log(store, SIZES)
    return found


def cut_again_and_again(tmp_path, rng, how, cuts):
    path, found, number = tmp_path / "0", [], 0
    settings = {"flush_interval_commit_log_ms": 5, "flush_commit_log_least_pages": 1}
    settings |= {"flush_interval_consume_queue_ms": 5, "flush_disk_type": how}
    with FaultDisk() as disk:
        for generation in range(1, cuts + 1):
            store = rmqcore.open_store(path, **PAGES, **settings)
            written, durable = list(found), list(found)
            for _ in range(rng.choice([3, 40, 200])):
                number += 1
                receipt = put(store, number)
                written.append(number)
                if receipt.durability == "disk":
                    durable = list(written)
                if rng.random() < 0.01:
                    store.flush()
                    durable = list(written)
                if rng.random() < 0.02:
                    rounds(rng.choice(store.parts.log_services.timed))
            target = tmp_path / str(generation)
            disk.cut(path, target, rng)
            store.close()
            shutil.rmtree(path)
            path = target
            found = check_after(path, durable, written)


@pytest.mark.parametrize("how", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("_case", range(3))
def test_power_cut(tmp_path, rng, how, _case):
    cut_again_and_again(tmp_path, rng, how, 3)


@pytest.mark.storm
@pytest.mark.parametrize("how", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("_case", range(50))
def test_power_cuts_for_long(tmp_path, rng, how, _case):
    cut_again_and_again(tmp_path, rng, how, 12)
