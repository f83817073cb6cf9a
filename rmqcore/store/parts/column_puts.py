"""`ColumnPuts`: whole tables put into a store, their rows made into records natively.

The records of a batch are made when all of its rows have been looked at, and appended piece by
piece; what is staged for a store by another process takes the same way in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from rmqcore.arguments import text, whole_number
from rmqcore.config import StoreConfig
from rmqcore.errors import RowIllegalError
from rmqcore.files.store_dir import QUEUE_ID_MAX
from rmqcore.message import PutMessageResult
from rmqcore.native.columns._encode_columns import ColumnEncoder
from rmqcore.native.log._records_in import RecordAppender
from rmqcore.native.log._tail import LogTail
from rmqcore.status import PutMessageStatus
from rmqcore.store.parts.put_columns_result import PutColumnsResult, QueueSpan

#: This many bytes are appended at a time: they are still in the processor's cache when they are
#: copied.
PIECE_SIZE: Final = 512 << 10

#: (topic, queue id) by the number that stands in a record
Queues = list[tuple[str, int]]


class Appended:
    """What has been appended so far of a table, or of staged records.

    Attributes:
        receipt: of what was appended last, whose end is what has to be waited for; None: nothing.
        failure: the receipt of what could not be appended.
    """

    def __init__(self) -> None:
        self.receipt: PutMessageResult | None = None
        self.failure: PutMessageResult | None = None
        self._result = PutColumnsResult()

    @property
    def row_count(self) -> int:
        """Rows appended."""
        return self._result.row_count

    def add(self, receipt: PutMessageResult, appender: RecordAppender, queues: Queues) -> None:
        """Note a piece that was appended.

        Args:
            receipt: of the piece.
            appender: which has just appended it, and knows the queue offsets.
            queues: (topic, queue id) by the number that the appender has for it.
        """
        self.receipt = receipt
        piece = PutColumnsResult(
            row_count=receipt.message_count,
            phy_offset=receipt.phy_offset,
            last_phy_offset=appender.last_phy_offset,
            store_size=receipt.store_size,
            queue_offsets={
                queues[number]: QueueSpan(first, first + count - 1, count)
                for number, first, count in appender.placed()
            },
        )
        self._result = self._result.followed_by(piece)

    def result(self, waited_for: PutMessageResult | None) -> PutColumnsResult:
        """The result of the whole table; ``waited_for`` is `receipt` after its wait."""
        told = self.failure or waited_for
        return replace(
            self._result,
            status=PutMessageStatus.PUT_OK if told is None else told.status,
            reason="" if told is None else told.reason,
            durability=None if waited_for is None else waited_for.durability,
        )


class ColumnPuts:
    """Puts tables and staged records into a log.

    Args:
        tail: the log's end.
        config: of the store.
        append: makes a put until it has an answer, rolling to the next file where one is full.
    """

    def __init__(
        self, tail: LogTail, config: StoreConfig, append: Callable[..., PutMessageResult]
    ) -> None:
        self._tail = tail
        self._config = config
        self._append = append

    def put_table(
        self, table: object, topic: str | None = None, queue_count: int = 1, *, copy: bool = False
    ) -> Appended:
        """Append every row of a table, batch by batch; nothing is waited for.

        Args:
            table: see `MessageStore.put_columns`.
            topic: of rows without one; None when the table has a column of topics.
            queue_count: queues of a topic over which rows without a queue id go in turn.
            copy: keep of rows that were stored before what a copy keeps.

        Raises:
            RowIllegalError: a row is no message; nothing of its batch was appended.
            ArgumentError: the table, or a column of it, is none that can be put.
        """
        encoder = _encoder_of(self._config, table, topic=topic, queue_count=queue_count, copy=copy)
        appender, appended = RecordAppender(self._tail, encoder.queues), Appended()
        try:
            for piece in _pieces_of(encoder):
                if not self._append_records(appended, appender, piece, encoder.queues):
                    break
        except RowIllegalError as error:
            raise _with_stored_count(error, appended.row_count) from None
        return appended

    def put_records(self, records: bytes, queues: Queues) -> Appended:
        """Append whole records that were staged; nothing is waited for.

        Args:
            records: one behind the other, as `ColumnEncoder` makes them.
            queues: (topic, queue id) by the number in the records.

        Raises:
            StoreError: they are no records for this store; none was appended that lies behind.
        """
        appended = Appended()
        self._append_records(appended, RecordAppender(self._tail, queues), records, queues)
        return appended

    def _append_records(
        self, appended: Appended, appender: RecordAppender, records: bytes, queues: Queues
    ) -> bool:
        """Append records; False when the store has refused some."""
        at = 0
        while at < len(records):
            receipt = self._append(appender.append, records, at)
            if not receipt.ok:
                appended.failure = receipt
                return False
            appended.add(receipt, appender, queues)
            at += receipt.store_size
        return True


def put_pieces(
    put: Callable[[bytes, Queues], PutColumnsResult],
    config: StoreConfig,
    table: object,
    **settings: Any,
) -> PutColumnsResult:
    """Let the caller put the records of a table, piece by piece, and report the result of each.

    Args:
        put: puts whole records, whose queues are numbered.
        config: of the store.
        table: as for `MessageStore.put_columns`.
        settings: topic, queue_count and copy, likewise.

    Raises:
        RowIllegalError: a row is no message; nothing of its batch was put.
        ArgumentError: the table, or a column of it, is none that can be put.
    """
    encoder, done = _encoder_of(config, table, **settings), PutColumnsResult()
    try:
        for piece in _pieces_of(encoder):
            done = done.followed_by(put(piece, encoder.queues))
            if not done.ok:
                break
    except RowIllegalError as error:
        raise _with_stored_count(error, done.row_count) from None
    return done


def _encoder_of(config: StoreConfig, table: object, **settings: Any) -> ColumnEncoder:
    return encoder_for(config, table, light_queues=config.numbers_light_queues, **settings)


def _pieces_of(encoder: ColumnEncoder) -> Iterator[bytes]:
    """All records of a table."""
    while encoder.next_batch() is not None:
        while (piece := encoder.next_piece(PIECE_SIZE)) is not None:
            yield piece


def _with_stored_count(error: RowIllegalError, stored_count: int) -> RowIllegalError:
    """A refusal that says how many rows are stored before its batch."""
    return RowIllegalError(error.row, error.column, error.rule, stored_count)


def encoder_for(
    config: StoreConfig,
    table: object,
    *,
    topic: str | None = None,
    queue_count: int = 1,
    copy: bool = False,
    **settings: Any,
) -> ColumnEncoder:
    """What makes records of a table for a store with these settings.

    Args:
        config: of the store.
        table: as for `MessagePuts.put_columns`, as the next three.
        topic: of rows without one.
        queue_count: queues that rows without one go to, in turn.
        copy: take also what asks for a delay, as it is.
        **settings: further ones of `ColumnEncoder`.

    Raises:
        ArgumentError: the table, or a column of it, is none that can be put.
    """
    return ColumnEncoder(
        table,
        topic=None if topic is None else text("topic", topic),
        queue_count=whole_number("queue_count", queue_count, 1, QUEUE_ID_MAX),
        copy=copy,
        body_max=config.effective_max_message_size,
        log_file_size=config.mapped_file_size_commit_log,
        append_crc=config.appends_prop_crc,
        store_host=config.store_host,
        **settings,
    )
