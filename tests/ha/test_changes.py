"""What changes while a slave follows, or before it does: files, disks, roles, ends of files."""

import asyncio
import gc
import shutil
import threading

import pytest
from ha.pair import (
    Clock,
    all_gone,
    config,
    derived,
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
from killed_copy import copy_as_killed
from patience import TIMEOUT_S, until_async

from crash.conftest import small_disk
from crash.test_disk_full import ROOT_ONLY
from crash.test_disk_full import fill as fill_disk
from rmqcore.errors import DiskFullError
from rmqcore.ha import HAClient, resync
from rmqcore.ha.client import HAState, LogRange
from rmqcore.services.allocate import AllocateMappedFileService
from rmqcore.services.event_loop import to_the_end

pytestmark = pytest.mark.engine

FILE = 16 << 10
__all__ = ["small_disk"]


def catch_up(master, slave, **settings):
    async def scenario():
        async with (
            serving(master, **settings) as service,
            following(slave, service.port, master) as client,
        ):
            await until_async(
                lambda: (
                    client.problem
                    or [one.ack_offset for one in service.connections] == [master.max_phy_offset]
                ),
                "the slave has reported all of it, or says what is wrong",
            )
            assert client.problem is None

    asyncio.run(scenario())
    assert log_bytes(slave) == log_bytes(master, slave.min_phy_offset)


def test_a_file_that_a_connected_slave_still_needs_is_deleted(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)

    async def scenario(master, slave):
        slow = {"ha_flow_control_enable": True, "max_ha_transfer_byte_in_second": 9000}
        # says again what it has, and does not try again
        patient = {"ha_send_heartbeat_interval": 30, "ha_retry_interval": 60_000}
        async with (
            serving(master, ha_send_heartbeat_interval=30, **slow) as service,
            following(slave, service.port, master, **patient) as client,
        ):
            await until_async(
                lambda: slave.followed_log.appended_offset == 9001,
                "the slave has what it may in a second",
            )
            master.log.queue.remove_first(2)
            assert master.min_phy_offset == 2 * FILE

            def problem():
                clock.now += 0.05
                return client.problem

            told = await until_async(problem, "the slave says what is wrong")
            assert f"begins at {2 * FILE}, and this one ends at 9001" in told
            await all_gone(service)
        async with serving(master, **slow) as service:
            # a slave that does not ask hears nothing more; its master says why
            _, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write((9000).to_bytes(8))
            (info,) = await until_async(
                lambda: [
                    one for one in service.runtime_info()["haConnectionInfo"] if "problem" in one
                ],
                "the master says what is wrong",
            )
            assert (
                info["problem"] == f"the slave asks from 9000 on, and this log begins at {2 * FILE}"
            )
            writer.close()

    with master_store(tmp_path / "m", 300) as master, slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(master, slave))


@pytest.mark.parametrize(
    ("left", "batch"),
    [(8, FILE - 8), (8, FILE - 7), (8, FILE - 4), (8, FILE), (30, 4096), (91, FILE - 50)],
)
def test_frames_may_end_anywhere_around_the_end_of_a_file(tmp_path, left, batch):
    with master_store(tmp_path / "m") as master, slave_store(tmp_path / "s") as slave:
        size = master.put("T", b"").store_size
        # the first file ends in a blank of `left` bytes: 8 are the least that RocketMQ leaves
        while (rest := FILE - left - master.max_phy_offset) > 2 * size + 1000:
            master.put("T", bytes(700))
        master.put("T", bytes(rest - size))
        assert master.max_phy_offset == FILE - left
        catch_up(master, slave, ha_transfer_batch_size=batch)
        fill(master, 80)
        assert (
            bytes(master.followed_log.bytes_at(FILE - left, 8))
            == left.to_bytes(4) + b"\xcb\xd4\x31\x94"
        )
        catch_up(master, slave, ha_transfer_batch_size=batch)
        assert derived(slave) == derived(master)


