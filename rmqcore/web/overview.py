"""The first page: what comes and goes, who is behind, the disk, and what is wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

from rmqcore.errors import CorruptStoreError
from rmqcore.message import DEAD_LETTER_PREFIX
from rmqcore.services.retention import disk_usage
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.web.kept import Kept
from rmqcore.web.lags import AllLags
from rmqcore.web.shown import size_text
from rmqcore.web.source import Source, Store, bounds, index_files
from rmqcore.world import monotonic_s

#: seconds between two samples, and how many are kept: ten minutes
SAMPLE_S: Final = 5.0
_SAMPLES: Final = 120
#: The picture of a store that nobody serves has this many columns, from this many queues.
_COLUMNS: Final = 48
_QUEUES_DRAWN: Final = 16
_POINTS: Final = 24
_DRAWN_S: Final = 10.0
_SHOWN: Final = 8
_DISK_WARNING: Final = 85


_Picture: TypeAlias = tuple[int | None, int | None, list[float]]


class History:
    """What came and went in the last ten minutes; `sample` is to be called every `SAMPLE_S`.

    Args:
        source: a broker.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        #: seconds of the monotonic clock, messages in, messages out
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=_SAMPLES + 1)

    def sample(self) -> None:
        """Note what the counters have reached."""
        managers = self._source.managers
        if managers is None:
            self._samples.clear()
            return
        traffic = managers.traffic
        stored = sum(each.messages for each in list(traffic.stored.values()))
        fetched = traffic.all_fetched.messages
        self._samples.append((monotonic_s(), stored, fetched))

    def rates(self) -> tuple[list[float], list[float]]:
        """Messages in and out a second, from one sample to the next."""
        samples = list(self._samples)
        pairs = list(pairwise(samples))
        spans = [max(0.001, after[0] - before[0]) for before, after in pairs]
        return tuple(
            [
                (after[kind] - before[kind]) / span
                for (before, after), span in zip(pairs, spans, strict=True)
            ]
            for kind in (1, 2)
        )  # type: ignore[return-value]


def kept_picture(source: Source) -> Kept[_Picture]:
    """When the messages of the largest queues came, as of a moment ago; see `messages_by_time`."""

    def look() -> _Picture:
        return messages_by_time(source.store, _largest(source.store))

    return Kept(look, _DRAWN_S, lambda: source.store.max_phy_offset)


def overview(
    source: Source, history: History, lags: AllLags, drawn: Kept[_Picture]
) -> dict[str, Any]:
    """The facts of the page.

    Args:
        source: of the store.
        history: rates of the broker; without one it is not looked at.
        lags: of all groups, looked at now and then.
        drawn: (first store time, last one, messages by time) for a store without a broker.

    Returns:
        what the template names.
    """
    store, queues = source.store, source.queues()
    low, high = store.min_phy_offset, store.max_phy_offset
    disk, index = disk_usage(store.path), index_files(store)
    behind = sorted(lags.get().values(), key=lambda each: (-each.behind, each.group))
    facts: dict[str, Any] = {
        "low": low,
        "high": high,
        "log_files": len(store.log.queue.files),
        "disk": disk,
        "topics": len({*queues, *(each.topic_name for each in source.topics)}),
        "queues": sum(map(len, queues.values())),
        "groups": len(source.groups),
        "behind": [each for each in behind[:_SHOWN] if each.behind],
        "behind_total": sum(each.behind for each in behind),
        "dead": _dead_letters(source, queues),
        "index_entries": sum(file.entries for file in index),
        "health": [
            *_health(source, store, disk.percent),
            *(("bad", "Index", file.trouble) for file in index if file.trouble),
        ],
    }
    managers = source.managers
    if managers is None:
        facts["first_ms"], facts["last_ms"], facts["drawn"] = drawn.get()
        return facts
    facts["rates"] = history.rates()
    facts["stats"] = managers.store.stats()
    facts["consumers"] = sum(
        len(group.clients) for group in list(managers.consumers.groups.values())
    )
    facts["producers"] = sum(len(group) for group in list(managers.producers.groups.values()))
    facts["held"] = len(managers.waiting_pulls) + len(managers.waiting_pops)
    facts["popped"] = len(managers.checkpoints)
    return facts


