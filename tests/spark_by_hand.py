"""The data source, driven in this process as Spark's driver and workers do it."""

import json

from rmqcore import open_store


def reading(kind, paths, options):
    from rmqcore.spark.options import read_options
    from rmqcore.spark.schema import checked_columns, chosen_columns, schema_of

    paths = [paths] if not isinstance(paths, list) else paths
    place = (
        {"path": str(paths[0])} if len(paths) == 1 else {"paths": json.dumps(list(map(str, paths)))}
    )
    found = read_options({**place, **options})
    return kind(found, checked_columns(schema_of(chosen_columns(found))))


def rows_of(reader, partitions):
    return [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]


def batch(paths, **options):
    from rmqcore.spark.source import RmqReader

    reader = reading(RmqReader, paths, options)
    return rows_of(reader, reader.partitions())


class Stream:
    """A stream of which each trigger is asked for by hand."""

    def __init__(self, paths, at=None, **options):
        from rmqcore.spark.limited_stream import LimitedStreamReader

        self.reader = reading(LimitedStreamReader, paths, options)
        self.at = at or self.reader.initialOffset()

    def trigger(self):
        end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        end = json.loads(json.dumps(end))
        rows = rows_of(self.reader, self.reader.partitions(self.at, end))
        self.at = end
        return rows


def put(path, topic, *bodies, **arguments):
    with open_store(path, mapped_file_size_commit_log=64 << 10) as store:
        for body in bodies:
            store.put(topic, body, **arguments)


def numbered(count, size=1):
    return [b"%0*d" % (size, number) for number in range(count)]


def bodies_of(rows):
    return [row["body"] for row in rows]
