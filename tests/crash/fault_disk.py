"""A disk whose power fails: of a page that was not flushed, old or new content is left."""

import threading

from rmqcore.files.index_file import IndexFile
from rmqcore.files.mapped_file import MappedFile
from rmqcore.files.store_checkpoint import StoreCheckpoint

PAGE = 4096


class FaultDisk:
    """Keeps each file's bytes as of its last flush, page by page."""

    def __init__(self, monkeypatch):
        self.flushed = {}
        self.lock = threading.Lock()
        for kind, method in (
            (MappedFile, "flush"),
            (MappedFile, "sync"),
            (MappedFile, "zero_from"),
            (IndexFile, "flush"),
            (StoreCheckpoint, "flush"),
        ):
            self.watch(monkeypatch, kind, method)
        self.watch_removal(monkeypatch)

    def watch(self, monkeypatch, kind, method):
        original = getattr(kind, method)

        def flushing(file, *arguments):
            start, stop = 0, None
            if method == "flush" and kind is MappedFile:
                start, stop = file.flushed_position, file.read_position
            before = file.path.read_bytes() if file.path.exists() else b""
            answer = original(file, *arguments)
            if stop is not None and answer > stop:
                # a put beside it got its bytes into the flush, which says so
                before, stop = file.path.read_bytes(), answer
            if method == "zero_from" or kind is StoreCheckpoint:
                before = file.path.read_bytes()
            self.note(file.path, before, start, len(before) if stop is None else stop)
            return answer

        monkeypatch.setattr(kind, method, flushing)

    def watch_removal(self, monkeypatch):
        original = MappedFile.destroy

        def destroying(file):
            original(file)
            with self.lock:
                # a new file of that name begins with zeros
                self.flushed.pop(file.path, None)

        monkeypatch.setattr(MappedFile, "destroy", destroying)

    def note(self, path, data, start, stop):
        start, stop = start - start % PAGE, -(-stop // PAGE) * PAGE
        with self.lock:
            old = bytearray(self.flushed.get(path, b"").ljust(len(data), b"\0"))
            old[start:stop] = data[start:stop]
            self.flushed[path] = bytes(old)

    def cut(self, path, target, rng):
        """Copy a store as the power cut leaves it.

        The lock is held while files are read: no flush returns meanwhile, so none of them says
        that something is on the disk which is not in `flushed`.
        """
        target.mkdir()
        with self.lock:
            flushed, files = dict(self.flushed), snapshot(path)
        for file, now in files.items():
            copy = target / file.relative_to(path)
            if now is None:
                copy.mkdir(parents=True)
                continue
            old = flushed.get(file, b"").ljust(len(now), b"\0")
            if file.name in ("lock", "abort") or file.parent.name == "config":
                old = now
            likely = rng.choice([0.0, 0.1, 0.5, 0.9])
            pages = [
                (now if rng.random() < likely else old)[at : at + PAGE]
                for at in range(0, len(now), PAGE)
            ]
            copy.write_bytes(b"".join(pages))
        self.flushed |= {file: file.read_bytes() for file in target.rglob("*") if file.is_file()}


def snapshot(path):
    """The bytes of every file below a directory, None for a directory; of one moment.

    A store's services rename files beside this: what is gone when it is read begins anew.
    """
    while True:
        try:
            files = sorted(path.rglob("*"))
            return {file: None if file.is_dir() else file.read_bytes() for file in files}
        except FileNotFoundError:
            continue
