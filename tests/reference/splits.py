"""What a worker process does with a split of a log: importable there by its name."""

from rmqcore import scan
from rmqcore.errors import CorruptRecordError


def rows_in(split):
    """Where the split begins, and how many rows it has."""
    return split.start, sum(len(batch) for batch in scan.read(split, ["topic"]))


def fails(split):
    """Find damage where none is."""
    raise CorruptRecordError("somewhere", split.start, "on purpose")
