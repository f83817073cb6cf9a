"""Staged files, as tasks leave them."""

import pyarrow as pa

from rmqcore.config import load_config
from rmqcore.store.staged_files import finished
from rmqcore.store.staged_records import StagedWriter


def stage(path, columns, *, config=None, piece_size=1 << 19, **settings):
    """A staged file with the rows of a table, of topic T where it has none."""
    with StagedWriter(path, load_config(config), piece_size=piece_size) as writer:
        writer.put_table(pa.table(columns), **{"topic": "T"} | settings)
        return finished(writer)


def three_files(store_path):
    """Three staged files of 200 messages for two queues, two pieces each."""
    return [
        stage(
            store_path / "spark" / "staging-test" / f"{part}.rows",
            {
                "body": [f"{part}-{number}" * 50 for number in range(200)],
                "queue_id": [number % 2 for number in range(200)],
                "unique_key": [f"{part:08X}{number:024X}" for number in range(200)],
            },
            piece_size=50_000,
        )
        for part in range(3)
    ]


def pairs(*rows):
    """A column of properties."""
    return pa.array([list(row.items()) for row in rows], pa.map_(pa.string(), pa.string()))
