"""Staged files appended to an open store: all of them, once, whatever dies meanwhile.

Before the first record is appended, a ledger below the store's directory says which files are to be
appended, and where the log ended then. Whoever repeats the commit counts from there how many rows
came into the log, notes that number and the log's new end, and only then appends the others:
however often an append dies, and whoever writes in between, a row is looked for in one place only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rmqcore._codec import decode_record
from rmqcore.errors import PutMessageError, StoreError
from rmqcore.files.store_dir import StoreDir, make_directory
from rmqcore.message import MessageExt
from rmqcore.native.format._next_record import RECORD_HEAD_SIZE, head_says
from rmqcore.store.append_ledger import (
    ANONYMOUS,
    JOB,
    Ledger,
    appending,
    forget_done,
    staging_root,
)
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.staged_files import StagedFile, forget_staged, pieces_behind
from rmqcore.store.staged_records import StagedRecords, records_in
from rmqcore.world import sync_directory

_DAY_S = 24 * 3600
_STALE_S = 7 * _DAY_S
#: By these columns a row is found again in the log; the CRC is that of its body.
_IDENTITY = ("topic", "queue_id", "unique_key", "body_crc", "flag", "reconsume_times")


def append_staged(
    store: DefaultMessageStore, name: str, number: int, files: list[StagedFile]
) -> int:
    """Append staged files to the log, in their order, unless it has been done.

    Others may put meanwhile; a second call waits for the end of the first.

    Args:
        store: open for writing.
        name: of the series that the append belongs to.
        number: of the append in its series; later ones have larger numbers.
        files: what to append.

    Returns:
        messages appended by this call.

    Raises:
        StoreError: the store refuses; the same call goes on where this one ended.
    """
    root = staging_root(store.path)
    make_directory(root)
    with _one_at_a_time(root):
        ledger, appended = Ledger(root, name), 0
        _refuse_unwritable(store)
        _note_others(store, root, name)
        if ledger.is_appending:
            appended = _resume(store, ledger)
        if ledger.is_done(number):
            # who has noted that may have been killed before it was on the disk
            sync_directory(root)
        else:
            for file in files:
                # one that is gone, or cut, is found before any of the others is appended
                file.records()
            appended += _append(store, ledger, number, files, 0)
        forget_staged(files)
        _remove_stale(store, root)
    return appended


def finish_staged(store: DefaultMessageStore, forget_days: float | None = None) -> dict[str, int]:
    """Finish every append that died inside its commit.

    Args:
        store: open for writing.
        forget_days: also forget the ids of jobs that were appended this many days ago: such a job
            would be appended again. None keeps them all.

    Returns:
        for each append that was finished its name, and how many messages were missing.

    Raises:
        StoreError: the staged rows are gone, or the store refuses.
    """
    root = staging_root(store.path)
    make_directory(root)
    with _one_at_a_time(root):
        _refuse_unwritable(store)
        _note_others(store, root, None)
        finished = {ledger.name: _resume(store, ledger) for ledger in appending(root)}
        if forget_days is not None:
            forget_done(root, JOB, _ago_s(store, forget_days * _DAY_S))
        _remove_stale(store, root)
    return finished


@contextmanager
def _one_at_a_time(root: Path) -> Iterator[None]:
    """Wait until nobody else appends staged files to this store."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        # a forked child may have a copy of the descriptor, which keeps the lock when this is closed
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def is_under_way(root: Path) -> bool:
    """True while somebody appends staged files to the store whose ledgers lie here."""
    if not root.is_dir():
        return False
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # a forked child may have a copy of the descriptor, with which who appends would wait
        fcntl.flock(fd, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _refuse_unwritable(store: DefaultMessageStore) -> None:
    """Refuse before the ledger says that anything is being appended."""
    reason = store.why_not_writable()
    if reason is not None:
        raise StoreError(f"{store.path}: nothing was appended: {reason}")


def _resume(store: DefaultMessageStore, ledger: Ledger) -> int:
    """Come to the end of an append; how many messages were missing."""
    _note_appended(store, ledger)
    return _append(store, ledger, ledger.number, ledger.files, ledger.row_count)


def _note_others(store: DefaultMessageStore, root: Path, name: str | None) -> None:
    """Note how far the appends of all other series came, before more rows come into the log.

    One of which nobody can tell says so when it is resumed.
    """
    for ledger in appending(root):
        if ledger.name != name:
            with suppress(StoreError):
                _note_appended(store, ledger)


def _note_appended(store: DefaultMessageStore, ledger: Ledger) -> None:
    """Note how far an append came that died.

    What is appended later, by whomever, is not looked at for its rows any more.

    Raises:
        StoreError: nobody can tell: the place has been deleted, or its record is damaged.
    """
    if ledger.start is not None:
        found = _rows_behind(store, ledger, ledger.start)
        store.flush()
        ledger.note_row_count(ledger.row_count + found)


def _rows_behind(store: DefaultMessageStore, ledger: Ledger, start: int) -> int:
    """How many of an append's next rows lie behind a physical offset, in their order.

    Other messages may lie before, between and behind them. Where the log has lost its end and grew
    again, the offset may lie inside a record: then none of the rows is there.
    """
    if start >= store.max_phy_offset:
        return 0
    if start < store.min_phy_offset:
        raise StoreError(
            f"{ledger.appending_path}: the log begins at {store.min_phy_offset}, and this append "
            f"began at {start}: how far it came is not known any more. Remove the file to leave it "
            "so"
        )
    found = store.messages(start=start)
    try:
        message = next(found, None)
    except StoreError:
        if _names_itself(store, start):
            raise
        return 0
    count = 0
    for staged in _rows(ledger, ledger.row_count):
        while message is not None and not _same(staged, message):
            message = next(found, None)
        if message is None:
            break
        count += 1
        message = next(found, None)
    return count


def _rows(ledger: Ledger, first: int) -> Iterator[MessageExt]:
    """The staged rows from number ``first`` on."""
    for _, piece in _pieces(ledger, ledger.files, first):
        for record in records_in(piece):
            yield decode_record(record, check_crc=False)


def _names_itself(store: DefaultMessageStore, phy_offset: int) -> bool:
    """True where a record, even a damaged one, says that it lies: its own offset is in it."""
    size = store.config.mapped_file_size_commit_log
    first = phy_offset - phy_offset % size
    directory = StoreDir(store.path, store.config.store_path_commit_log)
    with (directory.commit_log / f"{first:020d}").open("rb") as file:
        file.seek(phy_offset - first)
        _, own_offset = head_says(file.read(RECORD_HEAD_SIZE))
    return own_offset == phy_offset


def _append(
    store: DefaultMessageStore, ledger: Ledger, number: int, files: list[StagedFile], done: int
) -> int:
    """Put all rows but the first ``done``; how many that were."""
    # flushed, so that no power cut ends the log before the offset that the ledger names
    store.flush()
    ledger.begin(number, store.max_phy_offset, files, done)
    appended = 0
    for records, piece in _pieces(ledger, files, done):
        appended += _put(store, records, piece)
    store.flush()
    ledger.finish()
    forget_staged(files)
    return appended


def _put(store: DefaultMessageStore, records: StagedRecords, piece: bytes) -> int:
    """Put a piece at once, or one by one where messages go to light queues; how many it has.

    Raises:
        PutMessageError: the store refuses.
    """
    # the flush behind the last piece is for all of them
    if not (store.config.numbers_light_queues and records.names_light_queues):
        result = store.put_records(piece, records.queues, durability="page_cache")
        if not result.ok:
            raise PutMessageError(result.status, result.reason)
        return result.row_count
    count = 0
    for record in records_in(piece):
        message = decode_record(record, check_crc=False)
        receipt = store.parts.column_writing.put_record(message, durability="page_cache")
        if not receipt.ok:
            raise PutMessageError(receipt.status, receipt.reason)
        count += 1
    return count


def _pieces(
    ledger: Ledger, files: list[StagedFile], first: int
) -> Iterator[tuple[StagedRecords, bytes]]:
    try:
        yield from pieces_behind(files, first)
    except StoreError as error:
        raise StoreError(
            f"{error}; to leave that append as it is, remove {ledger.appending_path}"
        ) from error


def _same(staged: MessageExt, found: MessageExt) -> bool:
    """True when a message of the log is a staged one, as far as their heads and keys say."""
    return all(getattr(staged, name) == getattr(found, name) for name in _IDENTITY)


def _remove_stale(store: DefaultMessageStore, root: Path) -> None:
    """Remove what aborted jobs and killed drivers left a week ago, and ids that nobody asks for."""
    before_s = _ago_s(store, _STALE_S)
    stale = {folder for folder in root.glob("staging-*") if folder.stat().st_mtime < before_s}
    if stale:
        stale -= {Path(file.path).parent for ledger in appending(root) for file in ledger.files}
    for folder in stale:
        shutil.rmtree(folder, ignore_errors=True)
    forget_done(root, ANONYMOUS, before_s)


def _ago_s(store: DefaultMessageStore, seconds: float) -> float:
    """Unix time, seconds, so long before now."""
    return store.world.clock_ms() / 1000 - seconds
