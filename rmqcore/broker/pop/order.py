"""POP in order: a queue's next messages wait until those that were handed out are done with.

What was handed out last of each queue is kept in ``config/consumerOrderInfo.json``, as RocketMQ
keeps it. The group's offset stays at the first message that is not acknowledged, so that after a
crash nothing is missed.

Source: RocketMQ broker/pop/orderly/QueueLevelConsumerManager.java.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from rmqcore.broker.pop.receipts import AHEAD_MS_MAX
from rmqcore.errors import MessageIllegalError
from rmqcore.files.config_file import ConfigFile
from rmqcore.java.json import format_compact_java_json, parse_java_json

logger = logging.getLogger(__name__)

_NAME: Final = "consumerOrderInfo.json"
_KEPT_MS: Final = 24 * 3_600_000

#: An order is kept for each topic, group and queue id.
OrderKey: TypeAlias = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Batch:
    """What was handed out last of a queue.

    Attributes:
        pop_time_ms: when, Unix time.
        invisible_ms: for how long nobody gets the messages again.
        offsets: theirs, ascending.
        acked: bit i: offset i is acknowledged.
        visible_ms: by offset, the time that was asked for instead.
        counts: by offset, how often it was handed out before; only those above 0.
        attempt_id: of the request, which may come a second time; None without.
        used_ms: when it was last acknowledged or handed out.
    """

    pop_time_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    acked: int = 0
    visible_ms: Mapping[int, int] = field(default_factory=dict)
    counts: Mapping[int, int] = field(default_factory=dict)
    attempt_id: str | None = None
    used_ms: int = 0

    @property
    def open_offsets(self) -> list[int]:
        """Those that are not acknowledged."""
        return [offset for bit, offset in enumerate(self.offsets) if not self.acked >> bit & 1]

    @property
    def due_ms(self) -> int:
        """When all that is open may be handed out again, Unix time; 0 when nothing is open."""
        due_ms = self.pop_time_ms + self.invisible_ms
        return max((self.visible_ms.get(offset, due_ms) for offset in self.open_offsets), default=0)

    @property
    def next_offset(self) -> int:
        """Where the group goes on in the queue."""
        return next(iter(self.open_offsets), self.offsets[-1] + 1)

    def to_java(self) -> dict[str, object]:
        """The members of RocketMQ's OrderInfo."""
        first = self.offsets[0]
        return {
            "popTime": self.pop_time_ms,
            "i": self.invisible_ms,
            "o": [first, *(offset - first for offset in self.offsets[1:])],
            "ot": dict(self.visible_ms),
            "oc": dict(self.counts),
            "l": self.used_ms,
            "cm": self.acked,
            "a": self.attempt_id,
        }

    @classmethod
    def from_java(cls, members: Mapping[str, Any]) -> Batch:
        """Read the members of RocketMQ's OrderInfo.

        Raises:
            ValueError, TypeError, KeyError: they are none.
        """
        first, *distances = map(int, members["o"])
        return cls(
            int(members["popTime"]),
            int(members.get("i") or 0),
            (first, *(first + distance for distance in distances)),
            int(members.get("cm") or 0),
            {int(at): int(ms) for at, ms in (members.get("ot") or {}).items()},
            {int(at): int(count) for at, count in (members.get("oc") or {}).items()},
            members.get("a"),
            int(members.get("l") or 0),
        )


