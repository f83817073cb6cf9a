"""Gets, offsets by time and receipts of a whole store, against the plainest possible model."""

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rmqcore
from rmqcore import GetMessageStatus, Message, MessageIllegalError, PutMessageStatus

pytestmark = pytest.mark.engine

SMALL = {
    "mapped_file_size_commit_log": 8192,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 16,
    "max_index_num": 64,
}
BASE_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store of one queue over many files, its times in runs, and the model of it."""
    path = tmp_path_factory.mktemp("filled") / "store"
    store = rmqcore.open_store(path, **SMALL)
    rows = []
    for number in range(237):
        store.parts.files.tail.fixed_time_ms = BASE_MS + number // 5 * 7
        body = b"%d " % number * (1 + number % 13)
        receipt = store.put("T", body, tags="abc"[number % 3], keys=("Aa", "BB")[number % 2])
        rows.append((body, "abc"[number % 3], receipt.store_size, BASE_MS + number // 5 * 7))
    yield store, rows
    store.close()


def model_get(rows, offset, max_messages, max_bytes, tags, max_scanned):
    """(status, offsets, next offset) by RocketMQ's rules."""
    if offset < 0:
        return GetMessageStatus.OFFSET_TOO_SMALL, [], 0
    if offset == len(rows):
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, [], len(rows)
    if offset > len(rows):
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, [], len(rows)
    found, size, at = [], 0, offset
    end = len(rows) if tags is None else min(len(rows), offset + (max_scanned or len(rows)))
    while at < end and len(found) < max_messages:
        _, tag, record, _ = rows[at]
        if tags is None or tag in tags:
            if found and size + record > max_bytes:
                break
            found.append(at)
            size += record
        at += 1
    status = GetMessageStatus.FOUND if found else GetMessageStatus.NO_MATCHED_MESSAGE
    return status, found, at


@given(
    offset=st.integers(-3, 242),
    max_messages=st.integers(1, 300),
    max_bytes=st.sampled_from([1, 100, 137, 500, 5000, 10**9]),
    tags=st.sampled_from([None, "a", "a || c", "b||a||c", "zzz"]),
    max_scanned=st.none() | st.integers(1, 250),
)
@settings(max_examples=300)
def test_get_message(filled, offset, max_messages, max_bytes, tags, max_scanned):
    store, rows = filled
    wanted = None if tags is None else {tag.strip() for tag in tags.split("||")}
    status, found, after = model_get(rows, offset, max_messages, max_bytes, wanted, max_scanned)
    most = {"max_messages": max_messages, "max_bytes": max_bytes, "max_scanned": max_scanned}
    result = store.get_message("T", 0, offset, tags=tags, **most)
    assert result.status is status
    assert [message.queue_offset for message in result.messages] == found
    assert [bytes(message.body) for message in result.messages] == [rows[n][0] for n in found]
    assert (result.min_queue_offset, result.max_queue_offset) == (0, len(rows))
    assert result.buffer_total_size == sum(rows[number][2] for number in found)
    # behind the last one found a get may stop at once, or have looked at what does not match
    if len(found) < max_messages or tags is None:
        assert result.next_queue_offset == after
    else:
        assert found[-1] < result.next_queue_offset <= len(rows)


def test_statuses_of_what_is_not_there(filled):
    store, _ = filled
    assert store.get_message("X", 0, 0).status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
    assert store.get_message("T", 1, 0).status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
    assert store.queues() == [("T", 0)]


@given(step=st.integers(-20, 350), boundary=st.sampled_from(["lower", "upper"]))
@settings(max_examples=300)
def test_queue_offset_by_time(filled, step, boundary):
    store, rows = filled
    time_ms = BASE_MS + step
    times = [row[3] for row in rows]
    if boundary == "lower":
        wanted = next((n for n, time in enumerate(times) if time >= time_ms), len(times))
    else:
        wanted = next((n for n in reversed(range(len(times))) if times[n] <= time_ms), 0)
    assert store.queue_offset_by_time("T", 0, time_ms, boundary=boundary) == wanted


@given(
    key=st.sampled_from(["Aa", "BB", "C#", "nothing"]),
    size=st.integers(1, 150),
    begin=st.integers(-20, 350),
    length=st.integers(0, 350),
)
@settings(max_examples=150)
def test_query_message_by_pages(filled, key, size, begin, length):
    """``Aa`` and ``BB`` have one hash."""
    store, rows = filled
    begin_ms, end_ms = BASE_MS + begin, BASE_MS + begin + length
    wanted = [
        number
        for number, row in enumerate(rows)
        if ("Aa", "BB")[number % 2] == key and begin_ms <= row[3] <= end_ms
    ]
    found, page = [], None
    while True:
        result = store.query_message(
            "T", key, max_messages=size, begin_ms=begin_ms, end_ms=end_ms, page=page
        )
        assert len(result) <= size
        found = [message.queue_offset for message in result] + found
        page = result.next_page
        if page is None:
            break
    assert found == wanted


# ---- puts that are refused store nothing


