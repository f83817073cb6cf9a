"""Consume queues and index of a cold store, derived from its log alone.

Never changes the log, and never leaves half a directory in the place of a whole one.

Floor: F7.
"""

from rmqcore.rebuild.cold_store import RebuildReport
from rmqcore.rebuild.consume_queues import rebuild, rebuild_consume_queues
from rmqcore.rebuild.index_files import rebuild_index

__all__ = ["RebuildReport", "rebuild", "rebuild_consume_queues", "rebuild_index"]
