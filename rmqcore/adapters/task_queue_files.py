"""Moves what waits in kombu's and huey's own files into the stores of `rmqcore.adapters`."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rmqcore.adapters.names import table_of, topic_of
from rmqcore.adapters.sqlite_files import open_database, take_back_half
from rmqcore.errors import RmqCoreError
from rmqcore.message import EXPIRES_MS, MessageExt
from rmqcore.store.parts.key_values import TOPIC_PREFIX
from rmqcore.store.sharing import open_shared
from rmqcore.transfer.import_files import ImportReport
from rmqcore.transfer.import_progress import ImportProgress
from rmqcore.transfer.import_record import ImportRecord

if TYPE_CHECKING:
    from rmqcore.adapters.huey import RmqStorage

_PRIORITY_MAX: Final = 9
#: huey's FileStorage names a task's file by this number less the task's priority.
_HUEY_PRIORITY_MAX: Final = 0xFFFF
_KEY_SIZE: Final = struct.Struct(">I")
_MS: Final = 1000
#: JSON that is too deep, and a number in it that is too large for one.
_TOO_MUCH: Final = (RecursionError, OverflowError)

Progress = Callable[[int, int], None]


def import_kombu(
    store: Path, source: Path, *, again: bool = False, progress: Progress | None = None
) -> ImportReport:
    """Put what waits in kombu's file-system or SQLAlchemy-SQLite transport.

    Args:
        store: the directory of ``rmqcore:///store``; processes may be using it.
        source: the folder that messages are put into, or the database.
        again: import also what has been imported.
        progress: called with (messages done, messages in all).

    Raises:
        AlreadyImportedError: a file has been imported into this store before.
        RmqCoreError: there is no message, one cannot be read, and what came before it is in; or
            another import is going on.
        OSError: the system refused.
    """
    files = sorted(source.glob("*.msg"), key=_sent) if source.is_dir() else [source]
    if not files:
        raise RmqCoreError(f"{source}: no message of kombu's file-system transport is here")
    take_back_half(source)
    waiting = _of_folder(files) if source.is_dir() else _of_kombu_tables(source)
    report = ImportReport(files=len(files))
    with open_shared(store) as opened, ImportRecord(store) as record:
        done = ImportProgress(opened, record, files, again=again)
        for queue, payload in waiting:
            priority, lives_ms = _envelope(source, payload)
            topic = topic_of("kombu", queue)
            if done.passes():
                report.already += 1
                continue
            properties = {EXPIRES_MS: str(opened.world.clock_ms() + lives_ms)} if lives_ms else {}
            properties |= done.mark
            opened.put(topic, payload, queue_id=priority, properties=properties)
            done.advance()
            report.messages += 1
            report.body_bytes += len(payload)
            if progress is not None:
                progress(report.messages, max(report.messages, len(files)))
        done.finish()
    return report


def import_huey(
    store: Path,
    source: Path,
    *,
    name: str = "huey",
    again: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Put what is in huey's SqliteStorage or FileStorage: tasks, schedule, results, counters.

    Args:
        store: the ``path`` of `RmqHuey`; processes may be using it.
        source: the database, or the directory.
        name: of the huey whose directory it is; a database names them.
        again: import also what has been imported.
        progress: called with (entries done, entries in all).

    Raises:
        AlreadyImportedError: a file has been imported into this store before.
        RmqCoreError: there is nothing of huey's, or it cannot be read; what came before it is in.
        OSError: the system refused.
    """
    try:
        from rmqcore.adapters.huey import RmqStorage  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise RmqCoreError("huey is not installed; pip install 'rmqcore[huey]'") from error
    files = [source]
    if source.is_dir():
        parts = ("queue", "schedule", "results")
        files = sorted(path for part in parts for path in (source / part).rglob("*"))
        files = [path for path in files if path.is_file()]
    if not files:
        raise RmqCoreError(f"{source}: nothing of huey's FileStorage is here")
    take_back_half(source)
    entries = _of_directory(source, files, name) if source.is_dir() else _of_huey_tables(source)
    report = ImportReport(files=len(files))
    storages: dict[str, RmqStorage] = {}
    with open_shared(store) as opened, ImportRecord(store) as record:
        try:
            done = ImportProgress(opened, record, files, again=again)
            for entry in entries:
                if done.passes(entry.is_put):
                    report.already += 1
                    continue
                if entry.queue not in storages:
                    storages[entry.queue] = RmqStorage(entry.queue, path=store)
                entry.put(storages[entry.queue], done.mark)
                done.advance()
                report.messages += 1
                report.body_bytes += entry.size
                if progress is not None:
                    progress(report.messages, max(report.messages, len(files)))
            done.finish()
        finally:
            for storage in storages.values():
                storage.close()
    return report


def _is_entry_of(topic: str, content: bytes) -> Callable[[MessageExt], bool]:
    """Tells whether a record is of a table, and of its entry with this content."""
    return lambda stored: stored.topic == topic and content in bytes(stored.body)


