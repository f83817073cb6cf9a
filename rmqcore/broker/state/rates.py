"""Rates of the last minute, hour and day, from the counters of traffic.

Source: RocketMQ common/stats/StatsItem.java, store/stats/BrokerStatsManager.java.
"""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from rmqcore.broker.state.traffic import KINDS, FetchedCounts, StoredCounts, Traffic
from rmqcore.world import World

#: A span has a name in answers, a length in seconds, and a step from one kept sample to the next.
_SPANS: Final = (("statsMinute", 60, 1), ("statsHour", 3600, 60), ("statsDay", 86400, 360))
#: `Rates.sample` is called at this interval.
SAMPLE_S: Final = 10.0
#: Between so many counters that are sampled others are served.
_AT_ONCE: Final = 256
_PUT: Final = "PUT"
_GET: Final = "GET"
_ALL_PUT: Final = "ALL_PUT"
_ALL_GET: Final = "ALL_GET"
#: RocketMQ's names stand for a counter, and for its bytes or its messages.
_NAMES: Final = {
    "TOPIC_PUT_NUMS": (_PUT, False),
    "TOPIC_PUT_SIZE": (_PUT, True),
    "GROUP_GET_NUMS": (_GET, False),
    "GROUP_GET_SIZE": (_GET, True),
    "BROKER_PUT_NUMS": (_ALL_PUT, False),
    "BROKER_GET_NUMS": (_ALL_GET, False),
}


class _Counts(NamedTuple):
    """What a counter has reached."""

    messages: int = 0
    size: int = 0
    calls: int = 0


