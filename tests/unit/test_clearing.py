"""What is cut off a log is cleared from its end to the front, and flushed."""

import os

import pytest

from rmqcore.files import mapped_file, zeros
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.zeros import PAGE_SIZE as PAGE
from rmqcore.files.zeros import zero_pages

pytestmark = pytest.mark.logic

PAGES = 600


@pytest.fixture
def file(tmp_path):
    """A file of more than two of the pieces in which it is cleared, all of it data."""
    (tmp_path / "0").write_bytes(b"x" * PAGES * PAGE)
    file = MappedFile(tmp_path / "0", PAGES * PAGE, 0, OpenFiles())
    yield file
    file.close()


@pytest.fixture
def steps(monkeypatch):
    """The positions that are cleared, and "sync" where they are written through, in order."""
    done, pwrite, sync_data = [], os.pwrite, mapped_file.sync_data

    def write(fd, data, at):
        done.append(at)
        return pwrite(fd, data, at)

    def sync(fd):
        done.append("sync")
        sync_data(fd)

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(mapped_file, "sync_data", sync)
    return done


def test_pages_are_cleared_from_the_end_to_the_front(tmp_path, steps):
    (tmp_path / "f").write_bytes(b"x" * 3 * PAGE)
    with (tmp_path / "f").open("r+b") as stream:
        zero_pages(stream.fileno(), 100, 2 * PAGE + 50)
    assert steps == [2 * PAGE, PAGE, 100]
    data = (tmp_path / "f").read_bytes()
    assert data == b"x" * 100 + bytes(2 * PAGE - 50) + b"x" * (PAGE - 50)


@pytest.mark.parametrize("by_the_file_system", [True, False])
def test_a_file_is_cleared_from_its_end_and_then_flushed(
    file, steps, monkeypatch, by_the_file_system
):
    def zero_range(fd, at, size):
        if by_the_file_system:
            zero_pages(fd, at, at + size)
        return by_the_file_system

    monkeypatch.setattr(mapped_file, "zero_range", zero_range)
    file.zero_from(5)
    assert steps.pop() == "sync"
    assert len(steps) >= PAGES
    assert steps == sorted(steps, reverse=True)
    assert file.path.read_bytes() == b"x" * 5 + bytes(PAGES * PAGE - 5)


def test_stretches_of_data_are_cleared_from_the_last_to_the_first(tmp_path, steps, monkeypatch):
    file = MappedFile(tmp_path / "0", 10 * PAGE, 0, OpenFiles())
    (tmp_path / "0").write_bytes(b"x" * 10 * PAGE)
    stretches = [(PAGE, 2 * PAGE), (7 * PAGE, 8 * PAGE)]
    monkeypatch.setattr(MappedFile, "data_stretches", lambda *_: stretches)
    monkeypatch.setattr(mapped_file, "zero_range", lambda *_: False)
    file.zero_from(PAGE)
    file.close()
    assert steps == [7 * PAGE, PAGE, "sync"]


def test_what_is_clear_is_not_flushed(tmp_path, steps):
    (tmp_path / "0").write_bytes(bytes(3 * PAGE))
    file = MappedFile(tmp_path / "0", 3 * PAGE, 0, OpenFiles())
    file.zero_from(5)
    file.close()
    assert steps == []


def test_a_directory_in_the_place_of_a_small_file_is_named(tmp_path, monkeypatch):
    """On ext4 the data of a directory ends, it says, where no file can: a read overflowed."""
    monkeypatch.setattr(zeros, "_end_of_data", lambda _: (1 << 63) - 1 + PAGE)
    with pytest.raises(IsADirectoryError) as caught:
        zeros.read_small(tmp_path)
    assert caught.value.filename == str(tmp_path)
