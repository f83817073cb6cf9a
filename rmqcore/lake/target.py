"""`Target`: a table that is appended to, where each commit says how far its queues were read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from rmqcore.errors import RmqCoreError
from rmqcore.lake.sources import Place, Progress
from rmqcore.scan.mark import Mark

#: The name under which a commit says how far the queues were read.
OFFSETS: Final = "rmqcore.offsets"
#: The name under which it says of which topic, since there are topics of the same queues.
TOPIC: Final = "rmqcore.topic"
#: The partition column: the day of the store time, in UTC, as ``2026-01-31``.
DAY: Final = "day"
#: The columns that say which message a row is.
NUMBER: Final = ("broker", "queue_id", "queue_offset")
#: The columns of rows that are there: which messages, and when each was stored.
THERE: Final = (*NUMBER, "store_timestamp")
#: Files below this size are small; so many of one day are made one.
SMALL_SIZE: Final = 64 << 20
SMALL_COUNT: Final = 16
#: Small files of a day are made one as well when the oldest of them is this old, in seconds.
SMALL_AGE_S: Final = 3600.0
#: Files that are younger stay, whatever is forgotten: a commit may be about to name them; seconds.
IN_FLIGHT_S: Final = 3600.0


#: Types with longer offsets, with which some tables show columns of the shorter ones.
_LARGE: Final = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


class TableChangedError(RmqCoreError):
    """Another writer has committed meanwhile; nothing of this commit is in the table."""


#: What the text of a commit that another came before goes on with.
FASTER: Final = "another writer was faster; what is written again is a row once"


class TableAccessError(RmqCoreError):
    """The table, its catalog or its storage does not answer, or refuses."""


class MissedMessagesError(RmqCoreError):
    """The source no longer has what follows the table's last rows, or is another's."""


class TopicMadeAnewError(MissedMessagesError):
    """The topic was deleted and made again: its messages are no longer those of the table.

    Attributes:
        queue: ``broker/queue id`` of the first that tells it.
    """

    def __init__(self, queue: str, detail: str) -> None:
        self.queue = queue
        super().__init__(
            f"queue {queue} {detail}: the topic was made anew, or the log has lost its end; give "
            "the topic of now a table of its own"
        )


class Target(Protocol):
    """What a `TableFollower` writes; each call raises `TableAccessError` where it cannot."""

    def offsets(self) -> Progress:
        """How far the newest commit says that queues were read; empty for a new table.

        Raises:
            RmqCoreError: the table has rows, and no commit says it; or a column of the rows with
                another type.
        """
        ...

    def near(self, rows: pa.Table) -> pa.Table:
        """Rows of the table among which those are that it has of some: their columns `THERE`.

        Args:
            rows: of the source; one at least.
        """
        ...

    def append(
        self, rows: pa.Table, since: Progress, offsets: Progress, *, may_have: bool = False
    ) -> int:
        """Commit rows and how far queues were read then: both, or neither.

        Args:
            rows: what was read.
            since: what `offsets` said before.
            offsets: how far queues are read with these rows.
            may_have: the table is asked which of the rows it has; of these none is committed.

        Returns:
            how many were committed; without any nothing is.

        Raises:
            TableChangedError: another writer was faster.
        """
        ...

    def compact(self, now_s: float) -> int:
        """Make one of a day's small files, when there are many or they are old; how many were.

        Of one day only: messages wait meanwhile, and the next round has the next day.
        """
        ...

    def expire(self, keep_s: float) -> None:
        """Forget states of the table that are older than so many seconds, and their files."""
        ...


def with_day(rows: pa.Table) -> pa.Table:
    """Rows with the column `DAY`."""
    day = pc.strftime(rows.column("store_timestamp"), "%Y-%m-%d")
    return rows.append_column(DAY, day.cast(pa.string()))


def offset_bounds(rows: pa.Table) -> tuple[int, int]:
    """The least and the greatest queue offset of rows."""
    bounds = pc.min_max(rows.column("queue_offset")).as_py()
    return int(bounds["min"]), int(bounds["max"])


def lacking(rows: pa.Table, there: pa.Table) -> pa.Table:
    """Rows that are not there.

    Args:
        rows: of the source.
        there: of the table, with the columns `NUMBER`.
    """
    had = set(_numbers(there))
    return rows.filter(pa.array([number not in had for number in _numbers(rows)], pa.bool_()))


def _numbers(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows.column(name).to_pylist() for name in NUMBER), strict=True)


def commit_facts(topic: str, progress: Progress) -> dict[str, str]:
    """What a commit says: by queue an offset, and the store time and place in front of it.

    Args:
        topic: whose messages the rows are.
        progress: how far its queues are read.
    """
    told = {queue: [place.offset, *(place.mark or ())] for queue, place in progress.items()}
    return {OFFSETS: json.dumps(told, separators=(",", ":"), sort_keys=True), TOPIC: topic}


def progress_of(facts: Mapping[str, Any], topic: str, table: str) -> Progress:
    """What a commit says; one of before there were marks has plain offsets, and no topic.

    Args:
        facts: of a commit that has `OFFSETS`.
        topic: whose messages the rows are to be.
        table: its name, for errors.

    Raises:
        MissedMessagesError: the rows are another topic's.
        RmqCoreError: it is damaged.
    """
    if (found := facts.get(TOPIC, topic)) != topic:
        raise MissedMessagesError(
            f"{table}: the table has the topic {found}; give {topic} a table of its own"
        )
    try:
        return {str(queue): _place(told) for queue, told in json.loads(facts[OFFSETS]).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise RmqCoreError(
            f"{table}: what a commit says of its queues is no text of ours"
        ) from error


def _place(told: int | list[int]) -> Place:
    if not isinstance(told, list):
        return Place(int(told))
    offset, *mark = map(int, told)
    return Place(offset, Mark(*mark) if mark else None)


def read_count(progress: Progress) -> int:
    """How far all queues were read together; each commit with rows makes it larger."""
    return sum(place.offset for place in progress.values())


def check_types(there: pa.Schema, wanted: pa.Schema, table: str) -> None:
    """Refuse columns that a table has with another type: their values would be cut to it.

    Args:
        there: the table's columns.
        wanted: the columns of rows; one that is new, or nested, is not compared.
        table: its name, for errors.

    Raises:
        RmqCoreError: it has one.
    """
    for field in wanted:
        kind = field.type
        if field.name in there.names and not pa.types.is_nested(kind):
            found = there.field(field.name).type
            if found not in (kind, _LARGE.get(kind)):
                raise RmqCoreError(
                    f"{table}: the column {field.name} has the type {found}, and not {kind}; give "
                    "the new one another name, or the follower a table of its own"
                )


def without_offsets(table: str) -> RmqCoreError:
    """The error of a table that somebody else has made, or that has forgotten who has."""
    return RmqCoreError(
        f"{table}: the table has rows, and no commit that is left in its history says which "
        "messages they are: it is another's, or others have committed since and its history was "
        "cleaned up; give the follower a directory of its own"
    )
