"""`DeltaTarget`: a Delta table; how far its queues were read is in each commit's metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from rmqcore.errors import RmqCoreError
from rmqcore.lake.sources import Place, Progress
from rmqcore.lake.storage_names import delta_options, without_secrets
from rmqcore.lake.target import (
    DAY,
    FASTER,
    IN_FLIGHT_S,
    NUMBER,
    OFFSETS,
    SMALL_AGE_S,
    SMALL_COUNT,
    SMALL_SIZE,
    THERE,
    TableAccessError,
    TableChangedError,
    check_types,
    commit_facts,
    lacking,
    offset_bounds,
    progress_of,
    read_count,
    with_day,
    without_offsets,
)

#: By this name, of whose versions one only gets in, two followers exclude each other; the version
#: is the sum of how far queues were read, which each commit with rows makes larger.
_APP: Final = "rmqcore"
#: Readers read a checkpoint and the commits behind it, ten at most, each of them by a request; it
#: names files that were taken out for a day, and not for a week. They are deleted after `KEEP_S`,
#: as files that nobody names.
CONFIGURATION: Final = {
    "delta.checkpointInterval": "10",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
#: Commits of others that are looked through for the newest of a follower.
_LOOKED_THROUGH: Final = 1000


class DeltaTarget:
    """See `rmqcore.lake.target.Target`; partitioned by `DAY`.

    Args:
        place: the table's directory, or its URL.
        topic: whose messages its rows are.
        schema: of its rows; columns that a table of before lacks are added by the next commit.
        storage_options: of object storage, see `delta_options`.

    Raises:
        ConfigError: half a pair of keys.
    """

    def __init__(
        self,
        place: str,
        topic: str,
        schema: pa.Schema,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._topic = topic
        self._place = place
        self._options = delta_options(place, storage_options or {})
        self._schema = schema.append(pa.field(DAY, pa.string()))

    def offsets(self) -> Progress:
        """See `Target`."""
        table = self._table()
        with self._errors():
            if table is None:
                return {}
            self._check_types(table)
            return self._offsets_of(table)

    def _offsets_of(self, table: DeltaTable) -> Progress:
        newest = table.transaction_version(_APP)
        # nearly always the last commit says it
        for looked_through in (1, _LOOKED_THROUGH):
            last, counted = table.version(), newest
            for commit in table.history(looked_through):
                if commit["version"] > last:
                    # which somebody has taken back
                    continue
                if OFFSETS in commit:
                    found = progress_of(commit, self._topic, self._place)
                    # a compaction that was overtaken says what was before the newest rows
                    if counted is None or read_count(found) >= counted:
                        return found
                elif commit["operation"] == "RESTORE":
                    state = self._rolled_back_to(commit)
                    last, counted = state.version(), state.transaction_version(_APP)
                    if counted is None and not state.count():
                        return {}
        if newest is not None:
            return self._offsets_in_rows(table, newest)
        if table.count():
            raise without_offsets(self._place)
        return {}

    def _offsets_in_rows(self, table: DeltaTable, counted: int) -> Progress:
        """How far queues were read, by the rows: no commit that is left says it.

        No queue was read less far. None was read further, behind its last row, where together they
        were read as far as the newest commit of a follower has counted, which no clean-up forgets.
        """
        found: dict[str, int] = {}
        mine = pc.field("topic") == self._topic
        for batch in table.to_pyarrow_dataset().to_batches(columns=[*NUMBER], filter=mine):
            lasts = pa.table(batch).group_by([*NUMBER[:2]]).aggregate([(NUMBER[2], "max")])
            for row in lasts.to_pylist():
                queue = f"{row['broker']}/{row['queue_id']}"
                found[queue] = max(found.get(queue, 0), row["queue_offset_max"] + 1)
        places = {queue: Place(offset) for queue, offset in found.items()}
        if read_count(places) != counted:
            raise without_offsets(self._place)
        return places

    def _rolled_back_to(self, commit: dict[str, Any]) -> DeltaTable:
        """The state to which somebody has taken the table back.

        Raises:
            RmqCoreError: its commit names a moment as text, which Spark takes in some time zone.
        """
        told = commit.get("operationParameters", {})
        version, moment_ms = told.get("version"), str(told.get("datetime"))
        state = DeltaTable(self._place, storage_options=self._options)
        if version is not None:
            state.load_as_version(int(version))
        elif moment_ms.isdigit():
            state.load_as_version(datetime.fromtimestamp(int(moment_ms) / 1000, UTC))
        else:
            raise RmqCoreError(
                f"{self._place}: it was taken back to a moment, and the commit {commit['version']} "
                "does not say to which version: take it back to a version by its number"
            )
        return state

    def append(
        self, rows: pa.Table, since: Progress, offsets: Progress, *, may_have: bool = False
    ) -> int:
        """Commit rows and how far queues were read then; see `Target.append`.

        Raises:
            TableAccessError: the table cannot be read or written.
            RmqCoreError: a column is there with another type.
        """
        table = self._table() or self._new_table()
        with self._errors():
            if self._offsets_of(table) != since:
                raise TableChangedError(f"{self._place}: another follower has been there")
            self._check_types(table)
            if may_have and not (rows := lacking(rows, self._near(table, rows))).num_rows:
                return 0
            write_deltalake(
                table,
                with_day(rows).select(self._schema.names).cast(self._schema),
                mode="append",
                schema_mode="merge",
                commit_properties=CommitProperties(
                    custom_metadata=commit_facts(self._topic, offsets),
                    # whoever commits between makes these rows a second copy: not tried again
                    max_commit_retries=0,
                    app_transactions=[Transaction(_APP, read_count(offsets))],
                ),
            )
        return int(rows.num_rows)

    def _check_types(self, table: DeltaTable) -> None:
        check_types(pa.schema(table.schema().to_arrow()), self._schema, self._place)

    def near(self, rows: pa.Table) -> pa.Table:
        """See `Target`."""
        table = self._table()
        with self._errors():
            return rows.slice(0, 0).select(THERE) if table is None else self._near(table, rows)

    @staticmethod
    def _near(table: DeltaTable, rows: pa.Table) -> pa.Table:
        """As `near`, of this state of the table."""
        least, most = offset_bounds(rows)
        offset = pc.field("queue_offset")
        near = (offset >= least) & (offset <= most)
        return table.to_pyarrow_table(columns=[*THERE], filters=near)

    def compact(self, now_s: float) -> int:
        """See `Target`."""
        table = self._table()
        offsets = self.offsets()
        crowded = [] if table is None or not offsets else self._crowded(table, now_s)
        if table is None or not crowded:
            return 0
        with self._errors():
            told = table.optimize.compact(
                partition_filters=[(DAY, "=", crowded[0])],
                # into which any two small ones fit: of two nearly whole ones both would stay
                target_size=2 * SMALL_SIZE,
                commit_properties=CommitProperties(
                    custom_metadata=commit_facts(self._topic, offsets)
                ),
            )
        return int(told["numFilesRemoved"])

    def expire(self, keep_s: float) -> None:
        """See `Target`."""
        table = self._table()
        if table is None:
            return
        hours = round(max(IN_FLIGHT_S, keep_s) / 3600)
        kept = CommitProperties(custom_metadata=commit_facts(self._topic, self.offsets()))
        with self._errors():
            table.vacuum(
                hours,
                dry_run=False,
                enforce_retention_duration=False,
                commit_properties=kept,
                full=True,
            )
            table.cleanup_metadata()

    def _table(self) -> DeltaTable | None:
        # `is_deltatable` would keep all threads waiting until storage answers
        with self._errors(), suppress(TableNotFoundError):
            return DeltaTable(self._place, storage_options=self._options)
        return None

    def _new_table(self) -> DeltaTable:
        with self._errors():
            return DeltaTable.create(
                self._place,
                self._schema,
                partition_by=[DAY],
                mode="ignore",
                configuration=CONFIGURATION,
                storage_options=self._options,
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What the package raises, as errors of ours."""
        try:
            yield
        except CommitFailedError as error:
            raise TableChangedError(f"{self._text(error)}: {FASTER}") from None
        except (DeltaError, OSError) as error:
            raise TableAccessError(self._text(error)) from None

    def _text(self, error: Exception) -> str:
        return f"{self._place}: {without_secrets(error, self._options, {})}"

    def _crowded(self, table: DeltaTable, now_s: float) -> list[str]:
        """The days with small files that are to be made one, the newest first."""
        day_of = f"partition.{DAY}"
        told: Any = pa.table(table.get_add_actions(flatten=True))
        # of the other columns some may be times that Python does not show
        files = told.select(["size_bytes", "modification_time", day_of]).to_pylist()
        by_day: dict[str, list[bool]] = {}
        oldest_ms = (now_s - SMALL_AGE_S) * 1000
        for file in files:
            if file["size_bytes"] < SMALL_SIZE:
                is_old = file["modification_time"] <= oldest_ms
                by_day.setdefault(file[day_of], []).append(is_old)
        return [
            day
            for day, old in sorted(by_day.items(), reverse=True)
            if len(old) >= SMALL_COUNT or (len(old) > 1 and any(old))
        ]
