"""A slave that its master cannot continue says so, and there is a way back."""

import asyncio
import json
import logging
import shutil

import pytest
from ha.pair import (
    SMALL,
    all_gone,
    config,
    derived,
    files,
    fill,
    following,
    frame,
    has_all,
    log_bytes,
    master_store,
    peer_master,
    serving,
    slave_store,
    tries,
)
from patience import until_async
from typer.testing import CliRunner

from rmqcore import open_store
from rmqcore.cli.app import app
from rmqcore.cli.ha import _drop_derived
from rmqcore.files.config_tables import TopicConfig
from rmqcore.files.store_dir import StoreDir
from rmqcore.ha import HAClient
from rmqcore.ha import resync as resyncing
from rmqcore.ha.client import LogRange
from rmqcore.ha.resync import cut, find_divergence
from rmqcore.message import Message

pytestmark = pytest.mark.engine

FILE = 16 << 10


@pytest.fixture(autouse=True)
def no_master_is_slow(monkeypatch):
    monkeypatch.setattr(resyncing, "QUIET_S", 0.05)


def in_step(master, slave, **settings):
    async def scenario():
        async with serving(master) as service, following(slave, service.port, master, **settings):
            await has_all(slave, master)

    asyncio.run(scenario())


async def problem_of(client):
    return await until_async(lambda: client.problem, "the slave says what is wrong")


def told_problem(master, slave, known=True):
    """What a slave says of a master that cannot continue it; nothing is written meanwhile."""
    before = log_bytes(slave)

    async def scenario():
        async with serving(master) as service:
            told = master if known else None
            async with following(slave, service.port, told) as client:
                problem = await problem_of(client)
                await tries(client)
                assert client.runtime_info()["haClientRuntimeInfo"]["problem"] == problem
                return problem

    problem = asyncio.run(scenario())
    assert log_bytes(slave) == before
    return problem


def diverged(path, common, ours, theirs):
    """Stores of a master and of a slave that were the same once."""
    with master_store(path / "m", common):
        pass
    shutil.copytree(path / "m", path / "s")
    with open_store(path / "s", **SMALL) as store:
        fill(store, ours, seed=2)
    with open_store(path / "m", **SMALL) as store:
        end = store.max_phy_offset
        fill(store, theirs, seed=3)
    return end


def resync(master, path):
    """Find where they part, cut there, and open the slave's store."""

    async def find(slave):
        async with serving(master, ha_send_heartbeat_interval=20) as service:
            return await find_divergence(slave.followed_log, f"127.0.0.1:{service.port}")

    with slave_store(path) as slave:
        found = asyncio.run(find(slave))
    if not found.in_order:
        cut(StoreDir(path), found)
    return found


async def command(master, path, *words):
    """What `rmqcore ha resync` tells."""
    async with serving(master, ha_send_heartbeat_interval=20) as service:
        asked = ["ha", "resync", str(path), *words, "--master", f"127.0.0.1:{service.port}"]
        return await asyncio.to_thread(CliRunner().invoke, app, asked)


@pytest.mark.parametrize(("common", "ours", "theirs"), [(30, 5, 9), (200, 90, 3), (7, 300, 200)])
def test_different_bytes_are_never_gone_on_with(tmp_path, caplog, common, ours, theirs):
    end = diverged(tmp_path, common, ours, theirs)
    with master_store(tmp_path / "m") as master:
        with slave_store(tmp_path / "s") as slave, caplog.at_level(logging.WARNING):
            assert "resync" in told_problem(master, slave)
            told = [record for record in caplog.records if record.name == "rmqcore.ha.client"]
            assert len(told) == 1
        found = resync(master, tmp_path / "s")
        assert end <= found.common_end < end + 100
        assert found.master_goes_on
        with slave_store(tmp_path / "s", on_corruption="truncate") as slave:
            assert slave.max_phy_offset == end
            in_step(master, slave)
            assert log_bytes(slave) == log_bytes(master)
            assert derived(slave) == derived(master)