def _health(source: Source, store: Store, disk_percent: int) -> list[tuple[str, str, str]]:
    """(whether it is well: "good", "warn", "bad" or "note"; what; in words)."""
    found = []
    state = source.state()
    good = "good" if state in ("serving", "closed", "open for writing") else "warn"
    words = {"not closed": "not closed by its last writer; the next one recovers"}
    found.append((good, "Store", words.get(state, state)))
    if isinstance(store, DefaultMessageStore):
        refused = store.why_not_writable()
        found.append(("bad", "Puts", refused) if refused else ("good", "Puts", "accepted"))
        lag = store.dispatch_behind_bytes
        words_of_lag = f"{size_text(lag)} behind the log" if lag else "caught up with the log"
        found.append(("warn" if lag > 64 << 20 else "good", "Dispatch", words_of_lag))
    else:
        found.append(("note", "Puts", "none from here: the store is open for reading only"))
    used = f"{disk_percent} % in use"
    found.append(("good" if disk_percent < _DISK_WARNING else "warn", "Disk", used))
    found += [("bad", "Files", words) for words in source.notices()]
    return found


def _dead_letters(source: Source, queues: dict[str, list[int]]) -> list[tuple[str, int]]:
    """(group, dead letters) of the groups that have most of them."""
    store, found = source.store, []
    for topic, numbers in queues.items():
        if topic.startswith(DEAD_LETTER_PREFIX):
            ends = (bounds(store, topic, number) for number in numbers)
            count = sum(high - low for low, high in ends)
            if count:
                found.append((topic.removeprefix(DEAD_LETTER_PREFIX), count))
    return sorted(found, key=lambda each: -each[1])[:_SHOWN]


def _largest(store: Store) -> list[tuple[str, int]]:
    """The queues with most messages."""
    sized = [
        (queue.max_offset - queue.min_offset, queue.topic, queue.queue_id)
        for queue in store.consume_queues
    ]
    return [
        (topic, number) for size, topic, number in sorted(sized)[: -_QUEUES_DRAWN - 1 : -1] if size
    ]


def messages_by_time(store: Store, queues: Sequence[tuple[str, int]]) -> _Picture:
    """When the messages of some queues came: a few of each are read, the rest is between them.

    Args:
        store: where they are.
        queues: topic and number of each.

    Returns:
        store time of the first and of the last one read, and messages in each column between.
    """
    curves = [points for topic, number in queues if (points := _points(store, topic, number))]
    if not curves:
        return None, None, []
    first = min(points[0][0] for points in curves)
    last = max(points[-1][0] for points in curves)
    columns = [0.0] * _COLUMNS
    width = max(1, last - first) / _COLUMNS
    for points in curves:
        for (start, low), (stop, high) in pairwise(points):
            begin, end = int((start - first) / width), int((stop - first) / width)
            begin, end = min(begin, _COLUMNS - 1), min(end, _COLUMNS - 1)
            for column in range(begin, end + 1):
                columns[column] += (high - low) / (end - begin + 1)
    return first, last, columns


def _points(store: Store, topic: str, queue_id: int) -> list[tuple[int, int]]:
    """(store time, queue offset) of some messages of a queue, from the first to the last."""
    low, high = bounds(store, topic, queue_id)
    if high <= low:
        return []
    offsets = sorted({low + (high - 1 - low) * at // _POINTS for at in range(_POINTS + 1)})
    points = []
    for offset in offsets:
        try:
            found = store.get_message(topic, queue_id, offset, max_messages=1).messages
        except CorruptStoreError:
            continue
        if found:
            points.append((found[0].store_timestamp_ms, offset))
    return sorted(points)
