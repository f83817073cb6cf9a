"""Chords of Celery's whose tasks may run twice: each counts once, and the body comes once."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final

from celery.backends.base import KeyValueStoreBackend

from rmqcore.store.protocol import MessageStore

#: the table: who sends the body of a chord, by its group; those that have ended, by group and task
TABLE: Final = "celery-chords"
_SENT: Final = b"\0sent"
#: Behind the group, and in front of the task: it has ended more than once.
_AGAIN: Final = b"\1again"
#: Milliseconds for which it is known of chords that never expire.
_KNOWN_MS: Final = 7 * 86_400_000


@dataclass(slots=True)
class _Part:
    """The end of a task of a chord, that is being noted.

    Attributes:
        group: of the tasks of the chord.
        task: the one that has ended.
        counter, results: keys of the group's counter and of its results.
        size: tasks of the chord; 0 while it is not known.
    """

    group: str
    task: bytes
    counter: Any
    results: Any
    size: int


class ChordBackend(KeyValueStoreBackend):  # type: ignore[misc]
    """Tells Celery, which counts tasks, of one that runs again that it has been counted.

    Without it a chord comes to its end before all have ended, and fails.

    Threads: any.
    """

    @property
    def store(self) -> MessageStore:
        """The store, opened at the first use."""
        raise NotImplementedError

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._noted = threading.local()

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Note that a task of a chord has ended; behind the last one send the body.

        Args:
            request: of the task.
            state: of its end.
            result: of it.
            kwargs: Celery's, passed on.
        """
        group = request.group
        if not group or self.store.kv_get(TABLE, [group.encode()]) == [_SENT]:
            return
        self._noted.part = _Part(
            group,
            request.id.encode(),
            self.get_key_for_chord(group),
            self.get_key_for_group(group),
            (request.chord or {}).get("chord_size") or 0,
        )
        try:
            super().on_chord_part_return(request, state, result, **kwargs)
        finally:
            self._noted.part = None

    def restore_group(self, group_id: str, cache: bool = True) -> Any:
        """The result of a group.

        Args:
            group_id: of the group.
            cache: take it from memory where it is there.
        """
        found = super().restore_group(group_id, cache=cache)
        part = self._part()
        if part and part.group == group_id and found is not None:
            part.size = part.size or len(found)
        return found

    def incr(self, key: bytes | str) -> int:
        """Add one to a counter, also of other processes; the new value."""
        part = self._part()
        if not part or key != part.counter:
            return self.add_one(key)
        group = part.group.encode()
        count = self._ended(part, group)
        if count != part.size:
            return count
        mine = self.store.kv_swap(TABLE, group, None, part.task, ttl_ms=self._known_ms())
        # one that was killed meanwhile sends it when it runs again
        return count if mine or self.store.kv_get(TABLE, [group]) == [part.task] else 0

    def _ended(self, part: _Part, group: bytes) -> int:
        """How many tasks of the chord have ended, with this one.

        One that ends again may have been killed before it was counted: where as many could be
        missing as there are such, they are counted by their names.
        """
        ttl_ms, again = self._known_ms(), group + _AGAIN
        if self.store.kv_swap(TABLE, group + b"\0" + part.task, None, b"", ttl_ms=ttl_ms):
            counted = self.add_one(part.counter)
        else:
            self.store.kv_swap(TABLE, again + b"\0" + part.task, None, b"", ttl_ms=ttl_ms)
            counted = int(self.get(part.counter) or 0)
        uncounted = self.store.kv_list(TABLE, first=again + b"\0", last=again + b"\1")
        if counted + len(uncounted) < part.size:
            return counted
        named = self.store.kv_list(TABLE, first=group + b"\0", last=group + b"\1")
        return max(counted, len(named))

    def add_one(self, key: bytes | str) -> int:
        """As `incr`, of whatever counter."""
        raise NotImplementedError

    def delete(self, key: bytes | str) -> None:
        """Delete a key."""
        part = self._part()
        if part and key == part.results:
            # Celery does, when it has sent the body
            group = part.group.encode()
            self.store.kv_put(TABLE, group, _SENT, ttl_ms=self._known_ms())
            self.store.kv_take(TABLE, first=group + b"\0", last=group + b"\2")
        self.delete_key(key)

    def delete_key(self, key: bytes | str) -> None:
        """As `delete`, whatever the key is of."""
        raise NotImplementedError

    def _part(self) -> _Part | None:
        return getattr(self._noted, "part", None)

    def _known_ms(self) -> int:
        return int((self.chord_expires or 0) * 1000) or _KNOWN_MS
