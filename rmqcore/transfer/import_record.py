"""Which files have been imported into a store, so that none is imported twice."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from rmqcore.errors import RmqCoreError
from rmqcore.files.import_note import ImportNote, State, import_note_file
from rmqcore.files.store_dir import StoreDir, make_directory
from rmqcore.native.base._descriptor import Descriptor

#: A file of an import that was begun; what has been put of it, if anything has, is told elsewhere.
PENDING: Final = -1


class AlreadyImportedError(RmqCoreError):
    """A file has been imported into this store before, or an import of it was begun.

    Attributes:
        path: the file.
        whole: False when that import did not come to its end.
    """

    def __init__(self, path: Path, whole: bool) -> None:
        self.path = path
        self.whole = whole
        done = "has been imported" if whole else "was being imported when that ended early"
        super().__init__(
            f"{path}: it {done}, and its messages would be in the store twice; --again imports it "
            "all the same"
        )


class ImportRecord:
    """Remembers the files of imports by their content; one import at a time has it.

    Args:
        store_path: the directory of a store that is open for writing.

    Raises:
        RmqCoreError: another import into this store is going on.
        CorruptConfigFileError: the file cannot be read.
    """

    def __init__(self, store_path: Path) -> None:
        directory = StoreDir(store_path)
        config = directory.config
        make_directory(config)
        self._lock = Descriptor(os.open(config, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise RmqCoreError(f"{store_path}: another import into it is going on") from None
        except OSError:
            pass  # a network file system may have no locks of directories
        self._file = import_note_file(directory)
        try:
            self._note = self._file.load() or ImportNote()
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def finish(self, digests: Iterable[str]) -> None:
        """Note that the files have been imported whole."""
        self.note(dict.fromkeys(digests, True))

    def state(self, digest: str) -> State | None:
        """What is known of a file; None: nothing."""
        return self._note.files.get(digest)

    def count(self, digest: str) -> int:
        """Messages of a file that were in when its import went on where its state says."""
        return self._note.counts.get(digest, 0)

    @property
    def log_end(self) -> int | None:
        """Where the log ended behind the last import, which was killed; None: it is not known."""
        return self._note.log_end

    def note(self, states: dict[str, State]) -> None:
        """Remember what has become of files, by their digests."""
        for digest, state in states.items():
            if self._note.files.get(digest) != state:
                self._note.counts.pop(digest, None)
                self._note.log_end = None
        self._note.files |= states
        self._file.store(self._note.text())

    def begin(self, digest: str, phy_offset: int, count: int) -> None:
        """Note that the messages of a file are about to be put.

        Args:
            digest: of the file.
            phy_offset: where the log ends.
            count: messages of it that are in, which come first in the file.
        """
        self._note.files[digest] = phy_offset
        self._note.counts[digest] = count
        self._note.log_end = None
        self._file.store(self._note.text())

    def end(self, log_end: int) -> None:
        """Note that no message is put any more of what was begun: see `end_imports`."""
        self._note.log_end = log_end
        self._file.store(self._note.text())


def digests_of(paths: Iterable[Path]) -> list[str]:
    """A digest of each file; of those with the same content each has its own."""
    found, seen = [], Counter[str]()
    for path in paths:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        seen[digest] += 1
        found.append(digest if seen[digest] == 1 else f"{digest} {seen[digest]}")
    return found
