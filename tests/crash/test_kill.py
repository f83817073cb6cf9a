"""The process dies at every step, again and again; nothing that was acknowledged is lost."""

import signal

import pytest
from children import die, die_at, run_child

import rmqcore
from crash.small_store import SETTINGS, check_against_log, numbers_in, put
from rmqcore.recovery import recovery

pytestmark = pytest.mark.process

#: Where a process dies: a method of the engine, before, after or in the middle of its Nth call.
FAILPOINTS = [
    "files.mapped_file.MappedFile.create",
    "files.mapped_file.MappedFile.flush",
    "files.mapped_file.MappedFile.write",
    "files.mapped_file.MappedFile.sync",
    "files.mapped_file.MappedFile.destroy",
    "files.mapped_file.MappedFile.zero_from",
    "files.mapped_file_queue.MappedFileQueue.append_file",
    "files.mapped_file_queue.MappedFileQueue.truncate",
    "files.commit_log_writer.CommitLogWriter._roll",
    "files.commit_log_writer.CommitLogWriter.set_end",
    "files.consume_queue.ConsumeQueue.append_units",
    "files.consume_queue.ConsumeQueue.flush",
    "files.index_file.IndexFile.create",
    "files.index_file.IndexFile.put_keys",
    "files.index_file.IndexFile.mend",
    "files.index_file.IndexFile.zero_behind",
    "files.index_file.IndexFile.flush",
    "files.store_checkpoint.StoreCheckpoint.flush",
    "files.store_dir.StoreDir.mark_running",
    "files.store_dir.StoreDir.clear_running",
    "derived.consume_queue_store.ConsumeQueueStore.append",
    "derived.consume_queue_store.ConsumeQueueStore.dispatch",
    "derived.index_service.IndexService.dispatch",
    "derived.index_service.IndexService.load",
    "recovery.recovery.Recovery._cut",
    "recovery.recovery.Recovery._save_progress",
    "recovery.walk.Walk._walk_file",
]


def run_writer(path, how, failpoint, moment, visits, first, count=60, step_ms=0):
    """Put `count` messages in a process that dies at the failpoint, or after the last message."""

    def write(acknowledge):
        recovery.SAVE_EVERY_S = visits % 2
        die_at(failpoint, moment, visits)
        store = rmqcore.open_store(path, flush_disk_type=how, **SETTINGS)
        for number in range(first, first + count):
            if step_ms:
                store.parts.files.tail.fixed_time_ms = 1_700_000_000_000 + step_ms * number
            put(store, number)
            acknowledge(number)
            if number % 9 == 0:
                store.get_message("T0", 0, 0)
            if number % 40 == 0:
                store.flush()
        if failpoint.endswith("clear_running"):
            store.close()
        die()

    code, acknowledged = run_child(write)
    assert code == -signal.SIGKILL
    return acknowledged


def check_all(path, acknowledged):
    with rmqcore.open_store(path, **SETTINGS) as store:
        assert store.recovery_report.ending == "clean"
        found = numbers_in(store)
        assert [number for number in found if number in set(acknowledged)] == acknowledged
        assert len(found) == len(set(found))
        check_against_log(store)
    with rmqcore.open_store(path, **SETTINGS) as store:
        assert store.recovery_report.clean_shutdown
        assert numbers_in(store) == found
        check_against_log(store)


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_kill_at_a_failpoint(store_path, rng, failpoint):
    acknowledged = []
    for round_number in range(3):
        how = rng.choice(["ASYNC_FLUSH", "SYNC_FLUSH"])
        moment = rng.choice(["before", "middle", "after"])
        visits = rng.choice([1, 1, 2, 3, 5, 20])
        first = 1000 * round_number
        acknowledged += run_writer(store_path, how, failpoint, moment, visits, first)
    check_all(store_path, acknowledged)


@pytest.mark.storm
@pytest.mark.parametrize("_round", range(10))
@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_kill_again_and_again(store_path, rng, failpoint, _round):
    acknowledged = []
    for first in range(0, 12_000, 1000):
        where = rng.choice([failpoint, rng.choice(FAILPOINTS)])
        moment = rng.choice(["before", "middle", "after"])
        how = rng.choice(["ASYNC_FLUSH", "SYNC_FLUSH"])
        acknowledged += run_writer(store_path, how, where, moment, rng.randint(1, 60), first)
    check_all(store_path, acknowledged)


def test_a_recovery_that_is_killed_goes_on_where_it_was(store_path):
    """A supervisor that kills every opening after three files must not do so for ever."""
    closing = "files.store_dir.StoreDir.clear_running"
    acknowledged = run_writer(store_path, "ASYNC_FLUSH", closing, "before", 1, 0, 500, 1000)
    assert len(acknowledged) == 500
    (store_path / "checkpoint").unlink(missing_ok=True)

    def recover(_):
        recovery.SAVE_EVERY_S = 0
        die_at("recovery.walk.Walk._walk_file", "before", 4)
        rmqcore.open_store(store_path, open_check_bytes=0, **SETTINGS)

    openings = 1
    while run_child(recover)[0] != 0:
        openings += 1
        assert openings < 100
    assert openings > 5
    check_all(store_path, acknowledged)
