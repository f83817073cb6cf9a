"""`ColumnWriting`: the part that puts whole tables, and records that others have made of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from rmqcore.services.event_loop import in_thread
from rmqcore.status import Durability, DurabilityName
from rmqcore.store.parts.batches import as_message

if TYPE_CHECKING:
    from rmqcore.message import ColumnSettings, MessageExt, PutMessageResult
    from rmqcore.native.log._tail import LogTail
    from rmqcore.store.parts.column_puts import Appended, ColumnPuts
    from rmqcore.store.parts.confirmation import Confirmation, PutWait
    from rmqcore.store.parts.handle import Handle
    from rmqcore.store.parts.put_columns_result import PutColumnsResult
    from rmqcore.store.parts.settings import Settings


class ColumnWriting:
    """Puts tables into a store, each answered with what became of its rows.

    Args:
        handle: says whether the store is open.
        settings: of the store.
        tail: the end of the log.
        append: makes a put until it has an answer, rolling to the next file where one is full.
        confirmation: what results wait for.
    """

    def __init__(
        self,
        handle: Handle,
        settings: Settings,
        tail: LogTail,
        append: Callable[..., PutMessageResult],
        confirmation: Confirmation,
    ) -> None:
        self._handle = handle
        self._settings = settings
        self._tail = tail
        self._append = append
        self._confirmation = confirmation

    def put_columns(
        self,
        table: object,
        *,
        topic: str | None = None,
        queue_count: int = 1,
        copy: bool = False,
        durability: Durability | DurabilityName | None = None,
    ) -> PutColumnsResult:
        """Store every row of a table as a message.

        Args:
            table: anything with ``__arrow_c_stream__`` or ``__arrow_c_array__``: a table, a batch
                or a stream of pyarrow, pandas, Polars or DuckDB. docs/arrow.md lists the columns.
            topic: of rows without one.
            queue_count: rows without a queue go to the queues 0, 1, ... below it, in turn.
            copy: store also what asks for a delay, as it is: the rows are a copy of a store's.
            durability: wait for "disk", or only for "page_cache"; None as configured.

        Returns:
            how many rows are stored, and where; the status says when not all of them are.

        Raises:
            RowIllegalError: a row is no message; nothing of its batch was stored.
            ArgumentError: the table, or a column of it, is none that can be put.
            StoreClosedError: the store is closed.

        Durability: as the result says.
        """
        put_wait = self._confirmation.put_wait(durability)
        put = partial(self._puts().put_table, table, topic, queue_count, copy=copy)
        return self._confirmed(put, put_wait)

    async def put_columns_async(
        self, table: object, **settings: Unpack[ColumnSettings]
    ) -> PutColumnsResult:
        """As `put_columns`, without blocking the event loop.

        One that is cancelled is stored all the same.
        """
        put_wait = self._confirmation.put_wait(settings.get("durability"))
        rows: dict[str, Any] = {**settings}
        rows.pop("durability", None)
        put_table = self._puts().put_table

        def put_and_flush_soon() -> Appended:
            done = put_table(table, **rows)
            self._confirmation.flush_soon()
            return done

        done = await in_thread(put_and_flush_soon)
        confirmed = self._confirmation.confirmed_async
        return done.result(done.receipt and await confirmed(done.receipt, put_wait))

    def put_records(
        self,
        records: bytes,
        queues: list[tuple[str, int]],
        *,
        durability: Durability | DurabilityName | None = None,
    ) -> PutColumnsResult:
        """Store records that another process has made of columns, one behind the other.

        Args:
            records: as docs/format/staged-records.md has them.
            queues: (topic, queue id) by the number in the records.
            durability: as in `put_columns`.

        Raises:
            StoreError: they are no records for this store; nothing was stored.
        """
        put_wait = self._confirmation.put_wait(durability)
        return self._confirmed(partial(self._puts().put_records, records, queues), put_wait)

    def _confirmed(self, put: Callable[[], Appended], put_wait: PutWait) -> PutColumnsResult:
        """Append, and wait; what an error or an interrupt in between leaves is seen by reads."""
        try:
            done = put()
            receipt = done.receipt and self._confirmation.confirmed(done.receipt, put_wait)
        except BaseException:
            self._confirmation.left_unwaited(self._tail.max_offset)
            raise
        return done.result(receipt)

    def put_record(
        self, record: MessageExt, *, durability: Durability | DurabilityName | None = None
    ) -> PutMessageResult:
        """Store a record that another process has made, as it is, with its numbers in light queues.

        Args:
            record: it may ask for a delay: it is a copy, and nothing delays it.
            durability: as in `put_columns`.

        Raises:
            MessageIllegalError: it breaks a limit; nothing was stored.
        """
        self._handle.check_open()
        put_wait = self._confirmation.put_wait(durability)
        receipt = self._append(self._tail.put_message, as_message(record))
        return self._confirmation.confirmed(receipt, put_wait) if receipt.ok else receipt

    def _puts(self) -> ColumnPuts:
        from rmqcore.store.parts.column_puts import ColumnPuts  # noqa: PLC0415 - for tables only

        self._handle.check_open()
        return ColumnPuts(self._tail, self._settings.config, self._append)
