"""The one process that appends what tasks have staged: all of it, once, whatever dies meanwhile.

Before the first record is appended, a ledger below the store's directory says which files are to be
appended, and where the log ended then. Whoever repeats the commit finds out there how far the first
one came: the records behind that place are the staged ones, in the same order, up to the last that
was appended.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rmqcore._codec import decode_batch, encode_batch
from rmqcore.clock import wall_clock_ms
from rmqcore.config import StoreConfig, load_config
from rmqcore.errors import PutMessageError, StoreError
from rmqcore.files.store_dir import StoreDir, make_directory, sync_directory
from rmqcore.message import Message, MessageExt
from rmqcore.native.format._next_record import RECORD_HEAD_SIZE, head_says
from rmqcore.spark.staging import Frame, StagedFile
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.opening import open_store

_STALE_S = 7 * 24 * 3600
_APPENDING, _DONE = "appending", "done"
#: how the names of series begin; an anonymous one is never asked for again
_ANONYMOUS, _JOB = "run-", "job-"


def staging_root(store_path: str) -> Path:
    """Where tasks stage their files, and where the ledgers lie."""
    return Path(store_path) / "spark"


def anonymous_name() -> str:
    """The name of an append that nobody can repeat, since it has no job id."""
    return f"{_ANONYMOUS}{uuid.uuid4().hex}"


def job_name(job_id: str) -> str:
    """The name of the appends of one job id, of which the first one counts."""
    return f"{_JOB}{job_id}"


class Ledger:
    """What is known of one series of appends: a batch job, or a streaming query.

    Args:
        root: from `staging_root`.
        name: of the series.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.path = root / f"{name}.json"
        found = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        self.number: int = found.get("number", -1)
        self.state: str = found.get("state", _DONE)
        self.start: int = found.get("start", 0)
        self.files = [StagedFile(**file) for file in found.get("files", ())]

    def begin(self, number: int, start: int, files: list[StagedFile]) -> None:
        """Decide that the files are appended from the physical offset ``start`` on."""
        self.number, self.state, self.start, self.files = number, _APPENDING, start, files
        self._save()

    def finish(self) -> None:
        """All of them are in the log and on disk."""
        self.state, self.files = _DONE, []
        self._save()

    def is_done(self, number: int) -> bool:
        """True when append ``number`` has happened."""
        return number < self.number or (number == self.number and self.state == _DONE)

    def is_appending(self) -> bool:
        """True between `begin` and `finish`."""
        return self.state == _APPENDING

    def forget(self) -> None:
        """Remove it: nobody will ask for this series."""
        self.path.unlink(missing_ok=True)

    def age_s(self) -> float:
        """Seconds since it changed."""
        return wall_clock_ms() / 1000 - self.path.stat().st_mtime

    def _save(self) -> None:
        facts = {
            "number": self.number,
            "state": self.state,
            "start": self.start,
            "files": [asdict(file) for file in self.files],
        }
        fresh = self.path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(json.dumps(facts))
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(self.path)
        sync_directory(self.path.parent)


def _ledgers(root: Path) -> list[Ledger]:
    return [Ledger(root, path.stem) for path in sorted(root.glob("*.json"))]


def check_free(store_path: str, *, repeatable: bool) -> None:
    """Refuse early when another process has the store, or rows might be appended twice.

    Raises:
        StoreLockedError: the store is open for writing.
        StoreError: an append without a job id died in its commit, and this one may be the same.
    """
    directory = StoreDir(store_path)
    if directory.lock_file.exists():
        directory.lock()
        directory.unlock()
    for ledger in () if repeatable else _ledgers(staging_root(store_path)):
        if ledger.is_appending() and ledger.name.startswith(_ANONYMOUS):
            raise StoreError(
                f"{store_path}: the append {ledger.name} did not come to the end of its commit; a "
                f"part is in the log. `rmqcore spark finish {store_path}` appends the rest; do "
                "not run that job again then. With the option jobId a job is simply run again"
            )


