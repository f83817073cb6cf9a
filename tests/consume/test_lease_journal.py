"""The journal of leases: interrupts between its steps, a full disk behind them, its name."""

import errno
import os

import pytest
from interrupts import Interrupt, Interrupted
from syncs import watched

from rmqcore.errors import DiskFullError, StoreNotFoundError
from rmqcore.files import lease_journal
from rmqcore.files.lease_journal import Done, LeaseJournal, to_bytes

pytestmark = pytest.mark.logic

FIRST, SECOND, THIRD = (Done(0, offset, 1) for offset in range(3))


@pytest.fixture
def journal(tmp_path):
    opened = LeaseJournal(tmp_path / "consumerLeases.log")
    opened.replace([FIRST])
    yield opened
    opened.close()


def interrupted(call):
    """A call that is done, and in whose return Ctrl-C comes."""

    def done_and_interrupted(*arguments):
        call(*arguments)
        raise KeyboardInterrupt

    return done_and_interrupted


def test_a_full_disk_behind_an_interrupted_write_takes_no_whole_record(journal, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", interrupted(os.write))
        with pytest.raises(KeyboardInterrupt):
            journal.append(to_bytes(SECOND))
    with monkeypatch.context() as patched:
        write = os.write
        patched.setattr(os, "write", lambda file, raw: write(file, raw[:5]))
        with pytest.raises(DiskFullError):
            journal.append(to_bytes(THIRD))
    assert list(journal.entries()) == [FIRST, SECOND]
    journal.append(to_bytes(THIRD))
    assert list(journal.entries()) == [FIRST, SECOND, THIRD]


def test_there_is_room_for_all_that_holds_however_much_that_is(journal):
    reserved = journal.path.with_suffix(".reserve")
    for number in range(9000):
        journal.append(to_bytes(Done(0, number, 1)))
        if number % 500 == 0:
            assert reserved.stat().st_blocks * 512 >= journal.size
    assert journal.size > 3 << 16
    journal.replace([FIRST])
    assert reserved.stat().st_blocks * 512 == 1 << 16
    assert list(journal.entries()) == [FIRST]


def test_of_a_disk_that_is_nearly_full_all_room_is_reserved(journal, monkeypatch):
    left = [50_000]

    def reserve(_file, _at, size, *, keep_size):
        if size > left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= size

    monkeypatch.setattr(lease_journal, "reserve", reserve)
    journal.replace([FIRST])
    assert left[0] < 4096


def test_room_that_a_disk_has_again_is_reserved_before_it_is_full_again(journal, monkeypatch):
    refuses = [True]

    def reserve(*args, **settings):
        if refuses:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*args, **settings)

    real = lease_journal.reserve
    monkeypatch.setattr(lease_journal, "reserve", reserve)
    reserved = journal.path.with_suffix(".reserve")
    reserved.unlink(missing_ok=True)
    while journal.size < 3 << 16:
        journal.append(to_bytes(SECOND))
    refuses.clear()
    for _ in range(200):
        journal.append(to_bytes(SECOND))
    assert reserved.stat().st_blocks * 512 >= journal.size


def test_room_is_reserved_in_no_other_store(tmp_path):
    there = []

    def check_there():
        if there:
            raise StoreNotFoundError(tmp_path)

    journal = LeaseJournal(tmp_path / "consumerLeases.log", check_there)
    journal.replace([FIRST])
    reserved = journal.path.with_suffix(".reserve")
    reserved.unlink()
    there.append(False)
    while journal.size <= 1 << 16:
        journal.append(to_bytes(SECOND))
    assert not reserved.exists()
    journal.close()


def test_it_is_read_up_to_the_first_record_that_is_not_whole(journal):
    end = journal.size
    for entry in (SECOND, THIRD):
        journal.append(to_bytes(entry))
    raw = bytearray(journal.path.read_bytes())
    for at in range(end, end + len(to_bytes(SECOND))):
        raw[at] ^= 1
        journal.path.write_bytes(raw)
        assert list(journal.entries()) == [FIRST], at
        # what follows is whole, and does not count
        assert journal.damaged_at == end
        raw[at] ^= 1


def test_a_torn_end_is_no_damage(journal):
    end = journal.size
    journal.append(to_bytes(SECOND))
    raw = journal.path.read_bytes()
    for size in range(end, len(raw)):
        journal.path.write_bytes(raw[:size] + bytes(len(raw) - size))
        assert list(journal.entries()) == [FIRST]
        assert journal.damaged_at == -1


def test_a_replacement_is_on_the_disk_before_it_has_the_name(journal, monkeypatch):
    steps, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: steps.append("replace") or replace(*paths))
    with watched(lambda call, _: steps.append(call)):
        journal.replace([SECOND])
    assert steps[:2] == ["fsync", "replace"]


def test_what_follows_an_interrupted_replacement_is_in_the_file_that_has_the_name(
    journal, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", interrupted(os.replace))
        with pytest.raises(KeyboardInterrupt):
            journal.replace([SECOND])
    journal.append(to_bytes(THIRD))
    assert list(journal.entries()) == [SECOND, THIRD]


def test_a_replacement_that_was_interrupted_before_leaves_the_old_file(journal):
    def interrupt(call, fd):
        raise KeyboardInterrupt

    with watched(interrupt), pytest.raises(KeyboardInterrupt):
        journal.replace([SECOND])
    journal.append(to_bytes(THIRD))
    assert list(journal.entries()) == [FIRST, THIRD]


def test_the_name_of_a_replacement_is_brought_to_the_disk(journal, monkeypatch):
    synced = []
    monkeypatch.setattr(lease_journal, "sync_directory", synced.append)
    journal.replace([SECOND])
    assert synced == [journal.path.parent]


class Late(Interrupted, TimeoutError):
    """What a handler raises at the end of a time limit: an OSError, too."""


def out_of_time():
    raise Late


@pytest.mark.parametrize("handler", [None, out_of_time])
def test_an_interrupted_replacement_leaves_a_journal_that_goes_on(tmp_path, handler):
    for number in range(1, 100):
        journal = LeaseJournal(tmp_path / str(number))
        journal.replace([FIRST])
        interrupt = Interrupt(number, handler, ["lease_journal.py"])
        interrupt.during(lambda journal=journal: journal.replace([SECOND]))
        journal.write(to_bytes(THIRD), lambda: [SECOND])
        assert list(journal.entries())[-1] == THIRD, interrupt.at
        journal.close()
        if not interrupt.at:
            break
    assert number > 10
