"""Reading whole stores and archives, cut into splits: plan, read, audit. Never opens or writes one.

Needs numpy only; pyarrow only where Arrow leaves the process.

Floor: F6.
"""

from rmqcore.errors import RecordsGoneError
from rmqcore.native.columns._arrow import ColumnBatch, ColumnBatches
from rmqcore.native.columns._columns import COLUMNS
from rmqcore.scan.any_log import AnyLog, AnySelected, is_archive, open_any_log, select
from rmqcore.scan.archive_log import ArchiveLog
from rmqcore.scan.audit import AuditReport, QueueProblem, audit
from rmqcore.scan.joined_log import JoinedLog
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
    "AnyLog",
    "AnySelected",
    "ArchiveLog",
    "AuditReport",
    "ColumnBatch",
    "ColumnBatches",
    "Damage",
    "JoinedLog",
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
    "is_archive",
    "open_any_log",
    "open_log",
    "plan",
    "read",
    "read_store",
    "run",
    "select",
    "shown",
]
