"""Examines stores that may be damaged, explains what is wrong, and repairs them.

Never trusts a byte of a store, and never changes one that is not in the journal: `repair` and
`undo` alone change any.

Floor: F8.
"""

from rmqcore.doctor.diff import Difference, DiffReport, diff
from rmqcore.doctor.dump import DumpField, DumpItem, dump
from rmqcore.doctor.explain import explain
from rmqcore.doctor.explanation import Explanation
from rmqcore.doctor.findings import Finding, Severity, VerifyReport
from rmqcore.doctor.lost_messages import LostMessage
from rmqcore.doctor.plan import RepairPlan, plan
from rmqcore.doctor.repair import RepairReport, repair
from rmqcore.doctor.step import Step, StepKind
from rmqcore.doctor.undo import UndoReport, undo
from rmqcore.doctor.verify import verify

__all__ = [
    "DiffReport",
    "Difference",
    "DumpField",
    "DumpItem",
    "Explanation",
    "Finding",
    "LostMessage",
    "RepairPlan",
    "RepairReport",
    "Severity",
    "Step",
    "StepKind",
    "UndoReport",
    "VerifyReport",
    "diff",
    "dump",
    "explain",
    "plan",
    "repair",
    "undo",
    "verify",
]
