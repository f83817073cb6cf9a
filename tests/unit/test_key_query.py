"""Key queries and gets over mapped files answer as the general path does."""

from __future__ import annotations

import shutil
from array import array

import pytest

from rmqcore import CorruptStoreError, GetMessageStatus, StoreConfig, StoreError, open_store
from rmqcore._index import index_hash
from rmqcore.derived import index_service
from rmqcore.rebuild import rebuild_index
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.world import World

pytestmark = pytest.mark.engine

SIZES = {
    "mapped_file_size_commit_log": 65536,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 8,
    "max_index_num": 64,
}
KEYS = ["Aa", "BB", "K1", "K2", "ключ"]


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store", **SIZES) as store:
        store.parts.files.tail.fixed_time_ms = 1_700_000_000_000
        for number in range(600):
            store.parts.files.tail.fixed_time_ms += number % 7 * 300
            store.put(
                "T" if number % 3 else "U",
                b"%d" % number * (number % 40),
                tags="tag",
                keys=(KEYS[number % 5], f"N{number}"),
                properties={"UNIQ_KEY": f"U{number}"},
            )
        store.max_queue_offset("T", 0)
        yield store


def offsets(result):
    return [message.phy_offset for message in result.messages]


def general(store, topic, key, **window):
    """The same question on the general path, which explains itself."""
    return offsets(store.query_message(topic, key, explain=True, **window))


@pytest.mark.parametrize("topic", ["T", "U", "absent"])
@pytest.mark.parametrize("key", [*KEYS, "N0", "N599", "U17", "U18", "none", "", "N0 N1"])
def test_both_ways_find_the_same(store, topic, key):
    list(store.messages())
    times = [message.store_timestamp_ms for message in store.messages()]
    windows = [{}, {"begin_ms": times[200], "end_ms": times[400]}, {"end_ms": times[0] - 1}]
    for window in windows:
        for max_messages in (1, 5, 64, 600):
            asked = window | {"max_messages": max_messages}
            assert offsets(store.query_message(topic, key, **asked)) == general(
                store, topic, key, **asked
            )


def test_a_key_behind_a_very_long_chain_is_found(tmp_path):
    sizes = {"max_hash_slot_num": 1, "max_index_num": 100_000}
    with open_store(tmp_path / "store", **sizes) as store:
        first = store.put("T", b"x", keys="first").phy_offset
        for number in range(35):
            store.put("T", b"x", keys=[f"{number * 2000 + each}" for each in range(2000)])
        for _ in range(2):
            assert offsets(store.query_message("T", "first")) == [first]
        assert offsets(store.query_message("T", "none")) == []


def test_a_stretch_that_was_indexed_twice_is_found_once(store):
    """RocketMQ dispatches again what it has indexed when it opens after a crash."""
    again = [message for message in store.messages("T") if "Aa" in message.keys][-8:]
    file = store.index.files[-1]
    room = file.max_index_num - 1 - file.entry_count
    for message in [*again, *again][:room]:
        store.index.files[-1].put_keys(
            memoryview(array("i", [index_hash("T#Aa")])),
            memoryview(array("q", [message.phy_offset])),
            memoryview(array("q", [message.store_timestamp_ms])),
            0,
            1,
        )
    assert room > len(again)
    found = offsets(store.query_message("T", "Aa", max_messages=600))
    assert found == sorted(set(found)) == general(store, "T", "Aa", max_messages=600)


def test_a_query_maps_what_it_needs(store):
    store.log.mapped.clear()
    assert len(store.query_message("T", "N1").messages) == 1
    assert len(store.query_message("T", "N1").messages) == 1


def test_deleted_messages_are_not_found(store):
    assert len(store.query_message("T", "N1").messages) == 1
    first = store.query_message("T", "N1").messages[0]
    store.log.queue.remove_first(1)
    assert store.query_message("T", "N1").messages == []
    assert store.message_at(first.phy_offset) is None
    store.log.mapped.delete_before(store.min_phy_offset)
    assert store.query_message("T", "N1").messages == []
    assert bytes(first.record)[:4] == first.store_size.to_bytes(4, "big")


def test_gets_cross_files(store):
    """Units whose records lie in several log files come in one result, in order."""
    found = []
    offset = 0
    while offset < store.max_queue_offset("T", 0):
        result = store.get_message("T", 0, offset, max_messages=150)
        assert result.status is GetMessageStatus.FOUND
        found += [message.queue_offset for message in result.messages]
        assert sum(result.sizes()) == result.buffer_total_size
        offset = result.next_queue_offset
    assert found == list(range(400))


def test_a_byte_limit_ends_a_get(store):
    whole = store.get_message("T", 0, 0, max_messages=20)
    sizes = whole.sizes()
    limit = sum(sizes[:7])
    part = store.get_message("T", 0, 0, max_messages=20, max_bytes=limit)
    assert part.sizes() == sizes[:7]
    assert part.next_queue_offset == 7
    assert store.get_message("T", 0, 0, max_bytes=1).sizes() == sizes[:1]