# ---- kombu


def _sent(file: Path) -> tuple[int, str]:
    """By the number that a file begins with: when it was sent."""
    number = file.name.partition("_")[0]
    return int(number) if number.isdigit() else 0, file.name


def _of_folder(files: list[Path]) -> Iterator[tuple[str, bytes]]:
    for file in files:
        yield file.name.partition(".")[2].removesuffix(".msg"), file.read_bytes()


def _of_kombu_tables(database: Path) -> Iterator[tuple[str, bytes]]:
    """What no consumer was given: kombu keeps the others, acknowledged or not, as not visible."""
    with open_database(database) as connection:
        for queue, payload in connection.execute(
            "SELECT q.name, m.payload FROM kombu_message m JOIN kombu_queue q ON m.queue_id = q.id "
            "WHERE m.visible ORDER BY m.timestamp, m.id"
        ):
            yield queue, payload.encode()


def _envelope(source: Path, payload: bytes) -> tuple[int, int]:
    """Priority, and milliseconds that a message lives, 0 without end."""
    try:
        properties = json.loads(payload)["properties"]
        priority = int(properties.get("priority") or 0)
        lives_ms = int(properties.get("expiration") or 0)
    except (ValueError, LookupError, TypeError, AttributeError, *_TOO_MUCH) as error:
        raise RmqCoreError(f"{source}: no message of kombu: {payload[:80]!r}") from error
    return max(0, min(priority, _PRIORITY_MAX)), lives_ms


# ---- huey


class _Entry(NamedTuple):
    """What one entry is.

    Attributes:
        queue: name of the huey.
        size: bytes that are counted.
        is_put: tells whether a record was put for it; None: one that has the mark.
        put: puts it, with the mark as a property where it is a message.
    """

    queue: str
    size: int
    is_put: Callable[[MessageExt], bool] | None
    put: Callable[[RmqStorage, dict[str, str]], object]


def _of_huey_tables(database: Path) -> Iterator[_Entry]:
    with open_database(database) as connection:
        rows = connection.execute
        for queue, data, priority in rows("SELECT queue, data, priority FROM task ORDER BY id"):
            yield _task(queue, bytes(data), priority)
        for queue, data, at in rows("SELECT queue, data, timestamp FROM schedule ORDER BY id"):
            yield _scheduled(queue, bytes(data), at)
        for queue, key, value in rows("SELECT queue, key, value FROM kv ORDER BY queue, key"):
            yield _result(queue, key, bytes(value))
        for queue, key, count in rows("SELECT queue, key, value FROM counter ORDER BY queue, key"):
            yield _counter(queue, key, count)


def _of_directory(source: Path, files: list[Path], name: str) -> Iterator[_Entry]:
    for file in files:
        # a task that was being taken when huey was killed has this name
        data, stem = file.read_bytes(), file.name.removesuffix(".tmp")
        try:
            if file.is_relative_to(source / "queue"):
                entry = _task(name, data, _HUEY_PRIORITY_MAX - int(stem[:4], 16))
            elif file.is_relative_to(source / "schedule"):
                entry = _scheduled(name, data, int(stem[:12], 16) / _MS)
            elif file.name != stem:
                continue
            else:
                (size,) = _KEY_SIZE.unpack_from(data)
                key, value = data[_KEY_SIZE.size :][:size], data[_KEY_SIZE.size + size :]
                entry = _result(name, key, value)
        except (ValueError, struct.error) as error:
            raise RmqCoreError(f"{file}: no file of huey's: {error}") from error
        yield entry


def _table(kind: str, queue: str) -> str:
    return f"{TOPIC_PREFIX}{table_of(kind, queue)}"


def _task(queue: str, data: bytes, priority: float) -> _Entry:
    return _Entry(queue, len(data), None, lambda to, mark: to.put_task(data, priority, mark))


def _scheduled(queue: str, data: bytes, at: float) -> _Entry:
    # huey's times have no zone; it reads them as local ones when it writes this number
    due = datetime.fromtimestamp(at)  # noqa: DTZ006
    is_put = _is_entry_of(_table("huey-schedule", queue), data)
    return _Entry(queue, len(data), is_put, lambda to, _: to.add_to_schedule(data, due))


def _result(queue: str, key: bytes | str, value: bytes) -> _Entry:
    is_put = _is_entry_of(_table("huey-results", queue), _bytes_of(key) + value)
    return _Entry(queue, len(value), is_put, lambda to, _: to.put_data(key, value))


def _counter(queue: str, key: bytes | str, count: int) -> _Entry:
    is_put = _is_entry_of(_table("huey-counters", queue), _bytes_of(key))
    return _Entry(queue, 0, is_put, lambda to, _: to.incr(key, count))


def _bytes_of(key: bytes | str) -> bytes:
    return key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
