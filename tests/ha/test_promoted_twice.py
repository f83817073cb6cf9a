"""A master falls out again before it has told where groups go on that have read what was lost."""

import asyncio

import pytest
from ha.pair import following, has_all, master_store, serving, slave_store
from ha.test_brokers import SMALL, asks_when_told, running  # noqa: F401 - a fixture
from ha.test_promoted_anew import sent_to
from patience import until_async

from rmqcore import open_store
from rmqcore.broker import Broker
from rmqcore.client import Producer
from rmqcore.files.store_dir import StoreDir
from rmqcore.ha.resync import Divergence, cut

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("asks_when_told")]

BOTH, LOST, NEW = 7, 3, 5
END = BOTH + NEW


async def in_its_place(pair, path, **properties):
    """Let a broker of a store be the pair's slave, whatever its role; the one before is stopped."""
    await pair.slave.stop()
    pair.slave = Broker(path, {**SMALL, "namesrvAddr": pair.namesrv, **properties})
    await pair.slave.start()


async def follows_to_the_end(slave, master):
    await until_async(
        lambda: slave.store.followed_log.appended_offset == master.store.max_phy_offset,
        "the slave has all of the log",
    )


async def given_back(pair, path, *, told):
    """The master loses its end, its slave leads for a while, and the former master follows it.

    Args:
        pair: master and slave.
        path: of both.
        told: whether the former master is told of groups before it leads again.

    Returns:
        the former master's store, when none of the pair has it open.
    """
    async with Producer(pair.namesrv) as producer:
        for number in range(BOTH):
            await producer.send("T", b"both %d" % number, queue_id=0)
        await pair.in_step()
        await pair.slave.stop()
        end = pair.master.store.max_phy_offset
        for number in range(LOST):
            await producer.send("T", b"lost %d" % number, queue_id=0)
    pair.master.managers.offsets.commit("CG", "T", 0, BOTH + LOST)
    await pair.master.stop()
    new = Broker(path / "s", {**SMALL, "namesrvAddr": pair.namesrv, "brokerRole": "ASYNC_MASTER"})
    await new.start()
    try:
        for number in range(NEW):
            new.store.put("T", b"new %d" % number)
        cut(StoreDir(path / "m"), Divergence(0, end, 1 << 20, False))
        open_store(path / "m", on_corruption="truncate", broker_role="SLAVE").close()
        await in_its_place(pair, path / "m", brokerRole="SLAVE", brokerId=1)
        await follows_to_the_end(pair.slave, new)
        if told:
            await pair.synchronize()
    finally:
        await new.stop()


@pytest.mark.parametrize("told", [False, True], ids=["not told", "told"])
def test_who_never_came_to_the_master_between_passes_over_nothing_of_it(tmp_path, told):
    async def scenario():
        async with running(tmp_path) as pair:
            await given_back(pair, tmp_path, told=told)
            await in_its_place(pair, tmp_path / "m", brokerRole="ASYNC_MASTER")
            for group in ("CG", "UNKNOWN"):
                assert await sent_to(pair, BOTH + LOST, group) == BOTH
                assert await sent_to(pair, BOTH, group) is None

    asyncio.run(scenario())


def test_where_a_slaves_log_ends_is_told_before_a_masters_goes_on_behind_it(tmp_path):
    """Over each connection: it may be another master's, which was shorter than the one before."""
    ends = []

    async def scenario(master, slave):
        async with serving(master) as service:
            for _ in range(2):
                async with following(slave, service.port, master, follows=ends.append):
                    master.put("T", b"x")
                    await has_all(slave, master)
        assert ends == [0, slave.max_phy_offset // 2]

    with master_store(tmp_path / "m") as master, slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(master, slave))
