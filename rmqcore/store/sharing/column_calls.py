"""Whole tables of a client: it makes the records, the owner appends them, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from rmqcore.store.parts.column_puts import put_pieces

if TYPE_CHECKING:
    from rmqcore.config import StoreConfig
    from rmqcore.status import Durability, DurabilityName
    from rmqcore.store.parts.column_puts import Queues
    from rmqcore.store.parts.put_columns_result import PutColumnsResult


def put_table(
    call: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    config: StoreConfig,
    rows: tuple[object, str | None, int],
    copy: bool,
    durability: Durability | DurabilityName | None,
) -> PutColumnsResult:
    """Put the rows of a table.

    Args:
        call: makes the owner's call with its arguments, and those by name.
        config: of the store.
        rows: the table, the topic of rows without one, the queues of rows without one.
        copy: take also what asks for a delay, as it is.
        durability: what each piece waits for.

    Raises:
        RowIllegalError: a row is no message; nothing of its batch was stored.
        OwnerLostError: the owner ended before it has answered; the table's first rows are stored,
            how many is not known.
    """

    def put(records: bytes, queues: Queues) -> PutColumnsResult:
        return cast("PutColumnsResult", call((records, queues), {"durability": durability}))

    return put_pieces(put, config, *rows, copy=copy)
