"""Puts into a SYNC_MASTER wait for slaves, with the statuses of RocketMQ 4.9."""

import asyncio
import threading
import warnings
from contextlib import asynccontextmanager

import pytest
from ha.pair import Clock, following, master_store, serving, slave_store
from patience import TIMEOUT_S, until_async

from rmqcore.errors import ConfigError, ConfigWarning, PutMessageError
from rmqcore.ha import HAConfig
from rmqcore.ha.sockets import address_text
from rmqcore.message import Message
from rmqcore.status import PutMessageStatus

pytestmark = pytest.mark.engine

#: no put is told that a slave is late: whoever waits for that waits longer than any test
NEVER_MS = 3_600_000


@asynccontextmanager
async def raw_slave(service, store):
    """A slave that says what it is told to say."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)

    async def read_on():
        while await reader.read(1 << 16):
            pass

    task = asyncio.get_running_loop().create_task(read_on())

    def mine():
        place = address_text(writer.get_extra_info("sockname"))
        return next((one for one in service.connections if one.address == place), None)

    async def report(offset):
        # nobody reports what was not sent
        await until_async(lambda: mine().next_offset >= offset, "the master has sent it")
        await say(offset)

    async def say(offset):
        writer.write(offset.to_bytes(8))
        await until_async(lambda: mine().ack_offset == offset, "the report has arrived")

    await until_async(mine, "the master has taken the connection")
    await say(store.max_phy_offset)
    try:
        yield report
    finally:
        task.cancel()
        writer.close()


def on_master(path, scenario, role="SYNC_MASTER", **settings):
    async def main(store):
        async with serving(store, **{"slave_timeout": 300, **settings}) as service:
            await scenario(store, service)

    with master_store(path / "m", role=role) as store:
        asyncio.run(main(store))


async def put(store, **more):
    return await store.put_message_async(Message("T", b"x", **more))


async def follows(service):
    await until_async(
        lambda: any(one.ack_offset == one.next_offset == 0 for one in service.connections),
        "a slave follows, and the master has begun with its first byte",
    )


async def stored(store, count):
    await until_async(lambda: store.max_queue_offset("T", 0) == count, "it is stored")


def test_without_a_slave_it_is_said_at_once_and_stored(tmp_path):
    async def scenario(store, _):
        async with asyncio.timeout(TIMEOUT_S):
            receipt = await put(store)
        assert receipt.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        assert (receipt.durability, receipt.queue_offset) == ("page_cache", 0)
        assert store.max_queue_offset("T", 0) == 1
        with pytest.raises(PutMessageError, match="stored here"):
            await asyncio.to_thread(store.put, "T", b"x")

    on_master(tmp_path, scenario, slave_timeout=NEVER_MS)


def test_a_slave_that_does_not_acknowledge_is_waited_for_as_long_as_asked(tmp_path):
    async def scenario(store, service):
        async with raw_slave(service, store):
            loop, timers = asyncio.get_running_loop(), []
            call_at = loop.call_at

            def watched(when, work, *more):
                if work.__name__ == "_expire":
                    timers.append(when - loop.time())
                return call_at(when, work, *more)

            loop.call_at = watched
            began = loop.time()
            receipt = await put(store)
            assert receipt.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
            assert loop.time() - began >= 0.2
            (waited,) = timers
            assert waited <= 0.2

    on_master(tmp_path, scenario, slave_timeout=200)


def test_a_slave_that_lacks_one_byte_is_waited_for(tmp_path):
    async def scenario(store, service):
        async with raw_slave(service, store) as report:
            waiting = asyncio.create_task(put(store))
            await stored(store, 1)
            # one byte less is not all of it
            await report(store.max_phy_offset - 1)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not waiting.done()
            await report(store.max_phy_offset)
            receipt = await waiting
            assert (receipt.status, receipt.durability) == (PutMessageStatus.PUT_OK, "replicated")

    on_master(tmp_path, scenario, slave_timeout=NEVER_MS)


def test_what_a_slave_says_it_has_when_it_comes_answers_no_put(tmp_path):
    """Its log may be another, of the same length: nobody has compared yet."""

    async def scenario(store, service):
        async with raw_slave(service, store):
            waiting = asyncio.create_task(put(store))
            await stored(store, 1)
            async with raw_slave(service, store) as report:
                for _ in range(20):
                    await asyncio.sleep(0)
                assert not waiting.done()
                store.put("T", b"more", durability="page_cache")
                await report(store.max_phy_offset)
                assert (await waiting).status is PutMessageStatus.PUT_OK

    on_master(tmp_path, scenario, slave_timeout=NEVER_MS)


def test_who_does_not_want_to_wait_does_not(tmp_path):
    async def scenario(store, _):
        assert (await put(store, wait_store_msg_ok=False)).durability == "page_cache"
        with_disk = await store.put_async("T", b"x", durability="disk")
        assert (with_disk.ok, with_disk.durability) == (True, "disk")
        assert (await store.put_async("T", b"x", durability="page_cache")).ok

    on_master(tmp_path, scenario)


def test_an_async_master_waits_when_asked_only(tmp_path):
    async def scenario(store, service):
        assert (await put(store)).durability == "page_cache"
        async with raw_slave(service, store) as report:
            waiting = asyncio.create_task(store.put_async("T", b"x", durability="replicated"))
            await stored(store, 2)
            await report(store.max_phy_offset)
            assert (await waiting).durability == "replicated"

    on_master(tmp_path, scenario, role="ASYNC_MASTER", slave_timeout=NEVER_MS)
    with (
        master_store(tmp_path / "alone", role="SYNC_MASTER") as store,
        pytest.raises(ConfigError, match="HAService"),
    ):
        store.put("T", b"x", durability="replicated")


def test_a_slave_that_is_too_far_behind_does_not_count(tmp_path):
    async def scenario(store, service):
        async with raw_slave(service, store):
            first = await put(store)
            assert first.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
            for _ in range(3):
                last = await put(store)
            assert last.status is PutMessageStatus.SLAVE_NOT_AVAILABLE

    on_master(tmp_path, scenario, ha_max_gap_not_in_sync=200, slave_timeout=50)


@pytest.mark.parametrize(("replicas", "status"), [(1, "PUT_OK"), (3, "SLAVE_NOT_AVAILABLE")])
def test_as_many_replicas_as_asked_for_are_waited_for(tmp_path, replicas, status):
    async def scenario(store, service):
        async with raw_slave(service, store) as report:
            assert (await put(store)).status.name == status
            if replicas == 3:
                async with raw_slave(service, store):
                    assert (await put(store)).status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
                    waiting = asyncio.create_task(put(store))
                    await stored(store, 3)
                    await report(store.max_phy_offset)
                    assert (await waiting).status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT

    on_master(tmp_path, scenario, in_sync_replicas=replicas)


def test_sending_to_slaves_leaves_dispatch_to_its_thread(tmp_path, monkeypatch):
    """On the event loop, dispatch would stand between a slave's report and the put's answer."""

    async def scenario(store, service):
        threads = set()
        catch_up_all = store.parts.level.catch_up_all
        monkeypatch.setattr(
            store.parts.level,
            "catch_up_all",
            lambda: (threads.add(threading.get_ident()), catch_up_all()),
        )
        with slave_store(tmp_path / "s") as slave:
            async with following(slave, service.port, store):
                await follows(service)
                threads.clear()
                for _ in range(20):
                    assert (await put(store)).durability == "replicated"
                assert threading.get_ident() not in threads

    on_master(tmp_path, scenario, slave_timeout=NEVER_MS)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_is_replicated_is_on_the_slave(tmp_path, flush):
    async def scenario(master, slave):
        async with (
            serving(master, slave_timeout=NEVER_MS) as service,
            following(slave, service.port, master),
        ):
            await follows(service)
            for number in range(20):
                receipt = await put(master, queue_id=number % 2)
                assert (receipt.ok, receipt.durability) == (True, "replicated")
                assert slave.max_phy_offset >= receipt.phy_offset + receipt.store_size
            receipt = await asyncio.to_thread(master.put, "T", b"y")
            assert receipt.durability == "replicated"
            # readers of a slave under SYNC_FLUSH wait for its disk
            await until_async(lambda: slave.get_message("T", 0, 10).messages, "it can be read")
            assert slave.get_message("T", 0, 10).messages[0].body == b"y"
            many = await asyncio.gather(*(put(master) for _ in range(200)))
            assert {receipt.durability for receipt in many} == {"replicated"}
            await stored(slave, 211)

    with (
        master_store(tmp_path / "m", role="SYNC_MASTER", flush_disk_type=flush) as master,
        slave_store(tmp_path / "s", flush_disk_type=flush) as slave,
    ):
        asyncio.run(scenario(master, slave))


def test_the_settings_have_rocketmqs_names():
    config = HAConfig.from_properties(
        {"haSlaveFallbehindMax": "1000", "inSyncReplicas": "3", "brokerName": "b"}
    )
    assert (config.ha_max_gap_not_in_sync, config.in_sync_replicas) == (1000, 3)
    with pytest.raises(ConfigError, match="contradicts"):
        HAConfig.from_properties({"haSlaveFallbehindMax": "1", "haMaxGapNotInSync": "2"})
    with pytest.raises(ConfigError, match="at most"):
        HAConfig.from_properties({"haTransferBatchSize": str(8 << 20)})


def test_flow_control_bounds_what_is_sent_a_second(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)

    async def scenario(master, slave):
        settings = {"ha_flow_control_enable": True, "max_ha_transfer_byte_in_second": 10_000}
        async with serving(master, **settings) as service, following(slave, service.port):
            for count in (1, 2, 3):
                await until_async(
                    lambda count=count: slave.followed_log.appended_offset >= 10_000 * count,
                    f"second {count} has brought what it may",
                )
                # and nothing else, as long as it is not over
                await clock.go_on(0.99, service)
                assert slave.followed_log.appended_offset == 10_000 * count
                await clock.go_on(0.01, service)

    with master_store(tmp_path / "m", 300) as master, slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(master, slave))


def test_a_sync_master_that_nobody_serves_says_so_once(tmp_path):
    def put(store):
        return store.put("T", b"x")

    async def put_async(store):
        return await store.put_async("T", b"x")

    def first(store):
        return asyncio.run(put_async(store))

    for name, begin in (("threads", put), ("loop", first)):
        with master_store(tmp_path / name, role="SYNC_MASTER") as store:
            with pytest.warns(ConfigWarning, match="no HAService"):
                assert begin(store).durability == "page_cache"
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert put(store).durability == "page_cache"
    with master_store(tmp_path / "async") as store, warnings.catch_warnings():
        warnings.simplefilter("error")
        put(store)


def test_a_sync_master_that_is_served_before_its_first_put_does_not(tmp_path):
    async def scenario(store, _):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert (await put(store)).status is PutMessageStatus.SLAVE_NOT_AVAILABLE

    on_master(tmp_path, scenario)
