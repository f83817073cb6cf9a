"""Many queues by name in one store, for programs that know neither topics nor groups.

Each queue is a queue id of one topic, and leaves it to another queue when it is empty and closed.
Which name has which, and where its first or topmost element lies, is in a mapped table; what was
taken and is not done with yet, in a second one. docs/format/named-queues.md describes both.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from rmqcore.adapters.named_queue import (
    COPIED,
    FREE,
    TOPIC,
    ElementLink,
    NamedFifo,
    NamedLifo,
    NamedQueue,
)
from rmqcore.adapters.opened import held_size
from rmqcore.adapters.words_file import WordsFile
from rmqcore.errors import (
    ConfigError,
    CorruptConsumeQueueError,
    DiskFullError,
    StoreForkedError,
    StoreLockedError,
    StoreNotFoundError,
    StoreNotWritableError,
)
from rmqcore.files.store_dir import StoreDir, make_directory
from rmqcore.message import DEAD_LETTER_PREFIX, MessageExt
from rmqcore.status import Durability
from rmqcore.store.opening import open_store
from rmqcore.store.protocol import MessageStore

GROUP: Final = TOPIC
DEAD_LETTERS: Final = f"{DEAD_LETTER_PREFIX}{TOPIC}"

TABLE: Final = "namedQueues"
HELD: Final = "heldElements"
ENTRY_SIZE: Final = 256
_WORDS: Final = ENTRY_SIZE // 8
_KIND, _AT, _END, _NAME_SIZE, _NAME = range(5)
_NAME_MAX: Final = ENTRY_SIZE - 8 * _NAME
_TABLE_SIZE: Final = 64 * ENTRY_SIZE
_HELD_SIZE: Final = 4096

_LOG_FILE_SIZE: Final = 16 << 20
_SETTINGS: Final[dict[str, Any]] = {
    "mapped_file_size_commit_log": _LOG_FILE_SIZE,
    "mapped_file_size_consume_queue": 400_000,
    "max_message_size": _LOG_FILE_SIZE - 4096,
    "message_index_enable": False,
    "allocate_ahead": 1,
}
#: A log of fewer files than this is left alone: what could be freed is not worth a copy.
_KEPT_FILES: Final = 4

_log = logging.getLogger("rmqcore")
_Queue = TypeVar("_Queue", bound=NamedQueue)
_KINDS: Final[dict[int, type[NamedQueue]]] = {one.kind: one for one in (NamedFifo, NamedLifo)}
_OPEN: Final[dict[Path, NamedQueues]] = {}


def _forget_parents_queues() -> None:
    for queues in _OPEN.values():
        queues.is_ours = False
    _OPEN.clear()


os.register_at_fork(after_in_child=_forget_parents_queues)


def named_queues(path: Path, durability: Durability = Durability.PAGE_CACHE) -> NamedQueues:
    """The store of named queues in a directory, opened once a process; `leave` it when done.

    One whose directory has been removed is closed: the path is another's.

    Args:
        path: of the directory; made when it is missing.
        durability: of every put; one that is open keeps its own, and refuses another.

    Raises:
        StoreLockedError: another process has it.
        ConfigError: the directory holds something else.
        OSError: the system refused.
    """
    path = path.resolve()
    queues = _OPEN.get(path)
    if queues is not None and not queues.is_there():
        queues.abandon()
        queues = None
    if queues is None:
        queues = _OPEN[path] = NamedQueues(path, durability)
    elif queues.durability is not durability:
        raise ConfigError("durability", str(durability), f"{path} is open with another")
    queues.users += 1
    return queues


def stored_name(name: str) -> str:
    """The name under which a queue is kept: its own, or the begin of a long one and its digest."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= _NAME_MAX and name.isprintable():
        return name
    begin = "".join(c if c.isascii() and c.isprintable() else "_" for c in name[:100])
    return f"{begin}-{hashlib.sha256(encoded).hexdigest()}"


