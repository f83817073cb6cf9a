"""``rmqcore sql``: a store asked in SQL, by DuckDB; each topic is a table."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmqcore.cli.exit_codes import ExitCode
from rmqcore.cli.near import near
from rmqcore.cli.notes import note
from rmqcore.cli.options import (
    AsJson,
    ConfigFile,
    DamageCount,
    Settings,
    SkipDamaged,
    StorePath,
    open_for_reading,
)
from rmqcore.cli.output import print_json, print_table, printable
from rmqcore.errors import CorruptRecordError, RmqCoreError
from rmqcore.scan import COLUMNS, Damage

if TYPE_CHECKING:
    from rmqcore import ReadOnlyMessageStore

#: These settings keep DuckDB from variables of this process and from extensions of the network.
_ALONE: Final = {"python_enable_replacements": "false", "autoinstall_known_extensions": "false"}
_EVERY_TOPIC: Final = "messages"
_UNKNOWN: Final = re.compile(r"Table with name (\S+) does not exist")
_WITH_TEXT: Final = "SELECT *, try(decode(body)) AS text"
_ROWS_AT_ONCE: Final = 1000
_COLUMNS: Final = tuple(name for name in COLUMNS if name != "record")


class QueryError(RmqCoreError, ValueError):
    """DuckDB refuses a query.

    Attributes:
        reason: why, in its words.
    """

    def __init__(self, reason: str) -> None:
        self.reason = " ".join(reason.split())
        super().__init__(self.reason)


class _Damaged:
    """Meets the damaged places of a store for DuckDB, which would tell them in words of its own.

    Attributes:
        error: where the answer ends; None where it does not.

    Args:
        passed: counts the places, which are passed over; None: the answer ends at the first one.
    """

    def __init__(self, passed: DamageCount | None) -> None:
        self._passed = passed
        self._met: set[int] = set()
        self.error: CorruptRecordError | None = None

    def __call__(self, damage: Damage) -> None:
        """Note a place, once for all scans of a query; pass it as ``on_damage``."""
        error = CorruptRecordError(damage.path, damage.phy_offset, damage.reason)
        if self._passed is None:
            self.error = error
            raise error
        if damage.phy_offset not in self._met:
            self._met.add(damage.phy_offset)
            self._passed(error)

    def refused(self, error: Exception) -> RmqCoreError:
        """Why there is no answer: damage, or what DuckDB says.

        Args:
            error: DuckDB's.
        """
        return self.error or QueryError(str(error))


def sql(
    store: StorePath,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="SQL; standard input without it")
    ] = None,
    count: Annotated[
        int, typer.Option("-n", min=0, help="print at most so many rows; 0: all")
    ] = 1000,
    files: Annotated[
        bool, typer.Option("--files", help="let the query read and write files, too")
    ] = False,
    skip_damaged: SkipDamaged = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Ask a store in SQL; topics are tables, and `messages` has those of all topics.

    `describe messages` lists the columns; `text` is the body, where that is text. DuckDB answers,
    and reads no other columns and topics than the query needs. Exit code 1 when there are no rows.
    """
    if not all(map(find_spec, ("duckdb", "pyarrow"))):
        note("rmqcore: sql needs pip install 'rmqcore[sql]'")
        raise typer.Exit(ExitCode.USAGE)
    text = sys.stdin.read() if query is None else query
    if not text.strip():
        raise typer.BadParameter("there is none", param_hint="QUERY")
    count_damage = DamageCount(as_json=as_json)
    damaged = _Damaged(count_damage if skip_damaged else None)
    with open_for_reading(store, config, settings) as opened:
        heads, rows = _answer(opened, text, damaged, files=files)
        show = _print_json if as_json else _print_table
        shown = show(heads, _first(rows, count))
        if count and shown == count and next(rows, None) is not None:
            note(f"the first {count} rows; -n 0 prints all")
    count_damage.finish()
    raise typer.Exit(ExitCode.DONE if shown else ExitCode.FINDINGS)


def _print_json(heads: list[str], rows: Iterable[tuple[Any, ...]]) -> int:
    shown = 0
    for row in rows:
        print_json(dict(_for_json(heads, row)))
        shown += 1
    return shown


def _print_table(heads: list[str], rows: Iterable[tuple[Any, ...]]) -> int:
    cells = [[_cell(value) for value in row] for row in rows]
    numbers = [
        head
        for at, head in enumerate(heads)
        if all(isinstance(row[at], int | float) for row in cells)
    ]
    print_table(heads, cells, right=numbers)
    return len(cells)


def _answer(
    store: ReadOnlyMessageStore, query: str, damaged: _Damaged, *, files: bool
) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """The heads and the rows of the last statement.

    Raises:
        QueryError: DuckDB refuses the query; names the nearest topic of an unknown one.
        CorruptRecordError: the answer comes to a damaged place that is not passed over.
    """
    import duckdb  # noqa: PLC0415 - an extra

    topics = sorted({topic for topic, _ in store.queues()})
    database = duckdb.connect(":memory:", config={**_ALONE, "enable_external_access": files})
    try:
        for name in [_EVERY_TOPIC, *(topic for topic in topics if topic in query)]:
            chosen = None if name == _EVERY_TOPIC else [name]
            asked_of = store.arrow_dataset(
                _COLUMNS, plain_bodies=True, on_damage=damaged, topics=chosen
            )
            database.register(f"rmqcore {name}", asked_of)
            view = f"CREATE OR REPLACE VIEW {_quoted(name)} AS {_WITH_TEXT}"
            database.execute(f"{view} FROM {_quoted(f'rmqcore {name}')}")
        asked = database.execute(query)
        heads = [str(column[0]) for column in asked.description or ()]
        return heads, _rows(asked, damaged, duckdb.Error)
    except duckdb.Error as error:
        unknown = _UNKNOWN.search(str(error))
        if unknown is None:
            raise damaged.refused(error) from None
        hint = near(unknown[1].strip('"'), [*topics, _EVERY_TOPIC])
        raise QueryError(f"no topic {unknown[1]} is here{hint}") from None


def _rows(asked: Any, damaged: _Damaged, refusal: type[Exception]) -> Iterator[tuple[Any, ...]]:
    try:
        while rows := asked.fetchmany(_ROWS_AT_ONCE):
            yield from rows
    except refusal as error:
        raise damaged.refused(error) from None


def _first(rows: Iterator[tuple[Any, ...]], count: int) -> Iterator[tuple[Any, ...]]:
    for number, row in enumerate(rows, 1):
        yield row
        if number == count:
            return


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return printable(value)
    return float(value) if isinstance(value, Decimal) else value


def _for_json(heads: Iterable[str], row: Iterable[Any]) -> Iterator[tuple[str, object]]:
    """Names and values; bytes that are no text are under a name of their own."""
    for head, value in zip(heads, row, strict=True):
        if isinstance(value, bytes):
            try:
                yield head, value.decode()
            except UnicodeDecodeError:
                yield f"{head}_base64", base64.b64encode(value).decode()
        elif isinstance(value, datetime):
            yield head, value.isoformat()
        elif isinstance(value, Decimal):
            yield head, int(value) if value == value.to_integral_value() else float(value)
        else:
            yield head, value
