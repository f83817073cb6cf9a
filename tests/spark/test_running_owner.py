"""Staged files are appended by whoever has the store open, once, however it ends; without a JVM."""

import asyncio
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from patience import TIMEOUT_S, until
from staged_rows import stage, three_files

import rmqcore
from rmqcore import open_shared, open_store
from rmqcore.broker import Broker
from rmqcore.config import load_config
from rmqcore.errors import StoreError, StoreLockedError
from rmqcore.spark.log_owner import (
    abort_staged,
    append_staged,
    check_free,
    config_of,
    finish_appends,
)
from rmqcore.store.append_ledger import anonymous_name, appending, staging_root
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.sharing import append_server, place
from rmqcore.store.sharing.staged_calls import call_owner, owner_config
from rmqcore.store.sharing.staged_files_in import listed
from rmqcore.store.staged_appends import is_under_way
from rmqcore.store.staged_files import StagedFile

pytestmark = pytest.mark.engine

SMALL = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 1000, "maxIndexNum": 4000}
#: Three files of two pieces each.
ROWS = 600


@pytest.fixture
def staged(store_path):
    return three_files(store_path)


@pytest.fixture
def at_piece(monkeypatch):
    """`at_piece(call)`: call with the store and the piece's number before each piece is put."""

    def patch(call):
        put, count = DefaultMessageStore.put_records, iter(range(1, 1000))

        def watched(self, *args, **settings):
            call(self, next(count))
            return put(self, *args, **settings)

        monkeypatch.setattr(DefaultMessageStore, "put_records", watched)

    return patch


def once(store, topic="T"):
    """The keys of a topic's messages are those of all rows, each once."""
    keys = [m.unique_key for m in store.messages() if m.topic == topic and m.body != b"foreign"]
    return len(keys) == len(set(keys)) == ROWS


def test_an_owner_that_shares_its_store_appends_what_another_has_staged(store_path, staged):
    with open_shared(store_path) as owner:
        owner.put("T", b"foreign")
        check_free(str(store_path), repeatable=False)
        assert append_staged(str(store_path), None, "job", 0, staged) == ROWS
        assert append_staged(str(store_path), None, "job", 0, staged) == 0
        assert owner.max_queue_offset("T", 1) == ROWS // 2
        assert once(owner)
        assert not list((store_path / "spark").glob("staging-*"))


def test_files_are_named_as_seen_from_the_store_which_its_owner_may_have_elsewhere():
    inside = StagedFile("/mnt/store/spark/staging-1/0.rows", 10, 2)
    outside = StagedFile("/else/0.rows", 10, 2)
    found = listed("/mnt/store", [inside, outside])
    assert found == [("staging-1/0.rows", 10, 2), ("/else/0.rows", 10, 2)]


@pytest.mark.parametrize("die_at", [1, 2, 5])
def test_rows_between_other_puts_of_a_running_owner_are_appended_once(
    store_path, staged, at_piece, die_at
):
    def fail(store, number):
        store.put("T", b"foreign")
        if number == die_at:
            raise OSError(5, "the disk is away")

    at_piece(fail)
    with open_shared(store_path) as owner:
        with pytest.raises(OSError, match="the disk is away"):
            append_staged(str(store_path), None, "job", 0, staged)
        owner.put("T", b"foreign")
        append_staged(str(store_path), None, "job", 0, staged)
        assert once(owner)


def test_one_job_at_a_time_is_appended_and_another_may_begin_meanwhile(
    store_path, staged, at_piece
):
    root, seen = staging_root(str(store_path)), []

    def look(_, number):
        # its ledger looks like that of a job whose driver was killed
        check_free(str(store_path), repeatable=False)
        seen.append(is_under_way(root))

    at_piece(look)
    with open_shared(store_path):
        append_staged(str(store_path), None, anonymous_name(), 0, staged)
    assert seen
    assert all(seen)
    assert not is_under_way(root)


def test_an_append_that_died_is_finished_by_the_running_owner(store_path, staged, at_piece):
    def fail(_, number):
        if number == 2:
            raise OSError(5, "the disk is away")

    at_piece(fail)
    name = anonymous_name()
    with open_shared(store_path) as owner:
        with pytest.raises(OSError, match="away"):
            append_staged(str(store_path), None, name, 0, staged)
        with pytest.raises(StoreError, match="rmqcore spark finish"):
            check_free(str(store_path), repeatable=False)
        assert list(finish_appends(store_path)) == [name]
        assert once(owner)


def test_an_owner_that_takes_no_puts_begins_no_append(store_path, staged, monkeypatch):
    monkeypatch.setattr(DefaultMessageStore, "why_not_writable", lambda _: "the disk is full")
    with open_shared(store_path):
        with pytest.raises(StoreError, match="nothing was appended: the disk is full"):
            append_staged(str(store_path), None, "job", 0, staged)
        assert appending(staging_root(str(store_path))) == []


