"""Where a table's rows come from: a store's directory, or a topic of a running cluster.

Either tells which queue offsets there are, and gives the messages of ranges of them as a table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from rmqcore.arguments import directory_path
from rmqcore.errors import ConfigError, CorruptRecordError, CorruptStoreError
from rmqcore.files.consume_queue import LIGHT_QUEUE_PREFIX
from rmqcore.native.columns._arrow import ColumnBatch
from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.native.format._numbers import SysFlag
from rmqcore.native.format.compression import decompress
from rmqcore.scan.cluster import Access, Cluster, QueueRange, parse_namesrv_url, read_range
from rmqcore.scan.mark import Mark
from rmqcore.scan.read import read_store
from rmqcore.store.opening import open_store
from rmqcore.store.read_only_store import ReadOnlyMessageStore

#: The columns of a row, and the broker's name where there are several.
COLUMNS: Final = (
    "topic",
    "queue_id",
    "queue_offset",
    "store_timestamp",
    "born_timestamp",
    "keys",
    "tags",
    "unique_key",
    "properties",
    "body",
)
#: What is read: also where each record lies, for its `Mark`.
_READ: Final = (*COLUMNS, "phy_offset")
#: The column of a row that does not fit, beside the bytes of its body: why. Of what is read only
#: where a body does not decompress.
ERROR: Final = "error"
#: So many bytes of the log are read together where one body does not, and so many become rows
#: together; one body may have as many.
_STORED_BYTES: Final = 1 << 20
_PLAIN_BYTES: Final = 64 << 20
_BODY_MAX: Final = 64 << 20


class Place(NamedTuple):
    """How far a queue was read.

    Attributes:
        offset: of the message that is read next.
        mark: of the one in front of it; None where it is not known.
    """

    offset: int
    mark: Mark | None = None


#: By queue, written ``broker/queue id``.
Progress = dict[str, Place]


class Span(NamedTuple):
    """Messages of one queue: from an offset up to another."""

    first: int
    stop: int


class Source(Protocol):
    """What a `TableFollower` reads."""

    topic: str

    def others(self, marks: dict[str, tuple[int, Mark]]) -> list[str]:
        """Queues in which another message has a number than the one that is known.

        Args:
            marks: by queue, the number of a message, and its mark; one that is not there any more
                is nobody's.
        """
        ...

    def spans(self) -> dict[str, Span]:
        """What each queue has now."""
        ...

    def read(self, spans: dict[str, Span], bytes_max: int) -> tuple[pa.Table, dict[str, Span]]:
        """The messages of spans and what was read.

        The columns are `COLUMNS`, ``phy_offset`` and ``broker``; also `ERROR` where a body does not
        decompress, and is as it is stored.

        Args:
            spans: by queue.
            bytes_max: with a batch that reaches so many bytes it ends, and spans become shorter.
        """
        ...


def open_source(place: str | os.PathLike[str], topic: str | None) -> Source:
    """The source that a text names.

    Args:
        place: a store's directory, or ``namesrv://host:port/topic``.
        topic: which; None where the URL names it.

    Raises:
        ConfigError: no topic is named, or two, or a light queue.
    """
    if "://" in os.fspath(place) or os.fspath(place).startswith("namesrv:"):
        access, named = parse_namesrv_url(place)
        if topic not in (None, named):
            raise ConfigError("topic", topic, f"the URL names {named!r}")
        _refuse_light(named)
        return ClusterSource(access, named)
    if topic is None:
        raise ConfigError("topic", topic, "the topic whose messages the table gets")
    _refuse_light(topic)
    return StoreSource(directory_path("source", place).absolute(), topic)


def _refuse_light(topic: str) -> None:
    """Refuse a queue whose messages have the offsets of another topic."""
    if topic.startswith(LIGHT_QUEUE_PREFIX):
        raise ConfigError(
            "topic", topic, "a topic whose messages are its own; this is a light queue"
        )


class StoreSource:
    """A topic of a store's directory, cold or live."""

    #: Stands for the broker in the names of queues, and in the column ``broker``.
    _BROKER: Final = ""

    def __init__(self, path: Path, topic: str) -> None:
        self.topic = topic
        self._path = path
        #: by queue id: where queue and log began, and the first message that was looked for then
        self._firsts: dict[int, tuple[tuple[int, int], int]] = {}

    def spans(self) -> dict[str, Span]:
        """See `Source`."""
        with open_store(self._path, mode="r") as store:
            return {
                f"{self._BROKER}/{queue_id}": Span(
                    self._first(store, queue_id), store.max_queue_offset(topic, queue_id)
                )
                for topic, queue_id in store.queues()
                if topic == self.topic
            }

    def _first(self, store: ReadOnlyMessageStore, queue_id: int) -> int:
        """Queue offset of the first message that the log has, where the queue may have lost it."""
        first, begin = store.min_queue_offset(self.topic, queue_id), store.min_phy_offset
        queue = store.consume_queues.find(self.topic, queue_id)
        try:
            if queue is None or not queue.may_lack_first_file(begin):
                return first
        except (CorruptStoreError, FileNotFoundError):
            # its writer's retention has removed the file just now
            return first
        then, found = self._firsts.get(queue_id, ((-1, -1), first))
        if then != (first, begin):
            batches = map(pa.record_batch, self._offsets(queue_id))
            found = next((batch.column(0)[0].as_py() for batch in batches if len(batch)), first)
            self._firsts[queue_id] = (first, begin), found
        return min(first, found)

    def _offsets(self, queue_id: int) -> Iterable[ColumnBatch]:
        """The queue offsets that the log has of a queue, in its order."""
        ids = [queue_id]
        return read_store(self._path, ("queue_offset",), topics=[self.topic], queue_ids=ids)

    def others(self, marks: dict[str, tuple[int, Mark]]) -> list[str]:
        """See `Source`."""
        found = []
        with open_store(self._path, mode="r") as store:
            for queue, (offset, mark) in marks.items():
                queue_id = int(queue.rpartition("/")[2])
                got = store.get_message(self.topic, queue_id, offset, max_messages=1)
                for message in got.messages:
                    now = Mark(message.store_timestamp_ms, message.phy_offset)
                    # of a record that holds a batch the number is that of its first message
                    if message.queue_offset <= offset and now != mark:
                        found.append(queue)
        return found

    def read(self, spans: dict[str, Span], bytes_max: int) -> tuple[pa.Table, dict[str, Span]]:
        """The messages of spans and what was read; see `Source.read`.

        Raises:
            CorruptStoreError: a record is damaged.
        """
        wanted = {int(queue.rpartition("/")[2]): tuple(span) for queue, span in spans.items()}
        read_rows = partial(
            read_store,
            self._path,
            topics=[self.topic],
            queue_ids=sorted(wanted),
            queue_offsets={self.topic: wanted},
        )
        found, is_whole = _up_to(bytes_max, read_rows)
        # the order of the log is that of each queue in it
        read = spans if is_whole else _seen(found, spans)
        return _with_broker(found, self._BROKER), read


