"""``config/imports.json``: which files have been imported, so that none is imported twice.

RocketMQ ignores the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rmqcore.errors import RmqCoreError
from rmqcore.files.config_file import ConfigFile
from rmqcore.files.store_dir import StoreDir

_FILE_NAME = "imports.json"


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
    """Remembers the files of imports by their content.

    Args:
        store_path: the directory of a store that is open for writing.
    """

    def __init__(self, store_path: Path) -> None:
        self._file = ConfigFile(StoreDir(store_path).config / _FILE_NAME, _decode)
        self._whole: dict[str, bool] = self._file.load() or {}

    def begin(self, paths: Iterable[Path], *, again: bool) -> list[str]:
        """Note that files are being imported.

        Args:
            paths: the files.
            again: import also what has been imported.

        Returns:
            what `finish` takes.

        Raises:
            AlreadyImportedError: one of them is known, and ``again`` is False.
        """
        digests = []
        for path in paths:
            with path.open("rb") as stream:
                digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
            if not again and digests[-1] in self._whole:
                raise AlreadyImportedError(path, self._whole[digests[-1]])
        self._note(digests, whole=False)
        return digests

    def finish(self, digests: Iterable[str]) -> None:
        """Note that the files have been imported whole."""
        self._note(digests, whole=True)

    def _note(self, digests: Iterable[str], *, whole: bool) -> None:
        self._whole |= dict.fromkeys(digests, whole)
        self._file.store(json.dumps({"files": self._whole}, indent=1) + "\n")


def _decode(text: str) -> dict[str, bool]:
    content: Any = json.loads(text)
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not all(type(whole) is bool for whole in files.values()):
        raise ValueError("files: expected digests with true or false")
    return files
