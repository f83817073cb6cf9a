"""A broker whose tables were lost, or are of before, hides no message and passes over none."""

import asyncio
import shutil
import struct

import pytest
from broker.conftest import records, served
from broker.test_timer import come, taken_in

from rmqcore import open_store
from rmqcore.files.config_tables import TopicConfig
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine


def missing(path):
    path.unlink()


def empty(path):
    path.write_bytes(b"")


def half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def no_entries(path):
    path.write_text("{}")


def restored(path):
    shutil.copy(backup_of(path), path)


def backup_of(path):
    return path.with_name(path.name + ".bak")


def bodies(answer):
    return [message.body for message in records(answer.body)]


def deliver_late(broker, topic):
    """What waited when its topic was deleted comes when its time has come."""
    assert broker.store.put(topic, b"late", properties={"REAL_TOPIC": topic, "REAL_QID": "0"}).ok


async def delete(peer, topic):
    deleted = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    assert deleted.code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("damage", "both"),
    [
        *((damage, False) for damage in (missing, empty, half, no_entries, restored)),
        *((damage, True) for damage in (missing, empty, no_entries)),
    ],
)
def test_topics_that_have_messages_are_known_when_their_table_is_lost(tmp_path, damage, both):
    async def scenario():
        async with served(tmp_path / "store") as (_, peer):
            for topic in ("Gone", "First", "Last"):
                assert (await peer.send(topic, b"of %s" % topic.encode())).code == 0
                if topic == "First":
                    await delete(peer, "Gone")
            # the backup is of before it
            assert (await peer.send("Newest", b"sent", queue_id=3)).code == 0
        topics = tmp_path / "store" / "config" / "topics.json"
        damage(topics)
        if both:
            damage(backup_of(topics))
        for _ in range(2):
            async with served(tmp_path / "store") as (broker, peer):
                for topic in ("First", "Last"):
                    assert bodies(await peer.pull(topic)) == [b"of %s" % topic.encode()]
                assert bodies(await peer.pull("Newest", queue_id=3)) == [b"sent"]
                assert broker.store.topics.get("Gone") is None

    asyncio.run(scenario())


@pytest.mark.parametrize("deleted", [False, True])
def test_a_table_of_topics_of_yesterday_hides_no_topic_and_brings_none_back(tmp_path, deleted):
    async def scenario():
        topics = tmp_path / "store" / "config" / "topics.json"
        for topic in ("First", "Second", "Third"):
            async with served(tmp_path / "store") as (broker, peer):
                assert (await peer.send(topic, b"of %s" % topic.encode())).code == 0
                if topic == "Third" and deleted:
                    await delete(peer, "Second")
                    deliver_late(broker, "Second")
            if topic == "First":
                shutil.copy(topics, tmp_path / "yesterday")
        shutil.copy(tmp_path / "yesterday", topics)
        async with served(tmp_path / "store") as (broker, peer):
            for topic in ("First", "Third", *(() if deleted else ("Second",))):
                assert bodies(await peer.pull(topic)) == [b"of %s" % topic.encode()]
            assert (broker.store.topics.get("Second") is None) == deleted

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["sent", "waited", "forwarded"])
def test_a_table_of_yesterday_hides_no_topic_that_was_deleted_and_made_again(tmp_path, how):
    async def scenario():
        topics = tmp_path / "store" / "config" / "topics.json"
        async with served(tmp_path / "store") as (_, peer):
            await peer.send("T", b"old")
            await delete(peer, "T")
        shutil.copy(topics, tmp_path / "yesterday")
        async with served(tmp_path / "store") as (broker, peer):
            if how == "waited":
                assert broker.store.put("T", b"new", delay_level=18).ok
                deliver_late(broker, "T")
            elif how == "forwarded":
                waited = {"REAL_TOPIC": "Before", "REAL_QID": "0"}
                assert broker.store.put("T", b"new", properties=waited).ok
            else:
                await peer.send("T", b"new")
            # yesterday's is older than the backup
            await peer.send("Other", b"sent")
            await peer.send("Another", b"sent")
        shutil.copy(tmp_path / "yesterday", topics)
        async with served(tmp_path / "store") as (broker, peer):
            assert broker.store.topics.get("T") is not None
            assert bodies(await peer.pull("T")) == [b"late" if how == "waited" else b"new"]

    asyncio.run(scenario())


