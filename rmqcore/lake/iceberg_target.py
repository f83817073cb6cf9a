"""`IcebergTarget`: an Iceberg table; how far its queues were read is in each snapshot's summary."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import UUID

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
    ValidationError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, write_file
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import Table, TableProperties, WriteTask
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from sqlalchemy.exc import SQLAlchemyError

from rmqcore.chance import token_bytes
from rmqcore.errors import ConfigError
from rmqcore.lake.iceberg_files import forgotten, sweep
from rmqcore.lake.sources import Progress
from rmqcore.lake.storage_names import iceberg_options, without_secrets
from rmqcore.lake.target import (
    DAY,
    FASTER,
    IN_FLIGHT_S,
    OFFSETS,
    SMALL_AGE_S,
    SMALL_COUNT,
    SMALL_SIZE,
    THERE,
    MissedMessagesError,
    TableAccessError,
    TableChangedError,
    check_types,
    commit_facts,
    lacking,
    offset_bounds,
    progress_of,
    with_day,
    without_offsets,
)
from rmqcore.scan.tables import ICEBERG_CATALOG, iceberg_properties, in_any_text, tried_once
from rmqcore.world import wall_clock_ms

NAMESPACE: Final = "rmq"
#: RocketMQ allows these in a topic, and readers of tables take them for a part of a URL.
_ODD: Final = re.compile(r"[%|]")
#: Opening a catalog fails with one of these when none is there, or its settings are wrong.
_NO_CATALOG: Final = (
    ImportError,
    NoSuchPropertyException,
    NotInstalledError,
    OSError,
    RESTError,
    SQLAlchemyError,
    ValueError,
)
#: Small files that are made one are in memory; those that would make more than this wait.
MERGED_SIZE: Final = 256 << 20
#: How many earlier descriptions of a table are kept: each commit writes the list of them.
_PROPERTIES: Final = {
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "20",
}


class IcebergTarget:
    """See `rmqcore.lake.target.Target`; partitioned by `DAY`.

    Args:
        catalog: which has the table.
        name: of the table, ``namespace.table``.
        topic: whose messages its rows are.
        schema: of its rows; columns that a table of before lacks are added.
        properties: of the catalog, whose secrets are in no error.
        is_alone: whether the catalog is that of this table only.
    """

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        topic: str,
        schema: pa.Schema,
        properties: Mapping[str, str] | None = None,
        *,
        is_alone: bool = False,
    ) -> None:
        self._topic = topic
        self._is_alone = is_alone
        self._catalog = catalog
        self._name = name
        self._properties = properties or {}
        self._schema = schema.append(pa.field(DAY, pa.string()))

    @classmethod
    def in_directory(
        cls, directory: Path, name: str, topic: str, schema: pa.Schema
    ) -> IcebergTarget:
        """A table in a directory, whose catalog lies there, too; see `iceberg_properties`.

        Args:
            directory: of the table; made when it is missing.
            name: of the table, in the catalog's one namespace.
            topic: whose rows it has.
            schema: of the rows that will be appended.

        Raises:
            TableAccessError: the directory cannot be made, or what lies there is no catalog.
        """
        properties = iceberg_properties(directory)
        place = Path(properties["uri"].removeprefix("sqlite:///"))
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            catalog = SqlCatalog(ICEBERG_CATALOG, **properties)
        except (OSError, SQLAlchemyError) as error:
            raise TableAccessError(f"{place}: {without_secrets(error, {}, {})}") from None
        return cls(catalog, f"{NAMESPACE}.{name}", topic, schema, is_alone=True)

    @classmethod
    def in_catalog(
        cls,
        properties: Mapping[str, str],
        name: str,
        topic: str,
        schema: pa.Schema,
        storage_options: Mapping[str, str],
    ) -> IcebergTarget:
        """A table of a catalog of one's own.

        Args:
            properties: as PyIceberg's ``load_catalog`` takes them; ``name`` is that of a catalog
                of PyIceberg's configuration.
            name: of the table, ``namespace.table``.
            topic: as for the class.
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
        return cls(catalog, name, topic, schema, given)

    def offsets(self) -> Progress:
        """See `Target`."""
        with self._errors():
            table = self._table()
            if table is None:
                return {}
            self._check_types(table)
            return self._offsets_of(table)

    def _offsets_of(self, table: Table) -> Progress:
        walked = self._since_told(table)
        summary = walked[-1].summary if walked else None
        if summary is not None and OFFSETS in summary.additional_properties:
            return progress_of(summary.additional_properties, self._topic, self._name)
        if walked:
            raise without_offsets(self._name)
        return {}

    @staticmethod
    def _since_told(table: Table) -> list[Snapshot]:
        """The states back to the newest that says how far queues were read; newer are of others."""
        found = []
        snapshot = table.current_snapshot()
        while snapshot is not None:
            found.append(snapshot)
            if snapshot.summary and OFFSETS in snapshot.summary.additional_properties:
                break
            before = snapshot.parent_snapshot_id
            snapshot = None if before is None else table.snapshot_by_id(before)
        return found

    def append(
        self, rows: pa.Table, since: Progress, offsets: Progress, *, may_have: bool = False
    ) -> int:
        """Commit rows and how far queues were read then; see `Target.append`.

        Raises:
            TableAccessError: the table cannot be read or written.
            RmqCoreError: a column is there with another type.
        """
        with self._errors():
            table = self._table() or self._new_table()
            self._check_types(table)
            if known := set(self._schema.names) - set(table.schema().column_names):
                with table.update_schema() as update:
                    update.union_by_name(pa.schema([self._schema.field(name) for name in known]))
                table = self._loaded()
            # the commit is refused when the table is another than the one that was asked here
            if self._offsets_of(table) != since:
                raise TableChangedError(f"{self._name}: another follower has been there")
            if may_have and not (rows := lacking(rows, self._near(table, rows))).num_rows:
                return 0
            appended = with_day(rows).select(self._schema.names).cast(self._schema)
            facts = commit_facts(self._topic, offsets)
            in_any_text(table, lambda: table.append(appended, snapshot_properties=facts))
        return int(rows.num_rows)

    def _check_types(self, table: Table) -> None:
        check_types(table.schema().as_arrow(), self._schema, self._name)

    def near(self, rows: pa.Table) -> pa.Table:
        """See `Target`."""
        with self._errors():
            table = self._table()
            return rows.slice(0, 0).select(THERE) if table is None else self._near(table, rows)

    @staticmethod
    def _near(table: Table, rows: pa.Table) -> pa.Table:
        """As `near`, of this state of the table."""
        least, most = offset_bounds(rows)
        near = f"queue_offset >= {least} and queue_offset <= {most}"
        # in the order of the table, whose columns somebody may have moved
        return table.scan(near, selected_fields=THERE).to_arrow().select(THERE)

    def compact(self, now_s: float) -> int:
        """See `Target`."""
        with self._errors():
            table = self._table()
            # how else somebody has partitioned it since, files are not put together here
            if table is None or [field.name for field in table.spec().fields] != [DAY]:
                return 0
            crowded = self._crowded(table, now_s)
            if not crowded:
                return 0
            day = max(crowded)
            self._merge(table, day, crowded[day])
            return len(crowded[day])

    def _merge(self, table: Table, day: str, small: set[str]) -> None:
        """Make one of files of a day, in a commit of the table that was asked: else it fails."""
        facts = commit_facts(self._topic, self._offsets_of(table))
        plan = table.scan(row_filter=f"{DAY} = '{day}'").plan_files()
        tasks = [task for task in plan if task.file.file_path in small]
        rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(tasks)
        written = in_any_text(table, lambda: self._written(table, day, rows))
        with (
            table.transaction() as commit,
            commit.update_snapshot(snapshot_properties=facts).overwrite() as files,
        ):
            for task in tasks:
                files.delete_data_file(task.file)
            for file in written:
                files.append_data_file(file)

    @staticmethod
    def _written(table: Table, day: str, rows: pa.Table) -> list[DataFile]:
        """A file of rows of a day, which no commit has yet."""
        spec, schema = table.spec(), table.schema()
        values = [PartitionFieldValue(field, day) for field in spec.fields]
        key = PartitionKey(values, spec, schema)
        task = WriteTask(
            UUID(bytes=token_bytes(16), version=4), 0, schema, rows.to_batches(), partition_key=key
        )
        return list(write_file(table.io, table.metadata, iter([task])))

    def expire(self, keep_s: float) -> None:
        """See `Target`; files that no state has go when they are so old, whoever has left them."""
        with self._errors():
            table = self._table()
            if table is None:
                return
            now_ms, keep_ms = wall_clock_ms(), int(keep_s * 1000)
            needed = {ref.snapshot_id for ref in table.metadata.refs.values()}
            needed |= {snapshot.snapshot_id for snapshot in self._since_told(table)}
            states = {
                one.snapshot_id: one.timestamp_ms
                for one in table.snapshots()
                if one.snapshot_id not in needed
            }
            if gone := forgotten(states, now_ms, keep_ms):
                table.maintenance.expire_snapshots().by_ids(gone).commit()
            sweep(self._loaded(), now_ms - max(keep_ms, int(IN_FLIGHT_S * 1000)))

    def _table(self) -> Table | None:
        try:
            return self._loaded()
        except NoSuchTableError:
            return None

    def _loaded(self) -> Table:
        """The table as it is now; a commit of which another was faster is not tried again."""
        table: Table = tried_once(self._catalog.load_table(self._name))
        return table

    def _new_table(self) -> Table:
        namespace = self._name.rpartition(".")[0]
        with suppress(NamespaceAlreadyExistsError):
            self._catalog.create_namespace(namespace)
        others = self._catalog.list_tables(namespace) if self._is_alone else []
        if others:
            raise MissedMessagesError(
                f"the directory has the table {'.'.join(others[0])}; give {self._topic} one of its "
                "own"
            )
        # in one commit: a table without its partitions is never there
        with (
            self._catalog.create_table_transaction(
                self._name, self._schema, self._location(), properties=_PROPERTIES
            ) as creation,
            creation.update_spec() as update,
        ):
            update.add_field(DAY, IdentityTransform(), DAY)
        return self._loaded()

    def _location(self) -> str | None:
        """Where a table of a directory lies, whose topic has what is taken for a part of a URL.

        None: where the catalog puts it.
        """
        namespace, _, name = self._name.rpartition(".")
        plain = _ODD.sub("_", name)
        if not self._is_alone or plain == name:
            return None
        return f"{self._catalog.properties['warehouse']}/{namespace}/{plain}"

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
            raise TableChangedError(f"{self._text(error)}: {FASTER}") from None
        except _away() as error:
            raise TableAccessError(self._text(error)) from None

    def _text(self, error: Exception) -> str:
        return f"{self._name}: {without_secrets(error, {}, self._properties)}"

    def _crowded(self, table: Table, now_s: float) -> dict[str, set[str]]:
        """By day its small files that are to be made one, the oldest first."""
        small: dict[str, list[tuple[float, int, str]]] = {}
        for entry in self._entries(table):
            file = entry.data_file
            if file.file_size_in_bytes < SMALL_SIZE:
                snapshot = table.snapshot_by_id(entry.snapshot_id or 0)
                # forgotten are only old ones
                age_s = math.inf if snapshot is None else now_s - snapshot.timestamp_ms / 1000
                of_day = small.setdefault(str(file.partition[0]), [])
                of_day.append((age_s, file.file_size_in_bytes, file.file_path))
        found: dict[str, set[str]] = {}
        for day, files in small.items():
            files.sort(reverse=True)
            if len(files) >= SMALL_COUNT or (len(files) > 1 and files[0][0] >= SMALL_AGE_S):
                sizes = itertools.accumulate(size for _, size, _ in files)
                few = {
                    file[2] for file, size in zip(files, sizes, strict=True) if size <= MERGED_SIZE
                }
                if len(few) > 1:
                    found[day] = few
        return found

    @staticmethod
    def _entries(table: Table) -> Iterator[ManifestEntry]:
        """The files of the newest snapshot."""
        snapshot = table.current_snapshot()
        for manifest in [] if snapshot is None else snapshot.manifests(table.io):
            if manifest.content == ManifestContent.DATA:
                yield from manifest.fetch_manifest_entry(table.io)


def _away() -> tuple[type[Exception], ...]:
    """What is raised where a catalog or its storage does not answer, or refuses."""
    found: tuple[type[Exception], ...] = (OSError, RESTError, SQLAlchemyError, ValidationError)
    # Glue is asked through it, by whom has it
    aws = sys.modules.get("botocore.exceptions")
    return found if aws is None else (*found, aws.BotoCoreError, aws.ClientError)
