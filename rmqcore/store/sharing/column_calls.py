"""Whole tables of a client: it makes the records, the owner appends them, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from rmqcore.store.parts.column_puts import put_pieces

if TYPE_CHECKING:
    from rmqcore.config import StoreConfig
    from rmqcore.message import ColumnSettings
    from rmqcore.store.parts.column_puts import Queues
    from rmqcore.store.parts.put_columns_result import PutColumnsResult


def put_table(
    call: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    config: StoreConfig,
    table: object,
    settings: ColumnSettings,
) -> PutColumnsResult:
    """Put the rows of a table.

    Args:
        call: makes the owner's call with its arguments, and those by name.
        config: of the store.
        table: see `MessageStore.put_columns`.
        settings: likewise; ``durability`` is what each piece waits for.

    Raises:
        RowIllegalError: a row is no message; nothing of its batch was stored.
        OwnerLostError: the owner ended before it has answered; the table's first rows are stored,
            how many is not known.
    """
    rows = dict(settings)
    durability = rows.pop("durability", None)

    def put(records: bytes, queues: Queues) -> PutColumnsResult:
        return cast("PutColumnsResult", call((records, queues), {"durability": durability}))

    return put_pieces(put, config, table, **rows)