def test_a_file_that_is_gone_is_found_before_the_others_are_appended(store_path, staged):
    Path(staged[2].path).unlink()
    with open_shared(store_path) as owner:
        with pytest.raises(StoreError, match="the staged rows are gone"):
            append_staged(str(store_path), None, anonymous_name(), 0, staged)
        assert owner.queues() == []
        check_free(str(store_path), repeatable=False)


def test_a_job_that_fails_while_its_owner_appends_leaves_the_owner_its_files(
    store_path, staged, at_piece
):
    folder = Path(staged[0].path).parent
    # of another job than the ledger is about: the owner has not begun it
    at_piece(lambda *_: abort_staged(str(store_path), "job-2", folder))
    with open_shared(store_path) as owner:
        append_staged(str(store_path), None, "job", 0, staged)
        assert once(owner)


@pytest.mark.parametrize("stream", [False, True])
def test_a_commit_removes_what_tasks_left_that_ran_twice(store_path, stream):
    types = pytest.importorskip("pyspark.sql.types")
    from rmqcore.spark.options import write_options
    from rmqcore.spark.stream_write import RmqStreamWriter
    from rmqcore.spark.write import RmqWriter, Staged

    options = write_options({"path": str(store_path), "topic": "T"})
    schema = types.StructType([types.StructField("body", types.StringType())])
    kind = RmqStreamWriter if stream else RmqWriter
    writer = kind(schema, options, overwrite=False)
    tried = [stage(writer.stager.folder / f"0-{n}.rows", {"body": ["a"]}) for n in range(2)]
    writer.commit([Staged(tried[1], 0, "query", 0)], *([0] if stream else []))
    assert not writer.stager.folder.exists()
    with open_store(store_path, mode="r") as store:
        assert [m.body for m in store.messages()] == [b"a"]


@pytest.mark.parametrize("place", ["{outside}", "../../kept", "link/kept"])
def test_a_file_elsewhere_is_neither_appended_nor_removed(store_path, staged, tmp_path, place):
    kept = tmp_path / "kept"
    kept.write_bytes(Path(staged[0].path).read_bytes())
    (store_path / "spark" / "link").symlink_to(tmp_path)
    with open_shared(store_path) as owner:
        append_staged(str(store_path), None, "job", 0, staged[1:])
        files = [(place.format(outside=kept), staged[0].size, 200)]
        for name in ("job", "other"):
            with pytest.raises(StoreError, match="where rows are staged"):
                owner.call_by_name("append_staged", name, 0, files)
        assert owner.max_queue_offset("T", 0) == 200
    assert kept.exists()


@pytest.mark.parametrize("name", ["../../kept", "/kept", "", "a\0"])
def test_a_ledger_elsewhere_is_neither_read_nor_written(store_path, staged, name):
    with open_shared(store_path) as owner:
        with pytest.raises(StoreError, match="no name of a series"):
            owner.call_by_name("append_staged", name, 0, listed(store_path, staged))
        assert owner.max_queue_offset("T", 0) == 0
    assert all(Path(file.path).exists() for file in staged)


def test_a_store_whose_owner_takes_nothing_is_refused(store_path, staged):
    with open_store(store_path):
        with pytest.raises(StoreLockedError):
            check_free(str(store_path), repeatable=True)
        with pytest.raises(StoreLockedError):
            append_staged(str(store_path), None, "job", 0, staged)