@pytest.mark.parametrize("last", ["a large body", "the end of a file"])
def test_an_end_that_any_log_may_have_is_not_all_that_is_compared(tmp_path, last):
    """Neither the same bytes of a body nor zeros say whose log it is."""
    sizes = {"mapped_file_size_commit_log": 64 << 10}

    def filled(name):
        with open_store(tmp_path / name, **{**SMALL, **sizes}) as store:
            for number in range(12):
                store.put("T", f"{name} {number}".encode())
            store.put("T", bytes(40_000 if last == "a large body" else 20_000))
            if last == "the end of a file":
                store.put("T", bytes(50_000))

    filled("m")
    filled("s")
    if last == "the end of a file":
        # the master died before the slave had the next one
        with slave_store(tmp_path / "s", **sizes) as slave:
            first = slave.followed_log.bytes_at(0, 64 << 10)
            with slave_store(tmp_path / "ended", **sizes) as ended:
                ended.followed_log.append_data(first, 0)
        shutil.rmtree(tmp_path / "s")
        (tmp_path / "ended").rename(tmp_path / "s")
    with (
        master_store(tmp_path / "m", **sizes) as master,
        slave_store(tmp_path / "s", **sizes) as slave,
    ):
        assert "are not the master's" in told_problem(master, slave)


@pytest.mark.parametrize("closed", [True, False])
def test_a_problem_is_told_once_and_until_it_is_solved(tmp_path, caplog, closed):
    """That some of a log is the master's solves nothing."""
    diverged(tmp_path, 200, 9, 9)
    if not closed:
        (tmp_path / "s" / "abort").write_text("1")

    def warned():
        return [one for one in caplog.records if one.name == "rmqcore.ha.client"]

    async def scenario(master, slave):
        async with (
            serving(master, ha_transfer_batch_size=4096) as service,
            following(slave, service.port) as client,
        ):
            await problem_of(client)
            await tries(client, 6)
            assert len(warned()) == 1

    with master_store(tmp_path / "m") as master, caplog.at_level(logging.WARNING):
        with slave_store(tmp_path / "s") as slave:
            asyncio.run(scenario(master, slave))
        assert resync(master, tmp_path / "s").master_goes_on


def test_log_files_of_another_size_are_told_once(tmp_path, caplog):
    async def scenario(master, slave):
        async with serving(master) as service, following(slave, service.port, master) as client:
            await problem_of(client)
            await tries(client, 20)

    size = SMALL["mapped_file_size_commit_log"] // 2
    with (
        master_store(tmp_path / "m", 200) as master,
        slave_store(tmp_path / "s", mapped_file_size_commit_log=size) as slave,
        caplog.at_level(logging.WARNING),
    ):
        asyncio.run(scenario(master, slave))
    assert len([one for one in caplog.records if one.name == "rmqcore.ha.client"]) == 1


def test_a_problem_is_over_when_the_master_has_been_led_back(tmp_path):
    diverged(tmp_path, 50, 20, 0)
    port = 0

    async def scenario(slave):
        nonlocal port

        async def unknown():
            return None

        client = HAClient(slave, config(), lambda: f"127.0.0.1:{port}", unknown)
        following = asyncio.create_task(client.run())
        with master_store(tmp_path / "m") as master:
            async with serving(master, ha_send_heartbeat_interval=20) as service:
                port = service.port
                await problem_of(client)
        with slave_store(tmp_path / "m") as master:
            assert client.problem
            master.followed_log.append_data(
                log_bytes(slave)[master.followed_log.appended_offset :],
                master.followed_log.appended_offset,
            )
        with master_store(tmp_path / "m") as master:
            # nothing new is put
            async with serving(master, ha_send_heartbeat_interval=20) as service:
                port = service.port
                await until_async(lambda: client.problem is None, "all is well")
        following.cancel()
        await asyncio.wait([following])

    with slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(slave))


def test_a_slave_ahead_of_its_master_says_by_how_much(tmp_path):
    end = diverged(tmp_path, 50, 20, 0)
    with master_store(tmp_path / "m") as master:
        with slave_store(tmp_path / "s") as slave:
            ahead = slave.max_phy_offset - end
            assert f"{ahead} bytes ahead of the master's" in told_problem(master, slave)
        found = resync(master, tmp_path / "s")
        assert (found.common_end, found.master_goes_on) == (end, False)
        with slave_store(tmp_path / "s", on_corruption="truncate") as slave:
            in_step(master, slave)
            assert log_bytes(slave) == log_bytes(master)
            assert derived(slave) == derived(master)


