"""`rmqcore metaq`: it serves, looks at a store, checks and repairs it."""

import asyncio
import json
import os
import shutil
import subprocess
import sys

import pytest
from patience import TIMEOUT_S
from typer.testing import CliRunner

from reference import metaq as reference
from rmqcore.cli.metaq import app
from rmqcore.metaq import MessageStoreManager, MetaClient

pytestmark = pytest.mark.engine


@pytest.mark.process
def test_the_command_serves_until_it_is_told_to_stop(tmp_path):
    ini = tmp_path / "server.ini"
    ini.write_text(
        "[system]\nbrokerId=0\nnumPartitions=1\nunflushThreshold=0\nunflushInterval=10000\n"
        f"maxSegmentSize=1000000\nmaxTransferSize=1000\ndataPath={tmp_path}/meta\n[topic=t]\n"
    )
    code = f"from rmqcore.cli.metaq import app; app(['serve', {str(ini)!r}, '--port', '0'])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as server:
        line = server.stdout.readline()
        port = int(line.rsplit(":", 1)[1])

        async def put():
            async with MetaClient("127.0.0.1", port) as client:
                return await client.put("t", b"x")

        assert asyncio.run(put()).offset == 0
        server.terminate()
        assert server.wait(TIMEOUT_S) == 0


def run_command(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def test_looking_at_a_store(config, tmp_path):
    with MessageStoreManager(config(unflush_threshold=0)) as manager:
        store = manager.get_or_create("t", 0)
        for i in range(1, 6):
            store.append(i, b"message %d" % i)
        path = store.segments[-1].messages.path
    folder = tmp_path / "meta"
    code, out, _ = run_command("stat", folder, "--json")
    assert (code, json.loads(out)[0]["max_offset"]) == (0, 145)
    assert run_command("cat", folder, "t", "0", "-n", "2")[1] == "message 1\nmessage 2\n"
    code, out, _ = run_command("verify", folder, "--json")
    assert (code, json.loads(out)) == (0, {"messages": 5, "findings": []})
    damaged = bytearray(path.read_bytes())
    damaged[50] ^= 1
    path.write_bytes(damaged)
    code, out, _ = run_command("verify", folder, "--json")
    assert code == 1
    assert json.loads(out)["findings"][0]["offset"] == 29
    assert path.read_bytes() == damaged
    code, _, err = run_command("recover", folder)
    assert code == 1
    assert "confirmed to be on disk" in err.replace("\n", " ")
    code, out, _ = run_command("recover", folder, "--repair", "--json")
    assert (code, json.loads(out)[0]["messages"]) == (0, 1)
    assert run_command("verify", folder)[0] == 0
    assert run_command("stat", tmp_path / "nowhere")[0] == 1


def test_cat_tells_of_damage_in_front_of_whole_messages(tmp_path):
    folder = tmp_path / "meta" / "t-0"
    folder.mkdir(parents=True)
    records = [reference.encode(number, b"message %d" % number) for number in range(3)]
    data = b"".join([records[0], records[1][:-1] + b"!", records[2]])
    (folder / f"{0:020d}.meta").write_bytes(data)
    code, out, err = run_command("cat", tmp_path / "meta", "t", "0")
    assert (code, out) == (1, "message 0\n")
    assert str(folder) in err.replace("\n", "")
    store = tmp_path / "store"
    assert run_command("migrate", tmp_path / "meta", store)[0] == 1


def test_checking_an_ini(tmp_path):
    ini = tmp_path / "server.ini"
    ini.write_text("[system]\nbrokerId=0\n")
    code, _, err = run_command("config", ini)
    assert code == 1
    assert "numPartitions" in err


def test_a_transaction_journal_with_entries_is_named(config, tmp_path, caplog):
    folder = tmp_path / "meta"
    with MessageStoreManager(config()) as manager:
        manager.get_or_create("t", 0).append(1, b"x")
    journal = folder / "transactions" / "redo.3"
    journal.parent.mkdir()
    for name in ("redo.2", "checkpoint.1"):
        journal.with_name(name).touch()
    commands = [["stat", folder], ["verify", folder], ["recover", folder]]
    commands.append(["migrate", folder, tmp_path / "rocketmq"])
    assert [run_command(*command)[0] for command in commands] == [0] * 4
    assert run_command("stat", folder)[2] == ""
    journal.write_bytes(b"entry")
    for command in commands:
        code, _, err = run_command(*command)
        assert (code, err.count("warning: ")) == (0, 1), err
        assert f"{journal}: a transaction journal with entries" in err
    MessageStoreManager(config()).close()
    assert f"{journal}: a transaction journal with entries" in caplog.text


def test_a_partition_that_is_refused_keeps_no_other_from_being_told(config, tmp_path):
    folder = tmp_path / "meta"
    with MessageStoreManager(config(unflush_threshold=0, num_partitions=3)) as manager:
        for partition in range(3):
            manager.get_or_create("t", partition).append(1, b"x")
    # no segment of this log
    (folder / "t-1" / f"{5:020d}.meta").write_bytes(b"")
    for command in (["stat", folder], ["recover", folder], ["recover", folder, "--repair"]):
        code, out, err = run_command(*command, "--json")
        told = [(row.get("topic"), row.get("partition")) for row in json.loads(out)]
        expected = {("t", 0), ("t", 2)} if command[0] == "stat" else {(None, "t-0"), (None, "t-2")}
        assert (code, set(told)) == (1, expected)
        assert "overlaps the segment that begins at 5; one of the" in " ".join(err.split())


def test_a_mark_that_was_made_far_too_long_fills_no_memory(config, tmp_path):
    with MessageStoreManager(config(unflush_threshold=0)) as manager:
        manager.get_or_create("t", 0).append(1, b"x")
    os.truncate(tmp_path / "meta" / "t-0" / "high-water-mark", 1 << 40)
    assert run_command("verify", tmp_path / "meta")[0] == 0
    assert run_command("recover", tmp_path / "meta")[0] == 0


def test_a_pipe_in_the_place_of_a_mark_is_waited_for_by_nobody(config, tmp_path):
    with MessageStoreManager(config(unflush_threshold=0)) as manager:
        manager.get_or_create("t", 0).append(1, b"x")
    mark = tmp_path / "meta" / "t-0" / "high-water-mark"
    mark.unlink()
    os.mkfifo(mark)
    for command in ("stat", "verify", "recover"):
        assert run_command(command, tmp_path / "meta")[0] == 0
    assert run_command("cat", tmp_path / "meta", "t", "0")[:2] == (0, "x\n")


def test_a_directory_whose_name_begins_with_a_zero_is_no_partition(config, tmp_path):
    folder = tmp_path / "meta"
    with MessageStoreManager(config()) as manager:
        manager.get_or_create("t", 0).append(1, b"x")
    shutil.copytree(folder / "t-0", folder / "t-00")
    with MessageStoreManager(config()) as manager:
        assert manager.ignored == (folder / "t-00",)
    code, out, _ = run_command("stat", folder, "--json")
    assert (code, len(json.loads(out))) == (0, 1)
