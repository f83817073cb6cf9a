"""A topic that a client deletes begins with 0 when it is made again."""

import errno
import os
import shutil

import pytest
from broker.conftest import records, served
from broker.test_pop import handed_out, pop, send_many
from broker.test_state import bodies, commit, delete
from patience import until_async

from rmqcore.files import config_file
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine


def test_a_deleted_topic_begins_anew(with_broker):
    async def scenario(_, peer):
        for number in range(3):
            await peer.send("T", b"old %d" % number)
        deleted = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert deleted.code == ResponseCode.SUCCESS
        sent = await peer.send("T", b"new")
        assert sent.ext_fields["queueOffset"] == "0"
        (message,) = records((await peer.pull("T")).body)
        assert message.body == b"new"

    with_broker(scenario)


def test_a_name_that_is_none_is_refused(with_broker):
    async def scenario(_, peer):
        answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "a/b"})
        assert answer.code == ResponseCode.INVALID_PARAMETER

    with_broker(scenario)


@pytest.mark.parametrize("refused", ["readersOfDeleted", "consumerOffset", "deletedTopics"])
def test_a_deletion_that_a_full_disk_refuses_changes_nothing_and_can_be_done_again(
    lives, clock, monkeypatch, refused
):
    full = []

    def write(path, raw, really=config_file._write):
        if full and path.name.startswith(refused):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        really(path, raw)

    monkeypatch.setattr(config_file, "_write", write)

    async def scenario(broker, peer):
        offsets = broker.store.consumer_offsets
        await send_many(peer, 4, queues=1)
        await commit(peer, 3, group="PULLS")
        assert len(handed_out(await pop(peer, count=2))) == 2
        assert len(handed_out(await pop(peer, count=2, consumerGroup="ORDERED", order="true"))) == 2
        full.append(True)
        refusal = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE
        full.clear()
        offsets.persist()
        assert offsets.get("T", "PULLS", 0) == 3
        assert (await peer.pull("T", offset=3, group="PULLS")).code == ResponseCode.SUCCESS
        in_order = await pop(peer, consumerGroup="ORDERED", order="true")
        assert in_order.code == ResponseCode.POLLING_TIMEOUT
        # what was popped and not acknowledged is not done with
        clock.go_on(61_000, broker)
        await until_async(
            lambda: broker.store.max_queue_offset("%RETRY%CG_T", 0) == 2, "it comes again"
        )

    async def again(broker, peer):
        assert broker.store.consumer_offsets.get("T", "PULLS", 0) == 3
        await delete(peer)
        assert broker.store.consumer_offsets.get("T", "PULLS", 0) is None
        sent = await peer.send("T", b"new")
        assert sent.ext_fields["queueOffset"] == "0"

    lives(scenario, again)


RETRY = "%RETRY%CG_T"


async def fill_retry_topic(broker, peer, clock):
    """Let two messages wait in a retry topic, and two in the topic itself."""
    await send_many(peer, 4, queues=1)
    assert len(handed_out(await pop(peer, count=2))) == 2
    clock.go_on(61_000, broker)
    await until_async(lambda: broker.store.max_queue_offset(RETRY, 0) == 2, "they come again")
    broker.store.consumer_offsets.persist()


def test_a_refused_deletion_leaves_what_comes_again_of_the_topic(with_broker, clock, monkeypatch):
    def write(path, raw, really=config_file._write):
        if path.name.startswith("deletedTopics") and b'"T"' in raw:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        really(path, raw)

    async def scenario(broker, peer):
        await fill_retry_topic(broker, peer, clock)
        monkeypatch.setattr(config_file, "_write", write)
        refusal = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE
        monkeypatch.undo()
        assert sorted(bodies(await pop(peer))) == [b"0", b"1", b"2", b"3"]

    with_broker(scenario)


def test_a_kill_in_a_deletion_leaves_the_topic_with_what_comes_again_of_it_or_neither(
    with_broker, clock, tmp_path, monkeypatch
):
    async def scenario(broker, peer):
        await fill_retry_topic(broker, peer, clock)
        path, copies = broker.store.path, []

        def write(name, raw, really=config_file._write):
            really(name, raw)
            copies.append(tmp_path / f"{len(copies)}")
            # no other table is written beside: `tables_written_apart`
            shutil.copytree(path, copies[-1], ignore=shutil.ignore_patterns("*.tmp"))

        monkeypatch.setattr(config_file, "_write", write)
        await delete(peer)
        monkeypatch.undo()
        found = set()
        for copy in copies:
            async with served(copy) as (_, next_peer):
                found.add(tuple(sorted(bodies(await pop(next_peer)))))
        assert found == {(b"0", b"1", b"2", b"3"), ()}

    with_broker(scenario)
