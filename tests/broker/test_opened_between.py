"""A program opens a broker's store between two lives of the broker, and changes it."""

import asyncio
import struct
from functools import partial

import pytest
from broker.conftest import records, served
from broker.test_pop import acknowledge, comes_again, handed_out, pop
from broker.test_state import COMMITS, bodies, commit
from broker.test_transactions import COMMIT, decision, send_half
from killed_copy import copy_as_killed
from patience import rounds, until_async

from rmqcore import open_store
from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.services.retention import DiskUsage

pytestmark = pytest.mark.engine

NEW = [b"new %d" % number for number in range(8)]


async def fill(peer):
    for number in range(5):
        assert (await peer.send("T", b"old %d" % number)).code == ResponseCode.SUCCESS


def make_anew(path):
    """Delete a topic, and put other messages to one of its name."""
    with open_store(path) as store:
        assert store.delete_topic("T")
        for body in NEW:
            store.put("T", body)


@pytest.fixture
def between(tmp_path):
    """Run one life of a broker, what a program does, and another life.

    Where the first is killed, the second begins with a copy of what that leaves.
    """

    def run(first, changes, second, *, killed=False):
        path = tmp_path / "store"

        async def main():
            async with served(path) as (broker, peer):
                await first(broker, peer)
                if killed:
                    await asyncio.to_thread(copy_as_killed, path, tmp_path / "killed")
            left = tmp_path / "killed" if killed else path
            changes(left)
            async with served(left) as (broker, peer):
                await second(broker, peer)

        asyncio.run(main())

    return run


@pytest.mark.parametrize("killed", [False, True])
def test_who_has_read_a_topic_that_was_deleted_passes_over_nothing_of_the_new_one(between, killed):
    async def first(_, peer):
        await fill(peer)
        await peer.pull("T", offset=5, sysFlag=COMMITS, commitOffset=5)

    async def second(_, peer):
        moved = await peer.pull("T", offset=5, sysFlag=COMMITS, commitOffset=5)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.ext_fields["nextBeginOffset"] == "0"
        assert [message.body for message in records((await peer.pull("T")).body)] == NEW

    between(first, make_anew, second, killed=killed)


def test_nor_of_one_that_is_made_anew_when_the_broker_serves_again(between):
    async def first(_, peer):
        await fill(peer)
        await peer.pull("T", offset=5, sysFlag=COMMITS, commitOffset=5)

    def delete(path):
        with open_store(path) as store:
            assert store.delete_topic("T")

    async def second(_, peer):
        for body in NEW:
            assert (await peer.send("T", body)).code == ResponseCode.SUCCESS
        moved = await peer.pull("T", offset=5, sysFlag=COMMITS, commitOffset=5)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.ext_fields["nextBeginOffset"] == "0"
        assert [message.body for message in records((await peer.pull("T")).body)] == NEW

    between(first, delete, second)


def test_what_was_popped_of_a_topic_that_was_deleted_hands_out_nothing_of_the_new_one_twice(
    between, clock
):
    async def first(_, peer):
        await fill(peer)
        await commit(peer, 0)
        assert len(bodies(await pop(peer, invisible_ms=1000))) == 5

    async def second(broker, peer):
        clock.go_on(60_000)
        while comes_again(broker):
            pass
        assert [body for _ in range(3) for body in bodies(await pop(peer))] == NEW

    between(first, make_anew, second)


def test_an_acknowledgement_of_before_passes_over_nothing_of_a_topic_made_anew(between, clock):
    got = []

    async def first(_, peer):
        await fill(peer)
        await commit(peer, 0)
        got.extend(handed_out(await pop(peer, order="true", queue_id=0)))

    async def second(broker, peer):
        assert len(got) == 5
        clock.go_on(1000)
        assert bodies(await pop(peer, order="true", invisible_ms=1000, queue_id=0)) == NEW
        for message, receipt in got:
            await acknowledge(peer, message, receipt)
        clock.go_on(60_000, broker)
        assert bodies(await pop(peer, order="true", queue_id=0)) == NEW

    between(first, make_anew, second)


