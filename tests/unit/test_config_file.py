"""Configuration files: replaced as a whole, whatever happens in between."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest

from rmqcore.errors import CorruptConfigFileError, DiskFullError
from rmqcore.files import config_file
from rmqcore.files.config_file import ConfigFile
from rmqcore.java.json import format_java_json, parse_java_json

pytestmark = pytest.mark.logic


class PowerCutError(Exception):
    """The machine stops here."""


class Disk:
    """Stands in for `os` and syncs: a directory whose unsynced bytes and names a power cut takes.

    A file's bytes count from its fsync on; a rename or a new name counts from the directory's
    fsync on, and before that may have happened or not.
    """

    def __init__(self, names: dict[str, bytes], cut_after: int):
        self.synced_names = dict(names)
        self.contents: list[list[bytes]] = []  # inode -> [synced, written]
        self.names = {name: self._inode(raw, raw) for name, raw in names.items()}
        self.synced = dict(self.names)
        self.pending: list[tuple[str, str | None, int]] = []
        self.descriptors: dict[int, int] = {}
        self.steps = 0
        self.cut_after = cut_after

    def __getattr__(self, name: str):
        return getattr(os, name)

    def _inode(self, synced: bytes, written: bytes) -> int:
        self.contents.append([synced, written])
        return len(self.contents) - 1

    def _step(self) -> None:
        self.steps += 1
        if self.steps >= self.cut_after:
            raise PowerCutError

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        fd = 1000 + len(self.descriptors)
        inode = self._inode(b"", b"")
        self.names[path.name] = self.descriptors[fd] = inode
        self.pending.append((path.name, None, inode))
        self._step()
        return fd

    def write(self, fd: int, raw: memoryview) -> int:
        inode = self.descriptors[fd]
        written = raw[: max(1, len(raw) // 2)]
        self.contents[inode][1] += bytes(written)
        self._step()
        return len(written)

    def sync_fd(self, fd: int) -> None:
        inode = self.descriptors[fd]
        self.contents[inode][0] = self.contents[inode][1]
        self._step()

    def sync_directory(self, path: Path) -> None:
        self.synced, self.pending = dict(self.names), []
        self._step()

    def replace(self, source: Path, target: Path) -> None:
        inode = self.names.pop(source.name)
        self.names[target.name] = inode
        self.pending.append((target.name, source.name, inode))
        self._step()

    def close(self, fd: int) -> None:
        self._step()

    def survivors(self):
        """Every directory that may be found after the cut: name -> bytes."""
        for done in range(len(self.pending) + 1):
            names = dict(self.synced)
            for target, source, inode in self.pending[:done]:
                if source is not None:
                    names.pop(source, None)
                names[target] = inode
            torn = [name for name, inode in names.items() if len(set(self.contents[inode])) > 1]
            for picks in itertools.product((0, 1, 2), repeat=len(torn)):
                found = {name: self.contents[inode][0] for name, inode in names.items()}
                for name, pick in zip(torn, picks, strict=True):
                    synced, written = self.contents[names[name]]
                    found[name] = (synced, written, bytes(len(written)))[pick]
                yield found


def decode(text: str) -> int:
    value = parse_java_json(text)
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value["v"]


def content(value: int) -> bytes:
    return f'{{"v":{value}}}'.encode()


@pytest.fixture
def file(tmp_path: Path) -> ConfigFile[int]:
    return ConfigFile(tmp_path / "config" / "t.json", decode)


class TestPowerCut:
    @pytest.mark.parametrize(
        ("before", "old"),
        [
            ({}, None),
            ({"t.json": content(1)}, 1),
            ({"t.json": content(1), "t.json.bak": content(0)}, 1),
            ({"t.json": b"{torn", "t.json.bak": content(0)}, 0),
            ({"t.json": b"", "t.json.bak": content(0)}, 0),
            ({"t.json.bak": content(0), "t.json.tmp": content(9)}, 0),
        ],
        ids=["first", "second", "third", "damaged", "empty", "between"],
    )
    def test_at_every_step_the_old_or_the_new_content_is_found(
        self, file, monkeypatch, before, old
    ):
        directory = file.path.parent
        for cut_after in itertools.count(1):
            fill(directory, before)
            disk = Disk(before, cut_after)
            monkeypatch.setattr(config_file, "os", disk)
            monkeypatch.setattr(config_file, "sync_fd", disk.sync_fd)
            monkeypatch.setattr(config_file, "sync_directory", disk.sync_directory)
            monkeypatch.setattr(config_file, "_read", lambda path, d=disk: read_from(d, path))
            try:
                file.store(content(2).decode())
                finished = True
            except PowerCutError:
                finished = False
            monkeypatch.undo()
            for found in disk.survivors():
                fill(directory, found)
                assert file.load() in ((2,) if finished else (old, 2)), (cut_after, found)
            if finished:
                break
        assert cut_after > 8

    @pytest.mark.parametrize("former", [1, None])
    @pytest.mark.parametrize("refused", ["rename", "sync"])
    def test_what_is_refused_at_the_last_step_does_not_count_later(
        self, file, monkeypatch, former, refused
    ):
        """The new content stayed in place of the former one, which its caller went on with."""
        if former is not None:
            file.store(content(former).decode())
        file.path.parent.mkdir(exist_ok=True)
        replace = os.replace

        def refuse(*_):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def replacing(source, target):
            (refuse if source.name.endswith(".tmp") else replace)(source, target)

        with monkeypatch.context() as patched:
            if refused == "rename":
                patched.setattr(os, "replace", replacing)
            else:
                patched.setattr(config_file, "sync_directory", refuse)
            with pytest.raises(OSError, match="Input/output error"):
                file.store(content(2).decode())
        assert file.load() == former
        assert file.is_newest is (former is not None)
        file.store(content(3).decode())
        assert file.load() == 3
        assert file.backup_path.exists() is (former is not None)

    def test_no_directory_above_its_own_is_made(self, tmp_path):
        file = ConfigFile(tmp_path / "removed" / "config" / "t.json", decode)
        with pytest.raises(FileNotFoundError):
            file.store("{}")
        assert not (tmp_path / "removed").exists()

    def test_the_directory_is_synced_when_it_is_made(self, file, monkeypatch):
        synced = []
        monkeypatch.setattr(config_file, "sync_directory", synced.append)
        file.store("{}")
        assert synced == [file.path.parent.parent, file.path.parent]


def fill(directory: Path, names: dict[str, bytes]) -> None:
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    for name, raw in names.items():
        (directory / name).write_bytes(raw)


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def read_from(disk: Disk, path: Path) -> bytes:
    return disk.contents[disk.names[path.name]][1] if path.name in disk.names else b""


class TestLoad:
    def test_nothing_was_ever_stored(self, file):
        assert file.load() is None

    def test_the_backup_is_the_former_content(self, file):
        for value in (1, 2, 3):
            file.store(content(value).decode())
        assert file.load() == 3
        assert file.backup_path.read_bytes() == content(2)
        assert names_in(file.path.parent) == ["t.json", "t.json.bak"]

    @pytest.mark.parametrize("damage", [b"\0" * 12, b"{", b"[]", b"\xff\xfe", b'{"v":NaN}'])
    def test_damage_falls_back_to_the_backup_and_is_logged(self, file, damage, caplog):
        file.store(content(1).decode())
        file.store(content(2).decode())
        assert file.load() == 2
        assert caplog.messages == []
        file.path.write_bytes(damage)
        assert file.load() == 1
        (line,) = caplog.messages
        assert line.startswith(f"{file.backup_path} is read in its place: t.json: ")
        file.store(content(3).decode())
        assert file.load() == 3
        assert file.backup_path.read_bytes() == content(1)
        assert file.path.with_name("t.json.damaged").read_bytes() == damage

    def test_what_was_damaged_before_is_kept_too(self, file):
        def damaged(raw):
            file.path.write_bytes(raw)
            file.store(content(1).decode())

        file.store(content(0).decode())
        before = file.path.with_name("t.json.damaged")
        kept = [before, *(before.with_name(f"{before.name}-{n}") for n in range(2, 9))]
        for number in range(8):
            damaged(b"{%d" % number)
            # the same once more takes no other place
            damaged(b"{0")
        assert [path.read_bytes() for path in kept] == [b"{%d" % number for number in range(8)]
        damaged(b"{more")
        assert [path.read_bytes() for path in kept[:7]] == [b"{%d" % n for n in range(7)]
        assert kept[7].read_bytes() == b"{more"
        assert names_in(file.path.parent) == sorted(["t.json", *(path.name for path in kept)])

    def test_the_hole_of_what_was_damaged_before_is_not_read(self, file):
        file.store(content(0).decode())
        for raw in (b"{", b"{{"):
            file.path.write_bytes(raw)
            os.truncate(file.path, 1 << 40)
            file.store(content(1).decode())
        assert file.path.with_name("t.json.damaged-2").exists()

    def test_an_empty_file_falls_back_to_the_backup_and_is_logged(self, file, caplog):
        file.store(content(1).decode())
        file.store(content(2).decode())
        file.path.write_bytes(b"")
        assert file.load() == 1
        assert caplog.messages == [f"{file.backup_path} is read in its place: t.json has no bytes"]

    def test_an_empty_file_without_a_backup_counts_as_new_and_is_logged(self, file, caplog):
        assert file.load() is None
        assert caplog.messages == []
        file.store(content(1).decode())
        file.path.write_bytes(b"")
        assert file.load() is None
        (line,) = caplog.messages
        assert line.startswith(f"{file.path} has no bytes")

    def test_two_damaged_files_are_an_error_and_stay(self, file):
        file.store(content(1).decode())
        file.store(content(2).decode())
        file.path.write_bytes(b"{a")
        file.backup_path.write_bytes(b"{b")
        with pytest.raises(CorruptConfigFileError) as error:
            file.load()
        assert error.value.path == file.path
        assert "t.json.bak" in error.value.reason
        assert (file.path.read_bytes(), file.backup_path.read_bytes()) == (b"{a", b"{b")

    def test_a_damaged_file_without_a_backup_is_an_error(self, file):
        file.store(content(1).decode())
        file.path.write_bytes(b"{a")
        with pytest.raises(CorruptConfigFileError):
            file.load()


class TestStoreFails:
    def test_a_full_disk_leaves_the_former_content(self, file, monkeypatch):
        file.store(content(1).decode())

        def full(fd, raw):
            raise OSError(errno.ENOSPC, "no space")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(DiskFullError, match=r"t\.json"):
            file.store(content(2).decode())
        monkeypatch.undo()
        assert file.load() == 1
        assert names_in(file.path.parent) == ["t.json"]


class TestDialect:
    def test_integer_keys_with_and_without_quotes(self):
        assert parse_java_json("{0:12,1:9}") == parse_java_json('{"0":12, "1" : 9}')
        assert parse_java_json('{\n\t"T@G":{0:7\n\t\t,-1 :8}}') == {"T@G": {"0": 7, "-1": 8}}

    def test_strings_that_look_like_keys_stay(self):
        text = r'{"a\"1:":"2:","{3:":["4:5", "\\"], 6:{}}'
        assert parse_java_json(text) == {'a"1:': "2:", "{3:": ["4:5", "\\"], "6": {}}

    @pytest.mark.parametrize("text", ["", "{", '{"a":Infinity}', "{a:1}", '{"a:1}', "[" * 100_000])
    def test_other_text_is_refused(self, text):
        with pytest.raises(ValueError):
            parse_java_json(text)

    def test_the_pretty_form_is_that_of_rocketmq_5_5(self):
        value = {"dataVersion": {"counter": 1}, "gone": None, "offsetTable": {"T@G": {0: 7, 1: 9}}}
        assert format_java_json(value) == (
            '{\n\t"dataVersion":{\n\t\t"counter":1\n\t},\n\t"offsetTable":{\n'
            '\t\t"T@G":{\n\t\t\t0:7,\n\t\t\t1:9\n\t\t}\n\t}\n}'
        )
        assert format_java_json({"offsetTable": {}}) == '{\n\t"offsetTable":{}\n}'

    def test_what_is_written_reads_back(self):
        value = {'é\n"': [1, True, "x", [], {"a": 1.5}], "m": {"3": {}}}
        assert parse_java_json(format_java_json(value)) == value
