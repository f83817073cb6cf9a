"""A directory listing is no snapshot: beside a writer it may show a file, and not one before it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import rmqcore
from rmqcore._codec import encode_batch
from rmqcore.files.mapped_file_queue import numbered_files
from rmqcore.store import follower

pytestmark = pytest.mark.engine

SIZES = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 10,
    "max_index_num": 40,
}


class Racing:
    """Listings that leave out a file of a directory until they have been made so often."""

    def __init__(self, monkeypatch, directory, hidden, times):
        self.left = times
        self._directory, self._hidden = directory, hidden
        self._scandir, self._iterdir = os.scandir, Path.iterdir
        monkeypatch.setattr(os, "scandir", self.scandir)
        monkeypatch.setattr(Path, "iterdir", lambda path: iter(self.iterdir(path)))

    def hides(self, path):
        if Path(path) != self._directory or not self.left:
            return False
        self.left -= 1
        return True

    def scandir(self, path):
        hidden = self._hidden if self.hides(path) else None
        return Listing(entry for entry in self._scandir(path) if entry.name != hidden)

    def iterdir(self, path):
        hidden = self._hidden if self.hides(path) else None
        return [found for found in self._iterdir(path) if found.name != hidden]


class Listing(list):
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


@pytest.fixture
def store(store_path):
    with rmqcore.open_store(store_path, **SIZES) as store:
        for number in range(100):
            store.put("T", b"x" * 200, keys=f"k{number}")
        store.flush()
        yield store


def test_a_racing_listing_is_made_again(store, monkeypatch):
    directory = store.log.queue.directory
    # nobody makes files meanwhile
    store.close()
    names = sorted(path.name for path in directory.iterdir())
    for times in (1, 2, 3):
        racing = Racing(monkeypatch, directory, names[-2], times)
        found = [path.name for _, path, _ in numbered_files(directory)]
        # two listings that are equal count, whatever they show
        assert found == (names if times == 1 else names[:-2] + names[-1:])
        assert racing.left == max(0, times - 2)
        monkeypatch.undo()


@pytest.mark.parametrize("part", ["log", "queue", "index"])
def test_a_reader_follows_a_writer_that_makes_files(store, monkeypatch, part):
    with rmqcore.open_store(store.path, mode="r") as reader:
        followed = {
            "log": reader.log.queue,
            "queue": reader.consume_queues.find("T", 0).queue,
            "index": reader.index,
        }[part]
        known = len(followed.files)
        for number in range(100, 300):
            store.put("T", b"x" * 200, keys=f"k{number}")
        store.flush()
        names = sorted(path.name for path in followed.directory.iterdir())
        assert len(names) > known + 1
        racing = Racing(monkeypatch, followed.directory, names[-2], 1)
        followed.follow()
        # files may have been made ahead since
        assert [file.path.name for file in followed.files][: len(names)] == names
        assert racing.left == 0


@pytest.mark.logic
def test_a_hole_that_stays_is_there(tmp_path):
    for start in (0, 10, 30):
        (tmp_path / f"{start:020d}").write_bytes(bytes(10))
    assert [start for start, _, _ in numbered_files(tmp_path)] == [0, 10, 30]


@pytest.mark.parametrize("beside", [(), (("B", "BatchCQ"),)], ids=["alone", "beside batches"])
def test_a_queue_whose_first_file_comes_behind_its_directory_is_read(store_path, tmp_path, beside):
    sizes = {"mapped_file_size_commit_log": 65536, "mapped_file_size_consume_queue": 2000}
    with rmqcore.open_store(store_path, **sizes, topic_queue_types=beside) as store:
        store.put("T", b"0")
        if beside:
            batch = encode_batch([rmqcore.Message("B", b"b")])
            store.put("B", batch, sys_flag=0x80 | 0x40, properties={"INNER_NUM": "1"})
            assert store.max_queue_offset("B", 0) == 1
    queue, aside = store_path / "consumequeue" / "T" / "0", tmp_path / "aside"
    queue.rename(aside)
    queue.mkdir()
    with rmqcore.open_store(store_path, mode="r") as reader:
        for topic in ("B", "T"):
            assert reader.max_queue_offset(topic, 0) == (topic == "B" and bool(beside))
        (aside / f"{0:020d}").rename(queue / f"{0:020d}")
        assert [message.body for message in reader.get_message("T", 0, 0).messages] == [b"0"]


def test_a_reader_of_a_store_without_keys_asks_for_sizes_once(store_path, monkeypatch):
    """Until an index file comes, which says how large it is."""
    with rmqcore.open_store(store_path, max_hash_slot_num=25, max_index_num=100) as store:
        for number in range(10):
            store.put("T", b"%d" % number)
        # the writer's own read lets the queue have all
        assert store.max_queue_offset("T", 0) == 10
        with rmqcore.open_store(store_path, mode="r") as reader:
            asked = []
            real = follower.fitted_config
            monkeypatch.setattr(
                follower,
                "fitted_config",
                lambda *args, **how: asked.append(args) or real(*args, **how),
            )
            for number in range(10):
                assert reader.get_message("T", 0, number).messages[0].body == b"%d" % number
                assert reader.message_at(0).body == b"0"
            assert not asked
            store.put("T", b"last", keys="k")
            store.flush()
            assert [one.body for one in reader.query_message("T", "k").messages] == [b"last"]
            assert len(asked) > 0
            del asked[:]
            assert len(reader.get_message("T", 0, 0).messages) == 11
            assert not asked
