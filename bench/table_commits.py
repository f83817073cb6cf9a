"""What many commits cost a table that follows a topic, and who reads it.

    python bench/table_commits.py DIRECTORY delta|iceberg [COMMITS]

Commits of one row, each as `TableFollower` makes it: compaction where sixteen files are small,
states forgotten every hour of a clock that each commit puts on by a minute. Prints a line now and
then: processor time of the last commits, what a reader who begins afresh needs to plan, and what
its description weighs.
"""

import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa

from rmqcore.lake.sources import Place
from rmqcore.lake.table_pair import KEEP_S, TablePair, plain_schema
from rmqcore.scan.mark import Mark
from rmqcore.scan.tables import iceberg_properties

#: Seconds between two commits of a follower, which the simulation does not wait.
EVERY_S = 60
QUEUES = 8


class Clock(datetime):
    """The time of the simulation, where PyIceberg asks for it."""

    begun_s = time.time()
    commits = 0

    @classmethod
    def now(cls, tz=None):
        """Like that of `datetime`."""
        moment = datetime.fromtimestamp(cls.begun_s, UTC) + timedelta(seconds=EVERY_S * cls.commits)
        return moment.astimezone(tz)

    @classmethod
    def seconds(cls):
        """Like `time.time`."""
        return cls.now(UTC).timestamp()


def set_clocks(table_format):
    """Let the table's own times be those of the simulation."""
    from rmqcore.lake import table_pair

    table_pair.wall_clock_ms = lambda: int(Clock.seconds() * 1000)
    if table_format == "iceberg":
        from pyiceberg.table import snapshots, update

        from rmqcore.lake import iceberg_target

        iceberg_target.wall_clock_ms = table_pair.wall_clock_ms
        snapshots.time = SimpleNamespace(time=Clock.seconds)
        update.datetime = Clock


def row(number):
    """A message of one of the queues."""
    moment = Clock.now(UTC)
    known = {"topic": "T", "broker": "broker-a", "queue_id": number % QUEUES}
    known |= {"queue_offset": number // QUEUES, "store_timestamp": moment}
    schema = plain_schema().append(pa.field("body", pa.binary()))
    return pa.Table.from_pylist([known | {"born_timestamp": moment, "body": b"x" * 100}], schema)


def planned(place, table_format):
    """Files that a reader finds who has never seen the table; bytes of what it reads for that."""
    if table_format == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(place)
        log = Path(place, "_delta_log")
        last = max((int(one.name[:20]) for one in log.glob("*.checkpoint*.parquet")), default=-1)
        read = [one for one in log.iterdir() if one.name[:20].isdigit()]
        read = [one for one in read if int(one.name[:20]) >= last]
        return len(table.file_uris()), sum(one.stat().st_size for one in read)
    from pyiceberg.catalog.sql import SqlCatalog

    table = SqlCatalog("rmqcore", **iceberg_properties(place)).load_table("rmq.T")
    size = Path(table.metadata_location.removeprefix("file://")).stat().st_size
    return len(list(table.scan().plan_files())), size


def main(place, table_format, commits):
    """Commit, and print what it costs."""
    settings = {"bodies": None, "storage_options": None, "catalog": None}
    pair = TablePair(place, topic="T", table_format=table_format, **settings)
    set_clocks(table_format)
    progress, lines = {}, {10, 100, 1000, *range(0, commits + 1, 500)}
    print("commits  ms a commit  ms to plan  files  description  files on disk")
    since_s = time.process_time()
    count = 0
    for number in range(commits):
        queue = f"broker-a/{number % QUEUES}"
        reached = progress | {queue: Place(number // QUEUES + 1, Mark(number, number))}
        pair.put(row(number), progress, reached)
        pair.compact(beside=False)
        progress = reached
        count += 1
        Clock.commits = number + 1
        if number % 60 == 59:
            pair.expire(KEEP_S)
        if number + 1 in lines:
            used_s = time.process_time() - since_s
            begun_s = time.process_time()
            files, size = planned(place, table_format)
            plan_s = time.process_time() - begun_s
            on_disk = sum(1 for one in Path(place).rglob("*") if one.is_file())
            print(
                f"{number + 1:7} {1000 * used_s / count:12.1f} {1000 * plan_s:11.1f} {files:6}"
                f" {size:12,} {on_disk:14,}",
                flush=True,
            )
            since_s, count = time.process_time(), 0


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 10_000)
