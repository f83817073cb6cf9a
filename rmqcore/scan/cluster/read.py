"""Reading ranges as record batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Unpack

from rmqcore._codec import decode_record
from rmqcore.client.received import decode_messages
from rmqcore.errors import CorruptRecordError, StoreError
from rmqcore.message import MessageExt
from rmqcore.native.columns._arrow import ColumnBatch
from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.native.format._message_ext import status_text
from rmqcore.native.format._next_record import ScanStatus
from rmqcore.scan import DEFAULT_COLUMNS
from rmqcore.scan.cluster.access import Access
from rmqcore.scan.cluster.pulls import Pulled, RangePull
from rmqcore.scan.cluster.ranges import QueueRange
from rmqcore.scan.cluster.topology import TOOLS_GROUP, Cluster
from rmqcore.scan.selection import RowFilter, Selection, reusable

_log = logging.getLogger(__name__)


class MessagesGoneError(StoreError):
    """A broker no longer has what was planned to be read, or has not got there.

    Attributes:
        place: the range.
        first, stop: the offsets that are missing.
    """

    def __init__(self, place: QueueRange, first: int, stop: int) -> None:
        self.place = place
        self.first = first
        self.stop = stop
        super().__init__(f"{place}: the broker has no message at {first} and up to {stop}")


class TopicMadeAnewError(MessagesGoneError):
    """The topic was deleted and made again since a range of it was planned.

    Attributes: as of `MessagesGoneError`.
    """

    def __str__(self) -> str:
        return (
            f"{self.place}: the topic was deleted and made again since this was planned; plan anew "
            "to read its messages"
        )


class _Reading:
    """One reading of one range."""

    def __init__(
        self,
        access: Access,
        range: QueueRange,
        new_decoder: Callable[[RowFilter, int], ColumnDecoder],
        new_rows: Callable[[], RowFilter],
        row_max: int,
        byte_max: int,
        *,
        fail_on_loss: bool,
    ) -> None:
        self._access = access
        self._range = range
        self._new_decoder, self._new_rows = new_decoder, new_rows
        self._row_max, self._byte_max = row_max, byte_max
        self._rows = new_rows()
        self._decoder = new_decoder(self._rows, row_max)
        #: the records of the next batch, where a body that does not decompress is passed over, and
        #: their bytes, also of those that are no rows
        self._records: list[memoryview] = []
        self._record_bytes = 0
        self._fail_on_loss = fail_on_loss

    def run(self, group: str) -> Iterator[ColumnBatch]:
        """The batches."""
        try:
            for pulled in RangePull(self._access, self._range, group).run():
                if not self._is_same(pulled):
                    break
                seen = self._rows.of_topics_count
                yield from self._decoded(pulled)
                missing = pulled.following - pulled.first - (self._rows.of_topics_count - seen)
                if missing > 0:
                    check_missing(
                        self._access, self._range, pulled, fail_on_loss=self._fail_on_loss
                    )
        except StoreError:
            # what came before is handed out
            yield from self._taken()
            raise
        yield from self._taken()

    def _is_same(self, pulled: Pulled) -> bool:
        """Whether an answer is of the topic that the range is of; else it is told."""
        try:
            _check_same(self._range, pulled)
        except TopicMadeAnewError as error:
            if self._fail_on_loss:
                raise
            _log.warning("%s; the rest is passed over", error)
            return False
        return True

    def _decoded(self, pulled: Pulled) -> Iterator[ColumnBatch]:
        records, at = pulled.records, 0
        while at < len(records):
            begin = at
            at, status = self._decoder.decode(records, at, len(records), base_offset=None)
            if not self._fail_on_loss:
                self._records.append(memoryview(records)[begin:at])
                self._record_bytes += at - begin
            if status != ScanStatus.CAPACITY and at < len(records):
                raise CorruptRecordError(
                    f"{self._range} (answer to the pull of {pulled.first})", at, status_text(status)
                )
            if status == ScanStatus.CAPACITY or self._record_bytes >= self._byte_max:
                yield from self._taken()

    def _taken(self) -> Iterator[ColumnBatch]:
        """The batch, if there is one; without rows whose bodies do not decompress, where told."""
        records, self._records, self._record_bytes = self._records, [], 0
        if not self._decoder.row_count:
            return
        try:
            batch = self._decoder.take()
        except CorruptRecordError:
            if self._fail_on_loss:
                raise
        else:
            yield batch
            return
        self._decoder = self._new_decoder(self._rows, self._row_max)
        for piece in records:
            yield from self._one_by_one(piece)

    def _one_by_one(self, records: memoryview) -> Iterator[ColumnBatch]:
        at = 0
        while at < len(records):
            decoder = self._new_decoder(self._new_rows(), 1)
            at, _ = decoder.decode(records, at, len(records), base_offset=None)
            if decoder.row_count:
                try:
                    yield decoder.take()
                except CorruptRecordError as error:
                    _log.warning("%s: %s; it is passed over", self._range, error)


def _check_same(range: QueueRange, pulled: Pulled) -> None:
    """Refuse messages that were put behind the last one that a range had when it was planned.

    Args:
        range: as it was planned; one without a last message accepts all.
        pulled: what a broker has answered for it.

    Raises:
        TopicMadeAnewError: they are of a topic that was made since.
    """
    if range.last is None or not pulled.records:
        return
    # records ascend in a queue, and one answer has those of one topic
    head = decode_record(pulled.records, check_crc=False)
    if head.queue_offset < range.stop and head.phy_offset > range.last.phy_offset:
        raise TopicMadeAnewError(range, pulled.first, range.stop)


def check_missing(
    access: Access, range: QueueRange, pulled: Pulled, *, fail_on_loss: bool = True
) -> None:
    """Tell why an answer has fewer messages than offsets.

    They were deleted by retention, or never were: queues of batches, and those whose topic is
    compacted, have offsets without a record.

    Args:
        access: how the broker is reached.
        range: what is read.
        pulled: the answer.
        fail_on_loss: raise; else it is a warning.

    Raises:
        MessagesGoneError: the queue begins behind what was asked for, or ends before.
    """
    queue = range.queue
    with Cluster(access) as cluster:
        chosen = {queue: range.addresses}
        begin, end = cluster.begins(chosen)[queue], cluster.ends(chosen)[queue]
    first, stop = pulled.first, min(pulled.following, range.stop)
    if begin <= first and stop <= end:
        return
    gone = MessagesGoneError(range, first, stop)
    if fail_on_loss:
        raise gone
    _log.warning("%s; they are passed over", gone)


def read_range(
    access: Access,
    range: QueueRange,
    columns: Iterable[str] = DEFAULT_COLUMNS,
    *,
    group: str = TOOLS_GROUP,
    verify_crc: bool = False,
    plain_bodies: bool = False,
    batch_rows: int = 8192,
    batch_bytes: int = 16 << 20,
    delays_ms: tuple[int, ...] = (),
    fail_on_loss: bool = True,
    **selection: Unpack[Selection],
) -> Iterator[ColumnBatch]:
    """The messages of a range as record batches, in the order of the queue.

    Args:
        access: how the broker is reached.
        range: what to read.
        columns: names out of `rmqcore.scan.COLUMNS`; only these are decoded.
        group: the consumer group that brokers check permissions for; it gets no progress.
        verify_crc: refuse a body that contradicts its CRC.
        plain_bodies: decompress bodies that are stored compressed.
        batch_rows: at most so many rows in a batch.
        batch_bytes: a batch is made of at most so many bytes of records.
        delays_ms: delay of level 1, 2, ..., for the tags code of delayed messages.
        fail_on_loss: raise where the broker no longer has messages, or a body that is to be
            decompressed is not what it says; else they are passed over, with a warning.
        **selection: only these messages; looked at here, after they were pulled.

    Raises:
        MessagesGoneError: retention has deleted messages, or the queue ends before the range.
        TopicMadeAnewError: the topic was deleted and made again since the range was planned.
        CorruptRecordError: what the broker sends is no record, or contradicts its CRC.
        RequestRefusedError: it will not answer.
        RemotingError: it does not answer, although it was asked again.
    """
    # what the broker has in the queue is a message of it, whatever its transaction flag says
    # a record that begins before the range, and reaches into it, is the range's before this one
    topic, _, queue_id = range.queue
    offsets = {topic: {queue_id: (range.first, range.stop)}}
    wanted: Selection = {"uncommitted": True, "queue_offsets": offsets}
    wanted.update(reusable(selection))
    names = tuple(columns)

    def new_decoder(rows: RowFilter, row_max: int) -> ColumnDecoder:
        return ColumnDecoder(
            names,
            row_max=row_max,
            byte_max=batch_bytes,
            rows=rows,
            verify_crc=verify_crc,
            plain_bodies=plain_bodies,
            delays_ms=delays_ms,
        )

    reading = _Reading(
        access,
        range,
        new_decoder,
        lambda: RowFilter(**wanted),
        batch_rows,
        batch_bytes,
        fail_on_loss=fail_on_loss,
    )
    return reading.run(group)


def messages_of(access: Access, range: QueueRange) -> Iterator[MessageExt]:
    """The messages of a range as objects, in the order of the queue; bodies as they are stored.

    Args:
        access: to the cluster.
        range: of one queue.

    Raises:
        MessagesGoneError, RemotingError: as `read_range`.
        CorruptRecordError: what the broker sends is no record, or contradicts its CRC.
    """
    for pulled in RangePull(access, range).run():
        _check_same(range, pulled)
        found = decode_messages(pulled.records, check_crc=True)
        if len(found) < pulled.following - pulled.first:
            check_missing(access, range, pulled)
        for message in found:
            if range.first <= message.queue_offset < range.stop:
                yield message
