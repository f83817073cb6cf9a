"""Reading whole stores, cut into splits: plan, read, audit. Never opens a store, never writes.

Needs numpy only; pyarrow only where Arrow leaves the process.

Floor: F6.
"""

from rmqcore.errors import RecordsGoneError
from rmqcore.native.columns._arrow import ColumnBatch, ColumnBatches
from rmqcore.native.columns._columns import COLUMNS
from rmqcore.scan.audit import AuditReport, QueueProblem, audit
from rmqcore.scan.log_walk import Damage, LogWalk
from rmqcore.scan.plan import LogPlan, open_log, plan
from rmqcore.scan.read import DEFAULT_COLUMNS, FULL_COLUMNS, LIGHT_COLUMNS, read, read_store
from rmqcore.scan.runner import Runner, run
from rmqcore.scan.selected import SelectedLog
from rmqcore.scan.selection import HIDDEN, Selection
from rmqcore.scan.shown_topics import ShownTopics, shown
from rmqcore.scan.split import Split

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "FULL_COLUMNS",
    "HIDDEN",
    "LIGHT_COLUMNS",
    "AuditReport",
    "ColumnBatch",
    "ColumnBatches",
    "Damage",
    "LogPlan",
    "LogWalk",
    "QueueProblem",
    "RecordsGoneError",
    "Runner",
    "SelectedLog",
    "Selection",
    "ShownTopics",
    "Split",
    "audit",
    "open_log",
    "plan",
    "read",
    "read_store",
    "run",
    "shown",
]
