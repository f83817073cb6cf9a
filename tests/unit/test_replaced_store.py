"""A store whose directory, or a file of it, gets another name or none while it is open."""

import contextlib

import pytest
from patience import TIMEOUT_S, until

import rmqcore
from rmqcore.errors import RmqCoreError, StoreNotFoundError
from rmqcore.store.sharing.place import AppendsPlace

pytestmark = pytest.mark.engine

SMALL = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 16,
    "max_index_num": 64,
}
FILE = SMALL["mapped_file_size_commit_log"]
COUNT = 100


def log_files(path):
    return sorted((path / "commitlog").iterdir())


def opened_with_a_file_ahead(path, **settings):
    """A store whose next log file is there, and nothing in it."""
    store = rmqcore.open_store(path, **SMALL, **settings)
    store.put("Old", b"x" * (FILE // 2), keys="k")
    until(lambda: len(log_files(path)) > 1, "the next log file is made")
    return store


def files_of(directory):
    return {
        file.relative_to(directory): file.read_bytes()
        for file in directory.rglob("*")
        if file.is_file() and file.name != "storeTrace"
    }


def bodies_in(path):
    with rmqcore.open_store(path) as store:
        by_queue = [bytes(each.body) for each in store.messages("New", 0)]
        assert by_queue == [bytes(each.body) for each in store.messages()]
        assert [len(store.query_message("New", f"k{n}").messages) for n in range(COUNT)] == (
            [1] * COUNT
        )
    return by_queue


def put_new(store):
    for number in range(COUNT):
        store.put("New", b"%d" % number, keys=f"k{number}")


@pytest.fixture(params=["renamed", "linked elsewhere"])
def replaced(tmp_path, request):
    """`replaced()`: has another directory, a new one, at `path`; the old one is at `moved`."""
    path, moved, third = tmp_path / "store", tmp_path / "moved", tmp_path / "third"
    if request.param == "linked elsewhere":
        moved.mkdir()
        path.symlink_to(moved)

    def replace():
        if path.is_symlink():
            third.mkdir()
            path.unlink()
            path.symlink_to(third)
        else:
            path.rename(moved)

    replace.path, replace.moved = path, moved
    return replace


def test_closing_the_old_store_removes_no_log_file_of_the_new_one(replaced):
    old = opened_with_a_file_ahead(replaced.path)
    replaced()
    with rmqcore.open_store(replaced.path, **SMALL) as new:
        put_new(new)
        new.flush()
        before = files_of(replaced.path / "commitlog")
        with pytest.raises(StoreNotFoundError, match="open it where it is now"):
            old.close()
        # more may have been made ahead
        assert files_of(replaced.path / "commitlog").items() >= before.items()
    assert bodies_in(replaced.path) == [b"%d" % number for number in range(COUNT)]
    with rmqcore.open_store(replaced.moved) as moved:
        assert len(list(moved.messages("Old", 0))) == 1


CALLS = {
    "puts that roll": lambda store: [store.put("Old", b"x" * 1000) for _ in range(20)],
    "a put to a new queue": lambda store: (store.put("New", b"x"), store.flush()),
    "deletion of a topic": lambda store: store.delete_topic("New"),
    "deletion of expired files": lambda store: store.delete_expired_files(),
    "offsets": lambda store: (store.consumer_offsets.commit("Old", "g", 0, 1), store.flush()),
    "leases": lambda store: store.acknowledge(
        "g", [each.place for each in store.lease("g", {"Old": "*"})]
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_the_old_store_does_changes_nothing_of_the_new_one(replaced, call):
    settings = {"retention_bytes": FILE, "flush_interval_consume_queue_ms": 3_600_000}
    old = opened_with_a_file_ahead(replaced.path, **settings)
    for number in range(20):
        old.put("Old", b"%d" % number * 100)
    old.lease("g", {"Old": "*"}, max_messages=1)
    old.flush()
    replaced()
    with rmqcore.open_store(replaced.path, **SMALL) as new:
        put_new(new)
        new.consumer_offsets.commit("New", "g", 0, 7)
        new.flush()
    before = files_of(replaced.path)
    # what fits into files that are open is the moved store's
    with contextlib.suppress(RmqCoreError):
        CALLS[call](old)
    with pytest.raises(StoreNotFoundError):
        old.close()
    assert files_of(replaced.path) == before


def test_a_put_that_rolls_says_in_its_status_that_the_store_is_not_there(replaced):
    old = opened_with_a_file_ahead(replaced.path, flush_interval_consume_queue_ms=3_600_000)
    replaced()
    rmqcore.open_store(replaced.path, **SMALL).close()
    receipts = [old.put_message(rmqcore.Message("Old", b"x" * 1000)) for _ in range(20)]
    assert receipts[-1].status == rmqcore.PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "open it where it is now" in receipts[-1].reason
    with pytest.raises(StoreNotFoundError):
        old.close()


def test_the_old_broker_lets_staged_appends_find_the_new_one(replaced):
    rmqcore.open_store(replaced.path, **SMALL).close()
    old, new = AppendsPlace(replaced.path), AppendsPlace(replaced.path)
    with old.listen():
        replaced()
        rmqcore.open_store(replaced.path, **SMALL).close()
        with new.listen():
            old.forget_socket()
            with new.connect(TIMEOUT_S):
                new.forget_socket()
    assert new.connect(TIMEOUT_S) is None


def test_a_journal_of_leases_that_is_deleted_is_written_anew(tmp_path):
    store = rmqcore.open_store(tmp_path, **SMALL)
    store.put("T", b"x")
    held = store.lease("g", {"T": "*"}, lease_ms=3_600_000, holder="h")
    (tmp_path / "config" / "consumerLeases.log").unlink()
    store.close()
    assert held
    assert not (tmp_path / "abort").exists()
    with rmqcore.open_store(tmp_path) as again:
        assert again.lease("g", {"T": "*"}) == []


@pytest.mark.parametrize("how", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_nothing_is_on_the_disk_that_is_in_a_deleted_log_file(tmp_path, how):
    store = rmqcore.open_store(tmp_path, flush_disk_type=how, **SMALL)
    store.put("T", b"one")
    store.flush()
    log_files(tmp_path)[0].unlink()
    receipt = store.put_message(rmqcore.Message("T", b"two"), durability="disk")
    assert receipt.durability != "disk"
    assert "deleted while the store was open" in store.why_not_writable()
    assert next(bytes(each.body) for each in store.messages()) == b"one"
    with pytest.raises(FileNotFoundError, match="deleted while the store was open"):
        store.close()
