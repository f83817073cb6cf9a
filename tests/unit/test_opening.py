"""Opening and letting go: stores that must be there, that were deleted, that nobody closed."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from patience import TIMEOUT_S, until
from syncs import watched

from rmqcore import (
    CorruptCheckpointError,
    CorruptStoreError,
    StoreLockedError,
    StoreNotFoundError,
    StoreNotWritableError,
    doctor,
    open_shared,
    open_store,
)
from rmqcore.doctor import verify
from rmqcore.files.mapped_file import MappedFile
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.store_mark import StoreMark
from rmqcore.native.base._mapped import Descriptor
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.recovery.recovery import Recovery

pytestmark = pytest.mark.engine


def synced_by(call):
    """The directories and files that a call syncs, in order."""
    synced = []

    def note(name, fd):
        if name != "msync":
            synced.append(Path(f"/proc/self/fd/{fd}").readlink())

    with watched(note):
        call()
    return synced


def test_the_directories_of_a_new_store_are_synced_together(store_path):
    create = StoreDir(store_path).create
    above = store_path.parent
    assert synced_by(create) == [above, store_path, above.parent]
    assert synced_by(create) == []


def test_a_close_writes_the_mark_once(store_path):
    store = open_store(store_path, flush_interval_consume_queue_ms=3_600_000)
    marker = store.parts.log_services.marker
    until(lambda: marker._seen is not None, "the first round looks what the next flush may write")
    store.put("T", b"x")
    assert synced_by(store.close).count(store_path / "config") == 1
    mark = StoreMark(StoreDir(store_path))
    mark.load()
    assert mark.ends == {("T", 0): 1}


def worked_in():
    """What recovery and dispatch work in that is alive in this process, by its number."""
    return {id(one): one for one in gc.get_objects() if isinstance(one, (Recovery, DispatchBatch))}


def test_what_recovery_worked_in_is_given_back_when_it_ends(store_path):
    """Its arrays are 50 MiB where stretches are long; no collection may come for hours."""
    with open_store(store_path) as store:
        store.put("T", b"x", keys="K")
    gc.collect()
    others = worked_in()
    gc.disable()
    try:
        with open_store(store_path):
            alive = [one for number, one in worked_in().items() if number not in others]
        # the dispatcher's
        assert [type(one) for one in alive] == [DispatchBatch]
    finally:
        gc.enable()


def test_create_false_opens_no_new_store(tmp_path):
    with pytest.raises(StoreNotFoundError):
        open_store(tmp_path / "s", create=False)
    assert not (tmp_path / "s").exists()
    open_store(tmp_path / "s").close()
    with open_store(tmp_path / "s", create=False) as store:
        assert store.put("T", b"x").ok


def test_a_deleted_store_is_not_an_empty_one(tmp_path):
    with open_store(tmp_path / "s") as store:
        store.put("T", b"x", keys="k")
    reads = [
        lambda store: store.queues(),
        lambda store: store.get_message("T", 0, 0),
        lambda store: store.query_message("T", "k"),
        lambda store: list(store.messages()),
        lambda store: store.max_phy_offset,
    ]
    with open_store(tmp_path / "s", mode="r") as reader:
        assert all(read(reader) for read in reads)
        shutil.rmtree(tmp_path / "s")
        for read in reads:
            with pytest.raises(StoreNotFoundError):
                read(reader)


def test_a_store_that_was_removed_takes_no_more_puts_and_is_not_begun_anew(tmp_path):
    path = tmp_path / "store"
    store = open_store(path, flush_interval_consume_queue_ms=20)
    store.put("T", b"one")
    assert store.max_queue_offset("T", 0) == 1
    store.consumer_offsets.commit("T", "g", 0, 1)
    path.rename(tmp_path / "removed")
    # a service may have noticed by now
    with contextlib.suppress(StoreNotWritableError):
        store.put("Another", b"two")
    until(lambda: store.why_not_writable() is not None, "a service has noticed")
    saving = next(each for each in store.parts.upkeep.services if each.name == "SaveTablesService")
    with pytest.raises(FileNotFoundError):
        saving.run(0.0)
    with pytest.raises(StoreNotFoundError, match="removed while it was open"):
        store.close()
    assert not path.exists()


def test_a_store_without_messages_is_an_empty_one(tmp_path):
    open_store(tmp_path / "s").close()
    with open_store(tmp_path / "s", mode="r") as reader:
        assert reader.queues() == []
        assert list(reader.messages()) == []


@pytest.mark.process
@pytest.mark.parametrize("filters", ["always", "error"])
def test_a_store_that_nobody_closed_warns_and_is_closed(tmp_path, filters):
    code = "import sys, rmqcore; rmqcore.open_store(sys.argv[1]).put('T', b'x')"
    command = [sys.executable, f"-W{filters}::ResourceWarning", "-c", code, tmp_path / "s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "ResourceWarning: DefaultMessageStore(" in done.stderr
    assert "was not closed" in done.stderr
    assert not (tmp_path / "s" / "abort").exists()
    quiet = subprocess.run(
        [sys.executable, "-c", f"{code}.ok", tmp_path / "s"], capture_output=True, check=False
    )
    assert (quiet.returncode, quiet.stderr) == (0, b"")


def put_and_forget(path, how):
    """Open a store, put, and let go of it until it is closed; the threads of its services."""
    # a long collection leaves every service due, and one that is at work keeps the store
    gc.collect()
    gc.freeze()
    store = open_store(path, flush_disk_type=how, deliver_delayed=True)
    threads = [
        store.parts.upkeep.runner.thread_of(service) for service in store.parts.upkeep.services
    ]
    for number in range(20):
        assert store.put("T", b"x", queue_id=number, keys="k").ok
    del store
    until(lambda: gc.collect() is not None and not (path / "abort").exists(), "its end")
    return threads


@pytest.mark.parametrize("how", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_store_that_nobody_has_any_more_is_closed(tmp_path, how):
    path = tmp_path / "s"
    with pytest.warns(ResourceWarning, match=r"^DefaultMessageStore\(.*was not closed$"):
        threads = put_and_forget(path, how)
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    with open_store(path) as again:
        assert again.recovery_report.clean_shutdown
        assert again.recovery_report.findings == []
        assert len(again.queues()) == 20


def test_an_iteration_keeps_its_store(tmp_path):
    with open_store(tmp_path / "s") as store:
        for number in range(600):
            store.put("T", b"%d" % number)
    messages = open_store(tmp_path / "s").messages("T", 0)
    found = [bytes(next(messages).body)]
    gc.collect()
    # with its last message the iteration lets the store go
    with pytest.warns(ResourceWarning, match="was not closed"):
        found += [bytes(message.body) for message in messages]
    assert found == [b"%d" % number for number in range(600)]


def test_a_store_that_was_refused_has_nothing_to_close(tmp_path):
    with open_store(tmp_path / "s") as store:
        with pytest.raises(StoreLockedError):
            open_store(tmp_path / "s")
        gc.collect()
        assert store.put("T", b"x").ok


@pytest.mark.logic
def test_the_collector_closes_no_descriptor_before_its_store(tmp_path):
    assert not gc.is_tracked(Descriptor(os.open(tmp_path, os.O_RDONLY)))


def test_an_impossible_checkpoint_says_what_to_do_and_that_works(tmp_path):
    path = tmp_path / "s"
    with open_store(path) as store:
        store.put("T", b"x")
    checkpoint = path / "checkpoint"
    checkpoint.write_bytes(struct.pack(">q", -5) + checkpoint.read_bytes()[8:])
    with pytest.raises(CorruptCheckpointError, match="remove the file") as error:
        open_store(path)
    (finding,) = [each for each in verify(path).findings if each.part == "checkpoint"]
    assert error.value.reason == f"{finding.what}; {finding.how}"
    error.value.path.unlink()
    with open_store(path) as store:
        assert len(list(store.messages())) == 1


@pytest.mark.parametrize(
    "name", ["checkpoint", "config", "index", "consumequeue", "lock", "config/topics.json"]
)
def test_a_file_where_a_directory_belongs_is_named_and_the_other_way_round(store_path, name):
    with open_store(store_path) as store:
        store.put("T", b"x")
    place = store_path / name
    if place.is_dir():
        shutil.rmtree(place)
        place.write_text("")
    else:
        place.unlink(missing_ok=True)
        place.mkdir()
    with pytest.raises(CorruptStoreError, match=r"it is (no|a) directory.* move it away"):
        open_store(store_path)
    if name != "config/topics.json":
        for work in (doctor.plan, doctor.verify, doctor.repair, partial(open_store, mode="r")):
            with pytest.raises(CorruptStoreError, match="move it away"):
                work(store_path)


@pytest.mark.parametrize(
    "name",
    [
        *(f"config/{table}.json" for table in ("topics", "consumerOffset", "deletedTopics")),
        *("config/storeMark.json", "config/consumerLeases.reserve"),
        *("restore.unfinished", "rmqcore.sock"),
    ],
)
def test_a_directory_where_a_file_comes_later_is_named(store_path, name):
    with open_store(store_path) as store:
        store.put("T", b"x")
    beside = ("", ".tmp", ".bak") if name.endswith(".json") else ("",)
    for place in (store_path / f"{name}{end}" for end in beside):
        place.unlink(missing_ok=True)
        place.mkdir()
        told = pytest.raises(CorruptStoreError, match=f"{place.name}: it is a directory.* away")
        with told, open_shared(store_path) as store:
            store.lag("group", ())
        place.rmdir()
    with open_shared(store_path) as store:
        assert [message.body for message in store.messages("T", 0)] == [b"x"]


def test_opening_reads_each_queue_a_few_times_however_its_messages_are_mixed(
    store_path, monkeypatch
):
    queues, messages = 600, 70
    with open_store(store_path) as store:
        for number in range(queues * messages):
            store.put(f"T{number % queues}", b"x")
    reads, real = [], MappedFile.read_bytes

    def read_bytes(file, *given):
        reads.append(file.path)
        return real(file, *given)

    monkeypatch.setattr(MappedFile, "read_bytes", read_bytes)
    with open_store(store_path) as store:
        assert store.recovery_report.records == queues * messages
    # the queue's end, its first unit, each of the stretches, and what lies behind the log's end
    assert sum(path.parent.name == "0" for path in reads) <= 7 * queues


def test_one_wrong_unit_in_a_long_stretch_is_written_anew(store_path):
    with open_store(store_path) as store:
        for number in range(50):
            store.put("T", b"%d" % number, tags="a")
    units = store_path / "consumequeue/T/0" / f"{0:020d}"
    good = units.read_bytes()
    with units.open("r+b") as file:
        file.seek(10 * 20 + 12)
        file.write(b"a rotten")
    with open_store(store_path) as store:
        assert any("had 1 units that" in each for each in store.recovery_report.findings)
    assert units.read_bytes() == good
