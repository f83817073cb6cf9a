"""`IcebergTarget`: an Iceberg table; how far its queues were read is in each snapshot's summary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchPropertyException,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import IdentityTransform
from sqlalchemy.exc import SQLAlchemyError

from rmqcore.errors import ConfigError
from rmqcore.lake.iceberg_files import sweep
from rmqcore.lake.sources import Progress
from rmqcore.lake.storage_names import iceberg_options, without_secrets
from rmqcore.lake.target import (
    DAY,
    IN_FLIGHT_S,
    OFFSETS,
    SMALL_AGE_S,
    SMALL_COUNT,
    SMALL_SIZE,
    TableAccessError,
    TableChangedError,
    check_types,
    offsets_text,
    parse_offsets,
    with_day,
    without_offsets,
)
from rmqcore.scan.tables import ICEBERG_CATALOG, iceberg_properties
from rmqcore.world import wall_clock_ms

NAMESPACE: Final = "rmq"
#: With these ends making a catalog that is not there, or that is told wrong.
_NO_CATALOG: Final = (
    ImportError,
    NoSuchPropertyException,
    NotInstalledError,
    OSError,
    RESTError,
    SQLAlchemyError,
    ValueError,
)
#: PyIceberg makes small files one by reading and writing all of their day; a day whose files have
#: more bytes keeps them.
_DAY_SIZE_MAX: Final = 256 << 20


class IcebergTarget:
    """See `rmqcore.lake.target.Target`; partitioned by `DAY`.

    Args:
        catalog: which has the table.
        name: of the table, ``namespace.table``.
        schema: of its rows; columns that a table of before lacks are added.
        properties: of the catalog, whose secrets are in no error.
    """

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        schema: pa.Schema,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._catalog = catalog
        self._name = name
        self._properties = properties or {}
        self._schema = schema.append(pa.field(DAY, pa.string()))

    @classmethod
    def in_directory(cls, directory: Path, name: str, schema: pa.Schema) -> IcebergTarget:
        """A table in a directory, whose catalog lies there, too; see `iceberg_properties`."""
        properties = iceberg_properties(directory)
        Path(properties["uri"].removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        return cls(SqlCatalog(ICEBERG_CATALOG, **properties), f"{NAMESPACE}.{name}", schema)

    @classmethod
    def in_catalog(
        cls,
        properties: Mapping[str, str],
        name: str,
        schema: pa.Schema,
        storage_options: Mapping[str, str],
    ) -> IcebergTarget:
        """A table of a catalog of one's own.

        Args:
            properties: as PyIceberg's ``load_catalog`` takes them; ``name`` is that of a catalog
                of PyIceberg's configuration.
            name: of the table, ``namespace.table``.
            schema: as for the class.
            storage_options: of object storage, see `iceberg_options`.

        Raises:
            ConfigError: there is no such catalog, the name has no namespace, or half a pair of
                keys.
        """
        if not all(name.partition(".")):
            raise ConfigError("table", name, "namespace.table, as the catalog has it")
        given = {**iceberg_options(storage_options), **properties}
        named = given.pop("name", ICEBERG_CATALOG)
        try:
            catalog = load_catalog(named, **given)
        except _NO_CATALOG as error:
            told = without_secrets(error, {}, given)
            raise ConfigError("catalog", named, f"a catalog of PyIceberg's: {told}") from None
        return cls(catalog, name, schema, given)

    def offsets(self) -> Progress:
        """See `Target`."""
        with self._errors():
            table = self._table()
            return {} if table is None else self._offsets_of(table)

    def _offsets_of(self, table: Table) -> Progress:
        snapshot = table.current_snapshot()
        while snapshot is not None:
            told = snapshot.summary.additional_properties if snapshot.summary else {}
            if OFFSETS in told:
                return parse_offsets(told[OFFSETS], self._name)
            before = snapshot.parent_snapshot_id
            snapshot = None if before is None else table.snapshot_by_id(before)
        if table.current_snapshot() is not None:
            raise without_offsets(self._name)
        return {}

    def append(self, rows: pa.Table, since: Progress, offsets: Progress) -> None:
        """See `Target`."""
        with self._errors():
            table = self._table() or self._new_table()
            check_types(table.schema().as_arrow(), self._schema, self._name)
            if known := set(self._schema.names) - set(table.schema().column_names):
                with table.update_schema() as update:
                    update.union_by_name(pa.schema([self._schema.field(name) for name in known]))
                table = self._loaded()
            # the commit is refused when the table is another than the one that was asked here
            if self._offsets_of(table) != since:
                raise TableChangedError(f"{self._name}: another follower has been there")
            table.append(
                with_day(rows).select(self._schema.names).cast(self._schema),
                snapshot_properties={OFFSETS: offsets_text(offsets)},
            )

    def compact(self, now_s: float) -> int:
        """See `Target`."""
        with self._errors():
            table = self._table()
            if table is None:
                return 0
            made = 0
            for day, count in self._crowded(table, now_s).items():
                # of the table that is overwritten: another is refused
                offsets = self._offsets_of(table)
                of_day = f"{DAY} = '{day}'"
                table.overwrite(
                    table.scan(row_filter=of_day).to_arrow(),
                    overwrite_filter=of_day,
                    snapshot_properties={OFFSETS: offsets_text(offsets)},
                )
                made += count
                table = self._loaded()
            return made

    def expire(self, keep_s: float) -> None:
        """See `Target`; files that no state has go when they are so old, whoever has left them."""
        with self._errors():
            table = self._table()
            if table is None:
                return
            before_ms = wall_clock_ms() - int(keep_s * 1000)
            old = {one.snapshot_id for one in table.snapshots() if one.timestamp_ms < before_ms}
            if old - {table.metadata.current_snapshot_id}:
                before = datetime.fromtimestamp(before_ms / 1000, UTC).replace(tzinfo=None)
                table.maintenance.expire_snapshots().older_than(before).commit()
            sweep(self._loaded(), min(before_ms, wall_clock_ms() - int(IN_FLIGHT_S * 1000)))

    def _table(self) -> Table | None:
        try:
            return self._loaded()
        except NoSuchTableError:
            return None

    def _loaded(self) -> Table:
        """The table as it is now; a commit of which another was faster is not tried again.

        PyIceberg would put the same rows behind those of the other.
        """
        table = self._catalog.load_table(self._name)
        properties = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        return table

    def _new_table(self) -> Table:
        with suppress(NamespaceAlreadyExistsError):
            self._catalog.create_namespace(self._name.rpartition(".")[0])
        # in one commit: a table without its partitions is never there
        with (
            self._catalog.create_table_transaction(self._name, self._schema) as creation,
            creation.update_spec() as update,
        ):
            update.add_field(DAY, IdentityTransform(), DAY)
        return self._loaded()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What PyIceberg raises, as errors of ours."""
        try:
            yield
        except (
            CommitFailedException,
            CommitStateUnknownException,
            TableAlreadyExistsError,
        ) as error:
            raise TableChangedError(self._text(error)) from None
        except (OSError, RESTError, SQLAlchemyError) as error:
            raise TableAccessError(self._text(error)) from None

    def _text(self, error: Exception) -> str:
        return f"{self._name}: {without_secrets(error, {}, self._properties)}"

    def _crowded(self, table: Table, now_s: float) -> dict[str, int]:
        """By day, how many small files it has, where these are to be made one."""
        small: dict[str, list[float]] = {}
        sizes: dict[str, int] = {}
        for entry in self._entries(table):
            file = entry.data_file
            day = str(file.partition[0])
            sizes[day] = sizes.get(day, 0) + file.file_size_in_bytes
            if file.file_size_in_bytes < SMALL_SIZE:
                snapshot = table.snapshot_by_id(entry.snapshot_id or 0)
                # forgotten are only old ones
                age_s = math.inf if snapshot is None else now_s - snapshot.timestamp_ms / 1000
                small.setdefault(day, []).append(age_s)
        return {
            day: len(old)
            for day, old in small.items()
            if sizes[day] <= _DAY_SIZE_MAX
            and (len(old) >= SMALL_COUNT or (len(old) > 1 and max(old) >= SMALL_AGE_S))
        }

    @staticmethod
    def _entries(table: Table) -> Iterator[ManifestEntry]:
        """The files of the newest snapshot."""
        snapshot = table.current_snapshot()
        for manifest in [] if snapshot is None else snapshot.manifests(table.io):
            if manifest.content == ManifestContent.DATA:
                yield from manifest.fetch_manifest_entry(table.io)
