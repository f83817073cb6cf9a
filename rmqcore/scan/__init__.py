"""Whole stores by splits: plan, read, audit, rebuild, export. Reads the log, never opens the store.

Floor: F6; numpy only; pyarrow only where Arrow leaves the process.
"""

from rmqcore._arrow import ColumnBatch, ColumnBatches
from rmqcore._columns import COLUMNS
from rmqcore.errors import RecordsGoneError
from rmqcore.scan.log_walk import Damage, LogWalk
from rmqcore.scan.plan import LogPlan, plan
from rmqcore.scan.read import DEFAULT_COLUMNS, FULL_COLUMNS, LIGHT_COLUMNS, read, read_store
from rmqcore.scan.runner import run
from rmqcore.scan.split import Split

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "FULL_COLUMNS",
    "LIGHT_COLUMNS",
    "ColumnBatch",
    "ColumnBatches",
    "Damage",
    "LogPlan",
    "LogWalk",
    "RecordsGoneError",
    "Split",
    "plan",
    "read",
    "read_store",
    "run",
]
