"""`TableBatches`: the rows of a table as batches, each of one topic and one request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rmqcore.arguments import text
from rmqcore.chance import token_hex
from rmqcore.client.outgoing import BODY_SIZE_MAX, Outgoing
from rmqcore.errors import ArgumentError
from rmqcore.native.columns._encode_columns import ColumnEncoder, batch_of_records
from rmqcore.remoting import RequestCode

#: Rows are encoded this many bytes at a time, then cut into batches, each of them smaller.
_PIECE_SIZE: Final = 1 << 20
#: Columns that a batch cannot have: the request says them for all its messages, or the producer
#: does.
_NOT_SENT: Final = ("sys_flag", "born_timestamp", "born_host", "reconsume_times")
#: The size of a log file does not bound the rows here: a broker stores the messages anew.
_NO_LIMIT: Final = 1 << 30
_NO_HOST: Final = "0.0.0.0:0"
_PREFIX: Final = re.compile(r"[0-9A-F]{16}")


class TableBatches:
    """Batches of the rows of a table, in their order.

    Args:
        table: anything with ``__arrow_c_stream__`` or ``__arrow_c_array__``.
        topic: of rows without one.
        unique_prefix: of the unique keys of rows without one, 16 upper-case hexadecimal digits;
            None for a new one.

    Raises:
        ArgumentError: the table, or a column of it, is none that can be sent.
    """

    def __init__(self, table: object, topic: str | None, unique_prefix: str | None = None) -> None:
        prefix = token_hex(8).upper() if unique_prefix is None else unique_prefix
        if not _PREFIX.fullmatch(text("unique_prefix", prefix)):
            raise ArgumentError("unique_prefix", prefix, "16 digits out of 0-9 and A-F")
        self._encoder = ColumnEncoder(
            table,
            topic=topic,
            unique_prefix=prefix.encode(),
            body_max=BODY_SIZE_MAX,
            log_file_size=_NO_LIMIT,
            store_host=_NO_HOST,
        )
        for name in _NOT_SENT:
            if name in self._encoder.columns:
                raise ArgumentError(
                    f"column {name}", ..., "cannot be sent: the producer says it for each request"
                )
        self._names_queue = "queue_id" in self._encoder.columns

    def __iter__(self) -> Iterator[tuple[Outgoing, int | None, int]]:
        """(batch, queue id or None for any, rows in it).

        Raises:
            RowIllegalError: a row is no message; nothing of its batch of the table has been given.
            MessageIllegalError: a body is empty.
        """
        while self._encoder.next_batch() is not None:
            while (records := self._encoder.next_piece(_PIECE_SIZE)) is not None:
                yield from self._batches(records)

    def _batches(self, records: bytes) -> Iterator[tuple[Outgoing, int | None, int]]:
        for number, (topic, queue_id) in enumerate(self._encoder.queues):
            body, names = batch_of_records(records, number)
            if names:
                code = RequestCode.SEND_BATCH_MESSAGE
                batch = Outgoing(topic, body, {"WAIT": "true"}, ",".join(names), code)
                yield batch, queue_id if self._names_queue else None, len(names)
