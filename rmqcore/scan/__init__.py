"""Whole stores by splits: plan, read, audit, rebuild, export. Reads the log, never opens the store.

Floor: F6; numpy only; pyarrow only where Arrow leaves the process.
"""

from rmqcore._arrow import ColumnBatch, ColumnBatches
from rmqcore._columns import COLUMNS
from rmqcore.errors import RecordsGoneError
from rmqcore.scan.audit import AuditReport, QueueProblem, audit
from rmqcore.scan.cold_store import RebuildReport
from rmqcore.scan.export import ExportedPart, export, export_store, messages
from rmqcore.scan.import_files import ImportReport, import_files, message_of
from rmqcore.scan.log_walk import Damage, LogWalk
from rmqcore.scan.plan import LogPlan, plan
from rmqcore.scan.read import DEFAULT_COLUMNS, FULL_COLUMNS, LIGHT_COLUMNS, read, read_store
from rmqcore.scan.rebuild_index import rebuild_index
from rmqcore.scan.rebuild_queues import rebuild, rebuild_consume_queues
from rmqcore.scan.runner import Runner, run
from rmqcore.scan.split import Split

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "FULL_COLUMNS",
    "LIGHT_COLUMNS",
    "AuditReport",
    "ColumnBatch",
    "ColumnBatches",
    "Damage",
    "ExportedPart",
    "ImportReport",
    "LogPlan",
    "LogWalk",
    "QueueProblem",
    "RebuildReport",
    "RecordsGoneError",
    "Runner",
    "Split",
    "audit",
    "export",
    "export_store",
    "import_files",
    "message_of",
    "messages",
    "plan",
    "read",
    "read_store",
    "rebuild",
    "rebuild_consume_queues",
    "rebuild_index",
    "run",
]
