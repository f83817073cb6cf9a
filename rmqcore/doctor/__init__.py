"""Examines stores that may be damaged: verify, dump.

Never opens a store for writing, and never trusts a byte of it.

Floor: F8.
"""

from rmqcore.doctor.dump import DumpField, DumpItem, dump
from rmqcore.doctor.findings import Finding, Severity, VerifyReport
from rmqcore.doctor.verify import verify

__all__ = ["DumpField", "DumpItem", "Finding", "Severity", "VerifyReport", "dump", "verify"]
