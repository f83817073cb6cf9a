"""What a store has done: counts, rates and sampled latencies, under RocketMQ's names.

The path of a put costs next to nothing here: the log's tail counts puts and bytes itself, and times
one put of 64; `StoreStatsService` looks at the counters once a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rmqcore.native.base._lock import ReentrantLock
from rmqcore.services.service import Service

_RATE_WINDOWS_S: Final = (10, 60, 600)
_LATENCY_SAMPLES: Final = 4096
#: a bucket ends before its bound
_BUCKET_BOUNDS_MS: Final = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_BUCKET_NAMES: Final = (
    "[<=0ms]",
    "[0~10ms]",
    "[10~50ms]",
    "[50~100ms]",
    "[100~200ms]",
    "[200~500ms]",
    "[500ms~1s]",
    "[1~2s]",
    "[2~3s]",
    "[3~4s]",
    "[4~5s]",
    "[5~10s]",
    "[10s~]",
)
_DAY_S: Final = 86_400
_SAMPLE_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class StatsSnapshot:
    """The counters at one moment; all but the time only ever grow."""

    #: Unix time, milliseconds.
    timestamp_ms: int
    #: messages put since the store was opened.
    put_count: int
    #: bytes of their records.
    put_size: int
    #: gets that found messages.
    get_found_count: int
    #: gets that found none.
    get_miss_count: int
    #: messages handed out.
    transferred_count: int


class PutLatencies:
    """How long puts took; keeps nothing of the store, as the log's tail keeps this.

    Attributes:
        samples_ms: the last ones, milliseconds.
        most_ms: the longest of all.

    Threads: any.
    """

    def __init__(self) -> None:
        self._lock = ReentrantLock()
        self.samples_ms: deque[float] = deque(maxlen=_LATENCY_SAMPLES)
        self.most_ms = 0.0

    def took(self, elapsed_ms: float) -> None:
        """Add the time of one put, milliseconds."""
        # no lock, which a put would wait for: adding to a deque is one step
        self.samples_ms.append(elapsed_ms)
        if elapsed_ms > self.most_ms:
            with self._lock.within():
                self.most_ms = max(self.most_ms, elapsed_ms)


class StoreStatsService:
    """Samples of latencies, and rates over 10, 60 and 600 seconds.

    Threads: any may count; ``run_once`` is for one.
    Source: RocketMQ store/StoreStatsService.java.
    Differs: the time of a get is not taken (it would cost a tenth of it); latencies are the last
        4096 samples; RocketMQ empties its buckets once a minute.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        put_counts: Callable[[], tuple[int, int]],
        get_counts: Callable[[], tuple[int, int, int]],
    ) -> None:
        """Begin at zero.

        Args:
            clock: Unix time in milliseconds.
            put_counts: messages and bytes put so far; asked about once a second.
            get_counts: gets that found messages, gets that found none, messages handed out.
        """
        self._clock = clock
        self._put_counts = put_counts
        self._get_counts = get_counts
        self._lock = ReentrantLock()
        self._boot_timestamp_ms = clock()
        self._put_failed_count = 0
        self._dispatch_max_buffer = 0
        #: of puts that were timed
        self.put_latencies = PutLatencies()
        self._snapshots: deque[StatsSnapshot] = deque(maxlen=max(_RATE_WINDOWS_S) + 1)
        self._snapshots.append(self.snapshot())

    def put_failed(self) -> None:
        """Count a put that stored nothing."""
        with self._lock.within():
            self._put_failed_count += 1

    def put_took(self, elapsed_ms: float) -> None:
        """Sample how long one put took, milliseconds: its wait for the disk, where it waits."""
        self.put_latencies.took(elapsed_ms)

    def dispatch_lagged(self, size: int) -> None:
        """Note how many bytes of log wait for their dispatch."""
        with self._lock.within():
            self._dispatch_max_buffer = max(self._dispatch_max_buffer, size)

    def run_once(self, now_ms: int) -> None:
        """Take the sample of one second; a call less than a second after the last does nothing."""
        if now_ms - self._snapshots[-1].timestamp_ms >= 1000:
            self._snapshots.append(self.snapshot())

    def snapshot(self) -> StatsSnapshot:
        """The counters now."""
        return StatsSnapshot(self._clock(), *self._put_counts(), *self._get_counts())

    def runtime_info(self) -> dict[str, str]:
        """Everything as text, under the names and in the forms of RocketMQ's runtime info.

        Rates are over the last 10, 60 and 600 seconds, or as long as there are samples.
        """
        now, snapshots = self.snapshot(), list(self._snapshots)
        total = max(1, now.put_count)
        latencies_ms = sorted(self.put_latencies.samples_ms.copy())

        def rates(count_of: Callable[[StatsSnapshot], int]) -> str:
            return " ".join(
                str(_rate(snapshots, now, window_s, count_of)) for window_s in _RATE_WINDOWS_S
            )

        return {
            "bootTimestamp": str(self._boot_timestamp_ms),
            "runtime": _format_runtime((now.timestamp_ms - self._boot_timestamp_ms) // 1000),
            "putMessageEntireTimeMax": str(round(self.put_latencies.most_ms)),
            "putMessageTimesTotal": str(total),
            "putMessageFailedTimes": str(self._put_failed_count),
            "putMessageSizeTotal": str(now.put_size),
            "putMessageDistributeTime": _format_distribution(latencies_ms),
            "putMessageAverageSize": str(now.put_size / total),
            "dispatchMaxBuffer": str(self._dispatch_max_buffer),
            "putTps": rates(lambda at: at.put_count),
            "getFoundTps": rates(lambda at: at.get_found_count),
            "getMissTps": rates(lambda at: at.get_miss_count),
            "getTotalTps": rates(lambda at: at.get_found_count + at.get_miss_count),
            "getTransferredTps": rates(lambda at: at.transferred_count),
            "putLatency99": f"{_quantile(latencies_ms, 0.99):.2f}",
            "putLatency999": f"{_quantile(latencies_ms, 0.999):.2f}",
        }


class SampleStatsService(Service):
    """Takes a sample of the counters once a second."""

    def __init__(self, stats: StoreStatsService, clock: Callable[[], int]) -> None:
        super().__init__("StoreStatsService")
        self._stats = stats
        self._clock = clock

    def run(self, now: float) -> float:
        """Sample."""
        self._stats.run_once(self._clock())
        return _SAMPLE_INTERVAL_S


def _rate(
    snapshots: list[StatsSnapshot],
    now: StatsSnapshot,
    window_s: int,
    count_of: Callable[[StatsSnapshot], int],
) -> float:
    """Events per second between now and the oldest sample inside the window."""
    earliest_ms = now.timestamp_ms - window_s * 1000
    first = bisect_left(snapshots, earliest_ms, key=lambda at: at.timestamp_ms)
    inside = snapshots[min(first, len(snapshots) - 1)]
    elapsed_ms = now.timestamp_ms - inside.timestamp_ms
    return (count_of(now) - count_of(inside)) * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0


def _quantile(sorted_ms: Sequence[float], quantile: float) -> float:
    """A quantile of sorted times; 0.0 without any."""
    if not sorted_ms:
        return 0.0
    return sorted_ms[min(len(sorted_ms) - 1, int(quantile * len(sorted_ms)))]


def _format_distribution(sorted_ms: Sequence[float]) -> str:
    """How many of sorted times are in each bucket."""
    below = [bisect_left(sorted_ms, bound_ms) for bound_ms in _BUCKET_BOUNDS_MS]
    counts = (end - begin for begin, end in pairwise([0, *below, len(sorted_ms)]))
    pairs = zip(_BUCKET_NAMES, counts, strict=True)
    return "".join(f"{name}:{count} " for name, count in pairs)


def _format_runtime(seconds: int) -> str:
    days, rest = divmod(max(0, seconds), _DAY_S)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {rest} seconds ]"