class NamedQueues:
    """A store of named queues; made by `named_queues`.

    - Everything pushed survives a kill; with durability "disk" a power cut, too.
    - What `hold` took and nobody released comes back when the store is opened again.
    - The directory is removed when its last user leaves it and nothing is in it.

    Threads: one at a time; `release` from any.
    """

    def __init__(self, path: Path, durability: Durability) -> None:
        self.path = path
        self.users = 0
        #: False when closed, and in a forked child
        self.is_ours = True
        self.durability = durability
        self._in_use: dict[str, NamedQueue] = {}
        self._entries: dict[str, int] = {}
        self._free: list[int] = []
        #: physical offset from which on `make_room` looks again; bytes that it may copy
        self._next_look = sys.maxsize
        self._end = 0
        self._may_copy = 0
        self._refuse_foreign()
        make_directory(path / "config")
        self._table = WordsFile(path / "config" / TABLE, b"RMQNAMED", _TABLE_SIZE)
        try:
            flush = "SYNC_FLUSH" if durability is Durability.DISK else "ASYNC_FLUSH"
            self.store: MessageStore = open_store(path, flush_disk_type=flush, **_SETTINGS)
        except BaseException:
            self._table.close()
            raise
        try:
            self._held = WordsFile(path / "config" / HELD, b"RMQHELD1", _HELD_SIZE)
            self._free_slots = [n for n in range(1, len(self._held)) if not self._held.words[n]]
            self._reconcile()
            # what was settled by a log that ended early must not be read of a longer one
            self._table.flush()
            self._return_held()
            self._held.flush()
            self._next_look = self.store.max_phy_offset + _LOG_FILE_SIZE
        except BaseException:
            self._close_files()
            raise

    def _refuse_foreign(self) -> None:
        """A directory with other things in it would be removed with the queues."""
        if not self.path.exists() or (self.path / "config" / TABLE).exists():
            return
        if not self.path.is_dir() or any(one.name != "config" for one in self.path.iterdir()):
            rule = "the directory of such a queue, or none yet"
            raise ConfigError("path", str(self.path), rule)

    # ---- the table

    def word(self, entry: int, field: int) -> int:
        """One number of an entry of the table.

        Args:
            entry: number of the entry; -1 for the table's own.
            field: number of the word in the entry.
        """
        return self._table.words[(entry + 1) * _WORDS + field]

    def at(self, entry: int) -> int:
        """Queue offset of an entry's first element, or of its top."""
        return self.word(entry, _AT)

    def end(self, entry: int) -> int:
        """The next queue offset when the entry was last written as a whole."""
        return self.word(entry, _END)

    def set_at(self, entry: int, at: int) -> None:
        """Say where the first element, or the top, is now; see `Home.set_at`.

        Raises:
            StoreForkedError: the table belongs to the parent process.
        """
        self._set(entry, _AT, at)

    def set_end(self, entry: int, end: int) -> None:
        """Say that the table knows all messages below an offset; see `Home.set_end`.

        Raises:
            StoreForkedError: the table belongs to the parent process.
        """
        self._set(entry, _END, end)

    def _set(self, entry: int, field: int, value: int) -> None:
        if not self.is_ours:
            raise StoreForkedError(f"{self.path} is open in the parent process; open it again")
        self._table.words[(entry + 1) * _WORDS + field] = value

    def _entry_count(self) -> int:
        return len(self._table) // _WORDS - 1

    def _name_of(self, entry: int) -> str:
        size = min(max(self.word(entry, _NAME_SIZE), 0), _NAME_MAX)
        name = self._table.read_bytes((entry + 1) * _WORDS + _NAME, size)
        return name.decode("utf-8", "replace")

    def _enter(self, entry: int, kind: int, name: str, at: int, end: int) -> None:
        """Give an entry to a queue.

        The kind makes it count; the end, set last, says that the log need not be asked.
        """
        encoded = name.encode()
        self._set(entry, _KIND, FREE)
        self._table.write_bytes((entry + 1) * _WORDS + _NAME, encoded)
        self._set(entry, _NAME_SIZE, len(encoded))
        self._set(entry, _AT, at)
        self._set(entry, _KIND, kind)
        self._set(entry, _END, end)

    def _vacate(self, entry: int) -> None:
        """Take an entry from a queue that is empty."""
        # a kill between the two writes leaves an entry of an empty queue, which the next opening
        # frees
        self._set(entry, _END, self.store.max_queue_offset(TOPIC, entry))
        self._set(entry, _KIND, FREE)
        self._free.append(entry)

    def _reconcile(self) -> None:
        """Bring every entry in line with the log, and free those of empty queues."""
        used = [queue_id for topic, queue_id in self.store.queues() if topic == TOPIC]
        while self._entry_count() <= max(used, default=0):
            self._table.grow()
        for entry in reversed(range(self._entry_count())):
            end = self.store.max_queue_offset(TOPIC, entry)
            kind, at = self.word(entry, _KIND), self.at(entry)
            known = _KINDS.get(kind)
            if end != self.end(entry) or (known and not known.can_be(at, end)):
                kind, at = self._reconcile_entry(entry, end)
                known = _KINDS.get(kind)
            name = self._name_of(entry)
            if known is None or at == known.nothing(end) or name in self._entries:
                self._vacate(entry)
            else:
                self._entries[name] = entry

    def _reconcile_entry(self, entry: int, end: int) -> tuple[int, int]:
        """Its last message says whose an entry is that the table does not know to the end."""
        found = self.store.get_message(TOPIC, entry, end - 1, max_messages=1).messages
        if not found:
            if self.store.min_queue_offset(TOPIC, entry) < end:
                raise CorruptConsumeQueueError(self.path, -1, f"element {end - 1} is gone")
            return FREE, end
        link = ElementLink.of(found[0], self.path)
        if link.kind > COPIED:
            return FREE, end  # a copy that was not finished; the queue is where it was
        at = _KINDS[link.kind].at_after(end - 1, link)
        if (link.kind, link.name) == (self.word(entry, _KIND), self._name_of(entry)):
            at = _KINDS[link.kind].newer(at, self.at(entry), end)
            self._set(entry, _AT, at)
            self._set(entry, _END, end)
        else:
            self._enter(entry, link.kind, link.name, at, end)
        return link.kind, at

    # ---- queues

    def open(self, name: str, kind: type[_Queue]) -> _Queue:
        """Open a queue by its name, made when there is none.

        Args:
            name: any text; it is stored in a form that the table has room for.
            kind: `NamedFifo` or `NamedLifo`.

        Raises:
            StoreLockedError: it is open already, in this process.
            ConfigError: there is one of the other kind.
        """
        name = stored_name(name)
        if name in self._in_use:
            raise StoreLockedError(self.path / name, os.getpid())
        queue = self._opened(name, kind)
        self._in_use[name] = queue
        return queue

    def _opened(self, name: str, kind: type[_Queue]) -> _Queue:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._free_entry()
            end = self.store.max_queue_offset(TOPIC, entry)
            self._enter(entry, kind.kind, name, kind.nothing(end), end)
            self._entries[name] = entry
        elif self.word(entry, _KIND) != kind.kind:
            raise ConfigError("path", name, "a queue that gives in the other order is there")
        return kind(self, entry, name)

    def _free_entry(self) -> int:
        if not self._free:
            count = self._entry_count()
            self._table.grow()
            self._free = list(range(self._entry_count() - 1, count - 1, -1))
        return self._free.pop()

    def close_queue(self, queue: NamedQueue) -> None:
        """Close a queue; an empty one leaves its place to others."""
        if not self.is_ours:
            return
        self._in_use.pop(queue.name, None)
        if len(queue):
            queue.save()
        else:
            self._vacate(self._entries.pop(queue.name))

    def names(self) -> list[str]:
        """The names of all queues that are open or hold anything, sorted."""
        return sorted(self._entries)

    def put(self, topic: str, body: bytes, queue_id: int, properties: dict[str, str]) -> int:
        """Put a message, and get its queue offset; see `Home.put`.

        Raises:
            OSError: the store takes nothing; nothing was put.
        """
        try:
            put = self.store.put(topic, body, queue_id=queue_id, properties=properties)
        except StoreNotWritableError as error:
            raise DiskFullError(self.path, error.reason) from error
        self._end = put.phy_offset
        return put.queue_offset

    # ---- room

    def make_room(self) -> None:
        """After each log file that was filled: delete those in which nothing is needed.

        What has stayed in the oldest file is copied to the end of the log first, when as many bytes
        have been put otherwise as that takes twice.
        """
        if self._end < self._next_look:
            return
        self._next_look = sys.maxsize
        self._may_copy += _LOG_FILE_SIZE // 2
        try:
            for name in [name for name in self._entries if self._keeps_oldest_file(name)]:
                self._copy(self._loaded(name))
            self._commit_oldest()
            self._table.flush()
            self.store.delete_consumed_files()
        except OSError as error:
            _log.warning("%s: no room is made now: %s", self.path, error)
        finally:
            self._next_look = self._end + _LOG_FILE_SIZE

    def held_size(self) -> int:
        """Bytes of the log files that the store has."""
        return held_size(self.store, _LOG_FILE_SIZE)

    def _loaded(self, name: str) -> NamedQueue:
        queue = self._in_use.get(name)
        kind = _KINDS[self.word(self._entries[name], _KIND)]
        return queue or kind(self, self._entries[name], name)

    def _keeps_oldest_file(self, name: str) -> bool:
        """Whether a queue has its oldest element in the first of more than a few log files."""
        least = self.store.min_phy_offset
        if self.store.max_phy_offset - least < _KEPT_FILES * _LOG_FILE_SIZE:
            return False
        queue = self._loaded(name)
        found = self.store.get_message(TOPIC, queue.entry, queue.oldest(), max_messages=1).messages
        first_file_end = least - least % _LOG_FILE_SIZE + _LOG_FILE_SIZE
        return len(queue) > 0 and bool(found) and found[0].phy_offset < first_file_end

    def _copy(self, queue: NamedQueue) -> None:
        """Move a queue to another entry, and so to the end of the log, if that is worth it."""
        counts = [self.store.max_queue_offset(TOPIC, n) for n in range(self._entry_count())]
        size = len(queue) * self.store.max_phy_offset // max(1, sum(counts))
        if size > self._may_copy:
            return
        self._may_copy -= size
        copy = self.empty_copy(queue)
        try:
            queue.copy_to(copy)
            self.store.flush()
        except OSError:
            self._vacate(copy.entry)
            raise
        # until the old entry is free it is complete: after a kill either of the two may be kept
        queue.save()
        left, entry = queue.entry, copy.entry
        end = self.store.max_queue_offset(TOPIC, entry)
        self._enter(entry, queue.kind, queue.name, copy.at(), end)
        self._entries[queue.name] = entry
        queue.move_to(entry)
        try:
            # a power cut may write one page of the table and not the other
            self._table.flush()
        finally:
            self._vacate(left)

    def empty_copy(self, queue: NamedQueue) -> NamedQueue:
        """A queue in a free entry that counts for nothing until the table says so."""
        entry = self._free_entry()
        self._set(entry, _AT, queue.nothing(self.store.max_queue_offset(TOPIC, entry)))
        copy = type(queue)(self, entry, queue.name)
        copy.put_kind += COPIED
        return copy

    def _commit_oldest(self) -> None:
        """Say in the group's offsets which messages are needed, for the deletion of log files."""
        needed = {n: self.store.max_queue_offset(TOPIC, n) for n in range(self._entry_count())}
        for name, entry in self._entries.items():
            needed[entry] = self._loaded(name).oldest()
        for phy_offset, _ in self._taken():
            message = self.store.message_at(phy_offset)
            if message is not None and message.topic == TOPIC:
                needed[message.queue_id] = min(needed[message.queue_id], message.queue_offset)
        for entry, offset in needed.items():
            self.store.consumer_offsets.commit(TOPIC, GROUP, entry, offset)

    def sync(self) -> None:
        """Under durability "disk": what the table says is there after a power cut."""
        if self.durability is Durability.DISK:
            self._table.flush()

    def bury(self, name: str, body: bytes) -> None:
        """Keep an element that nobody can read among the dead letters.

        Args:
            name: of the queue, which the dead letter says.
            body: of the element.

        Raises:
            OSError: the store takes nothing; nothing was put.
        """
        self.put(DEAD_LETTERS, body, 0, {"QUEUE": name})

    # ---- what was taken and is not done with

    def hold(self, queue: NamedQueue) -> tuple[bytes, int] | None:
        """Take the first element, with the slot to `release` once it is done with.

        Until then it comes back when the store is opened again.
        """
        element = queue.first()
        if element is None:
            return None
        if not self._free_slots:
            count = len(self._held)
            self._held.grow()
            self._free_slots.extend(range(len(self._held) - 1, count - 1, -1))
        slot = self._free_slots.pop()
        self._held.words[slot] = element.phy_offset + 1
        if self.durability is Durability.DISK:
            self._held.flush()
        queue.drop_first()
        return element.body, slot

    def release(self, slot: int) -> None:
        """Let a taken element go. Any thread may call, a finalizer too, also after closing."""
        if self.is_ours:
            self._held.words[slot] = 0
            self._free_slots.append(slot)

    def release_all(self) -> None:
        """Let go of everything that was taken."""
        for _, slot in list(self._taken()):
            self.release(slot)

    def _taken(self) -> Iterator[tuple[int, int]]:
        """Physical offset and slot of everything that was taken."""
        for slot in range(1, len(self._held)):
            if self._held.words[slot]:
                yield self._held.words[slot] - 1, slot

    def _return_held(self) -> None:
        """Push again what a process had taken that is gone now, in the order of its first push."""
        gone = []
        for phy_offset, slot in sorted(self._taken()):
            message = self.store.message_at(phy_offset)
            if message is not None and message.topic == TOPIC:
                queue = self._queue_of(message)
                if queue.entry != message.queue_id or not queue.holds(message.queue_offset):
                    gone.append((message, slot))
                    continue
            self.release(slot)
        # after all others: a stack that has more on top does not tell any more what it still holds
        pushed: list[int] = []
        try:
            for message, slot in gone:
                queue = self._queue_of(message)
                queue.push(bytes(message.body))
                queue.save()
                pushed.append(slot)
        finally:
            # the others are held still, where the store refuses
            if pushed:
                self.store.flush()
            for slot in pushed:
                self.release(slot)

    def _queue_of(self, message: MessageExt) -> NamedQueue:
        link = ElementLink.of(message, self.path)
        kind = (link.kind - 1) % COPIED + 1
        if (entry := self._entries.get(link.name)) is not None:
            # it may have been made anew in the other order since
            kind = self.word(entry, _KIND)
        return self._opened(link.name, _KINDS[kind])

    # ---- closing

    def leave(self) -> None:
        """Close the store if this was its last user; its directory goes when nothing is in it."""
        self.users -= 1
        if self.users or not self.is_ours:
            return
        del _OPEN[self.path]
        empty = not self._entries and not any(self._taken())
        empty = empty and not self.store.max_queue_offset(DEAD_LETTERS, 0)
        self._close_files()
        if empty:
            self._remove()

    def is_there(self) -> bool:
        """Whether the directory that was opened is still the one at the path."""
        return self._table.is_there()

    def abandon(self) -> None:
        """Close a store whose directory has been removed."""
        _log.warning("%s has been removed while it was open", self.path)
        del _OPEN[self.path]
        with suppress(StoreNotFoundError):
            self._close_files()

    def _close_files(self) -> None:
        self.is_ours = False
        self._table.flush()
        self._table.close()
        if hasattr(self, "_held"):
            self._held.flush()
            self._held.close()
        self.store.close()

    def _remove(self) -> None:
        """Remove the directory, unless another process has taken it meanwhile."""
        directory = StoreDir(self.path)
        try:
            directory.lock()
        except (OSError, StoreLockedError):
            return
        try:
            table = WordsFile(self.path / "config" / TABLE, b"RMQNAMED", _TABLE_SIZE)
            kinds = table.words[_WORDS + _KIND :: _WORDS].tolist()
            table.close()
            if not any(kinds):
                gone = self.path.with_name(f"{self.path.name}.removed-{os.getpid()}")
                self.path.rename(gone)
                shutil.rmtree(gone)
        finally:
            directory.unlock()
