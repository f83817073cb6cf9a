"""What a table that follows a topic costs after many commits, and who reads it.

    python bench/table_commits.py DIRECTORY delta|iceberg

Delta: commits a minute apart of which only the log is written, by hand, with the compaction of
every sixteen files, and a checkpoint that the last ten stand behind; "ms/commit" is what a follower
needs to see how far the table is.
Iceberg: real commits of one row a day apart, then an hour, then a minute: after the last phase the
table has the states that a week of a commit a minute leaves. Prints processor times of a commit and
of planning by a reader who begins afresh, and what that reader reads.
"""

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa

from rmqcore.lake import table_pair
from rmqcore.lake.sources import Place
from rmqcore.lake.table_pair import KEEP_S, TablePair, plain_schema
from rmqcore.lake.target import commit_facts
from rmqcore.scan.mark import Mark
from rmqcore.scan.tables import iceberg_properties

QUEUES = 8
DAY = "2026-01-01"


class Clock(datetime):
    """The time of the simulation, where PyIceberg asks for it."""

    passed_s = 0
    begun_s = time.time()

    @classmethod
    def now(cls, tz=None):
        """Like that of `datetime`."""
        moment = datetime.fromtimestamp(cls.begun_s, UTC) + timedelta(seconds=cls.passed_s)
        return moment.astimezone(tz)

    @classmethod
    def seconds(cls):
        """Like `time.time`."""
        return cls.now(UTC).timestamp()


def row(number):
    """A message of one of the queues."""
    moment = Clock.now(UTC)
    known = {"topic": "T", "broker": "broker-a", "queue_id": number % QUEUES}
    known |= {"queue_offset": number // QUEUES, "store_timestamp": moment}
    schema = plain_schema().append(pa.field("body", pa.binary()))
    return pa.Table.from_pylist([known | {"born_timestamp": moment, "body": b"x" * 100}], schema)


def put(pair, number):
    """A commit as a follower makes it; processor time in ms."""
    begun_s = time.process_time()
    known = pair.good.offsets()
    queue = f"broker-a/{number % QUEUES}"
    reached = known | {queue: Place(number // QUEUES + 1, Mark(number, number))}
    pair.put(row(number), known, reached)
    pair.compact(beside=False)
    return 1000 * (time.process_time() - begun_s)


def tell(what, commits_ms, place, planned):
    """Print a line."""
    begun_s = time.process_time()
    files, size = planned(place)
    plan_ms = 1000 * (time.process_time() - begun_s)
    middle = sorted(commits_ms)[len(commits_ms) // 2]
    print(f"{what:28} {middle:10.0f} {plan_ms:10.0f} {files:6} {size:12,}", flush=True)


# ---- Delta


def delta_planned(place):
    """Files of a table, and bytes of its log that this needed."""
    from deltalake import DeltaTable

    files = len(DeltaTable(place).file_uris())
    log = Path(place, "_delta_log")
    last = json.loads((log / "_last_checkpoint").read_text())["version"]
    read = [one for one in log.iterdir() if one.name[:20].isdigit() and int(one.name[:20]) >= last]
    return files, sum(one.stat().st_size for one in read)


def delta_commit(log, version, number, gone, added, minutes_ago=0):
    """Write the commit of a version by hand."""
    now_ms = int(time.time() * 1000) - 60_000 * minutes_ago
    facts = commit_facts("T", {"broker-a/0": Place(number + 1, Mark(number, number))})
    actions = [
        {"commitInfo": {"timestamp": now_ms, "operation": "WRITE", **facts}},
        {"txn": {"appId": "rmqcore", "version": number + 1, "lastUpdated": now_ms}},
    ]
    day = {"day": DAY}
    known = {"partitionValues": day, "size": 9000, "dataChange": True}
    actions += [
        {
            "remove": {
                "path": one,
                "deletionTimestamp": now_ms,
                "extendedFileMetadata": True,
                **known,
            }
        }
        for one in gone
    ]
    stats = json.dumps({"numRecords": 1})
    actions.append({"add": {"path": added, "modificationTime": now_ms, "stats": stats, **known}})
    (log / f"{version:020}.json").write_text("".join(json.dumps(one) + "\n" for one in actions))


def delta(place, counts):
    """Print a line for each number of commits, of a table of its own."""
    from deltalake import DeltaTable

    for commits in counts:
        pair = TablePair(f"{place}-{commits}", topic="T", table_format="delta", **NOTHING)
        pair.good.append(row(0), {}, {"broker-a/0": Place(1, Mark(0, 0))})
        few, log = [], Path(f"{place}-{commits}", "_delta_log")
        version = DeltaTable(log.parent).version()
        for number in range(1, commits + 1):
            ago = commits - number
            version += 1
            few.append(f"day={DAY}/{number}.parquet")
            delta_commit(log, version, number, [], few[-1], ago)
            if len(few) == 16:
                version += 1
                merged = f"day={DAY}/{number}-merged.parquet"
                delta_commit(log, version, number, few, merged, ago)
                few = [merged]
            if number == commits - 9:
                DeltaTable(log.parent).create_checkpoint()
        tell(f"{commits:,} commits", [delta_load_ms(pair)], log.parent, delta_planned)


def delta_load_ms(pair):
    """What a follower needs to see how far the table is."""
    begun_s = time.process_time()
    pair.good.offsets()
    return 1000 * (time.process_time() - begun_s)


# ---- Iceberg


def iceberg_planned(place):
    """Files of a table, and bytes of its description."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("rmqcore", **iceberg_properties(place))
    table = catalog.load_table("rmq.T")
    size = Path(table.metadata_location.removeprefix("file://")).stat().st_size
    files = len(list(table.scan().plan_files()))
    catalog.close()
    return files, size


def iceberg(place):
    """Print a line at the end of each phase."""
    from pyiceberg.table import snapshots, update

    from rmqcore.lake import iceberg_target

    table_pair.wall_clock_ms = lambda: int(Clock.seconds() * 1000)
    iceberg_target.wall_clock_ms = table_pair.wall_clock_ms
    snapshots.time = SimpleNamespace(time=Clock.seconds)
    update.datetime = Clock
    pair = TablePair(place, topic="T", table_format="iceberg", **NOTHING)
    number = 0
    for what, count, step_s in (("a day", 7, 86_400), ("an hour", 24, 3600), ("a minute", 120, 60)):
        times = []
        for _ in range(count):
            times.append(put(pair, number))
            number += 1
            Clock.passed_s += step_s
            if step_s > 60 or number % 60 == 0:
                pair.expire(KEEP_S)
        tell(f"{count} commits {what} apart", times[-10:], place, iceberg_planned)


NOTHING = {"bodies": None, "storage_options": None, "catalog": None}

if __name__ == "__main__":
    print(f"{'':28} {'ms/commit':>10} {'ms to plan':>10} {'files':>6} {'bytes read':>12}")
    if sys.argv[2] == "delta":
        delta(sys.argv[1], (100, 1000, 3000, 10_000))
    else:
        iceberg(sys.argv[1])
