"""`TableFollower`: brings what a topic gets into a table, commit by commit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from rmqcore.errors import RecordsGoneError, RmqCoreError
from rmqcore.lake.bodies import Bodies
from rmqcore.lake.sources import Place, Progress, Source, Span, open_source
from rmqcore.lake.table_pair import EXPIRE_EVERY_S, KEEP_S, TablePair, places_of
from rmqcore.lake.target import (
    MissedMessagesError,
    TableAccessError,
    TableChangedError,
    TopicMadeAnewError,
)
from rmqcore.remoting import RemotingError
from rmqcore.scan.cluster import MessagesGoneError
from rmqcore.world import monotonic_s

#: A commit has at most this many messages, so that a table of months begins in many commits.
ROWS_MAX: Final = 1_000_000
#: A commit has about this many bytes at most, which are in memory together.
BYTES_MAX: Final = 256 << 20
#: Behind messages that are gone the next round goes on, or says that they are missing.
_PASSING: Final = (RemotingError, TableChangedError, RecordsGoneError, MessagesGoneError)


@dataclass(frozen=True, slots=True)
class Round:
    """What one round has done.

    Attributes:
        rows: that the table got.
        refused: rows whose bodies do not fit, which the table beside it got.
        compacted: small files that were made one.
        behind: messages that the topic has, and the table has not yet.
    """

    rows: int
    refused: int
    compacted: int
    behind: int


class TableFollower:
    """A table that follows a topic.

    Args:
        source: a store's directory, or ``namesrv://host:port/topic``.
        table: the table's directory, or for Delta its URL; of a catalog ``namespace.table``.
        topic: which; None where the URL names it.
        table_format: ``delta`` or ``iceberg``.
        bodies: what becomes of bodies.
        storage_options: of object storage, as of an archive.
        catalog: that has an Iceberg table, as PyIceberg's ``load_catalog`` takes it; ``name`` is
            that of one of PyIceberg's configuration. None: it lies beside the table.
        allow_loss: go on behind messages that retention has deleted before they were read.

    Raises:
        ConfigError: an unknown format, no topic, no such catalog, or half a pair of keys.
        RmqCoreError: the format's package is not installed.

    Threads: one runs it; `run` may be ended by any.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        table: str | os.PathLike[str],
        *,
        topic: str | None = None,
        table_format: str = "delta",
        bodies: Bodies | None = None,
        storage_options: Mapping[str, str] | None = None,
        catalog: Mapping[str, str] | None = None,
        allow_loss: bool = False,
    ) -> None:
        self._source: Source = open_source(source, topic)
        self._allow_loss = allow_loss
        self._tables = TablePair(
            table,
            topic=self._source.topic,
            table_format=table_format,
            bodies=bodies,
            storage_options=storage_options,
            catalog=catalog,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held between rounds."""

    def run_once(self) -> Round:
        """Bring what the topic has got since the last commit, `ROWS_MAX` or `BYTES_MAX` at most.

        Raises:
            MissedMessagesError: retention was faster; nothing was committed.
            TableChangedError: another writer was faster; nothing was committed.
            StoreError, RemotingError: the source cannot be read.
        """
        there = self._source.spans()
        offsets = self._tables.good.offsets()
        wanted = self._wanted(there, offsets)
        rows = refused = 0
        if wanted:
            found, wanted = self._source.read(wanted, BYTES_MAX)
            self._check_there(wanted)
            self._check_same(offsets)
            reached = {**offsets, **places_of(found, wanted)}
            rows, refused = self._tables.put(found, offsets, reached)
            offsets = reached
        else:
            self._check_same(offsets)
        compacted = self._tables.compact(beside=bool(refused))
        behind = sum(
            span.stop - max(span.first, offsets.get(queue, Place(span.first)).offset)
            for queue, span in there.items()
        )
        return Round(rows, refused, compacted, max(0, behind))

    def run(
        self,
        every_s: float,
        stop: threading.Event,
        told: Callable[[Round], None] | None = None,
        failed: Callable[[RmqCoreError], None] | None = None,
    ) -> None:
        """Do rounds until an event is set: each so many seconds, at once while it is behind.

        Args:
            every_s: a message is a row so many seconds after it was put, as long as a round takes
                no more than a quarter of them; between two rounds is half of them at least, but
                behind one that has made files one.
            stop: ends it.
            told: called after each round.
            failed: called with what a round has failed with that may pass: a broker that does not
                answer, another writer who was faster, messages that were deleted while they were
                read, storage that is away. None raises it, and storage that was never there is
                raised.

        Raises:
            MissedMessagesError: as `run_once`; to go on would lose messages.
        """
        expires_s, began = monotonic_s(), False
        while not stop.is_set():
            began_s = monotonic_s()
            try:
                done = self.run_once()
                if monotonic_s() >= expires_s:
                    self.expire()
                    expires_s = monotonic_s() + EXPIRE_EVERY_S
                began = True
            except (*_PASSING, TableAccessError) as error:
                # what was never reached is no place that is away for a moment
                if failed is None or (isinstance(error, TableAccessError) and not began):
                    raise
                failed(error)
                # behind who was faster there is nothing to wait for, but for the next one
                pause_s = every_s / 8 if isinstance(error, TableChangedError) else every_s
                stop.wait(pause_s)
                continue
            if told is not None:
                told(done)
            if not done.behind:
                # what is put behind a round's look has to wait for the next one, and for its commit
                round_s = monotonic_s() - began_s
                # of rounds that make files one there are few: behind one there is no rest
                rest_s = 0.0 if done.compacted else every_s / 2
                stop.wait(max(rest_s, every_s - 2 * round_s))

    def expire(self, keep_s: float = KEEP_S) -> None:
        """Forget states of both tables that are older than so many seconds, and their files."""
        self._tables.expire(keep_s)

    def _wanted(self, there: dict[str, Span], offsets: Progress) -> dict[str, Span]:
        """What is to be read: of each queue its share, what is left over to the next round."""
        spans = {}
        for queue, (first, stop) in there.items():
            begin = offsets.get(queue, Place(first)).offset
            if begin < first:
                if not self._allow_loss:
                    raise _gone(queue, begin, first)
                begin = first
            if begin > stop:
                raise TopicMadeAnewError(
                    queue, f"ends at {stop}, and the table has its messages up to {begin}"
                )
            if begin < stop:
                spans[queue] = Span(begin, stop)
        whole = sum(stop - first for first, stop in spans.values())
        if whole <= ROWS_MAX:
            return spans
        # in shares of what each is behind, so that none waits for another
        return {
            queue: Span(first, first + max(1, (stop - first) * ROWS_MAX // whole))
            for queue, (first, stop) in spans.items()
        }

    def _check_there(self, wanted: dict[str, Span]) -> None:
        """Look that nothing was deleted while it was read."""
        there = self._source.spans()
        for queue, (first, _) in wanted.items():
            begin = there[queue].first if queue in there else first + 1
            if begin > first and not self._allow_loss:
                raise _gone(queue, first, begin)

    def _check_same(self, offsets: Progress) -> None:
        """Look that the last messages of the table are still those of the topic."""
        marks = {
            queue: (place.offset - 1, place.mark)
            for queue, place in offsets.items()
            if place.mark is not None
        }
        for queue in self._source.others(marks):
            number, _ = marks[queue]
            raise TopicMadeAnewError(queue, f"has another message {number} than the table")


def _gone(queue: str, begin: int, first: int) -> MissedMessagesError:
    return MissedMessagesError(
        f"the messages {begin} to {first} of queue {queue} were deleted before the table got them; "
        "with allow_loss it goes on behind them"
    )
