"""``config/imports.json``: which files have been imported, so that none is imported twice.

RocketMQ ignores the file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from rmqcore.errors import RmqCoreError
from rmqcore.files.config_file import ConfigFile, sealed, unsealed
from rmqcore.files.store_dir import StoreDir, make_directory
from rmqcore.native.base._descriptor import Descriptor

_FILE_NAME: Final = "imports.json"

#: What is known of a file: True when it has been imported whole, False when that ended early, or
#: the physical offset of the log's end when its first message was about to be put.
State = bool | int
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
        config = StoreDir(store_path).config
        make_directory(config)
        self._lock = Descriptor(os.open(config, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise RmqCoreError(f"{store_path}: another import into it is going on") from None
        except OSError:
            pass  # a network file system may have no locks of directories
        self._file = ConfigFile(config / _FILE_NAME, _decode)
        try:
            self._states: dict[str, State] = self._file.load() or {}
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.close()

    def finish(self, digests: Iterable[str]) -> None:
        """Note that the files have been imported whole."""
        self.note(dict.fromkeys(digests, True))

    def state(self, digest: str) -> State | None:
        """What is known of a file; None: nothing."""
        return self._states.get(digest)

    def note(self, states: dict[str, State]) -> None:
        """Remember what has become of files, by their digests."""
        self._states |= states
        self._file.store(sealed(json.dumps({"files": self._states}, indent=1) + "\n"))


def digests_of(paths: Iterable[Path]) -> list[str]:
    """A digest of each file; of those with the same content each has its own."""
    found, seen = [], Counter[str]()
    for path in paths:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        seen[digest] += 1
        found.append(digest if seen[digest] == 1 else f"{digest} {seen[digest]}")
    return found


def _decode(text: str) -> dict[str, State]:
    content: Any = json.loads(unsealed(text))
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not all(type(one) in (bool, int) for one in files.values()):
        raise ValueError("files: expected digests with true, false or an offset of the log")
    return files
