"""An import that may be killed anywhere and run again: each message comes once.

Nothing is noted with a message. Where the log ended when a file's next message was about to be put
is noted with the file, and the next opening of the store notes where it ended behind the kill: what
was put in between is found there again, in the order of the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

from rmqcore.errors import MessageIllegalError, RmqCoreError
from rmqcore.files.import_note import State
from rmqcore.message import LIGHT_NUMBERS, Message, MessageExt
from rmqcore.native.format._host import encode_host
from rmqcore.native.format._numbers import SysFlag
from rmqcore.scan.plan import plan
from rmqcore.services.delay_schedule import park, requested_delay_level
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.transfer.export import messages
from rmqcore.transfer.import_files import (
    ImportReport,
    check_file,
    exported_files,
    is_empty,
    messages_in,
    put_file,
)
from rmqcore.transfer.import_record import (
    PENDING,
    AlreadyImportedError,
    ImportRecord,
    digests_of,
)
from rmqcore.transfer.trial_puts import TrialPuts

Progress = Callable[[int, int], None]

#: What the store says of a message by itself.
_GIVEN_ANEW: Final = (LIGHT_NUMBERS, "__CRC32#")


def import_once(
    store: DefaultMessageStore,
    source: str | os.PathLike[str],
    *,
    again: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Put what `export_store` wrote, unless the store has it; go on where that ended early.

    Args:
        store: open for writing.
        source: a file, or the directory of an export.
        again: put also what has been imported before.
        progress: called with (files done, files in all).

    Raises:
        AlreadyImportedError: all of a file, or an unknown part of it, has been imported before.
        MessageIllegalError: a row is no message; nothing was put.
        RmqCoreError: a file is missing, cut short, or was changed while it was read.
        PutMessageError: the store refused; run again, the import goes on there.
    """
    paths = [path for path in exported_files(Path(source)) if not is_empty(path)]
    report = ImportReport()
    with ImportRecord(store.path) as record:
        files = list(zip(paths, digests_of(paths), strict=True))
        if not again:
            files = _not_imported(store, record, files)
        with TrialPuts(store) as trial:
            for path, _ in files:
                # a row that is no message is found before anything is put
                check_file(path, trial)
        record.note({digest: _state(record, digest, again) for _, digest in files})
        for number, (path, digest) in enumerate(files):
            if progress is not None:
                progress(number, len(files))
            try:
                _import_file(store, record, path, digest, report)
            except BaseException:
                # what others put from now on is none of its messages
                with suppress(Exception):
                    record.end(store.max_phy_offset)
                raise
    if progress is not None:
        progress(len(files), len(files))
    return report


def _state(record: ImportRecord, digest: str, again: bool) -> State:
    """What is noted of a file before the first one is put."""
    known = record.state(digest)
    return PENDING if again or known is None else known


def _not_imported(
    store: DefaultMessageStore, record: ImportRecord, files: list[tuple[Path, str]]
) -> list[tuple[Path, str]]:
    """Those of the files that are not in the store whole.

    Raises:
        AlreadyImportedError: they are not of one import that ended early, and one is known.
    """
    states = [record.state(digest) for _, digest in files]
    ended_early = any(state is not None and type(state) is int for state in states)
    for (path, _), state in zip(files, states, strict=True):
        lost = type(state) is int and 0 <= state < store.min_phy_offset
        if state is False or lost or (state is True and not ended_early):
            raise AlreadyImportedError(path, state is True)
    # one that was begun comes first, whatever it is called now: of what others hold, which may be
    # the same messages, nothing is in the log behind it
    left = [(file, state) for file, state in zip(files, states, strict=True) if state is not True]
    left.sort(key=lambda each: each[1] in (None, PENDING))
    return [file for file, _ in left]


def _import_file(
    store: DefaultMessageStore,
    record: ImportRecord,
    path: Path,
    digest: str,
    report: ImportReport,
) -> None:
    """Put the messages of a file that are not in the log since its import was begun."""
    began = record.state(digest)
    there = 0
    if began is not None and began != PENDING and began <= store.max_phy_offset:
        there = record.count(digest)
        rows = islice(messages_in(path), there, None)
        there += _stored_count(store, began, record.log_end, rows)
    # flushed, so that no power cut ends the log before the offset that is noted
    store.flush()
    record.begin(digest, store.max_phy_offset, there)
    report.already += there
    put_file(store, path, report, first=there)
    store.flush()
    if digests_of([path])[0] != digest.partition(" ")[0]:
        record.note({digest: False})
        raise RmqCoreError(
            f"{path}: it was changed while it was read; what was put is neither what it was nor "
            "what it is; import into a new store"
        )
    record.finish([digest])


def _stored_count(
    store: DefaultMessageStore, began: int, ended: int | None, rows: Iterable[Message]
) -> int:
    """How many of a file's next messages are in the log from where its import went on.

    Args:
        store: the store.
        began: physical offset of the first one.
        ended: of the first record that others have put since; None: it is not known.
        rows: the messages.
    """
    levels_ms = store.config.delay_levels_ms
    waiting = (_compared(_as_stored(row, levels_ms)) for row in rows)
    row, count = next(waiting, None), 0
    for stored in _messages_from(store, began):
        if ended is not None and stored.phy_offset >= ended:
            break
        if row is not None and _is_copy(stored, row):
            row, count = next(waiting, None), count + 1
    return count


def _messages_from(store: DefaultMessageStore, phy_offset: int) -> Iterator[MessageExt]:
    for split in plan(store.path, config=store.config):
        if split.end > phy_offset:
            for message in messages(split, uncommitted=True):
                if message.phy_offset >= phy_offset:
                    yield message


def _as_stored(row: Message, levels_ms: Sequence[int]) -> Message:
    """What a put of a row stores: a delayed message waits elsewhere."""
    # a row that is refused is not stored at all
    with suppress(MessageIllegalError):
        level = requested_delay_level(row)
        if level > 0:
            return park(row, level, levels_ms)
    return row


def _is_copy(stored: MessageExt, row: dict[str, Any]) -> bool:
    """Tell whether a message is what the put of a row, from `_compared`, has stored."""
    if len(stored.body) != len(row["body"]):
        return False
    message = Message(
        stored.topic,
        bytes(stored.body),
        properties=stored.properties,
        queue_id=stored.queue_id,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        reconsume_times=stored.reconsume_times,
        prepared_transaction_offset=stored.prepared_transaction_offset,
        born_timestamp_ms=stored.born_timestamp_ms if row["born_timestamp_ms"] else 0,
        born_host=stored.born_host if row["born_host"] else None,
    )
    return _compared(message) == row


def _compared(message: Message) -> dict[str, Any]:
    found = message.to_dict()
    found["properties"] = {
        name: value
        for name, value in (found["properties"] or {}).items()
        if name not in _GIVEN_ANEW
    }
    found["sys_flag"] &= ~SysFlag.HOSTS_V6
    # one address has several spellings; what is none is refused
    with suppress(MessageIllegalError):
        found["born_host"] = found["born_host"] and encode_host(found["born_host"])
    return found
