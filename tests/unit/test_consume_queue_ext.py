"""Reading the extension file that a broker with enableConsumeQueueExt has written."""

from __future__ import annotations

import struct

import pytest

from rmqcore import open_store
from rmqcore._codec import tags_code
from rmqcore.doctor import verify
from rmqcore.files.consume_queue_ext import ConsumeQueueExt
from rmqcore.files.mapped_file import OpenFiles

pytestmark = pytest.mark.logic

ADDRESS = -(2**63)


def unit(code, bit_map=b""):
    return struct.pack(">hqqh", 20 + len(bit_map), code, 1_700_000_000_000, len(bit_map)) + bit_map


@pytest.fixture
def directory(tmp_path):
    (tmp_path / f"{0:020d}").write_bytes(
        (unit(7) + unit(-9, b"map") + b"\xff\xff").ljust(100, b"\0")
    )
    (tmp_path / f"{100:020d}").write_bytes(unit(11).ljust(100, b"\0"))
    return tmp_path


def test_units_are_found_by_address(directory):
    ext = ConsumeQueueExt(directory, OpenFiles())
    codes = [ext.tags_code_at(ADDRESS + at) for at in (0, 20, 100)]
    assert codes == [7, -9, 11]


@pytest.mark.parametrize("offset", [43, 90, 95, 120, 200, 2**40])
def test_what_is_no_unit_is_none(directory, offset):
    assert ConsumeQueueExt(directory, OpenFiles()).tags_code_at(ADDRESS + offset) is None


@pytest.fixture
def extended(tmp_path):
    """A store with an extension file: its path, the queue's file and the extension's."""
    path = tmp_path / "store"
    with open_store(path, mapped_file_size_commit_log=65536) as store:
        for number in range(6):
            store.put("T", b"%d" % number, tags="ab"[number % 2])
        store.max_queue_offset("T", 0)
    queue = path / "consumequeue" / "T" / "0" / f"{0:020d}"
    data = bytearray(queue.read_bytes())
    ext = path / "consumequeue_ext" / "T" / "0"
    ext.mkdir(parents=True)
    units = b""
    for number in range(6):
        data[20 * number + 12 : 20 * number + 20] = struct.pack(">q", ADDRESS + len(units))
        units += unit(tags_code("ab"[number % 2]))
    queue.write_bytes(data)
    (ext / f"{0:020d}").write_bytes(units.ljust(1000, b"\0"))
    return path, queue, ext / f"{0:020d}"


def filtered(path, mode):
    with open_store(path, mode=mode) as store:
        return [bytes(message.body) for message in store.get_message("T", 0, 0, tags="b").messages]


@pytest.mark.engine
def test_a_filter_reads_through_the_extension(extended):
    path, queue, _ = extended
    before = queue.read_bytes()
    for mode in ("r", "a"):
        assert filtered(path, mode) == [b"1", b"3", b"5"]
    assert queue.read_bytes() == before


@pytest.mark.engine
@pytest.mark.parametrize("left", ["nothing", "zeros", "half", "less than it was"])
def test_a_message_without_its_extension_unit_is_found_by_its_tags(extended, monkeypatch, left):
    """As RocketMQ hands it out, whose client looks at the tags itself."""
    path, _, ext = extended
    if left == "nothing":
        ext.unlink()
        ext.parent.rmdir()
        ext.parent.parent.rmdir()
    elif left == "zeros":
        ext.write_bytes(bytes(1000))
    elif left == "half":
        ext.write_bytes(ext.read_bytes()[:63].ljust(1000, b"\0"))
    else:
        load = ConsumeQueueExt.__init__

        def cut(self, *given):
            load(self, *given)
            ext.write_bytes(b"")

        monkeypatch.setattr(ConsumeQueueExt, "__init__", cut)
    assert filtered(path, "r") == [b"1", b"3", b"5"]


