"""What a store holds open: least recently used out first, and never more than it may have."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rmqcore import open_store
from rmqcore.doctor import verify
from rmqcore.files import mapped_file
from rmqcore.files.consume_queue import UNIT, ConsumeQueue
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.native.format._numbers import UNIT_SIZE
from rmqcore.scan import read_store

pytestmark = pytest.mark.logic

SIZE = 4096


@pytest.fixture
def open_files():
    return OpenFiles(descriptors_max=3, mappings_max=6)


@pytest.fixture
def files(open_files, tmp_path):
    made = []
    for number in range(5):
        path = tmp_path / f"{number * SIZE:020d}"
        path.write_bytes(bytes([number]) * SIZE)
        made.append(MappedFile(path, SIZE, number * SIZE, open_files))
    return made


def descriptors(directory):
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sorted({link.name for link in links if directory in link.parents})


def mappings(directory):
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({Path(line.split()[-1]).name for line in lines if str(directory) in line})


def test_the_least_recently_used_descriptor_is_closed(files, tmp_path):
    for number in (0, 1, 2, 0, 3):
        files[number].read_bytes(0, 1)
    assert descriptors(tmp_path) == [files[number].path.name for number in (0, 2, 3)]
    files[2].read_bytes(0, 1)
    files[4].read_bytes(0, 1)
    assert descriptors(tmp_path) == [files[number].path.name for number in (2, 3, 4)]


def test_the_least_recently_used_mapping_goes(files, tmp_path):
    for number in (0, 1, 2, 0, 3):
        assert files[number].read(0, 1)[0] == number
    assert mappings(tmp_path) == [files[number].path.name for number in (0, 2, 3)]


def test_a_mapping_that_is_in_use_stays_good(files):
    views = [file.read(0, SIZE) for file in files]
    assert [bytes(view) for view in views] == [bytes([number]) * SIZE for number in range(5)]


def test_a_process_without_descriptors_closes_some_of_its_own(files, tmp_path, monkeypatch):
    for file in files[:3]:
        file.read_bytes(0, 1)
    really, refused = os.open, []

    def full_once(path, flags, mode=0o777, **options):
        if path == files[3].path and not refused:
            refused.append(len(descriptors(tmp_path)))
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return really(path, flags, mode, **options)

    monkeypatch.setattr(mapped_file.os, "open", full_once)
    assert files[3].read_bytes(0, 1) == b"\x03"
    assert refused == [3]
    assert descriptors(tmp_path) == [files[number].path.name for number in (2, 3)]


def test_where_nothing_can_be_closed_the_refusal_is_the_callers(files, monkeypatch):
    def full(path, *_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(mapped_file.os, "open", full)
    with pytest.raises(OSError, match="Too many open files"):
        files[0].read_bytes(0, 1)


@pytest.fixture
def no_collector():
    """The garbage collector counts objects, and a file is one: it may come after 1,000 of them."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_file_that_nobody_uses_closes_without_the_garbage_collector(
    no_collector, files, tmp_path
):
    for file in files:
        file.read(0, 1)
    del file
    files.clear()
    assert descriptors(tmp_path) == mappings(tmp_path) == []


@pytest.mark.engine
def test_what_only_reads_a_store_leaves_no_descriptor(no_collector, tmp_path):
    path = tmp_path / "store"
    with open_store(path, mapped_file_size_commit_log=16384) as store:
        for number in range(40):
            store.put("T", bytes(1000), queue_id=number % 2, keys=f"k{number}")
    assert verify(path).clean
    assert sum(len(batch) for batch in read_store(path, ["body"])) == 40
    assert len(next(iter(read_store(path, ["body"], topics=["T"]))))
    reader = open_store(path, mode="r")
    assert reader.get_message("T", 0, 0).messages
    del reader
    assert descriptors(path / "commitlog") == descriptors(path) == []


@pytest.mark.engine
def test_a_store_that_is_closed_holds_nothing_however_long_it_is_kept(no_collector, tmp_path):
    with open_store(tmp_path) as before:
        before.put("T", b"x", keys="k")
    store = open_store(tmp_path)
    assert store.query_message("T", "k").messages
    assert store.get_message("T", 0, 0).messages
    store.close()
    assert (descriptors(tmp_path), mappings(tmp_path)) == ([], [])


