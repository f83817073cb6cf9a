"""What is known of the appends of one batch job, or of one streaming query.

Two files below the store's directory: ``<name>.appending`` while an append is under way,
``<name>.json`` with the number of the last one that is whole. Each is written whole and on disk
before the other goes. Of a query ``<name>.batch`` says what rows the batch has that is appended.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rmqcore.chance import token_hex
from rmqcore.errors import Naming, StoreError
from rmqcore.store.staged_files import StagedFile
from rmqcore.world import sync_directory, sync_fd

#: The names of series that nobody has named begin so; nobody asks for one of them again.
ANONYMOUS, JOB = "run-", "job-"
_APPENDING, _DONE, _BATCH = ".appending", ".json", ".batch"


def staging_root(store_path: str | os.PathLike[str]) -> Path:
    """Where tasks stage their files, and where the ledgers lie."""
    return Path(store_path) / "spark"


def anonymous_name() -> str:
    """The name of an append that nobody can repeat, since it has no job id."""
    return f"{ANONYMOUS}{token_hex(16)}"


def job_name(job_id: str) -> str:
    """The name of the appends of one job id, of which the first one counts."""
    return f"{JOB}{job_id}"


class Ledger:
    """What is known of one series of appends.

    Args:
        root: from `staging_root`.
        name: of the series.

    Attributes:
        number: of the append that is under way, else of the last one; -1 before the first.
        files: what is appended.
        row_count: rows of the files, counted from the first one on, that are surely in the log.
        start: physical offset from which on further rows may be there; None for none.
        done_count: rows of the last append that is whole; None where an earlier release noted it.

    Raises:
        StoreError: a file of it cannot be read.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.path = root / f"{name}{_DONE}"
        self.appending_path = root / f"{name}{_APPENDING}"
        self._batch_path = root / f"{name}{_BATCH}"
        done = self._read(self.path)
        self.number: int = done.get("number", -1)
        self.done_count: int | None = done.get("row_count")
        found = self._read(self.appending_path)
        # a kill between the two steps of `finish` leaves both files
        self.is_appending = found.get("number", -1) > self.number
        self.number = max(self.number, found.get("number", -1))
        self.start: int | None = found.get("start")
        self.row_count: int = found.get("row_count", 0)
        self.files = [_here(root, StagedFile(**file)) for file in found.get("files", ())]

    def begin(self, number: int, start: int, files: list[StagedFile], row_count: int = 0) -> None:
        """Note that the rows behind the first ``row_count`` are appended from ``start`` on.

        Args:
            number: of the append, larger than that of the one before.
            start: physical offset from which on its rows may be in the log.
            files: what is appended, in the order of its rows.
            row_count: rows of these files, from the first one on, that are in the log already.

        Raises:
            OSError: it cannot be written; the log has nothing of the append yet.
        """
        self.number, self.start, self.files, self.row_count = number, start, files, row_count
        self.is_appending = True
        self._save_appending()

    def note_row_count(self, row_count: int) -> None:
        """Note how many rows there are; whatever the log gets from now on is somebody else's."""
        self.start, self.row_count = None, row_count
        self._save_appending()

    def finish(self) -> None:
        """Note that all of them are in the log and on disk."""
        self.done_count = sum(file.message_count for file in self.files)
        self.is_appending, self.files = False, []
        self._save(self.path, {"number": self.number, "row_count": self.done_count})
        self.appending_path.unlink(missing_ok=True)

    def is_done(self, number: int) -> bool:
        """True when append ``number`` has happened."""
        return number < self.number or (number == self.number and not self.is_appending)

    def note_batch(self, number: int, content_sum: int) -> None:
        """Note which rows an append has, unless it has begun: then those of its beginning count.

        Args:
            number: of the append.
            content_sum: of its rows, whatever their order.

        Raises:
            OSError: it cannot be written.
        """
        if number > self.number:
            self._save(self._batch_path, {"number": number, "content_sum": content_sum})

    def refuse_another(self, number: int, row_count: int, content_sum: int) -> None:
        """Refuse an append that has happened, and was another one then.

        Args:
            number: of the append, which is done.
            row_count: its rows now.
            content_sum: of them, as of `note_batch`.

        Raises:
            StoreError: later ones have happened, or it had other rows, or fewer.
        """
        batch = self._read(self._batch_path)
        others = batch.get("number") == number and batch.get("content_sum") != content_sum
        if self.number > number:
            was, done = f"append {self.number} has happened", ""
        elif self.done_count is not None and (row_count > self.done_count or others):
            was = f"it had {self.done_count} rows" + (", others" if others else "")
            facts = json.dumps({"number": number})
            done = (
                f". Where the checkpoint is not older, but the query gives other rows than then: "
                f"write {facts} into this file, and the append stays as it was"
            )
        else:
            return
        raise StoreError(
            f"{self.path}: append {number} has {row_count} rows and was done before, when {was}. "
            "The checkpoint is older than the store, and batches are cut otherwise: rows would be "
            "lost. Take a checkpoint of its own for what is missing; or remove this file, and all "
            f"from this batch on is appended, some of it again{done}"
        )

    def forget(self) -> None:
        """Remove it: nobody will ask for this series."""
        self.path.unlink(missing_ok=True)

    def _save_appending(self) -> None:
        facts = {
            "number": self.number,
            "start": self.start,
            "row_count": self.row_count,
            "files": [asdict(file) for file in self.files],
        }
        self._save(self.appending_path, facts)

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        try:
            found = json.loads(path.read_text("utf-8"))
            return dict(found)
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise StoreError(f"{path}: {error}") from error

    @staticmethod
    def _save(path: Path, facts: dict[str, Any]) -> None:
        fresh = path.with_name(f"{path.name}.new")
        with Naming(fresh), fresh.open("w", encoding="utf-8") as file:
            file.write(json.dumps(facts))
            file.flush()
            sync_fd(file.fileno())
        fresh.rename(path)
        sync_directory(path.parent)


def _here(root: Path, file: StagedFile) -> StagedFile:
    """A file as it lies below a store that was moved or copied, or whose owner named it otherwise.

    In a copy of a store the file named is the other store's, which has its own append to finish.
    """
    *_, folder, name = ("", *Path(file.path).parts)
    return replace(file, path=str(root / folder / name))


def appending(root: Path) -> list[Ledger]:
    """The series whose append is not known to be whole."""
    found = (Ledger(root, path.stem) for path in sorted(root.glob(f"*{_APPENDING}")))
    return [ledger for ledger in found if ledger.is_appending]


def forget_done(root: Path, prefix: str, before_s: float) -> None:
    """Forget the series with this beginning of a name that ended before a time.

    Args:
        root: from `staging_root`.
        prefix: `ANONYMOUS` or `JOB`.
        before_s: Unix time in seconds; what ended at it or later is kept.

    Raises:
        OSError: a file cannot be looked at or removed.
        StoreError: a file of a series cannot be read.
    """
    for path in root.glob(f"{prefix}*{_DONE}"):
        if path.stat().st_mtime < before_s:
            Ledger(root, path.name.removesuffix(_DONE)).forget()
