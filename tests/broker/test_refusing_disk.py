"""A broker on a disk that refuses: it says so once, answers what it can, and goes on by itself."""

import asyncio
import errno
import logging
import os

import pytest
from broker.conftest import served
from broker.test_pop import handed_out, pop, send_many
from killed_copy import copy_as_killed
from patience import until_async

import rmqcore
from rmqcore.derived.consume_queue_store import ConsumeQueueStore
from rmqcore.errors import DiskFullError
from rmqcore.files.mapped_file import MappedFile
from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.services import runner

pytestmark = pytest.mark.engine


@pytest.fixture
def lines(caplog):
    """What the log has of a kind, without tracebacks; with one it is an error of the test."""
    caplog.set_level(logging.INFO)

    def of(words):
        assert not [record.getMessage() for record in caplog.records if record.exc_info]
        return [line for line in map(logging.LogRecord.getMessage, caplog.records) if words in line]

    return of


def test_a_table_that_cannot_be_written_is_in_the_log_once(with_broker, topics_refused, lines):
    """Each try was, with a traceback: as many as clients make."""

    async def scenario(broker, peer):
        topics_refused.append(True)
        for number in range(5):
            answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": f"T{number}"})
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert len(lines("writing topics.json: ")) == 1
        topics_refused.clear()
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T5"})
        assert answer.code == ResponseCode.SUCCESS
        assert lines("writing topics.json") == [
            *lines("writing topics.json: "),
            "writing topics.json goes on",
        ]

    with_broker(scenario)


def test_progress_that_cannot_be_written_keeps_no_other_from_it(with_broker, monkeypatch, lines):
    async def scenario(broker, peer):
        parts, written = broker.managers, []
        monkeypatch.setattr(parts.pop_order, "persist", refuse)
        monkeypatch.setattr(broker.store.consumer_offsets, "persist", lambda: written.append(1))
        for _ in range(3):
            parts.persist_progress()
        assert len(written) >= 3
        assert len(lines("writing what POP has in order")) == 1

    with_broker(scenario)


def refuse():
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_full_disk_refuses_a_pop_and_lets_pulls_and_queries_go_on(
    with_broker, monkeypatch, lines
):
    monkeypatch.setattr(runner, "RETRY_INTERVAL_S", 0.01)
    full = []

    async def scenario(broker, peer):
        await send_many(peer, 4)
        broker.store.parts.log_services.reput.catch_up()
        queues = broker.store.parts.files.consume_queues
        dispatch = queues.dispatch

        def dispatching(batch):
            if full:
                raise DiskFullError(broker.path)
            dispatch(batch)

        monkeypatch.setattr(queues, "dispatch", dispatching)
        full.append(True)
        # it is in the log, and goes no further
        await peer.send("T", b"4", properties={"KEYS": "k"})
        await until_async(broker.store.why_not_writable, "puts are refused")
        for _ in range(3):
            answer = await pop(peer)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "takes nothing now" in answer.remark
        assert (await peer.pull("T")).code == ResponseCode.SUCCESS
        assert len(lines("No space left")) <= 3
        full.clear()
        await until_async(lambda: broker.store.why_not_writable() is None, "puts are taken")
        found = handed_out(await pop(peer))
        assert sorted(bytes(message.body) for message, _ in found) == [b"%d" % n for n in range(5)]

    with_broker(scenario)


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_a_log_file_that_cannot_be_made_refuses_sends_until_it_can(
    with_broker, monkeypatch, lines, code
):
    refuses, create = [], MappedFile.create

    def creating(file, **how):
        if refuses and file.path.parent.name == "commitlog":
            raise OSError(code, os.strerror(code), str(file.path))
        create(file, **how)

    monkeypatch.setattr(MappedFile, "create", creating)

    async def scenario(broker, peer):
        assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS
        refuses.append(True)
        sent = 1
        while (answer := await peer.send("T", bytes(30_000))).code == ResponseCode.SUCCESS:
            sent += 1
        for _ in range(3):
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            answer = await peer.send("T", bytes(30_000))
        assert len(lines(os.strerror(code))) <= 1
        refuses.clear()
        assert (await peer.send("T", bytes(30_000))).code == ResponseCode.SUCCESS
        assert broker.store.max_queue_offset("T", 0) == sent + 1

    with_broker(scenario, allocate_ahead=1)


def test_a_topic_whose_queue_found_no_room_is_not_taken_as_deleted(tmp_path, monkeypatch):
    """What says that all queues are there is not renewed before they are."""

    async def scenario():
        async with served(tmp_path / "store") as (_, peer):
            assert (await peer.send("T", b"first")).code == ResponseCode.SUCCESS

    def without_room(queues, topic, queue_id, **more):
        if is_full:
            raise DiskFullError(tmp_path)
        return new(queues, topic, queue_id, **more)

    asyncio.run(scenario())
    is_full, new = [True], ConsumeQueueStore._new
    monkeypatch.setattr(ConsumeQueueStore, "_new", without_room)
    with rmqcore.open_store(tmp_path / "store") as store:
        store.put("new", b"second")
        store.flush()
        assert store.dispatch_behind_bytes > 0
        services = store.parts.log_services
        services.marker._due_at = 0
        for _ in range(2):
            services.flush_queues.flush()
        copy_as_killed(tmp_path / "store", tmp_path / "killed")
        is_full.clear()
    with rmqcore.open_store(tmp_path / "killed") as store:
        assert [bytes(message.body) for message in store.messages("new", 0)] == [b"second"]