_DIES = """
import os, sys
from rmqcore import open_shared
from rmqcore.store.message_store import DefaultMessageStore

put, left = DefaultMessageStore.put_records, [int(sys.argv[2])]

def dying(self, *args, **settings):
    left[0] -= 1
    if not left[0]:
        os._exit(9)
    return put(self, *args, **settings)

DefaultMessageStore.put_records = dying
with open_shared(sys.argv[1]):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.mark.process
@pytest.mark.parametrize("die_at", [1, 4])
def test_when_the_owner_is_killed_in_the_middle_the_next_one_appends_the_rest(
    store_path, staged, die_at
):
    env = {**os.environ, "PYTHONPATH": str(Path(rmqcore.__file__).parents[1])}
    command = [sys.executable, "-c", _DIES, str(store_path), str(die_at)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, env=env) as owner:
        assert owner.stdout.readline() == b"open\n"
        append_staged(str(store_path), None, "job", 0, staged)
        assert owner.wait() == 9
    with open_store(store_path, mode="r") as store:
        assert once(store)


@pytest.mark.parametrize("asked", [None, True, False])
def test_a_log_that_is_opened_for_one_append_is_not_warmed_unless_asked_for(
    store_path, staged, at_piece, asked
):
    config = None if asked is None else load_config(None, warm_mapped_file_enable=asked)
    seen = set()
    at_piece(lambda store, _: seen.add(store.config.warm_mapped_file_enable))
    append_staged(str(store_path), config, "job", 0, staged)
    assert seen == {bool(asked)}


# ---- a broker


def with_broker(path, work, **properties):
    """Run a function in a thread beside a broker, and what it returns."""

    async def run():
        broker = Broker(path, {"listenPort": 0, "haListenPort": 0, **SMALL, **properties})
        await broker.start()
        try:
            return await asyncio.to_thread(work, broker)
        finally:
            await broker.stop()

    return asyncio.run(run())


def test_a_running_broker_appends_what_was_staged_and_has_the_topic(store_path, staged):
    def work(broker):
        # a copy of the directory, as of a backup, ends with an error at one
        assert not any(path.is_socket() for path in store_path.rglob("*"))
        check_free(str(store_path), repeatable=False)
        assert append_staged(str(store_path), None, "job", 0, staged) == ROWS
        assert append_staged(str(store_path), None, "job", 0, staged) == 0
        assert once(broker.store)
        found = broker.store.topics.get("T")
        assert (found.read_queue_nums, found.write_queue_nums) == (2, 2)
        # as a power cut would find it
        assert '"T"' in (store_path / "config" / "topics.json").read_text()

    with_broker(store_path, work)


def test_rows_for_a_running_broker_are_made_with_its_settings(store_path):
    def work(broker):
        assert config_of(str(store_path), None).enabled_append_prop_crc
        config = config_of(str(store_path), None)
        name = store_path / "spark" / "staging-test" / "0.rows"
        files = [stage(name, {"body": ["a"], "queue_id": [5]}, config=config)]
        assert append_staged(str(store_path), None, "job", 0, files) == 1
        assert broker.store.topics.get("T").read_queue_nums == 6

    with_broker(store_path, work, enabledAppendPropCRC="true")


def test_a_broker_takes_no_other_calls_over_that_socket(store_path):
    def work(broker):
        with pytest.raises(StoreError, match="delete_topic is no call that its owner takes"):
            call_owner(store_path, None, "delete_topic", "T")
        with pytest.raises(StoreLockedError):
            open_shared(store_path)

    with_broker(store_path, work)


def test_a_broker_and_who_appends_are_of_the_directorys_owner_or_root(store_path, monkeypatch):
    pid, other = os.getpid(), store_path.parent.stat().st_uid + 1

    def work(broker):
        monkeypatch.setattr(place, "_credentials_of", lambda _: (pid, other))
        # who listens there could be anybody: it is nobody's store, then, or a locked one
        with pytest.raises(StoreLockedError):
            call_owner(store_path, None, "finish_staged", "job")
        monkeypatch.setattr(place.AppendsPlace, "connect", place.MeetingPlace.connect)
        with pytest.raises(StoreError, match="from processes of its directory's owner"):
            call_owner(store_path, None, "finish_staged", "job")

    with_broker(store_path, work)


def test_others_take_few_of_the_connections_that_a_broker_has(store_path, monkeypatch):
    pid, own = os.getpid(), store_path.parent.stat().st_uid
    monkeypatch.setattr(append_server, "_STRANGER_S", 3600)

    def work(broker):
        def connected():
            return place.MeetingPlace.connect(place.AppendsPlace(store_path), TIMEOUT_S)

        monkeypatch.setattr(place, "_credentials_of", lambda _: (pid, own + 1))
        others = [connected() for _ in range(3 * append_server._STRANGERS_MAX)]
        refused = 2 * append_server._STRANGERS_MAX
        until(lambda: sum(map(is_closed, others)) == refused, "the end of most of them")
        monkeypatch.setattr(place, "_credentials_of", lambda _: (pid, own))
        assert call_owner(store_path, None, "config") is not None
        for each in others:
            each.close()

    with_broker(store_path, work)


def is_closed(connected):
    """Tell whether the other side has closed a socket."""
    try:
        return connected.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


def test_an_address_that_others_can_tell_is_not_asked(store_path):
    """Who listens there and takes no connection would keep everybody waiting."""
    store_path.mkdir()
    status = store_path.stat()
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(f"\0rmqcore-appends-{status.st_dev:x}-{status.st_ino:x}")
        squatter.listen(0)
        squatter.setblocking(False)
        assert owner_config(store_path) is None
        word = store_path / "config" / place.APPENDS_NAME

        def work(broker):
            assert owner_config(store_path) is not None
            assert stat.S_IMODE(word.stat().st_mode) == 0o600

        with_broker(store_path, work)
        assert not word.exists()
        with pytest.raises(BlockingIOError):
            squatter.accept()
