"""Makes Spark know ``format("rmq")`` by itself.

Spark imports every top-level module whose name begins with ``pyspark_`` when it meets a format that
it does not know, and one that raises would hide all others: so this one never does.
"""

from contextlib import suppress

with suppress(ImportError):
    from rmqcore.spark.source import RmqSource as DefaultSource

__all__ = ["DefaultSource"]
