"""`resync` takes no two logs for the same that are not, and gives up nothing on a mere silence."""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import sys

import pytest
from ha.pair import (
    SMALL,
    Clock,
    derived,
    files,
    fill,
    following,
    frame,
    log_bytes,
    master_store,
    peer_master,
    serving,
    slave_store,
)
from patience import TIMEOUT_S, until_async
from typer.testing import CliRunner

from rmqcore import open_store
from rmqcore.cli.app import app
from rmqcore.files.store_dir import StoreDir
from rmqcore.ha import HAService, connection, resync
from rmqcore.ha.resync import Divergence, cut, fetch, find_divergence

pytestmark = pytest.mark.engine

FILE = 16 << 10
ALIKE = b"x" * 200
QUICK = {"ha_send_heartbeat_interval": 20}
#: a clock whose second never ends


@pytest.fixture(autouse=True)
def no_master_is_slow(monkeypatch):
    monkeypatch.setattr(resync, "QUIET_S", 0.05)
    monkeypatch.setattr(connection, "_POLL_S", 0.01)


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
            return await find_divergence(slave.followed_log, f"127.0.0.1:{service.port}")

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
    clock, reports = Clock(monkeypatch), []
    monkeypatch.setattr(resync, "_REPORT_S", 0.01)
    acknowledged = HAService._acknowledged

    def reported(service, one):
        # time passes with what the slave says, and only so
        reports.append(one.ack_offset)
        clock.now += 0.25
        acknowledged(service, one)

    monkeypatch.setattr(HAService, "_acknowledged", reported)
    with master_store(tmp_path / "m", 300) as master:
        shutil.copytree(tmp_path / "m", tmp_path / "s")
        slow = {
            **{"ha_housekeeping_interval": 1000, "ha_send_heartbeat_interval": 5000},
            **{"ha_flow_control_enable": True, "ha_transfer_batch_size": 4096},
            "max_ha_transfer_byte_in_second": master.max_phy_offset // 2,
        }
        began = clock.now
        with slave_store(tmp_path / "s") as slave:
            assert divergence(master, slave, **slow).in_order
        assert clock.now - began > 1
        assert len(reports) > 4


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
                    await ask(slave.followed_log, f"127.0.0.1:{port}")

    with slave_store(tmp_path / "s") as slave:
        for first in (0, 500):
            asyncio.run(scenario(slave, first))
        assert log_bytes(slave) == log


def test_a_master_that_says_nothing_is_not_taken_for_an_empty_one(tmp_path, monkeypatch):
    monkeypatch.setattr(resync, "_SILENCE_S", 0.1)

    async def scenario(slave):
        async with peer_master(lambda reader, _: reader.read()) as port:
            with pytest.raises(TimeoutError, match="not said a word"):
                await find_divergence(slave.followed_log, f"127.0.0.1:{port}")

    with master_store(tmp_path / "m", 30):
        pass
    with slave_store(tmp_path / "m") as slave:
        asyncio.run(scenario(slave))


@pytest.mark.parametrize("asks", ["compare", "fetch", "follow"])
def test_heart_beats_of_a_master_that_may_send_no_more_in_this_second(tmp_path, monkeypatch, asks):
    """They do not say that it has nothing."""
    monkeypatch.undo()
    clock = Clock(monkeypatch)
    with master_store(tmp_path / "m", 300) as master:
        shutil.copytree(tmp_path / "m", tmp_path / "s")
        settings = {
            **{"ha_send_heartbeat_interval": 150, "ha_flow_control_enable": True},
            **{"ha_transfer_batch_size": 4096},
            "max_ha_transfer_byte_in_second": master.max_phy_offset * 2 // 5,
        }

        async def asks_it(slave, empty, service):
            address = f"127.0.0.1:{service.port}"
            if asks == "compare":
                assert (await find_divergence(slave.followed_log, address)).in_order
            elif asks == "fetch":
                assert await fetch(empty.followed_log, address) == master.max_phy_offset
            else:
                async with following(slave, service.port) as client:
                    while slave.followed_log.unsure_offset != slave.max_phy_offset:
                        await asyncio.sleep(0)
                        assert client.problem is None

        async def scenario(slave, empty):
            async with serving(master, **settings) as service, asyncio.timeout(TIMEOUT_S):
                asking, began = asyncio.create_task(asks_it(slave, empty, service)), clock.now
                await until_async(lambda: service.connections, "it asks")
                while not asking.done():
                    await clock.go_on(0.05, service)
                await asking
                assert clock.now - began > 2

        (tmp_path / "s" / "abort").write_text("1")
        with slave_store(tmp_path / "s") as slave, slave_store(tmp_path / "empty") as empty:
            assert slave.followed_log.unsure_offset == 0
            asyncio.run(scenario(slave, empty))