def test_what_a_crash_may_have_damaged_is_compared_however_often_the_store_was_opened(tmp_path):
    with master_store(tmp_path / "m", 300) as master:
        shutil.copytree(tmp_path / "m", tmp_path / "s")
        shutil.copytree(tmp_path / "m", tmp_path / "same")
        (record,) = master.query_message("T0", "k30").messages
        log = tmp_path / "s" / "commitlog" / f"{record.phy_offset // FILE * FILE:020}"
        whole = bytearray(log.read_bytes())
        at = whole.index(b"KEYS\x01k30\x02") + 5
        whole[at : at + 3] = bytes(3)
        log.write_bytes(whole)
        for name in ("s", "same"):
            for clean in (False, True, True):
                with slave_store(tmp_path / name) as slave:
                    assert slave.recovery_report.clean_shutdown == clean
                    assert slave.followed_log.unsure_offset == 0
        with (
            slave_store(tmp_path / "s") as slave,
            pytest.raises(AssertionError, match="not the master's"),
        ):
            catch_up(master, slave)
        with slave_store(tmp_path / "same") as slave:
            fill(master, 1)
            catch_up(master, slave)
            assert slave.followed_log.unsure_offset == slave.max_phy_offset
        with slave_store(tmp_path / "same") as slave:
            # once is enough
            assert slave.followed_log.unsure_offset == slave.max_phy_offset


def test_that_all_was_compared_is_noted_before_it_is_reported(tmp_path, monkeypatch):
    with master_store(tmp_path / "m", 300) as master:
        shutil.copytree(tmp_path / "m", tmp_path / "s")
        with slave_store(tmp_path / "s") as slave:
            assert slave.followed_log.unsure_offset == 0
            fill(master, 1)
            heard, report = [], HAClient._report

            async def watched(client, sock, offset):
                heard.append((offset, slave.followed_log.unsure_offset))
                await report(client, sock, offset)

            monkeypatch.setattr(HAClient, "_report", watched)
            catch_up(master, slave)
            end = master.max_phy_offset
            assert {unsure for offset, unsure in heard if offset < end} == {0}
            assert heard[-1] == (end, end)


def test_a_slave_without_memory_says_so_and_goes_on_when_there_is_some(tmp_path, monkeypatch):
    async def scenario(master, slave):
        def no_memory(*_):
            raise MemoryError

        monkeypatch.setattr(slave.followed_log, "append_data", no_memory)
        async with (
            serving(master) as service,
            following(slave, service.port, master) as client,
        ):
            problem = await until_async(lambda: client.problem, "the slave says what is wrong")
            assert "no memory" in problem
            monkeypatch.undo()
            await has_all(slave, master)
            await until_async(lambda: client.problem is None, "all is well")

    with master_store(tmp_path / "m", 20) as master, slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(master, slave))
        assert log_bytes(slave) == log_bytes(master)


def test_an_append_that_takes_long_ends_before_another_connection_begins(tmp_path, monkeypatch):
    at_work, begun_meanwhile, connections, given_up = [], [], [], []
    may_end, clock = threading.Event(), Clock(monkeypatch)

    async def master_that_falls_silent(reader, writer):
        start = int.from_bytes(await reader.readexactly(8))
        connections.append(start)
        writer.write(frame(start, log[start:]))
        await reader.read()

    async def scenario(slave):
        append, drop, keep_house = (
            slave.followed_log.append_data,
            slave.followed_log.drop_partial,
            HAClient._keep_house,
        )

        def slow_append(data, offset):
            at_work.append(offset)
            assert may_end.wait(TIMEOUT_S)
            append(data, offset)
            at_work.remove(offset)

        def watched_drop():
            begun_meanwhile.extend(at_work)
            return drop()

        async def watched(client, sock):
            reason = await keep_house(client, sock)
            given_up.append(reason)
            return reason

        monkeypatch.setattr(slave.followed_log, "append_data", slow_append)
        monkeypatch.setattr(slave.followed_log, "drop_partial", watched_drop)
        monkeypatch.setattr(slave.followed_log, "has_room", lambda _: False)
        monkeypatch.setattr(HAClient, "_keep_house", watched)
        async with (
            peer_master(*2 * [master_that_falls_silent]) as port,
            following(slave, port, ha_housekeeping_interval=50) as client,
        ):
            await until_async(lambda: at_work, "the slave has something to append")
            clock.now += 1
            await until_async(lambda: given_up, "the slave gives the connection up")
            for _ in range(50):
                await asyncio.sleep(0)
            assert client.state is HAState.TRANSFER
            may_end.set()
            await until_async(lambda: len(connections) == 2, "the slave has connected again")

    with master_store(tmp_path / "m", 20) as master:
        log = log_bytes(master)
    with slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(slave))
        assert connections[1] > 0
        assert not begun_meanwhile
        monkeypatch.undo()
        assert log_bytes(slave) == log