def test_the_index_goes_on_at_once_when_the_clock_was_set_back_by_years(tmp_path, monkeypatch):
    """Its files are named by times, each behind the one before."""
    asked, name_at = [], index_service.file_name_at

    def counted(timestamp_ms):
        asked.append(timestamp_ms)
        assert len(asked) < 100, "it tries every millisecond of those years"
        return name_at(timestamp_ms)

    monkeypatch.setattr(index_service, "file_name_at", counted)
    clock = World(lambda: 100_000_000_000 if asked else 1_700_000_000_000)
    with DefaultMessageStore(tmp_path / "store", StoreConfig(**SIZES), world=clock) as store:
        for number in range(200):
            store.put("T", b"%d" % number, keys=f"N{number}")
        assert len(store.query_message("T", "N150").messages) == 1
    names = sorted(path.name for path in (tmp_path / "store" / "index").iterdir())
    assert names == [f"{int(names[0]) + number}" for number in range(4)]
    with open_store(tmp_path / "store", **SIZES) as store:
        assert len(store.query_message("T", "N199").messages) == 1


def test_without_an_index_a_query_is_refused_and_the_store_not_called_corrupt(tmp_path):
    with open_store(tmp_path / "store", message_index_enable=False, **SIZES) as store:
        store.put("T", b"one", keys="k")
        for query in (lambda: store.query_message("T", "k"), lambda: store.query_many("T", ["k"])):
            with pytest.raises(StoreError, match="message_index_enable") as refused:
                query()
            assert not isinstance(refused.value, CorruptStoreError)


def test_a_reader_of_a_store_that_is_written_without_an_index_does_not_say_that_there_is_none(
    tmp_path,
):
    path = tmp_path / "store"

    def found(store):
        return [bytes(message.body) for message in store.query_message("T", "k").messages]

    with open_store(path, **SIZES) as store:
        store.put("T", b"filed", keys="k")
    with open_store(path, mode="r", **SIZES) as reader:
        assert found(reader) == [b"filed"]
        with open_store(path, message_index_enable=False, **SIZES) as store:
            for _ in range(3):
                store.put("T", b"without a key")
                assert found(reader) == [b"filed"]
            store.put("T", b"unfiled", keys="k")
            for _ in range(200):
                store.put("T", bytes(1000))
            for asked in (found, lambda reader: reader.query_many("T", ["k"])):
                with pytest.raises(StoreError, match="message_index_enable"):
                    asked(reader)
    with (
        open_store(path, mode="r", **SIZES) as later,
        pytest.raises(StoreError, match="rebuild index"),
    ):
        found(later)
    for derived in (lambda: rebuild_index(path, config=StoreConfig(**SIZES)), lambda: None):
        derived()
        with open_store(path, mode="r", **SIZES) as later:
            assert found(later) == [b"filed", b"unfiled"]
        open_store(path, **SIZES).close()


def test_a_reader_of_a_store_that_has_lost_its_index_does_not_say_that_there_is_no_message(
    tmp_path,
):
    path = tmp_path / "store"

    def found(store, key="k"):
        return [bytes(message.body) for message in store.query_message("T", key).messages]

    with open_store(path, **SIZES) as store:
        store.put("T", b"one")
    for file in (path / "index").iterdir():
        file.unlink()
    with open_store(path, mode="r", **SIZES) as reader:
        # no message has a key
        assert found(reader) == []
        assert reader.query_many("T", ["k"])[0].messages == []
    with open_store(path, **SIZES) as store:
        store.put("T", b"two", keys="k")
        assert found(store) == [b"two"]
    shutil.rmtree(path / "index")
    with open_store(path, mode="r", **SIZES) as reader:
        for asked in (found, lambda reader: reader.query_many("T", ["k"])):
            with pytest.raises(StoreError, match=r"the log has keys; rmqcore rebuild index"):
                asked(reader)
        rebuild_index(path, config=StoreConfig(**SIZES))
        assert found(reader) == [b"two"]


@pytest.mark.parametrize("back_ms", [60_000, 3_600_000, 1_600_000_000_000])
def test_a_query_by_time_finds_what_was_put_before_and_after_the_clock_was_set_back(
    tmp_path, back_ms
):
    now = [1_700_000_000_000]
    path, times = tmp_path / "store", []
    clock = World(lambda: now[0])
    with DefaultMessageStore(path, StoreConfig(**SIZES), world=clock) as store:
        for step_ms in (0, 1000, 1000, -back_ms, 1000):
            now[0] += step_ms
            number = len(times)
            times.append(store.put("T", b"%d" % number, keys=f"k{number}").store_timestamp_ms)
    for mode in ("r", "a"):
        with open_store(path, mode=mode, **SIZES) as store:
            for number, at_ms in enumerate(times):
                for explain in (False, True):
                    found = store.query_message(
                        "T", f"k{number}", begin_ms=at_ms, end_ms=at_ms, explain=explain
                    )
                    assert [bytes(each.body) for each in found.messages] == [b"%d" % number]
