"""`resync` takes no two logs for the same that are not, and gives up nothing on a mere silence."""

import asyncio
import contextlib
import json
import shutil
from types import SimpleNamespace

import pytest
from ha.pair import (
    SMALL,
    derived,
    fill,
    frame,
    log_bytes,
    master_store,
    peer_master,
    serving,
    slave_store,
)
from typer.testing import CliRunner

from rmqcore import open_store
from rmqcore.cli.app import app
from rmqcore.ha import resync
from rmqcore.ha.resync import Divergence, fetch, find_divergence

FILE = 16 << 10
ALIKE = b"x" * 200
QUICK = {"ha_send_heartbeat_interval": 20}


def parted(path, common, ours, theirs):
    """Stores of a master and a slave that were the same once, and are alike since; where."""
    with master_store(path / "m", common):
        pass
    shutil.copytree(path / "m", path / "s")
    ends = []
    for name, count in (("s", ours), ("m", theirs)):
        with open_store(path / name, **SMALL) as store:
            ends.append(store.max_phy_offset)
            for _ in range(count):
                store.put("T0", ALIKE, tags=name)
    assert ends[0] == ends[1]
    return ends[0]


def divergence(master, slave, **settings):
    async def scenario():
        async with serving(master, **{**QUICK, **settings}) as service:
            return await find_divergence(slave, f"127.0.0.1:{service.port}")

    return asyncio.run(scenario())


def command(master, *words):
    """What the command does beside a master that runs."""

    async def scenario():
        async with serving(master, **QUICK) as service:
            asked = ["ha", "resync", *words, "--master", f"127.0.0.1:{service.port}", "--json"]
            return await asyncio.to_thread(CliRunner().invoke, app, asked)

    done = asyncio.run(scenario())
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done


@contextlib.asynccontextmanager
async def rocketmq_master(log, least=0):
    """Serves as RocketMQ does: a report of 0 gets the last file, one out of range heart-beats."""

    async def play(reader, writer):
        end = len(log)
        at = int.from_bytes(await reader.readexactly(8)) or end - end % FILE
        said = True
        while said:
            writer.write(frame(at))
            while least <= at < end:
                size = min(3000, FILE - at % FILE, end - at)
                writer.write(frame(at, log[at : at + size]))
                at += size
            with contextlib.suppress(TimeoutError):
                said = await asyncio.wait_for(reader.read(8), 0.01)

    async with peer_master(*[play] * 9) as port:
        yield f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("common", "ours", "theirs"), [(30, 300, 500), (30, 600, 300), (3, 900, 900)]
)
def test_logs_that_are_alike_by_chance_are_not_the_same(tmp_path, common, ours, theirs):
    end = parted(tmp_path, common, ours, theirs)
    with master_store(tmp_path / "m") as master, slave_store(tmp_path / "s") as slave:
        assert divergence(master, slave) == Divergence(0, end, slave.max_phy_offset, True)


def test_a_slow_master_is_heard_to_the_end(tmp_path, monkeypatch):
    """Who compares for longer than a master waits for a word is not hung up on."""
    monkeypatch.setattr(resync, "_REPORT_S", 0.05)
    with master_store(tmp_path / "m", 300) as master:
        shutil.copytree(tmp_path / "m", tmp_path / "s")
        slow = {
            **{"ha_housekeeping_interval": 300, "ha_send_heartbeat_interval": 5000},
            **{"ha_flow_control_enable": True, "ha_transfer_batch_size": 4096},
            "max_ha_transfer_byte_in_second": master.max_phy_offset // 2,
        }
        with slave_store(tmp_path / "s") as slave:
            assert divergence(master, slave, **slow).in_order


def test_a_master_that_hangs_up_has_said_nothing_of_its_end(tmp_path):
    with master_store(tmp_path / "m", 30) as master:
        log = log_bytes(master)
        shutil.copytree(tmp_path / "m", tmp_path / "s")

    async def scenario(slave, first):
        async def play(reader, writer):
            at = int.from_bytes(await reader.readexactly(8))
            writer.write(frame(at, log[at : at + first]) if first else b"")

        async with peer_master(*[play] * 3) as port:
            for ask in (find_divergence, fetch):
                with pytest.raises(ConnectionResetError, match="closed the connection"):
                    await ask(slave, f"127.0.0.1:{port}")

    with slave_store(tmp_path / "s") as slave:
        for first in (0, 500):
            asyncio.run(scenario(slave, first))
        assert log_bytes(slave) == log