def test_a_master_that_has_deleted_what_the_slave_lacks_is_begun_with_anew(tmp_path):
    with master_store(tmp_path / "m", 40) as master:
        with slave_store(tmp_path / "s") as slave:
            in_step(master, slave)
        fill(master, 400, seed=2)
        old = master.log.queue.files[:2]
        assert master.queues(), "nothing that goes is still to be dispatched"
        master.log.queue.remove_first(len(old))
        assert master.min_phy_offset == 2 * FILE
        with slave_store(tmp_path / "s") as slave:
            assert "was deleted there" in told_problem(master, slave)
        told = asyncio.run(command(master, tmp_path / "s"))
        # nothing is to be given back to such a master
        assert "the master has deleted what follows it" in told.stdout
        assert "--fetch" not in told.stdout
        found = resync(master, tmp_path / "s")
        assert found.common_end == found.begin
        with slave_store(tmp_path / "s") as slave:
            assert slave.max_phy_offset == 0
            in_step(master, slave)
            assert slave.min_phy_offset == 2 * FILE
            assert log_bytes(slave) == log_bytes(master)


def test_what_is_cut_off_is_kept(tmp_path):
    diverged(tmp_path, 100, 300, 5)
    with slave_store(tmp_path / "s") as slave:
        whole = log_bytes(slave)
    with master_store(tmp_path / "m") as master:
        found = resync(master, tmp_path / "s")
    (kept,) = tmp_path.glob("s/resync-*/commitlog")
    found_again = bytearray(len(whole) + FILE)
    for file in kept.iterdir():
        found_again[int(file.name) : int(file.name) + FILE] = file.read_bytes()
    assert found_again[found.common_end : len(whole)] == whole[found.common_end :]


def test_a_slave_in_order_is_left_alone(tmp_path):
    with master_store(tmp_path / "m", 100) as master:
        with slave_store(tmp_path / "s") as slave:
            in_step(master, slave)
        fill(master, 20, seed=5)
        found = resync(master, tmp_path / "s")
        assert found.in_order
        assert not list(tmp_path.glob("s/resync-*"))


@pytest.mark.parametrize("known", [True, False])
def test_an_empty_slave_gets_all_that_its_master_has(tmp_path, known):
    async def scenario(master, slave):
        async with (
            serving(master) as service,
            following(slave, service.port, master if known else None),
        ):
            await has_all(slave, master)
            # of a Java master, 0 would ask for the last file only
            assert service.connections[0].request_offset == int(known)

    with master_store(tmp_path / "m", 300) as master, slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(master, slave))
        assert slave.min_phy_offset == 0
        assert log_bytes(slave) == log_bytes(master)


def test_the_status_tells_lag_and_json_can_be_read(tmp_path):
    async def scenario(master):
        async with serving(master) as service:
            _, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write((0).to_bytes(8))
            await until_async(
                lambda: service.connections and service.connections[0].ack_offset == 0,
                "the slave has reported",
            )

            def told():
                (slave,) = service.runtime_info()["haConnectionInfo"]
                assert slave["diff"] == master.max_phy_offset
                return slave["lagMs"]

            before = told()
            await until_async(lambda: told() >= before + 50, "the lag grows")
            writer.write((master.max_phy_offset + 1).to_bytes(8))
            await all_gone(service)
            writer.close()

    with master_store(tmp_path / "m", 10) as master:
        asyncio.run(scenario(master))