def append_staged(
    store_path: str,
    config: str | None,
    name: str,
    number: int,
    files: list[StagedFile],
) -> int:
    """Append staged files to the log, in their order, unless it has been done.

    Args:
        store_path: the store's directory; the store is made when missing.
        config: settings of the store, as for `open_store`.
        name: of the series that the append belongs to.
        number: of the append in its series; later ones have larger numbers.
        files: what to append.

    Returns:
        messages appended by this call.

    Raises:
        StoreLockedError: another process has the store; nothing was appended.
        StoreError: the store refuses; the same call goes on where this one ended.
    """
    root = staging_root(store_path)
    make_directory(root)
    with open_store(store_path, config=config) as store:
        ledger = Ledger(root, name)
        appended = 0
        if ledger.is_appending():
            appended = _resume(store, ledger)
        if not ledger.is_done(number):
            _begin(store, ledger, number, files)
            appended += _append(store, ledger)
            _finish(store, ledger)
    forget_staged(files)
    _remove_stale(root)
    return appended


def finish_appends(
    store_path: str | os.PathLike[str],
    *,
    config: StoreConfig | str | Path | None = None,
    forget_days: float | None = None,
) -> dict[str, int]:
    """Finish every append that died inside its commit.

    Args:
        store_path: the store's directory.
        config: settings of the store, as for `open_store`.
        forget_days: also forget the ids of jobs that were appended so many days ago: such a job
            would be appended again. None keeps them all.

    Returns:
        for each append that was finished its name, and how many messages were missing.

    Raises:
        StoreNotFoundError: no store is there.
        StoreLockedError: another process has the store; nothing was appended.
        StoreError: the staged rows are gone.
    """
    StoreDir(store_path, load_config(config).store_path_commit_log).require()
    root, finished = staging_root(str(store_path)), {}
    forget_s = math.inf if forget_days is None else forget_days * 24 * 3600
    with open_store(store_path, config=config) as store:
        for ledger in _ledgers(root):
            if ledger.is_appending():
                finished[ledger.name] = _resume(store, ledger)
            elif ledger.name.startswith(_JOB) and ledger.age_s() > forget_s:
                ledger.forget()
    if root.is_dir():
        _remove_stale(root)
    return finished


def forget_staged(files: list[StagedFile]) -> None:
    """Remove staged files, and their directory with the last of them."""
    for file in files:
        Path(file.path).unlink(missing_ok=True)
    for parent in {Path(file.path).parent for file in files}:
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()


def _begin(
    store: DefaultMessageStore, ledger: Ledger, number: int, files: list[StagedFile]
) -> None:
    """Decide what is appended behind the log as it is on disk: no power cut ends it before."""
    store.flush()
    ledger.begin(number, store.max_phy_offset, files)


def _resume(store: DefaultMessageStore, ledger: Ledger) -> int:
    """Come to the end of an append; how many messages were missing."""
    if not _stands(store, ledger):
        _begin(store, ledger, ledger.number, ledger.files)
    appended = _append(store, ledger)
    _finish(store, ledger)
    return appended


def _stands(store: DefaultMessageStore, ledger: Ledger) -> bool:
    """False when nothing of an append is where it began, and others' messages may be there.

    Another writer came before its first message, or the log has lost its end and grew again: then
    the place may even lie inside a record.

    Raises:
        StoreError: nobody can tell: the place has been deleted, or its record is damaged.
    """
    if ledger.start >= store.max_phy_offset:
        return ledger.start == store.max_phy_offset
    if ledger.start < store.min_phy_offset:
        raise StoreError(
            f"{ledger.path}: the log begins at {store.min_phy_offset}, and this append began at "
            f"{ledger.start}: how far it came is not known any more. Remove the file to leave it so"
        )
    try:
        found = next(store.messages(start=ledger.start), None)
    except StoreError:
        if _names_itself(store, ledger.start):
            raise
        return False
    frame = next((frame for file in ledger.files for frame in _frames(file, ledger)), None)
    if found is None or frame is None:
        return True
    return _same(decode_batch(frame.body, topic=frame.topic)[0], found, frame)


