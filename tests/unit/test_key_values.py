"""Key-value tables of a store: what holds now, after a close, a kill, and a full disk."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from rmqcore import (
    ArgumentError,
    CorruptRecordError,
    DiskFullError,
    Durability,
    FlushTimeoutError,
    MessageIllegalError,
    PutMessageResult,
    PutMessageStatus,
    StoreNotWritableError,
    open_store,
)
from rmqcore.store.parts import key_value_table, key_values
from rmqcore.world import hold_time, release_time, wall_clock_ns

pytestmark = pytest.mark.engine


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "s") as opened:
        yield opened


def test_values_are_set_replaced_and_deleted(store):
    assert store.kv_get("t", [b"a"]) == [None]
    store.kv_put("t", b"a", b"1")
    store.kv_put("t", b"b", b"")
    store.kv_put("t", b"a", b"2")
    assert store.kv_get("t", [b"b", b"a", b"c"]) == [b"", b"2", None]
    assert store.kv_count("t") == 2
    store.kv_put("t", b"b", None)
    assert store.kv_list("t") == [(b"a", b"2")]
    assert store.kv_count("other") == 0


def test_a_swap_needs_the_value_that_is_there(store):
    assert not store.kv_swap("t", b"a", b"1", b"2")
    assert store.kv_swap("t", b"a", None, b"1")
    assert not store.kv_swap("t", b"a", None, b"2")
    assert store.kv_swap("t", b"a", b"1", b"2")
    assert store.kv_get("t", [b"a"]) == [b"2"]
    assert store.kv_swap("t", b"a", b"2", None)
    assert store.kv_swap("t", b"a", None, None)
    assert store.kv_count("t") == 0


def test_ranges_are_listed_and_taken_by_key(store):
    for number in random.Random(5).sample(range(100), 100):
        store.kv_put("t", b"%03d" % number, b"v%d" % number)
    assert [k for k, _ in store.kv_list("t", first=b"010", last=b"013")] == [b"010", b"011", b"012"]
    assert store.kv_take("t", last=b"098", max_entries=2) == [(b"000", b"v0"), (b"001", b"v1")]
    assert len(store.kv_take("t", last=b"098")) == 96
    assert store.kv_list("t") == [(b"098", b"v98"), (b"099", b"v99")]


@pytest.fixture
def go_on():
    """`go_on(ms)`: the time of day stands until this moves it."""
    hold_time(wall_clock_ns())
    yield lambda ms: hold_time(wall_clock_ns() + ms * 1_000_000)
    release_time()


def test_what_has_expired_is_gone_also_after_a_close(tmp_path, go_on):
    store = open_store(tmp_path / "s")
    store.kv_put("t", b"a", b"1", ttl_ms=100)
    store.kv_put("t", b"b", b"1", ttl_ms=100)
    store.kv_put("t", b"b", b"2", ttl_ms=300)
    store.kv_put("t", b"c", b"1", ttl_ms=100)
    store.kv_put("t", b"c", b"2")
    go_on(100)
    assert store.kv_list("t") == [(b"b", b"2"), (b"c", b"2")]
    assert store.kv_swap("t", b"a", None, b"again")
    go_on(200)
    store.close()
    with open_store(tmp_path / "s") as store:
        assert store.kv_list("t") == [(b"a", b"again"), (b"c", b"2")]


def test_tables_are_there_after_a_close(tmp_path):
    with open_store(tmp_path / "s") as store:
        for number in range(50):
            store.kv_put("t", b"%d" % (number % 7), b"%d" % number)
        store.kv_take("t", first=b"3", last=b"5")
        before = store.kv_list("t")
    with open_store(tmp_path / "s") as store:
        assert store.kv_list("t") == before


def test_a_table_is_written_anew_before_it_is_long(tmp_path):
    with open_store(tmp_path / "s") as store:
        for number in range(5000):
            store.kv_put("t", b"%d" % (number % 3), b"%d" % number)
        start = store.consumer_offsets.get("%KV%t", key_values.GROUP, 0)
        assert 5000 - start < 2 * key_values.COMPACTED_FROM
    with open_store(tmp_path / "s") as store:
        assert store.kv_list("t") == [(b"0", b"4998"), (b"1", b"4999"), (b"2", b"4997")]
        assert store.parts.key_values._tables["t"].records < 2 * key_values.COMPACTED_FROM


def test_long_values_are_written_anew_beside_short_ones(store, monkeypatch):
    monkeypatch.setattr(key_values, "COMPACTED_FROM", 0)
    size = store.config.effective_max_message_size - 100
    wanted = [(b"a", bytes(200_000)), (b"b", bytes(size)), (b"c", b"short")]
    for _ in range(6):
        for key, value in wanted:
            store.kv_put("t", key, value)
    assert store.consumer_offsets.get("%KV%t", key_values.GROUP, 0) > 0
    assert store.kv_list("t") == wanted


def test_a_table_that_became_empty_begins_behind_its_records(tmp_path):
    with open_store(tmp_path / "s") as store:
        for number in range(key_values.COMPACTED_FROM + 2):
            store.kv_put("t", b"k", b"%d" % number if number % 2 == 0 else None)
        assert store.kv_list("t") == []
        assert store.consumer_offsets.get("%KV%t", key_values.GROUP, 0) > 0


def test_tables_hold_no_log_file_back(tmp_path):
    settings = {"mapped_file_size_commit_log": 1 << 20, "message_index_enable": False}
    with open_store(tmp_path / "s", **settings) as store:
        store.kv_put("t", b"old", b"1")
        store.kv_put("gone", b"k", b"1")
        store.kv_put("gone", b"k", None)
        for _ in range(40):
            store.put("T", bytes(100_000))
        store.consumer_offsets.commit("T", "g", 0, 40)
        assert store.delete_consumed_files() > 0
        assert store.delete_consumed_files() == 0
        assert store.min_phy_offset > 0
    with open_store(tmp_path / "s", **settings) as store:
        assert store.kv_list("t") == [(b"old", b"1")]
        assert store.kv_list("gone") == []


SMALL = {"mapped_file_size_commit_log": 1 << 20, "message_index_enable": False}


def consumed(store, count=40):
    """Put messages of 100,000 bytes, and be done with all."""
    for _ in range(count):
        store.put("T", bytes(100_000))
    store.consumer_offsets.commit("T", "g", 0, store.max_queue_offset("T", 0))


def refused(*_):
    raise DiskFullError("/disk")


@pytest.mark.parametrize("freed", [True, False])
def test_tables_leave_a_full_disk_before_they_are_put_anew(tmp_path, monkeypatch, freed):
    with open_store(tmp_path / "s", **SMALL) as store:
        compact = store.parts.key_values._compact
        store.kv_put("t", b"old", b"1")
        store.kv_put("t", b"gone", b"1")
        store.kv_put("t", b"gone", None)
        store.kv_put("forever", b"k", b"\0", ttl_ms=1 << 50)
        consumed(store)
        before, aside = store.max_phy_offset, tmp_path / "s/config/movingTables.json"

        def compact_with_room(*args):
            if not freed or store.min_phy_offset == 0:
                refused()
            compact(*args)

        monkeypatch.setattr(store.parts.key_values, "_compact", compact_with_room)
        assert store.delete_consumed_files() == 3
        assert aside.exists() is not freed
        assert (store.max_phy_offset > before) is freed
        store.kv_put("t", b"new", b"2")
    for _ in range(3):
        with open_store(tmp_path / "s", **SMALL) as store:
            assert store.kv_list("t") == [(b"new", b"2"), (b"old", b"1")]
            assert store.kv_list("forever") == [(b"k", b"\0")]
            consumed(store)
            assert store.delete_consumed_files() > 0
            assert not aside.exists()


def test_room_is_kept_for_the_tables_of_a_disk_without_a_free_block(tmp_path, monkeypatch):
    reserve = tmp_path / "s/config/movingTables.reserve"
    store_file, written = key_values.TablesAside.store, []

    def store_in_the_reserve(aside, tables):
        assert reserve.stat().st_blocks * 512 >= 1 << 18
        store_file(aside, tables)
        written.append(reserve.exists())

    with open_store(tmp_path / "s", **SMALL) as store:
        store.kv_put("t", b"old", b"1")
        consumed(store)
        compact = store.parts.key_values._compact
        monkeypatch.setattr(
            store.parts.key_values,
            "_compact",
            lambda *args: compact(*args) if written else refused(),
        )
        monkeypatch.setattr(key_values.TablesAside, "store", store_in_the_reserve)
        assert store.delete_consumed_files() == 3
    assert written == [False]
    assert reserve.exists()


def test_a_table_whose_file_has_no_room_either_keeps_its_log_files(tmp_path, monkeypatch):
    with open_store(tmp_path / "s", **SMALL) as store:
        store.kv_put("t", b"old", b"1")
        consumed(store)
        monkeypatch.setattr(store.parts.key_values, "_compact", refused)
        monkeypatch.setattr(key_values.TablesAside, "store", refused)
        assert store.delete_consumed_files() == 0
    with open_store(tmp_path / "s", **SMALL) as store:
        assert store.kv_list("t") == [(b"old", b"1")]


def test_what_a_killed_process_had_put_aside_is_read(tmp_path):
    with open_store(tmp_path / "s", **SMALL) as store:
        store.kv_put("t", b"a", b"1")
        store.kv_put("t", b"b", b"1")
        with store.parts.key_values._tables_held():
            store.parts.key_values._put_aside({"%KV%t": store.parts.key_values._table("t")})
        store.kv_put("t", b"b", None)
    with open_store(tmp_path / "s", **SMALL) as store:
        assert store.kv_list("t") == [(b"a", b"1")]
        assert store.delete_topic("%KV%t")
    with open_store(tmp_path / "s", **SMALL) as store:
        assert store.kv_list("t") == []


def test_a_table_is_gone_with_its_topic(tmp_path):
    with open_store(tmp_path / "s", **SMALL) as store:
        store.kv_put("t", b"a", b"1")
        store.kv_put("t", b"b", b"1")
        assert store.delete_topic("%KV%t")
        assert store.kv_list("t") == []
        assert not store.kv_swap("t", b"a", b"1", b"2")
        store.kv_put("t", b"c", b"1")
        assert store.kv_list("t") == [(b"c", b"1")]
        assert store.topics.get("%KV%t") is not None
    with open_store(tmp_path / "s", **SMALL) as store:
        assert store.kv_list("t") == [(b"c", b"1")]


def test_tables_are_gone_that_are_deleted_together(store):
    for table in ("t", "u"):
        store.kv_put(table, b"k", b"v")
    assert store.parts.topics.delete_together(["%KV%t", "%KV%u", "%KV%t", "unknown"])
    assert [store.kv_list(table) for table in ("t", "u")] == [[], []]


def test_no_key_that_was_put_aside_comes_back_into_a_table_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(key_values, "COMPACTED_FROM", 1)
    with open_store(tmp_path / "s", **SMALL) as store:
        for table in "tu":
            for number in range(20):
                store.kv_put(table, b"%d" % number, b"old")
        with store.parts.key_values._tables_held():
            store.parts.key_values._put_aside(
                {f"%KV%{each}": store.parts.key_values._table(each) for each in "tu"}
            )
        assert store.delete_topic("%KV%t")
        for _ in range(9):
            store.kv_put("t", b"a", b"new")
    with open_store(tmp_path / "s", **SMALL) as store:
        assert store.kv_list("t") == [(b"a", b"new")]
        assert store.kv_count("u") == 20
        assert store.delete_topic("%KV%u")
        assert not store.parts.key_values._aside.load()


@pytest.mark.parametrize("killed", [False, True])
def test_rot_in_what_a_table_was_put_anew_with_takes_no_other_entry(tmp_path, monkeypatch, killed):
    """Nor what is put behind it, whose numbers lie in front of where the table began."""
    monkeypatch.setattr(key_values, "COMPACTED_FROM", 12)
    topic, keys = key_values.TOPIC_PREFIX + "t", (b"a", b"b", b"c")
    with open_store(tmp_path / "s", **SMALL) as store:
        for key in keys:
            store.kv_put("t", key, b"kept")
        while (begin := store.consumer_offsets.get(topic, key_values.GROUP, 0)) is None:
            store.kv_put("t", b"a", b"kept")
        places = [m.phy_offset for m in store.messages(topic, 0, start=begin - 1)]
    assert len(places) == 1 + len(keys) + 1
    for at in places:
        path = tmp_path / f"{at}"
        shutil.copytree(tmp_path / "s", path)
        log = path / "commitlog" / f"{0:020d}"
        with log.open("r+b") as file:
            file.seek(log.read_bytes().index(b"kept", at))
            file.write(b"rot!")
        if killed:
            (path / "abort").touch()
        with open_store(path, on_corruption="truncate", **SMALL) as store:
            assert store.max_phy_offset == at
            assert store.kv_list("t") == [(key, b"kept") for key in keys]
            store.kv_put("t", b"d", b"new")
        with open_store(path, **SMALL) as store:
            assert store.kv_get("t", [*keys, b"d"]) == [b"kept"] * 3 + [b"new"]


@pytest.mark.parametrize("how", ["aside", "anew"])
def test_a_table_never_begins_behind_what_a_power_cut_leaves_of_its_records(
    tmp_path, monkeypatch, how
):
    """Else the numbers of later records would lie in front of where it begins."""
    with open_store(tmp_path / "s", **SMALL) as store:
        store.kv_put("t", b"a", b"1")
        commit, flushed = store.consumer_offsets.commit, []

        def committed(topic, group, queue_id, offset):
            flushed.append(store.parts.files.writer.flushed_offset == store.max_phy_offset)
            commit(topic, group, queue_id, offset)

        monkeypatch.setattr(store.consumer_offsets, "commit", committed)
        key_values_of = store.parts.key_values
        with key_values_of._tables_held():
            if how == "aside":
                key_values_of._put_aside({"%KV%t": key_values_of._table("t")})
            else:
                key_values_of._put_anew("%KV%t", key_values_of._table("t"))
        assert flushed == [True]


def test_a_table_is_put_anew_only_where_that_frees_more_than_it_takes(tmp_path):
    with open_store(tmp_path / "s", **SMALL) as store:
        for number in range(30):
            store.kv_put("t", b"%d" % number, bytes(100_000))
        consumed(store, 20)
        end = store.max_phy_offset
        assert [store.delete_consumed_files() for _ in range(3)] == [0, 0, 0]
        assert store.max_phy_offset == end
        consumed(store)
        assert store.delete_consumed_files() > 6
        assert store.kv_count("t") == 30
        end = store.max_phy_offset
        assert [store.delete_consumed_files() for _ in range(3)] == [0, 0, 0]
        assert store.max_phy_offset == end


def test_reading_a_table_sorts_its_keys_once(tmp_path, monkeypatch):
    keys = [b"%d" % (number * 7919 % 1000) for number in range(1000)]
    with open_store(tmp_path / "s") as store:
        for key in keys:
            store.kv_put("t", key, b"v")
        store.kv_put("t", keys[0], None)

    def one_by_one(*_):
        pytest.fail("a key is put into its place")

    monkeypatch.setattr(key_value_table, "insort", one_by_one)
    with open_store(tmp_path / "s") as store:
        assert [key for key, _ in store.kv_list("t")] == sorted(keys[1:])


def test_keys_whose_time_is_over_take_no_memory_though_nobody_asks_for_them(store, go_on):
    for number in range(100):
        store.kv_put("t", b"%d" % number, bytes(1000), ttl_ms=1000)
    go_on(2000)
    assert store.delete_consumed_files() == 0
    table = store.parts.key_values._tables["t"]
    assert (table.entries, table.keys, table.due, table.size) == ({}, [], [], 0)


def test_a_key_that_is_set_again_and_again_takes_the_memory_of_one(store):
    for number in range(1000):
        store.kv_put("t", b"k", b"%d" % number, ttl_ms=1 << 40)
    table = store.parts.key_values._tables["t"]
    assert len(table.due) <= key_value_table.DUE_AT_LEAST
    assert table.size == len(b"k") + len(b"999") + key_value_table.RECORD_HEAD_SIZE


def test_counting_up_by_swaps_loses_nothing(store):
    def count():
        for _ in range(100):
            while True:
                (old,) = store.kv_get("t", [b"n"])
                if store.kv_swap("t", b"n", old, b"%d" % (int(old or 0) + 1)):
                    break

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.kv_get("t", [b"n"]) == [b"400"]


def test_a_change_that_could_not_be_put_has_not_happened(store, monkeypatch):
    store.kv_put("t", b"a", b"1")

    def full(*_, **__):
        raise DiskFullError("commit log")

    with monkeypatch.context() as patch:
        patch.setattr(store.parts.writing, "put_messages", full)
        patch.setattr(store.parts.writing, "put_message", full)
        with pytest.raises(DiskFullError):
            store.kv_put("t", b"a", b"2")
        with pytest.raises(DiskFullError):
            store.kv_take("t")
    assert store.kv_list("t") == [(b"a", b"1")]


@pytest.mark.parametrize("call", ["", "one"])
def test_what_was_taken_before_the_store_refused_is_given(store, monkeypatch, call):
    entries = [(b"%04d" % number, bytes(1000)) for number in range(600)]
    for key, value in entries:
        store.kv_put("t", key, value)
    monkeypatch.setattr(key_values, "_BATCH_SIZE", 1 << 14)
    refusal = PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, reason="full")
    writing, tables = store.parts.writing, store.parts.key_values
    put, answers = writing.put_messages, iter([True, True])
    with monkeypatch.context() as patch:
        patch.setattr(
            writing, "put_messages", lambda batch: put(batch) if next(answers, None) else refusal
        )
        taken = tables.kv_take_once("t", call=call)
        # where nothing was deleted it is an error
        with pytest.raises(StoreNotWritableError, match="full"):
            store.kv_take("t")
    assert 0 < len(taken) < len(entries)
    left = entries[len(taken) :]
    assert (taken, store.kv_list("t")) == (entries[: len(taken)], left)
    assert tables.kv_take_once("t", call=call) == (taken if call else left)


def test_what_was_taken_is_given_though_the_disk_has_not_confirmed_it(store, monkeypatch):
    store.kv_put("t", b"a", b"1")
    put = store.parts.writing.put_message
    with monkeypatch.context() as patch:
        patch.setattr(
            store.parts.writing,
            "put_message",
            lambda message: put(message).with_flush(
                PutMessageStatus.FLUSH_DISK_TIMEOUT, Durability.PAGE_CACHE, "slow"
            ),
        )
        assert store.kv_take("t") == [(b"a", b"1")]
        with pytest.raises(FlushTimeoutError):
            store.kv_put("t", b"a", b"2")
    assert store.kv_list("t") == [(b"a", b"2")]


KILLED = """
import sys, rmqcore
store = rmqcore.open_store(sys.argv[1])
for number in range(10**9):
    store.kv_put("t", b"%d" % (number % 10), b"%d" % number)
    print(number, flush=True)