def test_a_slave_with_more_than_its_master_is_sent_nothing_and_counts_for_nothing(tmp_path):
    async def scenario(master):
        settings = {"slave_timeout": 200, "ha_send_heartbeat_interval": 60_000}
        async with serving(master, **settings) as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write((master.max_phy_offset + 100).to_bytes(8))
            await until_async(
                lambda: service.connections and service.connections[0].problem,
                "the master says what is wrong",
            )
            told = json.loads(json.dumps(service.runtime_info()))
            assert told["inSyncSlaveNums"] == 0
            assert "this master has lost its end" in told["haConnectionInfo"][0]["problem"]
            # this log grows beyond where the slave's ends, which makes it no copy
            receipts = [await master.put_message_async(Message("T", bytes(90))) for _ in range(3)]
            assert {receipt.status.name for receipt in receipts} == {"SLAVE_NOT_AVAILABLE"}
            looked, (connection,) = [], service.connections
            frames = connection._frames
            connection._frames = lambda: looked.append(1) or frames()
            await until_async(lambda: len(looked) >= 3, "the master looked what there is to send")
            # the end is all that it is ever sent
            connection.end("it is over")
            assert await reader.read() == b""
            writer.close()

    with master_store(tmp_path / "m", 10, role="SYNC_MASTER") as master:
        asyncio.run(scenario(master))


def test_a_slave_ahead_of_a_master_that_does_not_say_where_it_ends_tells(tmp_path):
    diverged(tmp_path, 50, 40, 0)
    with master_store(tmp_path / "m") as master, slave_store(tmp_path / "s") as slave:

        async def scenario():
            async with (
                serving(master, ha_send_heartbeat_interval=20) as service,
                following(slave, service.port) as client,
            ):
                assert "has nothing from" in await problem_of(client)

        asyncio.run(scenario())


def test_a_cut_leaves_whole_records(tmp_path):
    with master_store(tmp_path / "m") as store:
        first = store.put("T", b"first")
        store.put("T", b"x", keys="b" * 300)
    shutil.copytree(tmp_path / "m", tmp_path / "s")
    log = tmp_path / "s" / "commitlog" / ("0" * 20)
    whole = bytearray(log.read_bytes())
    whole[whole.index(b"b" * 300) + 9] = ord("c")
    log.write_bytes(whole)
    with master_store(tmp_path / "m") as master:
        found = resync(master, tmp_path / "s")
        assert (found.common_end, found.master_goes_on) == (first.store_size, True)
        with slave_store(tmp_path / "s", on_corruption="truncate") as slave:
            assert slave.max_phy_offset == first.store_size
            in_step(master, slave)
            assert log_bytes(slave) == log_bytes(master)


def test_what_a_crash_may_have_damaged_is_compared(tmp_path):
    """A lost page of properties leaves a record that no CRC tells from the right one."""
    with master_store(tmp_path / "m", 300) as master:
        shutil.copytree(tmp_path / "m", tmp_path / "s")
        (record,) = master.query_message("T0", "k30").messages
        log = tmp_path / "s" / "commitlog" / f"{record.phy_offset // FILE * FILE:020}"
        whole = bytearray(log.read_bytes())
        at = whole.index(b"KEYS\x01k30\x02") + 5
        whole[at : at + 3] = bytes(3)
        log.write_bytes(whole)
        with slave_store(tmp_path / "s") as slave:
            assert not slave.recovery_report.clean_shutdown
            assert slave.max_phy_offset == master.max_phy_offset > at + (32 << 10)
            assert "not the master's" in told_problem(master, slave)
        found = resync(master, tmp_path / "s")
        assert found.common_end == record.phy_offset
        with slave_store(tmp_path / "s", on_corruption="truncate") as slave:
            in_step(master, slave)
            assert log_bytes(slave) == log_bytes(master)
            assert derived(slave) == derived(master)


def test_a_slave_reports_what_it_has_compared_and_not_what_lies_behind(tmp_path):
    end = diverged(tmp_path, 20, 9, 9)
    heard = []

    async def scenario(master, slave):
        log = log_bytes(master)

        async def play(reader, writer):
            start = int.from_bytes(await reader.readexactly(8))
            heard.append(start)
            for at in range(start, end, 500):
                writer.write(frame(at, log[at : min(at + 500, end)]))
                await writer.drain()
                heard.append(int.from_bytes(await reader.readexactly(8)))
            writer.write(frame(end, log[end : end + 500]))
            heard.append(await reader.read())

        quiet = {"ha_send_heartbeat_interval": 60_000}
        async with peer_master(play) as port, following(slave, port, **quiet) as client:
            await until_async(lambda: heard and heard[-1] == b"", "the slave has hung up")
            assert "not the master's" in client.problem

    with master_store(tmp_path / "m") as master, slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(master, slave))
    # 0 would say that it is empty
    assert heard == [1, *range(501, end, 500), end, b""]