@pytest.mark.engine
def test_an_opening_writes_units_anew_whose_extension_says_something_else(extended):
    path, queue, ext = extended
    ext.write_bytes((unit(tags_code("a")) * 3).ljust(1000, b"\0"))
    before = queue.read_bytes()
    assert filtered(path, "a") == [b"1", b"3", b"5"]
    after = queue.read_bytes()
    # those that it has, and that are right, stay
    assert [after[at : at + 20] == before[at : at + 20] for at in range(0, 120, 20)] == [
        True,
        False,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.engine
def test_verify_compares_what_the_extension_says_with_the_tags(extended):
    path, queue, ext = extended
    assert verify(path).clean
    data = bytearray(ext.read_bytes())
    # the tags code of the second unit
    data[20 + 2] ^= 1
    ext.write_bytes(data)
    assert filtered(path, "r") == [b"3", b"5"]
    (finding,) = verify(path).findings
    assert (finding.path, finding.what) == (
        queue.parent,
        "1 units from queue offset 1 on have a tags code that no record has",
    )
    # where it has no unit, the record's tags count
    ext.write_bytes(bytes(1000))
    assert verify(path).clean


@pytest.mark.engine
@pytest.mark.parametrize("refused", ["a queue's file", "the extension's"])
def test_extension_files_that_a_deletion_could_not_remove_are_removed_by_the_next(
    tmp_path, monkeypatch, refused
):
    path = tmp_path / "store"
    with open_store(path) as store:
        for topic in ("T", "Other"):
            for queue_id in (0, 1):
                store.put(topic, b"x", queue_id=queue_id)
                ext = path / "consumequeue_ext" / topic / str(queue_id)
                ext.mkdir(parents=True)
                (ext / f"{0:020d}").write_bytes(bytes(1000))

        def refuse(*_):
            raise PermissionError(refused)

        with monkeypatch.context() as patch:
            if refused == "a queue's file":
                patch.setattr(store.parts.files.consume_queues, "remove_files", refuse)
            else:
                patch.setattr("shutil.rmtree", refuse)
            with pytest.raises(PermissionError, match=refused):
                store.delete_topic("T")
        store.put("T", b"new", queue_id=1)
        store.delete_topic("T")
        assert [each.name for each in (path / "consumequeue_ext").iterdir()] == ["Other"]
        assert len(list((path / "consumequeue_ext").rglob(f"{0:020d}"))) == 2


@pytest.mark.engine
@pytest.mark.parametrize("plain", [0, 1, 9])
def test_extension_files_go_with_the_messages_that_they_are_for(tmp_path, plain):
    """Messages that were put here have no address; the last file stays, to go on in."""
    path = tmp_path / "store"
    settings = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 100}
    with open_store(path, **settings) as store:
        for number in range(9):
            store.put("T", b"%d" % number * 1000, tags="ab"[number % 2])
        log_start = 8192
        places = [store.get_message("T", 0, n).messages[0].phy_offset for n in range(9)]
    first = next(number for number in range(9) if places[number] >= log_start)
    ext = path / "consumequeue_ext" / "T" / "0"
    ext.mkdir(parents=True)
    for number in range(9):
        # a file of its own for each
        code = tags_code("ab"[number % 2])
        (ext / f"{100 * number:020d}").write_bytes(unit(code).ljust(100, b"\0"))
        if not first <= number < first + plain:
            queue = path / "consumequeue" / "T" / "0" / f"{number // 5 * 100:020d}"
            data = bytearray(queue.read_bytes())
            struct.pack_into(">q", data, number % 5 * 20 + 12, ADDRESS + 100 * number)
            queue.write_bytes(data)
    with open_store(path, **settings) as store:
        store.parts.upkeep.retention.delete_before(log_start)
        assert store.min_queue_offset("T", 0) == first
        found = store.get_message("T", 0, first, tags="b").messages
        assert [int(message.body[:1]) for message in found] == [n for n in range(first, 9) if n % 2]
    names = sorted(int(file.name) for file in ext.iterdir())
    assert names == [100 * number for number in range(min(first + plain, 8), 9)]
    assert verify(path).clean