def test_an_append_that_fails_after_the_connection_has_gone_is_no_loops_business(caplog):
    async def scenario():
        may_fail = asyncio.Event()

        async def fails():
            await may_fail.wait()
            raise OSError("the disk is gone")

        waiting = asyncio.create_task(to_the_end(fails()))
        for _ in range(5):
            await asyncio.sleep(0)
        waiting.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        may_fail.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())
    gc.collect()
    assert not caplog.records


@pytest.mark.process
@ROOT_ONLY
def test_a_slave_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(tmp_path, small_disk):
    disk = small_disk(2048)
    reported = []

    async def scenario(master, slave):
        async with (
            serving(master) as service,
            following(slave, service.port, master) as client,
        ):
            await has_all(slave, master)
            ballast = fill_disk(disk, 0)
            fill(master, 400, seed=2)
            problem = await until_async(lambda: client.problem, "the slave says what is wrong")
            assert "room" in problem or "space" in problem
            reported.extend(one.ack_offset for one in service.connections)
            assert all(offset <= slave.followed_log.appended_offset for offset in reported)
            assert slave.followed_log.appended_offset < master.max_phy_offset
            ballast.unlink()
            await has_all(slave, master)
            await until_async(lambda: client.problem is None, "all is well")

    with (
        master_store(tmp_path / "m", 20) as master,
        slave_store(disk / "s", allocate_ahead=0) as slave,
    ):
        asyncio.run(scenario(master, slave))
        assert log_bytes(slave) == log_bytes(master)
        assert derived(slave) == derived(master)


