"""A roll that Ctrl-C, or a signal handler that raises, ends between two of its steps."""

from contextlib import suppress

import pytest

import rmqcore

pytestmark = pytest.mark.engine

SMALL = {"mapped_file_size_commit_log": 8192, "max_hash_slot_num": 50, "max_index_num": 200}


class InterruptedAfter:
    """Calls a function, then raises once as a signal handler would."""

    def __init__(self, call):
        self.call = call
        self.due = True

    def __call__(self, *what):
        answer = self.call(*what)
        if self.due:
            self.due = False
            raise KeyboardInterrupt
        return answer


class Tail:
    """A log tail; a signal comes when it has been attached to the next file."""

    def __init__(self, tail):
        self.tail = tail
        self.attach = InterruptedAfter(tail.attach)

    def __getattr__(self, name):
        return getattr(self.tail, name)


def put_until_interrupted(store):
    """The bodies that were acknowledged; 1,500 bytes are free where the last file ends."""
    acknowledged = []
    with suppress(KeyboardInterrupt):
        while True:
            body = b"%d " % len(acknowledged) * 800
            store.put("T", body)
            acknowledged.append(body)
    return acknowledged


def check(path, acknowledged):
    with rmqcore.open_store(path) as again:
        assert again.recovery_report.clean_shutdown
        assert again.recovery_report.findings == []
        assert [bytes(message.body) for message in again.messages("T", 0)] == acknowledged


@pytest.mark.parametrize("how", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_flush_between_a_file_and_its_use_counts_what_was_put(store_path, monkeypatch, how):
    store = rmqcore.open_store(store_path, flush_disk_type=how, **SMALL)
    writer = store.parts.files.writer
    monkeypatch.setattr(writer, "_next_file", InterruptedAfter(writer._next_file))
    acknowledged = put_until_interrupted(store)
    assert store.flush() == store.log.max_offset < 8192
    # there is room for it in the file that was to be ended
    receipt = store.put("T", b"small")
    assert receipt.phy_offset + receipt.store_size < 8192
    assert store.flush() == store.log.max_offset
    assert writer.log.queue.files[0].flushed_position == store.log.max_offset
    assert store.get_message("T", 0, len(acknowledged)).messages[0].body == b"small"
    store.close()
    check(store_path, [*acknowledged, b"small"])


@pytest.mark.parametrize("how", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_close_between_a_file_and_its_use_is_clean(store_path, monkeypatch, how):
    store = rmqcore.open_store(store_path, flush_disk_type=how, **SMALL)
    writer = store.parts.files.writer
    monkeypatch.setattr(writer, "_next_file", InterruptedAfter(writer._next_file))
    acknowledged = put_until_interrupted(store)
    store.close()
    check(store_path, acknowledged)


@pytest.mark.parametrize("pool", [False, True])
def test_a_roll_that_ends_when_the_tail_is_attached_loses_nothing(store_path, pool):
    store = rmqcore.open_store(
        store_path, transient_store_pool_enable=pool, transient_store_pool_size=3, **SMALL
    )
    writer = store.parts.files.writer
    writer.tail = Tail(writer.tail)
    acknowledged = put_until_interrupted(store)
    assert writer.attached_offset == 8192
    for number in range(20):
        acknowledged.append(b"later %d " % number * 300)
        assert store.put("T", acknowledged[-1]).ok
    store.flush()
    assert [bytes(message.body) for message in store.messages("T", 0)] == acknowledged
    store.close()
    check(store_path, acknowledged)


def test_an_interrupt_takes_no_buffer_from_the_transient_pool(store_path, monkeypatch):
    store = rmqcore.open_store(
        store_path, transient_store_pool_enable=True, transient_store_pool_size=2, **SMALL
    )
    pool = store.parts.files.writer._pool
    monkeypatch.setattr(pool, "free", InterruptedAfter(pool.free))
    acknowledged = put_until_interrupted(store)
    acknowledged.append(b"later" * 1000)
    store.put("T", acknowledged[-1])
    assert store.log.queue.last.write_buffer is not None
    store.close()
    check(store_path, acknowledged)