class PopOrder:
    """The batches that were handed out in order, by queue. Used on the event loop.

    Args:
        folder: the store's ``config`` folder.
        clock_ms: Unix time.
        check_there: raises when the folder is another store's.

    Raises:
        CorruptConfigFileError: the batches cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        clock_ms: Callable[[], int],
        check_there: Callable[[], object] = bool,
    ) -> None:
        self._clock_ms = clock_ms
        self._file = ConfigFile(folder / _NAME, _batches_in, check_there)
        self._batches = self._file.load() or {}
        self._written: Mapping[OrderKey, Batch] = dict(self._batches)
        #: held while the file is written
        self._writing = threading.Lock()

    def bring_back(self, end_of: Callable[[str, int], int]) -> None:
        """Forget what was handed out beyond the end of its queue; before anything is served.

        A power cut has taken it from the log. Its numbers are given to the next messages, which an
        acknowledgement of the ones that are gone would pass over.

        Args:
            end_of: the end of a queue by topic and queue id.

        Raises:
            OSError: it cannot be written, so that the next opening would know it again.
        """
        ends = {(topic, queue_id): 0 for topic, _, queue_id in self._batches}
        for topic, queue_id in ends:
            # there is no queue of such a name
            with suppress(MessageIllegalError):
                ends[topic, queue_id] = end_of(topic, queue_id)
        gone = [key for key, each in self._batches.items() if each.offsets[-1] >= ends[key[::2]]]
        for key in gone:
            logger.warning("%s, queue %d: what %s had in order is gone", key[0], key[2], key[1])
            del self._batches[key]
        if gone:
            self.persist()

    def forget_done(self, offset_of: Callable[[str, str, int], int | None]) -> None:
        """Forget what groups have gone on behind: its acknowledgements were written, it was not.

        Args:
            offset_of: where a group goes on, by topic, group and queue id.
        """
        for key, batch in list(self._batches.items()):
            following = offset_of(*key) or 0
            if batch.offsets[-1] < following:
                del self._batches[key]
            elif batch.next_offset < following:
                done = sum(1 << bit for bit, at in enumerate(batch.offsets) if at < following)
                self._batches[key] = replace(batch, acked=batch.acked | done)

    def due_ms(self, key: OrderKey, attempt_id: str | None, max_offset: int) -> int:
        """Until when a queue hands nothing out, Unix time; in the past when it may.

        Args:
            key: the queue, and whose.
            attempt_id: a request that comes a second time gets the same messages.
            max_offset: the queue's end; a batch beyond it is another topic's that had the name.
        """
        batch = self._batches.get(key)
        if batch is None or batch.offsets[-1] >= max_offset:
            return 0
        if attempt_id and attempt_id == batch.attempt_id:
            return 0
        now_ms = self._clock_ms()
        if batch.pop_time_ms > now_ms + AHEAD_MS_MAX:
            # the clock was put back: nothing is kept from others for longer than was agreed
            latest_ms = now_ms + batch.invisible_ms
            if batch.due_ms > latest_ms:
                visible = dict.fromkeys(batch.offsets, latest_ms)
                self._batches[key] = batch = replace(batch, visible_ms=visible)
        return batch.due_ms

    def hand_out(
        self,
        key: OrderKey,
        offsets: Sequence[int],
        pop_time_ms: int,
        invisible_ms: int,
        attempt_id: str | None,
    ) -> list[str]:
        """Note what is handed out; the entries of ``orderCountInfo`` for it.

        Args:
            key: group, topic and queue id; what was handed out of it before is over.
            offsets: queue offsets, ascending, at least one.
            pop_time_ms: from `pop_time_ms`.
            invisible_ms: milliseconds until they may be handed out again.
            attempt_id: of the request; the same one again is no further try. None for none.

        Returns:
            texts ``0 qoQUEUE%OFFSET TRIES``, and one ``0 QUEUE TRIES`` with the least.
        """
        former, counts = self._batches.get(key), dict[int, int]()
        if former is not None and attempt_id and attempt_id == former.attempt_id:
            counts = dict(former.counts)
        elif former is not None:
            known = set(former.offsets)
            counts = {at: former.counts.get(at, 0) + 1 for at in offsets if at in known}
        self._batches[key] = Batch(
            pop_time_ms,
            invisible_ms,
            tuple(offsets),
            counts=counts,
            attempt_id=attempt_id,
            used_ms=self._clock_ms(),
        )
        queue_id = key[2]
        least = min(counts.values(), default=0) if len(counts) == len(offsets) else 0
        return [
            *(f"0 qo{queue_id}%{offset} {count}" for offset, count in counts.items()),
            f"0 {queue_id} {least}",
        ]

    def pop_time_ms(self, keys: Iterable[OrderKey], now_ms: int) -> int:
        """The time of a pop of queues, Unix time: that of no batch that they have handed out.

        Args:
            keys: of the queues that the pop may hand out of.
            now_ms: Unix milliseconds.
        """
        taken = {self._batches[key].pop_time_ms for key in keys if key in self._batches}
        while now_ms in taken:
            now_ms += 1
        return now_ms

    def acknowledge(self, key: OrderKey, offset: int, pop_time_ms: int) -> int | None:
        """Note that a message is done with.

        Args:
            key: group, topic and queue id.
            offset: queue offset of the message.
            pop_time_ms: of the receipt, which says which batch it is of.

        Returns:
            where the group goes on in the queue; None when the receipt is of an earlier batch, or
            nothing is known of what was handed out: it may have been another topic of that name.

        Raises:
            KeyError: the message was not handed out.
        """
        batch = self._batches.get(key)
        if batch is None or pop_time_ms != batch.pop_time_ms:
            return None
        if offset not in batch.offsets:
            raise KeyError(offset)
        acked = batch.acked | 1 << batch.offsets.index(offset)
        batch = replace(batch, acked=acked, used_ms=self._clock_ms())
        self._batches[key] = batch
        return batch.next_offset

    def keep_until(self, key: OrderKey, offset: int, pop_time_ms: int, visible_ms: int) -> bool:
        """Let one message come again at another time; nothing for one of an earlier batch.

        Args:
            key: group, topic and queue id.
            offset: queue offset of the message; one that was not handed out is passed over.
            pop_time_ms: of the receipt, which says which batch it is of.
            visible_ms: Unix milliseconds.

        Returns:
            whether the queue goes on sooner than it would have.
        """
        batch = self._batches.get(key)
        if batch is not None and pop_time_ms == batch.pop_time_ms and offset in batch.offsets:
            visible = {**batch.visible_ms, offset: visible_ms}
            self._batches[key] = changed = replace(batch, visible_ms=visible)
            return changed.due_ms < batch.due_ms
        return False

    def forget(self, key: OrderKey) -> None:
        """Let a queue go on where its group's offset was set to."""
        self._batches.pop(key, None)

    def forget_group(self, group: str) -> None:
        """Forget what was handed out to a group that is deleted."""
        self._batches = {key: each for key, each in self._batches.items() if key[1] != group}

    def forget_topic(self, topic: str) -> None:
        """Forget what was handed out of a topic that is deleted."""
        self._batches = {key: each for key, each in self._batches.items() if key[0] != topic}

    def persist(self) -> bool:
        """Write what has changed; False when nothing has. Any thread.

        Raises:
            OSError: it cannot be written.
        """
        with self._writing:
            return self._persist()

    def _persist(self) -> bool:
        batches = self._batches.copy()
        oldest_ms = self._clock_ms() - _KEPT_MS
        kept = {key: batch for key, batch in batches.items() if batch.used_ms >= oldest_ms}
        if kept == self._written:
            return False
        table: dict[str, dict[int, object]] = {}
        for (topic, group, queue_id), batch in kept.items():
            table.setdefault(f"{topic}@{group}", {})[queue_id] = batch.to_java()
        text = format_compact_java_json({"orderedConsumptionLevel": "QUEUE", "table": table})
        self._file.store(text)
        self._written = kept
        return True


def _batches_in(text: str) -> dict[OrderKey, Batch]:
    """Read the file.

    Raises:
        ValueError: it is none.
    """
    found: dict[OrderKey, Batch] = {}
    members = parse_java_json(text)
    try:
        for name, queues in (members.get("table") or {}).items():
            topic, group = name.split("@")
            for queue_id, batch in queues.items():
                if batch.get("o"):
                    found[topic, group, int(queue_id)] = Batch.from_java(batch)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("it does not say what was handed out") from error
    return found
