"""A log that is fetched from the other side, whose frames and rests tell where it ends."""

import asyncio

import pytest
from ha.pair import log_bytes, master_store, serving, slave_store
from patience import TIMEOUT_S

from rmqcore.ha import resync
from rmqcore.ha.resync import fetch

pytestmark = pytest.mark.engine
QUICK = {"ha_send_heartbeat_interval": 20}
ALIKE = b"x" * 200


@pytest.fixture(autouse=True)
def shorter_rests(monkeypatch):
    monkeypatch.setattr(resync, "QUIET_S", 0.5)


@pytest.mark.parametrize("hangs_up", [False, True])
def test_a_fetch_of_small_frames_comes_to_the_end(tmp_path, monkeypatch, hangs_up):
    """By its settings the other side sends no larger ones, however much there is.

    RocketMQ hangs up on who says to have more than it has.
    """
    monkeypatch.setattr(resync, "_GROWS_S", 0)
    sends = resync._sends

    async def asked(address, offset):
        if hangs_up and offset > end:
            raise ConnectionResetError(f"{address}: it has closed the connection")
        return await sends(address, offset)

    async def scenario(master, slave):
        async with serving(master, **QUICK, ha_transfer_batch_size=1024) as service:
            return await fetch(slave.followed_log, f"127.0.0.1:{service.port}")

    monkeypatch.setattr(resync, "_sends", asked)
    with master_store(tmp_path / "m", 300) as master, slave_store(tmp_path / "s") as slave:
        end = master.max_phy_offset
        assert asyncio.run(scenario(master, slave)) == end
        assert log_bytes(slave) == log_bytes(master)


def test_a_fetch_from_a_master_that_never_rests_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(resync, "_GROWS_S", 0.1)

    async def scenario(master, slave):
        async def put():
            while True:
                await master.put_async("T", ALIKE)
                await asyncio.sleep(0)

        async with serving(master, **QUICK) as service:
            before, putting = master.max_phy_offset, asyncio.create_task(put())
            async with asyncio.timeout(TIMEOUT_S):
                assert await fetch(slave.followed_log, f"127.0.0.1:{service.port}") >= before
            putting.cancel()
            await asyncio.wait([putting])

    with master_store(tmp_path / "m", 300) as master, slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(master, slave))
        log = log_bytes(slave)
        assert log == log_bytes(master)[: len(log)]


@pytest.mark.parametrize("slower_s", [0, 0.2])
def test_a_fetch_from_a_master_that_grows_slowly_ends_in_seconds(monkeypatch, slower_s):
    """300 bytes twice a second, or later and later: a MiB of them takes half an hour."""
    now, end, pause_s = 0.0, 300, 0.5

    async def sends(_address, offset):
        nonlocal now
        if offset > end:
            now += resync.QUIET_S
        return offset < end

    async def fetched():
        nonlocal now, end, pause_s
        asyncio.get_running_loop().time = lambda: now
        growth = resync._Growth("127.0.0.1:1", 0)
        while not await growth.is_all(end, 300):
            now += pause_s
            end += 300
            pause_s += slower_s

    monkeypatch.setattr(resync, "_sends", sends)
    asyncio.run(fetched())
    assert now < 60
