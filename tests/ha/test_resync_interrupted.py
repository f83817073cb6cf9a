"""A resync's cut that is interrupted, or followed by a kill, leaves a log, and goes on."""

import os
import shutil

import pytest
from ha.pair import derived, files, log_bytes, master_store, slave_store
from ha.test_resync import FILE, parted

from rmqcore import open_store
from rmqcore.derived.consume_queue_store import ConsumeQueueStore
from rmqcore.files.config_tables import TopicConfig
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.store_mark import StoreMark
from rmqcore.ha import resync
from rmqcore.ha.resync import Divergence, cut


@pytest.mark.logic
def test_a_cut_that_is_interrupted_leaves_no_hole_in_the_log(tmp_path, monkeypatch):
    log, kept = tmp_path / "commitlog", tmp_path / "kept"
    log.mkdir()
    kept.mkdir()
    for number in range(4):
        (log / f"{number * 100:020d}").write_bytes(b"x" * 100)
    move, moved = resync._move, []

    def once(path, to):
        if moved:
            raise KeyboardInterrupt
        moved.append(path)
        move(path, to)

    monkeypatch.setattr(resync, "_move", once)
    with pytest.raises(KeyboardInterrupt):
        resync._cut_files(log, kept, 150)
    assert sorted(int(path.name) for path in log.iterdir()) == [0, 100, 200]
    monkeypatch.setattr(resync, "_move", move)
    resync._cut_files(log, kept, 150)
    assert sorted(int(path.name) for path in log.iterdir()) == [0, 100]
    assert (log / f"{100:020d}").read_bytes() == b"x" * 50 + bytes(50)
    assert sorted(int(path.name) for path in kept.iterdir()) == [100, 200, 300]


@pytest.mark.engine
@pytest.mark.parametrize("step", [StoreMark, DeletedTopics], ids=["mark", "deletions"])
def test_a_cut_that_is_killed_beside_what_was_deleted_hides_nothing(tmp_path, monkeypatch, step):
    """The other log deleted a topic that the master has; the queue is far behind the log's end."""
    with master_store(tmp_path / "m") as master:
        master.put("Q", b"the master has it")
        for number in range(300):
            master.put("P", b"x" * 300, keys=f"k{number}")
    shutil.copytree(tmp_path / "m", tmp_path / "s")
    with open_store(tmp_path / "s") as store:
        common_end = store.max_phy_offset
        store.put("P", b"of another")
        store.delete_topic("Q")
        end = store.max_phy_offset
    directory, divergence = StoreDir(tmp_path / "s"), Divergence(0, common_end, end, True)

    def killed(*_):
        raise KeyboardInterrupt

    for method in ("store", "_store"):
        if hasattr(step, method):
            monkeypatch.setattr(step, method, killed)
    with pytest.raises(KeyboardInterrupt):
        cut(directory, divergence)
    monkeypatch.undo()
    cut(directory, divergence)
    with open_store(tmp_path / "s", on_corruption="truncate", open_check_bytes=4096) as store:
        assert [bytes(each.body) for each in store.messages("Q")] == [b"the master has it"]


@pytest.mark.engine
@pytest.mark.parametrize("refused", [False, True], ids=["at once", "behind a refused opening"])
def test_a_topic_whose_deletion_is_cut_off_is_there_though_no_table_lists_it(
    tmp_path, monkeypatch, refused
):
    """The broker took it out of its table with the deletion, which its master does not know."""
    path = tmp_path / "s"
    with open_store(path) as store:
        store.topics.put(TopicConfig(topic_name="TBW102"))
        store.put("Q", b"the master has it")
        common_end = store.max_phy_offset
        store.put("P", b"of another")
        store.delete_topic("Q")
        end = store.max_phy_offset
    cut(StoreDir(path), Divergence(0, common_end, end, True))
    if refused:
        with monkeypatch.context() as patch:
            patch.setattr(ConsumeQueueStore, "flush", refuse)
            with pytest.raises(OSError, match="refused"):
                open_store(path, on_corruption="truncate")
        # a power cut takes what was not flushed
        shutil.rmtree(path / "consumequeue")
    for _ in range(2):
        with open_store(path, on_corruption="truncate") as store:
            assert [bytes(each.body) for each in store.messages("Q")] == [b"the master has it"]
    assert "Q" not in (path / "config/deletedTopics.json").read_text("utf-8")


def refuse(*_):
    raise OSError("refused")


@pytest.mark.engine
def test_a_slave_that_is_killed_after_a_cut_has_its_masters_numbers(tmp_path):
    """What was cut off had numbers that the master gives to others; the log grows past its end."""
    with master_store(tmp_path / "m") as master:
        for number in range(5):
            master.put("Q", b"common %d" % number)
    shutil.copytree(tmp_path / "m", tmp_path / "s")
    with open_store(tmp_path / "s") as store:
        common_end = store.max_phy_offset
        for number in range(5):
            store.put("Q", b"of another %d" % number)
        end = store.max_phy_offset
    cut(StoreDir(tmp_path / "s"), Divergence(0, common_end, end, True))

    with master_store(tmp_path / "m") as master:
        for number in range(20):
            master.put("P", b"%d" % number)
        grown = master.max_phy_offset
        assert grown > end
        with slave_store(tmp_path / "s", on_corruption="truncate") as slave:
            slave.followed_log.append_data(log_bytes(master, common_end), common_end)
            assert slave.max_queue_offset("P", 0) == 20
            shutil.copytree(tmp_path / "s", tmp_path / "killed")
        for number in range(5):
            master.put("Q", b"of the master %d" % number)
        with slave_store(tmp_path / "killed") as slave:
            assert slave.max_queue_offset("Q", 0) == 5
            slave.followed_log.append_data(log_bytes(master, grown), grown)
            assert derived(slave) == derived(master)
            found = slave.get_message("Q", 0, 5, max_messages=9).messages
    assert [bytes(message.body) for message in found] == [
        b"of the master %d" % number for number in range(5)
    ]


@pytest.mark.engine
def test_files_of_a_log_on_another_disk_are_copied(tmp_path, monkeypatch):
    end = parted(tmp_path, 30, 300, 5)
    whole = files(tmp_path / "s" / "commitlog")

    def other_disk(path, _):
        raise OSError(18, os.strerror(18))

    with slave_store(tmp_path / "s") as slave:
        found = Divergence(0, end, slave.max_phy_offset, True)
    monkeypatch.setattr(resync.Path, "rename", other_disk)
    kept = files(cut(StoreDir(tmp_path / "s"), found) / "commitlog")
    assert all(kept[name] == content for name, content in whole.items() if int(name) >= end)
    assert set(kept) == {name for name in whole if int(name) + FILE > end}
