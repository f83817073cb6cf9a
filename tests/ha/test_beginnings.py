"""From where on a slave gets the log of a master that sends an empty one its last file only."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from ha.pair import (
    fill,
    following,
    frame,
    has_all,
    log_bytes,
    master_store,
    peer_master,
    serving,
    slave_store,
)
from patience import until_async

from rmqcore.errors import CorruptRecordError
from rmqcore.ha import client

pytestmark = pytest.mark.engine

FILE = 16 << 10


@asynccontextmanager
async def rocketmq_master(log, least, heard):
    """Sends a log from ``least`` on as RocketMQ does, after a heart-beat; keeps what it is told."""

    async def play(reader, writer):
        heard.append(int.from_bytes(await reader.readexactly(8)))
        end = len(log)
        at = heard[-1] or end - end % FILE
        writer.write(frame(at) * (1 if at >= least else 3))
        while least <= at < end:
            size = min(3000, FILE - at % FILE, end - at)
            writer.write(frame(at, log[at : at + size]))
            at += size
        while said := await reader.read(8):
            heard.append(int.from_bytes(said))

    async with peer_master(*[play] * 3) as port:
        yield port


def followed(master, slave, known, least=0):
    """What a slave has told a master of RocketMQ's that it follows to the end."""
    log, heard = log_bytes(master, 0), []

    async def scenario():
        async with (
            rocketmq_master(log, least, heard) as port,
            following(slave, port, master if known else None),
        ):
            await until_async(lambda: heard and heard[-1] == len(log), "it has followed")

    asyncio.run(scenario())
    return heard


@pytest.mark.parametrize("known", [True, False])
def test_a_slave_that_has_little_is_not_taken_for_an_empty_one(tmp_path, known):
    with master_store(tmp_path / "m", 300) as master, slave_store(tmp_path / "s") as slave:
        part = list(master.messages())[20].phy_offset
        slave.followed_log.append_data(log_bytes(master)[:part], 0)
        assert followed(master, slave, known)[0] == 1
        assert log_bytes(slave) == log_bytes(master)


@pytest.mark.parametrize("known", [True, False])
def test_an_empty_slave_gets_all_of_it(tmp_path, known):
    with master_store(tmp_path / "m", 300) as master, slave_store(tmp_path / "s") as slave:
        heard = followed(master, slave, known)
        assert heard[:2] == [0, 1] if not known else heard[0] == 1
        assert log_bytes(slave) == log_bytes(master)


def test_an_empty_slave_that_cannot_have_all_of_it_gets_the_last_file(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "QUIET_S", 0)
    with master_store(tmp_path / "m", 300) as master, slave_store(tmp_path / "s") as slave:
        begins = master.max_phy_offset - master.max_phy_offset % FILE
        heard = followed(master, slave, known=False, least=begins)
        # the heart-beat that comes first has nothing that could be acknowledged
        assert heard[:3] == [0, 1, 0]
        assert begins not in heard
        assert slave.min_phy_offset == begins
        assert log_bytes(slave) == log_bytes(master)[begins:]


def test_an_empty_slave_gets_what_its_master_has_not_deleted(tmp_path):
    async def scenario(master, slave):
        async with (
            serving(master, ha_send_heartbeat_interval=20) as service,
            following(slave, service.port),
        ):
            await has_all(slave, master)

    with master_store(tmp_path / "m", 300) as master, slave_store(tmp_path / "later") as later:
        later.followed_log.append_data(log_bytes(master)[2 * FILE :], 2 * FILE)
        with slave_store(tmp_path / "s") as slave:
            asyncio.run(scenario(later, slave))
            assert slave.min_phy_offset == 2 * FILE
            assert log_bytes(slave) == log_bytes(later)


@pytest.mark.parametrize("file_size", [FILE // 2, 2 * FILE])
def test_log_files_of_another_size_are_told(tmp_path, file_size):
    async def scenario(master, slave):
        async with serving(master) as service, following(slave, service.port, master) as client:
            problem = await until_async(lambda: client.problem, "the slave says what is wrong")
            assert "mappedFileSizeCommitLog" in problem

    with (
        master_store(tmp_path / "m", 200) as master,
        slave_store(tmp_path / "s", mapped_file_size_commit_log=file_size) as slave,
    ):
        asyncio.run(scenario(master, slave))
        assert log_bytes(slave) == log_bytes(master)[: slave.followed_log.appended_offset]


def test_no_log_begins_with_what_is_no_record(tmp_path):
    with master_store(tmp_path / "m", 200) as master, slave_store(tmp_path / "s") as slave:
        log = log_bytes(master)
        for wrong in (b"x" * 200, bytes(200), log[:FILE]):
            with pytest.raises(CorruptRecordError):
                slave.followed_log.append_data(wrong, 2 * FILE)
            assert (slave.followed_log.appended_offset, slave.max_phy_offset) == (0, 0)
        slave.followed_log.append_data(log, 0)
        fill(master, 1)
        assert log_bytes(slave) == log


@pytest.mark.parametrize("size", [1, 700, 5000, 16_000])
def test_the_last_record_is_the_one_that_was_put_last(tmp_path, size):
    """Whatever its size, and where a file has just ended; the bytes are those of the log."""
    with master_store(tmp_path / "m") as store:
        log = store.followed_log
        assert log.last_record() is None
        for number in range(100):
            at = store.put("T", b"%d" % (number % 10) * size).phy_offset
            end = store.max_phy_offset
            assert log.last_record() == (at, bytes(log.bytes_at(at, end - at)))