MANY_QUEUES = """
    import resource, sys
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    import rmqcore
    from rmqcore.doctor import verify
    from rmqcore.rebuild import rebuild_consume_queues

    path, queues = sys.argv[1], 200
    sizes = {"mapped_file_size_commit_log": 65536, "mapped_file_size_consume_queue": 200}

    def all_read(store):
        for number in range(queues):
            (message,) = store.get_message("T", number, 0).messages
            assert message.body == b"%d" % number

    with rmqcore.open_store(path, **sizes) as store:
        for turn in range(2):
            for number in range(queues):
                assert store.put("T", b"%d" % number, queue_id=number).queue_offset == turn
                store.get_message("T", number, turn)
        store.flush()
        assert store.why_not_writable() is None
    with rmqcore.open_store(path) as store:
        assert len(store.queues()) == queues
        assert store.max_queue_offset("T", queues - 1) == 2
        assert store.put("T", b"x", queue_id=7).queue_offset == 2
        assert store.get_message("T", 7, 2).messages[0].body == b"x"
        with rmqcore.open_store(path, mode="r") as reader:
            reader.max_queue_offset("T", 199)
    before = verify(path)
    assert not before.findings, before.findings
    report = rebuild_consume_queues(path)
    assert report.digest_before == report.digest_after
"""


@pytest.mark.process
def test_more_queues_than_descriptors(tmp_path):
    script = textwrap.dedent(MANY_QUEUES)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.engine
def test_the_bound_holds_for_all_that_maps(tmp_path):
    path = tmp_path / "store"
    sizes = {"mapped_file_size_commit_log": 8192, "max_hash_slot_num": 8, "max_index_num": 8}
    with open_store(path, max_mapped_files=8, allocate_ahead=0, **sizes) as store:
        for number in range(120):
            store.put("T", b"%04d" % number * 200, keys=f"k{number}")
        store.flush()
        for number in range(120):
            (message,) = store.get_message("T", 0, number, max_messages=1).messages
            assert message.body == b"%04d" % number * 200
        for number in range(120):
            (found,) = store.query_message("T", f"k{number}").messages
            assert found.queue_offset == number
        assert len(list((path / "index").iterdir())) > 8
        assert len(list((path / "commitlog").iterdir())) > 8
        # the end of the log and the index file that is filled are mapped besides
        del found, message
        for service in store.parts.upkeep.services:
            store.parts.upkeep.runner.stop(service)
        assert len([name for name in mappings(path) if name.isdigit()]) <= 8 + 2


def test_a_store_may_be_opened_while_all_are_counted(files, monkeypatch):
    """As by another thread, between any two steps."""
    for file in files[:3]:
        file.read_bytes(0, 1)
    others, before = [], sys.gettrace()

    def opens_another(*_):
        others.append(OpenFiles())
        return opens_another

    monkeypatch.setattr(mapped_file, "_descriptors_allowed", lambda: 1)
    sys.settrace(opens_another)
    try:
        OpenFiles()
        files[3].read_bytes(0, 1)
    finally:
        sys.settrace(before)
    assert len(others) > 10


def filled_queue(directory, open_files):
    """A queue of 40 files of one unit, none of which is on the disk."""
    queue = ConsumeQueue(directory, "T", 0, UNIT_SIZE, open_files)
    units = b"".join(UNIT.pack(100 * number, 100, 0) for number in range(40))
    queue.append_units(0, memoryview(units))
    return queue


@pytest.mark.parametrize(
    "remove",
    [
        pytest.param(lambda queue: queue.cut_at(1), id="cut at a number"),
        pytest.param(lambda queue: queue.truncate(100), id="cut at the end of the log"),
        pytest.param(lambda queue: queue.destroy(), id="destroyed"),
        pytest.param(lambda queue: queue.delete_before(3900), id="expired"),
    ],
)
def test_files_that_are_removed_are_held_no_more(remove, open_files, tmp_path, monkeypatch):
    """A number that has rotted makes twenty thousand of them, which are removed again at once."""
    queue, really, most = filled_queue(tmp_path / "q", open_files), MappedFile.destroy, 0

    def destroy(file):
        nonlocal most
        really(file)
        most = max(most, len(descriptors(tmp_path / "q")))

    monkeypatch.setattr(MappedFile, "destroy", destroy)
    remove(queue)
    assert 0 < most <= 4
    queue.close()