@pytest.mark.parametrize("has_table", [False, True])
def test_topics_of_a_store_that_a_program_has_filled_are_known(tmp_path, has_table):
    """Its table of topics, where it has one, lists those of its key-value tables alone."""
    small = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 1000}
    settings = {**small, "max_index_num": 4000, "deliver_delayed": True}
    with open_store(tmp_path / "store", **settings) as store:
        if has_table:
            store.kv_put("table", b"key", b"value")
        assert store.put("T", b"embedded", queue_id=9).ok
        assert store.put("Later", b"delayed", delay_level=18).ok
    assert store.topics.path.exists() == has_table

    async def scenario():
        async with served(tmp_path / "store") as (broker, peer):
            assert bodies(await peer.pull("T", queue_id=9)) == [b"embedded"]
            assert broker.store.topics.get("Later") is not None
            assert broker.store.kv_get("table", [b"key"]) == [b"value" if has_table else None]

    asyncio.run(scenario())


@pytest.mark.parametrize("damage", [None, missing, empty, no_entries])
def test_it_is_told_that_nobody_knows_what_groups_have_consumed(tmp_path, damage, caplog):
    async def scenario():
        async with served(tmp_path / "store") as (broker, peer):
            for number in range(3):
                await peer.send("T", b"%d" % number)
            broker.managers.offsets.commit("CG", "T", 0, 3)
        table = tmp_path / "store" / "config" / "consumerOffset.json"
        assert not is_told()
        if damage is not None:
            damage(table)
            backup_of(table).unlink(missing_ok=True)
        async with served(tmp_path / "store") as (broker, _):
            known = broker.store.consumer_offsets.get("T", "CG", 0)
            assert (known, is_told()) == ((None, True) if damage else (3, False))
        caplog.clear()
        async with served(tmp_path / "store"):
            assert not is_told()

    def is_told():
        return "consumerOffset.json is lost" in caplog.text

    asyncio.run(scenario())


@pytest.mark.parametrize("damage", [missing, empty, half, restored])
def test_no_backup_says_what_was_consumed_of_a_topic_that_was_deleted(tmp_path, damage):
    """It would pass over the messages of the next topic of that name."""

    async def scenario():
        async with served(tmp_path / "store") as (broker, peer):
            for number in range(3):
                await peer.send("T", b"old %d" % number)
            broker.managers.offsets.commit("CG", "T", 0, 3)
            broker.store.consumer_offsets.persist()
            await delete(peer, "T")
            for number in range(4):
                await peer.send("T", b"new %d" % number)
        damage(tmp_path / "store" / "config" / "consumerOffset.json")
        async with served(tmp_path / "store") as (broker, peer):
            assert broker.store.consumer_offsets.get("T", "CG", 0) is None
            answer = await peer.pull("T", offset=3)
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            assert answer.ext_fields["nextBeginOffset"] == "0"

    asyncio.run(scenario())


def test_a_topic_that_was_deleted_before_its_first_message_came_does_not_come_back(tmp_path):
    """A delayed one comes later, and makes a queue without making the topic."""

    async def scenario():
        async with served(tmp_path / "store") as (broker, peer):
            await peer.send("Other", b"before")
            broker.managers.topics.put(TopicConfig(topic_name="T"))
            await delete(peer, "T")
            deliver_late(broker, "T")
        async with served(tmp_path / "store") as (broker, peer):
            assert ("T", 0) in broker.store.queues()
            assert broker.store.topics.get("T") is None

    asyncio.run(scenario())


@pytest.mark.parametrize("damage", ["missing", "a flipped bit", "other bytes"])
def test_a_progress_file_that_is_lost_or_rotted_hides_no_message(
    with_broker, tmp_path, clock, damage, caplog
):
    """RocketMQ's bytes have no CRC: a read time that is still to come counts no message."""

    async def first(broker, peer):
        for delay_s in (0, 3600):
            deliver = str(clock.now_ms + delay_s * 1000 + 50)
            await peer.send("T", b"%d" % delay_s, properties={"TIMER_DELIVER_MS": deliver})
        await taken_in(broker, 2)
        clock.go_on(50, broker)
        await come(peer, "T", 1)

    with_broker(first)
    path, raw = tmp_path / "store" / "config" / "timercheck", bytearray(4096)
    read_ms = clock.now_ms // 1000 * 1000 + 1000
    struct.pack_into(">7q", raw, 0, read_ms | 1 << 50, 0, 2, 2, 0, clock.now_ms, 3)
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(raw if damage == "a flipped bit" else b"\x51" * 4096)
    caplog.clear()

    async def again(broker, peer):
        # not before its time; what came already comes once more
        assert [m.body for m in await come(peer, "T", 2)] == [b"0", b"0"]
        clock.go_on(3_600_000, broker)
        assert (await come(peer, "T", 3))[-1].body == b"3600"

    with_broker(again)
    assert f"{path} is missing or cannot be right" in caplog.text