class _History:
    """What one counter had reached when: for each span the samples that lie in it, and one before.

    A counter that stands still takes no further samples.
    """

    __slots__ = ("samples", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.samples = [deque([(since_s, _Counts())]) for _ in _SPANS]

    def add(self, number: int, now_s: float, counts: _Counts) -> None:
        """Take a sample, the one with this number since the start."""
        for samples, (_, span_s, every) in zip(self.samples, _SPANS, strict=True):
            if number % every == 0 and samples[-1][1] != counts:
                samples.append((now_s, counts))
            while len(samples) > 1 and samples[1][0] <= now_s - span_s:
                samples.popleft()

    def sums(self, now_s: float, counts: _Counts, *, size: bool) -> dict[str, dict[str, float]]:
        """Sums and rates up to now."""
        sums = {}
        for samples, (name, span_s, _) in zip(self.samples, _SPANS, strict=True):
            begin_s = now_s - span_s
            before = samples[0][1]
            for at_s, reached in samples:
                if at_s <= begin_s:
                    before = reached
            field = 1 if size else 0
            total = counts[field] - before[field]
            calls = counts.calls - before.calls
            elapsed_s = max(1.0, now_s - max(begin_s, self.since_s))
            sums[name] = {
                "avgpt": total / calls if calls else 0.0,
                "sum": total,
                "tps": total / elapsed_s,
            }
        return sums


class DayTotals:
    """Messages that came and went since the start, as they stood at the last two midnights.

    Args:
        traffic: the counters.
        clock_ms: Unix time in milliseconds; days are those of where the broker runs.

    Source: RocketMQ store/stats/BrokerStats.java.
    """

    def __init__(self, traffic: Traffic, clock_ms: Callable[[], int]) -> None:
        self._traffic = traffic
        self._clock_ms = clock_ms
        self._day = self._today()
        self._yesterday_morning = self._today_morning = (0, 0)

    def _today(self) -> datetime.date:
        return datetime.datetime.fromtimestamp(self._clock_ms() / 1000).astimezone().date()

    def sample(self) -> None:
        """Note what was reached when a new day has begun."""
        if self._today() != self._day:
            self._day = self._today()
            self._yesterday_morning, self._today_morning = self._today_morning, self._now()

    def runtime_info(self) -> dict[str, str]:
        """RocketMQ's names and values of them."""
        self.sample()
        sums = {
            "YesterdayMorning": self._yesterday_morning,
            "TodayMorning": self._today_morning,
            "TodayNow": self._now(),
        }
        puts = {f"msgPutTotal{when}": str(put) for when, (put, _) in sums.items()}
        return puts | {f"msgGetTotal{when}": str(got) for when, (_, got) in sums.items()}

    def _now(self) -> tuple[int, int]:
        put = sum(counts.messages for counts in self._traffic.stored.values())
        return put, self._traffic.all_fetched.messages


class Rates:
    """The rates of one broker.

    Attributes:
        days: what came and went by day.

    Args:
        traffic: the counters.
        cluster: the broker's.
        world: the broker's, whose clocks count.
    """

    def __init__(self, traffic: Traffic, cluster: str, world: World) -> None:
        self._cluster = cluster
        self.days = DayTotals(traffic, world.clock_ms)
        self._traffic = traffic
        self._clock = world.monotonic_s
        self._histories: dict[tuple[str, str], _History] = {}
        self._number = 0
        self._sampled_s = self._clock()

    def sample(self) -> None:
        """Note what the counters have reached; see `sample_some`."""
        for _ in self.sample_some():
            pass

    def sample_some(self) -> Iterator[None]:
        """Note what the counters have reached, some at a time; to be called every `SAMPLE_S`."""
        self.days.sample()
        now_s, seen = self._clock(), set[tuple[str, str]]()
        self._number += 1
        for number, (key, counts) in enumerate(self._counters(), 1):
            self._history(key, counts).add(self._number, now_s, counts)
            seen.add(key)
            if number % _AT_ONCE == 0:
                yield
        for key in self._histories.keys() - seen:
            del self._histories[key]
        self._sampled_s = now_s

    def of(self, name: str, key: str) -> dict[str, dict[str, float]] | None:
        """Sums and rates of the last minute, hour and day.

        Args:
            name: RocketMQ's: ``TOPIC_PUT_NUMS``, ``TOPIC_PUT_SIZE``, ``GROUP_GET_NUMS``,
                ``GROUP_GET_SIZE``, ``BROKER_PUT_NUMS`` or ``BROKER_GET_NUMS``.
            key: the topic, of a group ``topic@group``; of the broker its cluster's name.

        Returns:
            the fields of ``BrokerStatsData``; None when nothing was counted under this.
        """
        kind, size = _NAMES.get(name, ("", False))
        counts = self._counts(kind, key)
        if counts is None:
            return None
        return self._history((kind, key), counts).sums(self._clock(), counts, size=size)

    def put_tps(self, topic: str) -> float:
        """Messages that a topic got a second, in the last minute."""
        sums = self.of("TOPIC_PUT_NUMS", topic)
        return 0.0 if sums is None else sums["statsMinute"]["tps"]

    def _history(self, key: tuple[str, str], counts: _Counts) -> _History:
        found = self._histories.get(key)
        if found is None or counts.calls < found.samples[0][-1][1].calls:
            # what is new has begun after the last sample
            found = self._histories[key] = _History(self._sampled_s)
        return found

    def _counts(self, kind: str, key: str) -> _Counts | None:
        if kind in (_ALL_PUT, _ALL_GET):
            if key != self._cluster:
                return None
            if kind == _ALL_PUT:
                return _total(list(self._traffic.stored.values()))
            return _total([self._traffic.all_fetched] if self._traffic.fetched else [])
        if kind == _GET:
            topic, _, group = key.rpartition("@")
            fetched = self._traffic.fetched.get((topic, group))
            if fetched is None:
                return None
            return _Counts(fetched.messages, fetched.size, fetched.calls)
        if kind != _PUT:
            return None
        kinds = [self._traffic.stored.get((key, kind)) for kind in KINDS]
        return _total([each for each in kinds if each is not None])

    def _counters(self) -> Iterator[tuple[tuple[str, str], _Counts]]:
        for topic in {topic for topic, _ in self._traffic.stored}:
            counts = self._counts(_PUT, topic)
            if counts is not None:
                yield (_PUT, topic), counts
        for kind in (_ALL_PUT, _ALL_GET):
            counts = self._counts(kind, self._cluster)
            if counts is not None:
                yield (kind, self._cluster), counts
        for (topic, group), fetched in list(self._traffic.fetched.items()):
            yield (_GET, f"{topic}@{group}"), _Counts(fetched.messages, fetched.size, fetched.calls)


def _total(parts: Sequence[StoredCounts | FetchedCounts]) -> _Counts | None:
    if not parts:
        return None
    return _Counts(
        sum(part.messages for part in parts),
        sum(part.size for part in parts),
        sum(part.calls for part in parts),
    )