def test_the_command_tells_first_and_cuts_only_when_told(tmp_path):
    end = diverged(tmp_path, 30, 9, 4)
    path = str(tmp_path / "s")

    def run(port, *more):
        asked = ["ha", "resync", path, "--master", f"127.0.0.1:{port}", *more]
        return asyncio.to_thread(CliRunner().invoke, app, asked)

    async def scenario(master):
        async with serving(master) as service:
            before = files(tmp_path / "s" / "commitlog")
            told = await run(service.port)
            assert (told.exit_code, files(tmp_path / "s" / "commitlog")) == (1, before)
            assert "the master has others there" in told.stdout
            done = await run(service.port, "--yes", "--json")
            assert done.exit_code == 0
            facts = json.loads(done.stdout)
            assert end <= facts["same_up_to"] < end + 100
            assert facts["kept_in"].startswith(path)
            again = await run(service.port)
            assert (again.exit_code, "nothing to do" in again.stdout) == (0, True)

    with master_store(tmp_path / "m") as master:
        asyncio.run(scenario(master))
    with slave_store(tmp_path / "s") as slave:
        assert slave.max_phy_offset == end


def test_who_fetches_a_log_into_an_empty_store_is_told_what_is_not_in_it(tmp_path):
    with master_store(tmp_path / "s"):
        pass

    def fetched(master):
        return asyncio.run(command(master, tmp_path / "s", "--yes", "--fetch")).stdout

    with master_store(tmp_path / "m", 30) as master:
        assert "copy config/ of the other side" in fetched(master)
        # its broker says how long queue and index files are
        sizes = {"mapped_file_size_consume_queue": 2000, "max_hash_slot_num": 50}
        with open_store(tmp_path / "s", **sizes) as again:
            assert derived(again) == derived(master)
        assert "copy config/" not in fetched(master)


def test_a_log_fetched_for_a_broker_that_has_topics_is_in_its_queues(tmp_path):
    """The broker had run without its log: its table has its own topics, and none of the log's."""
    with master_store(tmp_path / "s") as own:
        for name in ("SELF_TEST_TOPIC", "TBW102"):
            own.topics.put(TopicConfig(topic_name=name))
    with master_store(tmp_path / "m", 30) as master:
        done = asyncio.run(command(master, tmp_path / "s", "--yes", "--fetch"))
        assert done.exit_code == 0
        with open_store(tmp_path / "s", mapped_file_size_commit_log=FILE) as again:
            assert derived(again) == derived(master)


def test_queues_of_a_store_that_somebody_has_opened_meanwhile_stay(tmp_path):
    with master_store(tmp_path / "s", 40):
        known = files(tmp_path / "s" / "consumequeue" / "T0" / "0")
        _drop_derived(StoreDir(tmp_path / "s"))
        assert files(tmp_path / "s" / "consumequeue" / "T0" / "0") == known


def test_what_comes_while_the_master_is_asked_puts_no_slave_ahead(tmp_path):
    """The answer is on its way, and a message overtakes it."""

    async def scenario(master, slave):
        answers = 0

        async with serving(master, ha_send_heartbeat_interval=5) as service:

            async def known():
                nonlocal answers
                log = LogRange(master.min_phy_offset, master.max_phy_offset)
                if client.agrees:
                    master.put("T0", b"overtakes")
                    await has_all(slave, master)
                    answers += 1
                return log

            settings = config(ha_retry_interval=3_600_000)
            client = HAClient(slave, settings, lambda: f"127.0.0.1:{service.port}", known)
            following = asyncio.create_task(client.run())
            await until_async(
                lambda: answers >= 2 or client.problem, "the slave has asked while it follows"
            )
            assert client.problem is None
            (connection,) = service.connections
            assert connection.ack_offset > 0
            following.cancel()

    with master_store(tmp_path / "m", 5) as master, slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(master, slave))