@pytest.mark.parametrize(
    "message",
    [
        {"topic": ""},
        {"topic": "../etc"},
        {"topic": "a/b"},
        {"topic": "."},
        {"topic": "x" * 256},
        {"topic": "é"},
        {"topic": "a\0b"},
        {"topic": None},
        {"queue_id": -1},
        {"body": "text"},
        {"body": b"x" * 9000},
        {"properties": {"": "x"}},
        {"properties": {"a": ""}},
        {"properties": {"a\x01": "b"}},
        {"properties": {"a": "b\x02"}},
        {"properties": {"a": 1}},
        {"properties": {"a": "x" * 40_000}},
        {"keys": "two words"},
        {"keys": ("",)},
        {"tags": ""},
        {"delay_level": 3},
        {"born_host": "localhost"},
        {"born_host": "1.2.3.4:99999"},
    ],
)
def test_an_illegal_message_is_refused(store_path, message):
    with rmqcore.open_store(store_path, **SMALL) as store:
        arguments = {"topic": "T", "body": b"x"} | message
        with pytest.raises((MessageIllegalError, TypeError)):
            store.put(arguments.pop("topic"), arguments.pop("body"), **arguments)
        assert store.max_phy_offset == 0
        assert store.queues() == []
        assert store.put("T", b"good").queue_offset == 0
    assert not (store_path.parent / "etc").exists()


# ---- kinds of puts


def test_sixteen_threads_share_flushes(store_path):
    with rmqcore.open_store(store_path, flush_disk_type="SYNC_FLUSH") as store:
        receipts = []

        def put(mark):
            receipts.extend(store.put("T", b"%d" % n, queue_id=mark) for n in range(50))

        threads = [threading.Thread(target=put, args=(mark,)) for mark in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {receipt.durability for receipt in receipts} == {"disk"}
        for mark in range(16):
            bodies = [int(bytes(message.body)) for message in store.messages("T", mark)]
            assert bodies == list(range(50))


@pytest.mark.parametrize("how", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_coroutines(store_path, how):
    async def main():
        async with rmqcore.open_store(store_path, flush_disk_type=how, **SMALL) as store:
            puts = [store.put_async("T", b"%d" % n, keys=f"k{n}") for n in range(200)]
            receipts = await asyncio.gather(*puts)
            wanted = "disk" if how == "SYNC_FLUSH" else "page_cache"
            assert {receipt.durability for receipt in receipts} == {wanted}
            batch = [Message("T", b"b%d" % n) for n in range(10)]
            receipt = await store.put_messages_async(batch, durability="disk")
            assert (receipt.message_count, receipt.durability) == (10, "disk")
            receipt = await store.put_message_async(Message("T", b"last"), durability="page_cache")
            assert receipt.durability == "page_cache"
            bodies = [bytes(message.body) for message in store.messages("T", 0)]
            assert sorted(bodies[:200]) == sorted(b"%d" % n for n in range(200))
            assert bodies[200:] == [b"b%d" % n for n in range(10)] + [b"last"]

    asyncio.run(main())


def test_what_was_put_without_waiting_is_seen(store_path):
    async def main():
        with rmqcore.open_store(store_path, flush_disk_type="SYNC_FLUSH") as store:
            await store.put_async("T", b"x", durability="page_cache")
            assert len(store.get_message("T", 0, 0)) == 1
            store.put("T", b"y", durability="page_cache")
            assert len(store.get_message("T", 0, 0)) == 2

    asyncio.run(main())


def test_the_transient_pool(store_path):
    settings = SMALL | {"transient_store_pool_enable": True, "transient_store_pool_size": 2}
    with rmqcore.open_store(store_path, **settings) as store:
        for number in range(300):
            receipt = store.put("T", b"%d " % number * 20, keys=f"k{number}")
            assert receipt.durability in ("memory", "page_cache")
            if number % 50 == 0:
                assert len(store.query_message("T", f"k{number}")) == 1
                (message,) = store.get_message("T", 0, number).messages
                assert bytes(message.body) == b"%d " % number * 20
        assert store.put("T", b"kept", durability="disk").durability == "disk"
    with rmqcore.open_store(store_path) as store:
        assert store.recovery_report.clean_shutdown
        assert len(list(store.messages())) == 301


def test_transactions_are_dispatched_when_committed(store_path):
    prepared, commit, rollback = 0x4, 0x8, 0xC
    with rmqcore.open_store(store_path) as store:
        for sys_flag, body in ((0, b"0"), (prepared, b"p"), (rollback, b"r"), (commit, b"c")):
            assert store.put("T", body, sys_flag=sys_flag, keys="k").ok
        assert [bytes(m.body) for m in store.messages("T", 0)] == [b"0", b"c"]
        assert [bytes(m.body) for m in store.messages()] == [b"0", b"p", b"r", b"c"]
        assert len(store.query_message("T", "k")) == 3


def test_a_service_that_fails_makes_the_store_read_only(store_path, monkeypatch):
    with rmqcore.open_store(store_path) as store:
        store.parts.health.service_failed(RuntimeError("the reason"))
        assert "the reason" in store.why_not_writable()
        result = store.put_message(Message("T", b"x"))
        assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "the reason" in result.reason