def test_master_and_slave_change_their_roles(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for turn in range(4):
        with master_store(paths[0], 60) as master, slave_store(paths[1]) as slave:
            catch_up(master, slave)
            assert derived(slave) == derived(master)
            # a part of a record is no part of a log that is written to
            end = master.put("T0", bytes(500)).phy_offset
            slave.followed_log.append_data(bytes(master.followed_log.bytes_at(end, 100)), end)
            assert slave.followed_log.appended_offset == end + 100
        # the old master is ahead by what nobody has acknowledged
        paths.reverse()
        if turn < 3:
            with master_store(paths[0]) as master, slave_store(paths[1]) as slave:
                assert master.max_phy_offset == end
                with pytest.raises(AssertionError, match="ahead of the master's"):
                    catch_up(master, slave)
            paths.reverse()
            with master_store(paths[0]) as master, slave_store(paths[1]) as slave:
                catch_up(master, slave)
            paths.reverse()


def first_file(path):
    """All bytes of a log file of a master's, and how many of them its records take."""
    with master_store(path) as master:
        while FILE - master.max_phy_offset > 1500:
            master.put("T0", bytes(500))
        end = master.max_phy_offset
        master.put("T0", bytes(2000))
        assert master.max_phy_offset > FILE
        return log_bytes(master)[:FILE], end


def test_a_slave_goes_over_to_the_master_that_it_is_told_of(tmp_path):
    """Who was the master before may be the new one's slave, and sends its log on for ever."""

    async def scenario(former, new, slave):
        asked, answers = [], False

        async def known():
            asked.append(client.master_address)
            return LogRange(0, new.max_phy_offset) if answers else None

        async with serving(former) as one, serving(new) as other:
            told = f"127.0.0.1:{one.port}"
            client = HAClient(slave, config(ha_send_heartbeat_interval=10), lambda: told, known)
            task = asyncio.get_running_loop().create_task(client.run())
            await has_all(slave, new)
            told, before = f"127.0.0.1:{other.port}", len(asked)
            await until_async(lambda: len(asked) >= before + 3, "it has asked the new one")
            assert client.agrees
            assert len(one.connections) == 1
            answers = True
            await until_async(lambda: other.connections, "the slave has gone over")
            await all_gone(one)
            fill(new, 3, seed=2)
            await has_all(slave, new)
            task.cancel()
            await asyncio.wait([task])

    with master_store(tmp_path / "new", 5) as new:
        shutil.copytree(tmp_path / "new", tmp_path / "former")
        with slave_store(tmp_path / "former") as former, slave_store(tmp_path / "slave") as slave:
            asyncio.run(scenario(former, new, slave))


def test_a_slave_stays_where_it_is_as_long_as_the_master_it_is_told_of_sends_nothing(tmp_path):
    """It would have neither the one's log nor the other's."""

    async def scenario(master, slave):
        asked = []

        async def known():
            asked.append(client.master_address)
            return LogRange(0, master.max_phy_offset)

        async with serving(master) as one:
            async with serving(master) as gone:
                nobody = f"127.0.0.1:{gone.port}"
            told = f"127.0.0.1:{one.port}"
            client = HAClient(slave, config(ha_send_heartbeat_interval=10), lambda: told, known)
            task = asyncio.get_running_loop().create_task(client.run())
            await has_all(slave, master)
            told, before = nobody, len(asked)
            await until_async(lambda: len(asked) >= before + 3, "it has asked the new one")
            fill(master, 3, seed=2)
            await has_all(slave, master)
            assert client.state is HAState.TRANSFER
            task.cancel()
            await asyncio.wait([task])

    with master_store(tmp_path / "m", 5) as master, slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(master, slave))


@pytest.mark.parametrize("way", ["killed", "closed", "fetched"])
@pytest.mark.parametrize("apart", [0, 1, 5, -1])
def test_a_slave_that_is_promoted_where_a_file_ends_goes_on_in_the_next(
    tmp_path, monkeypatch, way, apart
):
    """A small record would fit in front of its end, where another slave has that."""
    monkeypatch.setattr(resync, "QUIET_S", 0.05)
    data, end = first_file(tmp_path / "lost")
    # the end-of-file record may come with the records, behind them, or in two parts
    cut = end + apart if apart >= 0 else FILE

    async def fetched(other, store):
        async with serving(other, ha_send_heartbeat_interval=20) as service:
            await resync.fetch(store.followed_log, f"127.0.0.1:{service.port}")

    with slave_store(tmp_path / "s") as slave:
        slave.followed_log.append_data(data, 0)
        with slave_store(tmp_path / "m") as promoted:
            promoted.followed_log.append_data(data[:cut], 0)
            if way == "fetched":
                asyncio.run(fetched(slave, promoted))
            elif cut < FILE:
                promoted.followed_log.append_data(data[cut:], cut)
            assert promoted.max_phy_offset == slave.max_phy_offset == FILE
            copy_as_killed(tmp_path / "m", tmp_path / "killed")
        with master_store(tmp_path / ("killed" if way == "killed" else "m")) as master:
            assert master.max_phy_offset == FILE
            assert master.put("T0", b"small").phy_offset == FILE
            catch_up(master, slave)


def test_a_slave_without_room_for_the_next_file_has_the_records_of_this_one(tmp_path, monkeypatch):
    data, end = first_file(tmp_path / "m")

    def no_room(_source, path, _offset):
        raise DiskFullError(path)

    with slave_store(tmp_path / "s") as slave:
        log = slave.followed_log
        log.append_data(data[:100], 0)
        monkeypatch.setattr(AllocateMappedFileService, "ready_file", no_room)
        with pytest.raises(DiskFullError):
            log.append_data(data[100:], 100)
        assert log.drop_partial() == log.max_phy_offset == end
        monkeypatch.undo()
        log.append_data(data[end:], end)
        assert log_bytes(slave) == data
