"""What opening cuts off the log is kept beside the store before a byte of it is zeroed."""

import errno
import shutil

import pytest

import rmqcore
from rmqcore.files import kept_cuts

pytestmark = pytest.mark.engine

FILE = 1 << 16
SETTINGS = {"mapped_file_size_commit_log": FILE, "warm_mapped_file_enable": False}


def log_of(path):
    return b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir()))


def cuts(path):
    return sorted((path / "doctor").glob("cut-*"))


@pytest.fixture
def damaged(store_path):
    """A store of ten messages, of which the sixth has rotted; the offset of that one."""
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        receipts = [store.put("T", b"%d " % number * 50) for number in range(10)]
    file = store_path / "commitlog" / f"{0:020d}"
    content = bytearray(file.read_bytes())
    content[receipts[5].phy_offset + 100] ^= 0xFF
    file.write_bytes(content)
    return receipts[5].phy_offset


def test_records_that_a_policy_cuts_are_kept_as_they_were(store_path, damaged):
    before = log_of(store_path)
    end = len(before.rstrip(b"\0"))
    with rmqcore.open_store(store_path, on_corruption="truncate") as store:
        report = store.recovery_report
    (kept,) = cuts(store_path)
    assert kept.name == f"cut-{damaged:020d}"
    assert kept.read_bytes() == before[damaged:end]
    assert report.dropped_bytes == end - damaged
    assert (
        report.cut_kept == f"what was cut off at {damaged} is kept in {kept}: {end - damaged} bytes"
    )
    assert not any(log_of(store_path)[damaged:])


def test_a_torn_tail_is_kept(store_path, tmp_path):
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        end = store.put("T", b"whole").phy_offset + store.put("T", b"torn" * 10).phy_offset
        store.flush()
        cut = tmp_path / "cut"
        shutil.copytree(store_path, cut)
        torn = store.log.record_head(0)[0]
    file = cut / "commitlog" / f"{0:020d}"
    content = bytearray(file.read_bytes())
    content[torn + 95 : torn + 99] = bytes(4)
    file.write_bytes(content)
    shutil.rmtree(cut / "consumequeue")
    (cut / "config" / "storeMark.json").unlink(missing_ok=True)
    with rmqcore.open_store(cut) as store:
        assert store.recovery_report.ending == "torn"
        assert [bytes(message.body) for message in store.messages()] == [b"whole"]
    (kept,) = cuts(cut)
    assert kept.read_bytes() == bytes(content[torn:]).rstrip(b"\0")
    assert end


def test_a_log_that_ends_in_order_leaves_nothing(store_path):
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        store.put("T", b"x")
    with rmqcore.open_store(store_path) as store:
        assert store.recovery_report.cut_kept == ""
    assert not (store_path / "doctor").exists()


def test_of_a_long_cut_the_first_bytes_are_kept(store_path, damaged, monkeypatch):
    monkeypatch.setattr(kept_cuts, "CUT_SIZE_MAX", 100)
    before = log_of(store_path)
    with rmqcore.open_store(store_path, on_corruption="truncate") as store:
        size = store.recovery_report.dropped_bytes
        assert store.recovery_report.cut_kept.endswith(f": 100 bytes, the first of {size}")
    (kept,) = cuts(store_path)
    assert kept.read_bytes() == before[damaged : damaged + 100]


def test_the_newest_cuts_are_kept(store_path, damaged):
    home = store_path / "doctor"
    home.mkdir()
    for number in range(20):
        (home / f"cut-{number:020d}").write_bytes(b"older")
    with rmqcore.open_store(store_path, on_corruption="truncate"):
        pass
    assert len(cuts(store_path)) == kept_cuts.CUTS_MAX
    assert home / f"cut-{damaged:020d}" in cuts(store_path)


def test_an_opening_that_is_killed_while_it_clears_the_log_keeps_the_copy(store_path, damaged):
    before = log_of(store_path)
    end = len(before.rstrip(b"\0"))
    with rmqcore.open_store(store_path, on_corruption="truncate"):
        pass
    # cleared from the end on, and not yet up to the cut
    half = (damaged + end) // 2
    (store_path / "commitlog" / f"{0:020d}").write_bytes(before[:half].ljust(FILE, b"\0"))
    (store_path / "config" / "storeMark.json").unlink()
    (store_path / "config" / "storeMark.json.bak").unlink(missing_ok=True)
    (store_path / "abort").touch()
    with rmqcore.open_store(store_path, on_corruption="truncate") as store:
        assert store.max_phy_offset == damaged
        assert str(cuts(store_path)[0]) in store.recovery_report.cut_kept
    (kept,) = cuts(store_path)
    assert kept.read_bytes() == before[damaged:end]


def test_what_is_cut_in_the_same_place_again_is_kept_beside_it(store_path, damaged):
    before = log_of(store_path)
    for again in range(2):
        with rmqcore.open_store(store_path, on_corruption="truncate") as store:
            assert store.max_phy_offset == damaged
            receipt = store.put("T", b"another %d" % again * 30)
        file = store_path / "commitlog" / f"{0:020d}"
        content = bytearray(file.read_bytes())
        content[receipt.phy_offset + 95] ^= 0xFF
        file.write_bytes(content)
    with rmqcore.open_store(store_path, on_corruption="truncate"):
        pass
    assert [path.name for path in cuts(store_path)] == [
        f"cut-{damaged:020d}{number}" for number in ("", "-2", "-3")
    ]
    assert cuts(store_path)[0].read_bytes() == before[damaged:].rstrip(b"\0")
    assert b"another 1" in cuts(store_path)[2].read_bytes()


@pytest.fixture
def synced(store_path, damaged, monkeypatch):
    """What is synced for the copy, and how many there are then; nothing of the log is cleared."""
    before, found = log_of(store_path), []

    def note(path):
        assert log_of(store_path) == before
        found.append((path, len(cuts(store_path))))

    monkeypatch.setattr(kept_cuts, "sync_file", note)
    monkeypatch.setattr(kept_cuts, "sync_directory", note)
    return found


def test_the_copy_and_its_name_are_on_the_disk_before_the_log_is_cleared(store_path, synced):
    rmqcore.open_store(store_path, on_corruption="truncate").close()
    home = store_path / "doctor"
    assert synced == [(home / kept_cuts.UNFINISHED, 0), (home, 1), (store_path, 1)]


def test_the_name_of_a_copy_that_a_killed_opening_has_left_is_brought_to_the_disk(
    store_path, damaged, synced
):
    copy = store_path / "doctor" / f"cut-{damaged:020d}"
    copy.parent.mkdir()
    copy.write_bytes(log_of(store_path)[damaged:].rstrip(b"\0"))
    rmqcore.open_store(store_path, on_corruption="truncate").close()
    assert cuts(store_path) == [copy]
    assert synced == [(copy.parent, 1), (store_path, 1)]


def test_a_disk_without_room_for_the_copy_lets_the_store_open(store_path, damaged, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept_cuts, "sync_file", full)
    with rmqcore.open_store(store_path, on_corruption="truncate") as store:
        assert "could not be kept" in store.recovery_report.cut_kept
        assert store.recovery_report.end_offset == damaged
    assert cuts(store_path) == []