def _names_itself(store: DefaultMessageStore, phy_offset: int) -> bool:
    """True where a record, even a damaged one, says that it lies: its own offset is in it."""
    size = store.config.mapped_file_size_commit_log
    first = phy_offset - phy_offset % size
    directory = StoreDir(store.path, store.config.store_path_commit_log)
    with (directory.commit_log / f"{first:020d}").open("rb") as file:
        file.seek(phy_offset - first)
        _, own_offset = head_says(file.read(RECORD_HEAD_SIZE))
    return own_offset == phy_offset


def _finish(store: DefaultMessageStore, ledger: Ledger) -> None:
    store.flush()
    files = ledger.files
    ledger.finish()
    forget_staged(files)


def _append(store: DefaultMessageStore, ledger: Ledger) -> int:
    """Put what the log does not have yet; how many messages that were."""
    there = store.messages(start=ledger.start) if ledger.start < store.max_phy_offset else iter(())
    appended = 0
    for file in ledger.files:
        for frame in _frames(file, ledger):
            rest = _missing(frame, there)
            if rest is None:
                continue
            there = iter(())
            receipt = store.put_messages(
                rest.body,
                topic=rest.topic,
                queue_id=rest.queue_id,
                sys_flag=rest.sys_flag,
                born_timestamp_ms=rest.born_timestamp_ms,
                reconsume_times=rest.reconsume_times,
            )
            if not receipt.ok:
                raise PutMessageError(receipt.status, receipt.reason)
            appended += rest.message_count
    return appended


def _frames(file: StagedFile, ledger: Ledger) -> Iterator[Frame]:
    try:
        yield from file.frames()
    except StoreError as error:
        raise StoreError(f"{error}; to leave that append as it is, remove {ledger.path}") from error


def _missing(frame: Frame, there: Iterator[MessageExt]) -> Frame | None:
    """What of a frame does not come next in the log; None when all of it does."""
    messages = None
    for index in range(frame.message_count):
        found = next(there, None)
        if found is None and index == 0:
            return frame
        messages = messages or decode_batch(frame.body, topic=frame.topic)
        if found is None or not _same(messages[index], found, frame):
            rest = messages[index:]
            return Frame(
                frame.topic,
                frame.queue_id,
                frame.sys_flag,
                frame.born_timestamp_ms,
                frame.reconsume_times,
                len(rest),
                encode_batch(rest),
            )
    return None


def _same(staged: Message, found: MessageExt, frame: Frame) -> bool:
    return (
        (found.topic, found.queue_id) == (frame.topic, frame.queue_id)
        and found.unique_key == (staged.properties or {}).get("UNIQ_KEY")
        and found.body == staged.body
    )


def _remove_stale(root: Path) -> None:
    """Remove what aborted jobs and killed drivers left a week ago, and ids that nobody asks for."""
    ledgers = _ledgers(root)
    pending = {Path(file.path).parent for ledger in ledgers for file in ledger.files}
    for folder in set(root.glob("staging-*")) - pending:
        if wall_clock_ms() / 1000 - folder.stat().st_mtime > _STALE_S:
            shutil.rmtree(folder, ignore_errors=True)
    for ledger in ledgers:
        done = not ledger.is_appending()
        if done and ledger.name.startswith(_ANONYMOUS) and ledger.age_s() > _STALE_S:
            ledger.forget()


def abort_staged(store_path: str, name: str, folder: Path) -> None:
    """Remove what a failed job has staged, unless the ledger has decided that it is appended.

    Raises:
        StoreError: the ledger cannot be read.
    """
    root = staging_root(store_path)
    try:
        pending = Ledger(root, name).is_appending()
    except ValueError as error:
        raise StoreError(f"{root / name}.json: {error}") from error
    if not pending:
        shutil.rmtree(folder, ignore_errors=True)