"""


@pytest.mark.process
def test_what_was_set_before_a_kill_is_there(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "s")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    while int(line := child.stdout.readline()) < 3000:
        last = int(line)
    os.kill(child.pid, signal.SIGKILL)
    last = int(([line, *child.stdout.read().split()])[-1])
    child.wait()
    child.stdout.close()
    with open_store(tmp_path / "s") as store:
        values = [int(value) for _, value in store.kv_list("t")]
        assert sorted(values) in ([*range(last - 9, last + 1)], [*range(last - 8, last + 2)])


@pytest.mark.parametrize("body", [b"", b"short", b"\0" * 8 + b"\0\0\0\x09key"])
def test_a_foreign_record_is_an_error_that_says_where(store, body):
    store.put("%KV%t", body)
    with pytest.raises(CorruptRecordError, match="%KV%t at 0: no record of a key-value table"):
        store.kv_get("t", [b"a"])


def test_wrong_arguments_are_named(store):
    for call, argument in (
        (lambda: store.kv_put("t", "a", b""), "key"),
        (lambda: store.kv_put("t", b"a" * 65537, b""), "key"),
        (lambda: store.kv_put("t", b"a", "x"), "value"),
        (lambda: store.kv_put("t", b"a", b"x", ttl_ms=-1), "ttl_ms"),
        (lambda: store.kv_list("t", first="a"), "first"),
        (lambda: store.kv_take("t", last="a"), "last"),
        (lambda: store.kv_list("t", max_entries=-1), "max_entries"),
    ):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert caught.value.argument == argument
    with pytest.raises(MessageIllegalError):
        store.kv_put("a/b", b"a", b"")


def test_what_a_table_no_longer_reads_is_on_the_disk_anew(store, monkeypatch):
    monkeypatch.setattr(key_values, "COMPACTED_FROM", 8)
    flushed = []

    def commit(topic, group, queue_id, offset):
        flushed.append(store.parts.files.writer.flushed_offset == store.max_phy_offset)

    monkeypatch.setattr(store.consumer_offsets, "commit", commit)
    for number in range(12):
        store.kv_put("t", b"a", b"%d" % number)
    assert flushed
    assert all(flushed)


def test_a_foreign_record_keeps_no_other_log_file(tmp_path):
    """It holds back what begins with it; what lies before goes, and other tables are put anew."""
    with open_store(tmp_path / "s", **SMALL) as store:
        store.kv_put("t", b"old", b"1")
        consumed(store, 30)
        store.put("%KV%foreign", b"none")
        consumed(store, 30)
        assert store.delete_consumed_files() == 2
        assert store.delete_consumed_files() == 0
        assert store.kv_list("t") == [(b"old", b"1")]
        with pytest.raises(CorruptRecordError, match="no record of a key-value table"):
            store.kv_list("foreign")


def test_a_foreign_record_leaves_a_table_beside_the_log_there(tmp_path):
    aside = tmp_path / "s/config/movingTables.json"
    with open_store(tmp_path / "s", **SMALL) as store:
        for table in ("t", "u"):
            store.kv_put(table, b"a", b"1")
        with store.parts.key_values._tables_held():
            store.parts.key_values._put_aside(
                {f"%KV%{table}": store.parts.key_values._table(table) for table in ("t", "u")}
            )
        store.put("%KV%t", b"none")
    with open_store(tmp_path / "s", **SMALL) as store:
        end = store.max_phy_offset
        for _ in range(2):
            assert store.delete_consumed_files() == 0
        # the other one was put anew, once
        assert 0 < store.max_phy_offset - end < 300
        assert store.kv_list("u") == [(b"a", b"1")]
        assert b'"%KV%t"' in aside.read_bytes()
        assert b'"%KV%u"' not in aside.read_bytes()


def test_calls_that_are_known_take_no_memory_for_what_they_have_put(tmp_path):
    with open_store(tmp_path / "s") as store:
        for number in range(2000):
            store.parts.key_values.kv_put_once(
                "t", b"%d" % (number % 10), b"x", call=f"call {number}"
            )
    with open_store(tmp_path / "s") as store:
        table = store.parts.key_values._table("t")
        assert len(table.made) == key_value_table.CALLS_KNOWN
        assert all(len(made) == 1 for made in table.made.values())
        assert store.kv_count("t") == 10


def test_a_change_is_not_made_again_over_a_later_one(store):
    store.parts.key_values.kv_put_once("t", b"a", b"1", call="one")
    store.kv_put("t", b"a", b"2")
    store.parts.key_values.kv_put_once("t", b"a", b"1", call="one")
    assert store.kv_get("t", [b"a"]) == [b"2"]
    store.parts.key_values.kv_put_once("t", b"a", None, call="two")
    store.kv_put("t", b"a", b"3")
    store.parts.key_values.kv_put_once("t", b"a", None, call="two")
    assert store.kv_get("t", [b"a"]) == [b"3"]