def test_a_master_that_says_nothing_is_not_taken_for_an_empty_one(tmp_path, monkeypatch):
    monkeypatch.setattr(resync, "_SILENCE_S", 0.1)

    async def scenario(slave):
        async with peer_master(lambda reader, _: reader.read()) as port:
            with pytest.raises(TimeoutError, match="not said a word"):
                await find_divergence(slave, f"127.0.0.1:{port}")

    with master_store(tmp_path / "m", 30):
        pass
    with slave_store(tmp_path / "m") as slave:
        asyncio.run(scenario(slave))


@pytest.mark.parametrize("kept", [0, 1, 3, 5])
def test_what_a_master_of_rocketmq_still_has_is_compared(tmp_path, kept):
    """Asked for what it has deleted it sends nothing, and for 0 its last file."""
    with master_store(tmp_path / "m", 400) as master:
        log = log_bytes(master)
        least = max(0, len(log) // FILE + 1 - kept) * FILE if kept else 0
        shutil.copytree(tmp_path / "m", tmp_path / "s")

    async def scenario(slave, theirs):
        async with rocketmq_master(theirs, least) as address:
            return await find_divergence(slave, address)

    with slave_store(tmp_path / "s") as slave:
        assert asyncio.run(scenario(slave, log)).in_order
        last = slave.record_begin(len(log) - 1)
        other = log[:last] + bytes(50)
        found = asyncio.run(scenario(slave, other))
        assert (found.common_end, found.master_goes_on) == (last, True)


@pytest.mark.parametrize("least", [0, 3 * FILE])
def test_an_empty_log_fetches_all_that_a_master_of_rocketmq_has(tmp_path, least):
    with master_store(tmp_path / "m", 400) as master:
        log = log_bytes(master)

    async def scenario(slave):
        async with rocketmq_master(log, least) as address:
            return await fetch(slave, address)

    with slave_store(tmp_path / "s") as slave:
        assert asyncio.run(scenario(slave)) == len(log) - least
        assert slave.min_phy_offset == least
        assert log_bytes(slave) == log[least:]


def test_a_log_with_nothing_in_common_is_fetched_anew_in_files_of_its_size(tmp_path):
    with master_store(tmp_path / "m", 300):
        pass
    with master_store(tmp_path / "s") as other:
        fill(other, 200, seed=4)
    with master_store(tmp_path / "m") as master:
        done = command(master, str(tmp_path / "s"), "--yes", "--fetch")
        facts = json.loads(done.stdout)
        assert (facts["same_up_to"], facts["fetched"]) == (0, master.max_phy_offset)
        assert {path.stat().st_size for path in (tmp_path / "s" / "commitlog").iterdir()} == {FILE}
        with open_store(tmp_path / "s") as again:
            assert log_bytes(again) == log_bytes(master)
            assert derived(again) == derived(master)


def test_what_is_cut_off_twice_in_a_second_is_kept_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(resync, "time", SimpleNamespace(strftime=lambda _: "now"))
    end = parted(tmp_path, 30, 300, 5)
    with master_store(tmp_path / "m") as master:
        kept = []
        for count in (300, 7, 0):
            with open_store(tmp_path / "s", on_corruption="truncate") as slave:
                fill(slave, count, seed=9)
            kept.append(json.loads(command(master, str(tmp_path / "s"), "--yes").stdout)["kept_in"])
    assert [path and path.rpartition("/")[2] for path in kept] == [
        f"resync-now-{end}",
        f"resync-now-{end}-2",
        None,
    ]


def test_a_log_that_lies_elsewhere_is_led_back(tmp_path):
    end = parted(tmp_path, 30, 300, 5)
    (tmp_path / "s" / "commitlog").rename(tmp_path / "log")
    where = f"storePathCommitLog={tmp_path / 'log'}"
    with master_store(tmp_path / "m") as master:
        done = command(master, str(tmp_path / "s"), "-c", where, "--yes", "--fetch")
        facts = json.loads(done.stdout)
        assert (facts["same_up_to"], facts["kept_in"] is None) == (end, False)
        with slave_store(tmp_path / "s", store_path_commit_log=str(tmp_path / "log")) as slave:
            assert log_bytes(slave) == log_bytes(master)