@pytest.fixture
def loses_end(tmp_path):
    """Put others in the place of what the log has lost from a record on."""
    places = []

    def change(path):
        log = path / "commitlog" / f"{0:020d}"
        raw = log.read_bytes()
        log.write_bytes(raw[: places[0]].ljust(len(raw), b"\0"))
        with open_store(path, on_corruption="truncate") as store:
            assert store.max_queue_offset("T", 0) == 2
            for body in NEW:
                store.put("T", body)

    change.places = places
    return change


@pytest.mark.parametrize("killed", [False, True])
def test_who_has_read_what_is_lost_passes_over_nothing_that_was_put_in_its_place(
    between, loses_end, killed
):
    async def first(broker, peer):
        await fill(peer)
        loses_end.places.append(broker.store.get_message("T", 0, 2).messages[0].phy_offset)
        await peer.pull("T", offset=1, sysFlag=COMMITS, commitOffset=1)
        await asyncio.to_thread(broker.store.consumer_offsets.persist)

    async def second(_, peer):
        moved = await peer.pull("T", offset=5, sysFlag=COMMITS, commitOffset=5)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.ext_fields["nextBeginOffset"] == "1"
        unknown = await peer.pull("T", offset=5, group="Other", sysFlag=COMMITS, commitOffset=5)
        assert unknown.code == ResponseCode.PULL_OFFSET_MOVED
        assert unknown.ext_fields["nextBeginOffset"] == "2"

    between(first, loses_end, second, killed=killed)


def test_a_broker_that_skips_what_is_damaged_starts_behind_what_was_put_meanwhile(tmp_path, rng):
    killed = tmp_path / "killed"

    async def main():
        async with served(tmp_path / "store") as (_, peer):
            await fill(peer)
            await asyncio.to_thread(copy_as_killed, tmp_path / "store", killed)
        with open_store(killed, max_hash_slot_num=1000, max_index_num=4000) as store:
            for body in (b"damaged", *NEW, *(rng.randbytes(100_000) for _ in range(60))):
                store.put("T", body)
            at = store.get_message("T", 0, 5).messages[0].phy_offset
        with (killed / "commitlog" / f"{0:020d}").open("r+b") as log:
            log.seek(at)
            log.write(b"\xff" * 50)
        async with served(killed, on_corruption="skip") as (_, peer):
            moved = await peer.pull("T", offset=9, sysFlag=COMMITS, commitOffset=9)
            assert moved.code == ResponseCode.PULL_OFFSET_MOVED
            assert moved.ext_fields["nextBeginOffset"] == "6"
            pulled = await peer.pull("T", offset=6)
            assert records(pulled.body)[0].body == NEW[0]

    asyncio.run(main())


def test_an_order_of_what_is_lost_passes_over_nothing_that_was_put_in_its_place(
    between, loses_end, clock
):
    got = []

    async def first(broker, peer):
        await fill(peer)
        loses_end.places.append(broker.store.get_message("T", 0, 2).messages[0].phy_offset)
        await commit(peer, 0)
        got.extend(handed_out(await pop(peer, order="true", queue_id=0)))

    async def second(_, peer):
        for message, receipt in got:
            await acknowledge(peer, message, receipt)
        clock.go_on(1000)
        old = [b"old 0", b"old 1"]
        assert bodies(await pop(peer, order="true", queue_id=0)) == [*old, *NEW]

    between(first, loses_end, second)


def test_what_a_program_has_consumed_behind_what_was_lost_comes_not_again(between, loses_end):
    async def first(broker, peer):
        await fill(peer)
        loses_end.places.append(broker.store.get_message("T", 0, 2).messages[0].phy_offset)
        await peer.pull("T", offset=5, sysFlag=COMMITS, commitOffset=5)

    def consumes(path):
        loses_end(path)
        with open_store(path) as store:
            assert store.consumer_offsets.get("T", "CG", 0) == 2
            store.consumer_offsets.commit("T", "CG", 0, 6)

    async def second(_, peer):
        assert [m.body for m in records((await peer.pull("T", offset=6)).body)] == NEW[4:]

    between(first, consumes, second)