@pytest.mark.parametrize("kept", [0, 1, 3, 5])
def test_what_a_master_of_rocketmq_still_has_is_compared(tmp_path, kept):
    """Asked for what it has deleted it sends nothing, and for 0 its last file."""
    with master_store(tmp_path / "m", 400) as master:
        log = log_bytes(master)
        least = max(0, len(log) // FILE + 1 - kept) * FILE if kept else 0
        shutil.copytree(tmp_path / "m", tmp_path / "s")

    async def scenario(slave, theirs):
        async with rocketmq_master(theirs, least) as address:
            return await find_divergence(slave.followed_log, address)

    with slave_store(tmp_path / "s") as slave:
        assert asyncio.run(scenario(slave, log)).in_order
        last = slave.followed_log.record_begin(len(log) - 1)
        other = log[:last] + bytes(50)
        found = asyncio.run(scenario(slave, other))
        assert (found.common_end, found.master_goes_on) == (last, True)


@pytest.mark.parametrize("case", range(8))
def test_logs_that_begin_part_and_end_anywhere(tmp_path, rng, case):
    with master_store(tmp_path / "m") as store:
        fill(store, rng.randrange(1, 300))
    shutil.copytree(tmp_path / "m", tmp_path / "o")
    logs = []
    for number, name in enumerate("om"):
        with open_store(tmp_path / name, **SMALL) as store:
            fill(store, rng.choice([0, rng.randrange(300)]), seed=2 + number)
            logs.append(log_bytes(store))
    ours, theirs = logs
    theirs = theirs[: rng.choice([len(theirs), len(theirs) // FILE * FILE, rng.randrange(FILE)])]
    begin, least = (
        rng.choice([0, rng.randrange(len(log) // FILE + 1) * FILE]) for log in (ours, theirs)
    )
    begin = begin if begin < len(ours) else 0

    async def asked(ask, slave):
        async with rocketmq_master(theirs, least) as address:
            return await ask(slave.followed_log, address)

    with slave_store(tmp_path / "s") as slave:
        slave.followed_log.append_data(ours[begin:], begin)
        end, start = slave.max_phy_offset, max(begin, least)
        places = [*(one.phy_offset for one in slave.messages()), *range(begin, end, FILE)]
        same = start
        while same < min(end, len(theirs)) and ours[same] == theirs[same]:
            same += 1
        found = asyncio.run(asked(find_divergence, slave))
        assert (found.begin, found.end, found.in_order) == (begin, end, same == end > start)
        whole = max(place for place in (begin, *places) if place <= same)
        if same < end:
            # the place of an end-of-file record is none of them
            assert whole <= found.common_end <= same or whole <= start
            assert whole > start or found.common_end == begin
    if not found.in_order:
        cut(StoreDir(tmp_path / "s"), found)
    with slave_store(tmp_path / "s", on_corruption="truncate") as slave:
        assert slave.max_phy_offset <= (found.common_end if found.common_end > begin else 0)
        asyncio.run(asked(fetch, slave))
        log, begin = log_bytes(slave), slave.min_phy_offset
        assert log == theirs[begin:][: len(log)]
        # all but a part of a record
        assert least >= len(theirs) or begin + len(log) > len(theirs) - 1000


@pytest.mark.parametrize("least", [0, 3 * FILE])
def test_an_empty_log_fetches_all_that_a_master_of_rocketmq_has(tmp_path, least):
    with master_store(tmp_path / "m", 400) as master:
        log = log_bytes(master)

    async def scenario(slave):
        async with rocketmq_master(log, least) as address:
            return await fetch(slave.followed_log, address)

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
    monkeypatch.setattr(resync, "strftime", lambda *_: "now")
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


def test_a_log_of_other_records_from_where_the_master_begins_is_not_the_masters(tmp_path):
    """What lies in front of that was never compared."""
    with master_store(tmp_path / "m", 400) as master:
        log = log_bytes(master)
    with slave_store(tmp_path / "s") as slave, open_store(tmp_path / "o", **SMALL) as other:
        fill(other, 400, seed=9)
        slave.followed_log.append_data(log_bytes(other), 0)

        async def scenario():
            async with rocketmq_master(log, 2 * FILE) as address:
                return await find_divergence(slave.followed_log, address)

        end = slave.max_phy_offset
        assert asyncio.run(scenario()) == Divergence(0, 0, end, True)


@pytest.mark.parametrize("least", [2 * FILE, 5 * FILE])
def test_a_master_whose_log_ends_with_a_file_has_those_before_it(tmp_path, least):
    with master_store(tmp_path / "m", 400) as master:
        log = log_bytes(master)
    shutil.copytree(tmp_path / "m", tmp_path / "s")
    log = log[: len(log) - len(log) % FILE]

    async def scenario(ask, store):
        async with rocketmq_master(log, least) as address:
            return await ask(store.followed_log, address)

    assert len(log) == 6 * FILE
    with slave_store(tmp_path / "s") as slave, slave_store(tmp_path / "empty") as empty:
        assert asyncio.run(scenario(find_divergence, slave)).common_end == len(log)
        assert asyncio.run(scenario(fetch, empty)) == len(log) - least


def test_an_empty_log_that_begins_where_the_master_has_nothing_is_begun_anew(tmp_path):
    with master_store(tmp_path / "m", 400) as master:
        shutil.copytree(tmp_path / "m", tmp_path / "s")
        for file in (tmp_path / "s" / "commitlog").iterdir():
            if int(file.name) == FILE:
                file.write_bytes(bytes(FILE))
            else:
                file.unlink()
        with slave_store(tmp_path / "s", on_corruption="truncate") as slave:
            assert (slave.min_phy_offset, slave.max_phy_offset) == (FILE, FILE)
            assert divergence(master, slave).in_order
        assert master.queues(), "nothing that goes is still to be dispatched"
        master.log.queue.remove_first(3)
        told = command(master, str(tmp_path / "s"))
        assert (told.exit_code, json.loads(told.stdout)["same_up_to"]) == (1, 0)
        command(master, str(tmp_path / "s"), "--yes", "--fetch")
        with open_store(tmp_path / "s") as slave:
            assert slave.min_phy_offset == 3 * FILE
            assert log_bytes(slave) == log_bytes(master)


# ---- a log that is damaged


def rotten(store, number):
    """Change a byte in the body of a record that lies before the last ones; where it begins."""
    with open_store(store) as opened:
        record = list(opened.messages())[number]
    begin = record.phy_offset
    log = store / "commitlog" / f"{begin - begin % FILE:020}"
    whole = bytearray(log.read_bytes())
    at = whole.index(bytes(record.body), begin % FILE)
    whole[at] ^= 1
    log.write_bytes(whole)
    return begin


@pytest.mark.parametrize("closed", [True, False])
def test_what_lies_behind_damage_is_kept_and_only_when_told(tmp_path, closed):
    with master_store(tmp_path / "m", 300) as master:
        shutil.copytree(tmp_path / "m", tmp_path / "s")
        (tmp_path / "s" / "abort").unlink()
        begin = rotten(tmp_path / "s", -20)
        if not closed:
            (tmp_path / "s" / "abort").write_text("1")
        log = tmp_path / "s" / "commitlog"
        before = files(log)
        told = command(master, str(tmp_path / "s"))
        assert (told.exit_code, files(log)) == (4, before)
        assert "--yes ends the log there, and keeps what follows" in told.stderr
        done = command(master, str(tmp_path / "s"), "--yes", "--fetch")
        assert done.exit_code == 0
        facts = json.loads(done.stdout)
        assert (facts["same_up_to"], facts["end"], facts["kept_in"]) == (begin, begin, None)
        assert facts["damaged_kept_in"] in done.stderr
        name = f"{begin - begin % FILE:020}"
        (kept,) = tmp_path.glob(f"s/resync-*/commitlog/{name}")
        assert kept.read_bytes()[begin % FILE :] == before[name][begin % FILE :]
        with slave_store(tmp_path / "s") as slave:
            assert log_bytes(slave) == log_bytes(master)
            assert derived(slave) == derived(master)


def test_a_log_that_is_not_where_it_is_looked_for_costs_no_queues(tmp_path):
    parted(tmp_path, 30, 300, 5)
    (tmp_path / "s" / "commitlog").rename(tmp_path / "log")
    (tmp_path / "s" / "commitlog").mkdir()
    with master_store(tmp_path / "m") as master:
        for words in ([], ["--yes"]):
            assert command(master, str(tmp_path / "s"), *words).exit_code == 4
    assert list(tmp_path.glob("s/consumequeue/T0/0/*"))
    assert not list(tmp_path.glob("s/resync-*"))


# ---- a cut that ends in the middle


#: the calls in which a file or a folder changes
CHANGES = {"open", "mkdir", "rename", "unlink", "truncate", "seek", "write", "pwrite", "flush"}


def killed(step, work):
    """Whether a process that does some work was killed before one of the changes that it makes."""
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, 9)
        return code == 9
    left = iter(range(step))

    def profile(_, event, called):
        if event == "c_call" and called.__name__ in CHANGES and next(left, None) is None:
            os._exit(9)

    try:
        sys.setprofile(profile)
        work()
        os._exit(0)
    finally:
        os._exit(1)


def tree(path):
    """All that lies below a folder."""
    return {one.relative_to(path): one.is_file() and one.read_bytes() for one in path.rglob("*")}


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("whole", [False, True])
def test_a_cut_that_is_killed_loses_nothing_and_is_repeated(tmp_path, monkeypatch, whole):
    """In whatever state a kill leaves it."""
    monkeypatch.setattr(resync, "_READ_SIZE", 5000)
    monkeypatch.setattr(resync, "strftime", lambda *_: "now")
    if whole:
        with master_store(tmp_path / "m", 300), master_store(tmp_path / "s") as slave:
            fill(slave, 200, seed=4)
    else:
        parted(tmp_path, 100, 250, 5)
    with slave_store(tmp_path / "s") as slave:
        sizes_of = {one.phy_offset: one.store_size for one in slave.messages()}
        records = {
            at: bytes(slave.followed_log.bytes_at(at, size)) for at, size in sizes_of.items()
        }
    with master_store(tmp_path / "m") as master:
        with slave_store(tmp_path / "s") as slave:
            found = divergence(master, slave)
        assert (found.common_end == 0) is whole
        taken = [one for one in records.items() if one[0] >= found.common_end]
        wanted, states = (log_bytes(master), derived(master)), [tree(tmp_path / "s")]
        for step in itertools.count():
            path = tmp_path / f"s{step}"
            shutil.copytree(tmp_path / "s", path)
            going_on = killed(step, lambda path=path: cut(StoreDir(path), found))
            if (state := tree(path)) != states[-1]:
                states.append(state)
                cut_again(master, path, taken, wanted)
            shutil.rmtree(path)
            if not going_on:
                break
        assert len(states) > 9


def cut_again(master, path, taken, wanted):
    """Lead a log back whose cut was broken off: no record that is taken from it is lost."""
    sizes = [word for name, value in SMALL.items() for word in ("-c", f"{name}={value}")]
    done = command(master, str(path), "--yes", "--fetch", *sizes)
    assert done.exit_code == 0, (path, done.output)
    kept = {}
    for file in path.glob("resync-*/commitlog/*"):
        kept.setdefault(int(file.name), []).append(file.read_bytes())
    for begin, record in taken:
        pieces = kept[begin - begin % FILE]
        assert any(one.startswith(record, begin % FILE) for one in pieces), (path, begin)
    with slave_store(path) as slave:
        assert (log_bytes(slave), derived(slave)) == wanted, path


def test_a_cut_has_room_for_what_it_keeps_before_it_takes_anything(tmp_path, monkeypatch):
    end = parted(tmp_path, 30, 300, 5)
    before = files(tmp_path / "s" / "commitlog")

    def full(_):
        raise OSError(28, os.strerror(28))

    with master_store(tmp_path / "m") as master:
        with monkeypatch.context() as patch:
            patch.setattr(resync, "sync_fd", full)
            done = command(master, str(tmp_path / "s"), "--yes")
            assert (done.exit_code, files(tmp_path / "s" / "commitlog")) == (5, before)
            assert str(tmp_path / "s" / "resync-") in done.stderr
        assert json.loads(command(master, str(tmp_path / "s"), "--yes").stdout)["same_up_to"] == end


def test_what_makes_no_sense_is_refused(tmp_path):
    parted(tmp_path, 3, 0, 0)
    asked = ["ha", "resync", str(tmp_path / "s"), "--master", "nowhere"]
    done = CliRunner().invoke(app, asked)
    assert (done.exit_code, "'nowhere' is not host:port" in done.stderr) == (2, True)
    asked[-1:] = ["127.0.0.1:1", "--fetch"]
    done = CliRunner().invoke(app, asked)
    assert (done.exit_code, "give --yes, too" in done.stderr) == (2, True)