class ClusterSource:
    """A topic of every broker that a name server knows of."""

    def __init__(self, access: Access, topic: str) -> None:
        self.topic = topic
        self._access = access
        self._ranges: dict[str, QueueRange] = {}

    def spans(self) -> dict[str, Span]:
        """See `Source`.

        Raises:
            NoRouteError, RemotingError: nobody knows the topic, or a broker does not answer.
        """
        with Cluster(self._access) as cluster:
            ranges = cluster.ranges([self.topic])
        self._ranges = {f"{one.queue.broker_name}/{one.queue.queue_id}": one for one in ranges}
        return {name: Span(one.first, one.stop) for name, one in self._ranges.items()}

    def others(self, marks: dict[str, tuple[int, Mark]]) -> list[str]:
        """See `Source`."""
        asked = {self._ranges[name].queue: name for name in marks if name in self._ranges}
        queues = {self._ranges[name].queue: self._ranges[name].addresses for name in asked.values()}
        with Cluster(self._access) as cluster:
            behind = {queue: marks[name][0] + 1 for queue, name in asked.items()}
            now = cluster.marks(queues, behind)
        return [asked[queue] for queue, mark in now.items() if mark != marks[asked[queue]][1]]

    def read(self, spans: dict[str, Span], bytes_max: int) -> tuple[pa.Table, dict[str, Span]]:
        """The messages of spans, each queue's within the same part of the bytes; see `Source.read`.

        Raises:
            MessagesGoneError, RemotingError: retention was faster, or a broker does not answer.
        """
        tables, read = [_nothing()], {}
        for name, span in spans.items():
            known = self._ranges[name]
            piece = QueueRange(known.queue, known.addresses, span.first, span.stop, known.last)
            read_rows = partial(read_range, self._access, piece)
            found, is_whole = _up_to(bytes_max // len(spans), read_rows)
            read.update({name: span} if is_whole else _seen(found, {name: span}))
            tables.append(_with_broker(found, known.queue.broker_name))
        return pa.concat_tables(tables, promote_options="default"), read


def _up_to(
    bytes_max: int, read_rows: Callable[..., Iterable[ColumnBatch]]
) -> tuple[pa.Table, bool]:
    """Batches up to that which reaches so many bytes; whether these are all."""
    try:
        batches = map(pa.record_batch, read_rows(_READ, plain_bodies=True))
        return _joined(bytes_max, batches)
    except CorruptRecordError:
        # where it is more than a body that does not decompress, this tells it again
        stored = read_rows((*_READ, "sys_flag"), batch_bytes=_STORED_BYTES)
        return _joined(bytes_max, chain.from_iterable(map(_decompressed, stored)))


def _joined(bytes_max: int, batches: Iterable[pa.RecordBatch]) -> tuple[pa.Table, bool]:
    found, size = [], 0
    for batch in batches:
        found.append(batch)
        size += batch.nbytes
        if size >= bytes_max:
            return pa.Table.from_batches(found), False
    return (pa.Table.from_batches(found) if found else _empty()), True


def _decompressed(batch: ColumnBatch) -> Iterator[pa.RecordBatch]:
    """Rows with plain bodies, and with `ERROR` where one does not decompress.

    So many at a time as have `_PLAIN_BYTES`: a few stored bytes may be very many.
    """
    stored = pa.record_batch(batch)
    flags = stored["sys_flag"].to_pylist()
    begin, size = 0, 0
    bodies, errors = list[bytes](), list[str | None]()
    for number, body in enumerate(stored["body"].to_pylist()):
        plain, error = body, None
        if flags[number] & SysFlag.COMPRESSED and body:
            try:
                plain = decompress(body, flags[number], _BODY_MAX)
            except ValueError as reason:
                error = f"the body does not decompress: {reason}"
        bodies.append(plain)
        errors.append(error)
        size += len(plain)
        if size >= _PLAIN_BYTES or number + 1 == stored.num_rows:
            yield _with_bodies(stored.slice(begin, len(bodies)), bodies, errors)
            begin, size = number + 1, 0
            bodies, errors = [], []


def _with_bodies(
    rows: pa.RecordBatch, bodies: list[bytes], errors: list[str | None]
) -> pa.RecordBatch:
    at = rows.schema.get_field_index("body")
    plain = rows.set_column(at, rows.schema.field(at), pa.array(bodies, pa.binary()))
    return plain.drop_columns(["sys_flag"]).append_column(ERROR, pa.array(errors, pa.string()))


def _seen(table: pa.Table, spans: dict[str, Span]) -> dict[str, Span]:
    """Spans up to the last message of each queue in a table; those without one left out."""
    last = table.group_by("queue_id").aggregate([("queue_offset", "max")])
    columns = last["queue_id"].to_pylist(), last["queue_offset_max"].to_pylist()
    stops = dict(zip(*columns, strict=True))
    ids = {queue: int(queue.rpartition("/")[2]) for queue in spans}
    return {
        queue: Span(span.first, min(span.stop, stops[ids[queue]] + 1))
        for queue, span in spans.items()
        if ids[queue] in stops
    }


def _with_broker(table: pa.Table, broker: str) -> pa.Table:
    names = pa.array([broker] * table.num_rows, pa.string())
    return table.add_column(1, pa.field("broker", pa.string()), names)


def _empty() -> pa.Table:
    return pa.table(ColumnDecoder(_READ, row_max=1).take())


def _nothing() -> pa.Table:
    return _with_broker(_empty(), "")