def test_a_broker_that_deletes_a_topic_and_ends_sends_nobody_back_who_has_read_on(lives):
    async def first(_, peer):
        await fill(peer)
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        await fill(peer)
        assert len(records((await peer.pull("T")).body)) == 5
        await peer.pull("T", offset=5, sysFlag=COMMITS, commitOffset=5)

    async def second(_, peer):
        await peer.send("T", b"next")
        assert [m.body for m in records((await peer.pull("T", offset=5)).body)] == [b"next"]

    lives(first, second)


WAITING = {"timer": {"TIMER_DELAY_SEC": "200000"}, "level": {"DELAY": "18"}, "half": None}


@pytest.mark.parametrize("what", WAITING)
def test_retention_deletes_nothing_that_waits_for_the_broker(between, clock, rng, what):
    sent = []

    async def first(_, peer):
        if WAITING[what] is None:
            sent.append(await send_half(peer, b"waits"))
        else:
            await peer.send("T", b"waits", properties=WAITING[what])
        for _ in range(30):
            await peer.send("Filling", rng.randbytes(100_000))

    def delete(path):
        with open_store(path, retention_bytes=1 << 20) as store:
            rounds(store.parts.upkeep.retention, 3)
            assert store.min_phy_offset == 0

    async def second(broker, peer):
        clock.go_on(250_000_000, broker)
        if sent:
            answer = await peer.ask(RequestCode.END_TRANSACTION, decision(sent[0], COMMIT))
            assert answer.code == ResponseCode.SUCCESS
        await until_async(lambda: broker.store.max_queue_offset("T", 0) == 1, "it comes")

    between(first, delete, second)


def test_retention_deletes_timer_messages_that_rocketmqs_broker_has_delivered(between, clock, rng):
    async def first(broker, peer):
        await peer.send("T", b"comes", properties={"TIMER_DELAY_MS": "5000"})
        clock.go_on(10_000, broker)
        await until_async(lambda: broker.store.max_queue_offset("T", 0) == 1, "it comes")
        for number in range(30):
            if number == 15:
                await peer.send("T", b"waits", properties=WAITING["timer"])
            await peer.send("Filling", rng.randbytes(100_000))

    def delete(path):
        second_ms = clock.now_ms // 1000 * 1000
        check = struct.pack(">7q", second_ms, 104, 2, 2, 0, second_ms, 3)
        (path / "config" / "timercheck").write_bytes(check.ljust(4096, b"\0"))
        with open_store(path, retention_bytes=1 << 20) as store:
            rounds(store.parts.upkeep.retention, 3)
            assert store.min_phy_offset == 1 << 20
            assert store.get_message("rmq_sys_wheel_timer", 0, 1).messages

    async def second(broker, _):
        clock.go_on(250_000_000, broker)
        await until_async(lambda: broker.store.max_queue_offset("T", 0) == 2, "it comes")

    between(first, delete, second)


@pytest.mark.parametrize("name", ["timercheck", "delayOffset.json"])
def test_a_full_disk_is_emptied_though_nobody_can_tell_what_waits(
    store_path, rng, monkeypatch, name
):
    with open_store(store_path, mapped_file_size_commit_log=1 << 16) as store:
        for _ in range(9):
            store.put("T", rng.randbytes(1 << 15))
    with open_store(store_path, retention_bytes=1 << 20) as store:
        (store_path / "config" / name).unlink(missing_ok=True)
        (store_path / "config" / name).symlink_to(name)
        rounds(store.parts.upkeep.retention, 3)
        assert (store.min_phy_offset, store.why_not_writable()) == (0, None)
        full = partial(DiskUsage, 95, 5)
        monkeypatch.setattr(store.parts.upkeep.retention.clean_log, "_usage", full)
        rounds(store.parts.upkeep.retention, 3)
        assert store.min_phy_offset > 0


def test_a_store_where_nobody_can_tell_what_waits_takes_puts_and_deletes_nothing(store_path, rng):
    small = {"mapped_file_size_commit_log": 1 << 16}
    with open_store(store_path, **small) as store:
        store.put("T", b"x")
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        (store_path / "config" / name).write_text("rotten")
    with open_store(store_path, retention_bytes=1 << 17) as store:
        for _ in range(9):
            store.put("T", rng.randbytes(1 << 15))
        rounds(store.parts.upkeep.retention, 3)
        assert (store.min_phy_offset, store.why_not_writable()) == (0, None)
