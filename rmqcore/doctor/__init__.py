"""Looking into stores that may be damaged: verify, dump.

Floor: F8.
"""

from rmqcore.doctor.dump import DumpField, DumpItem, dump
from rmqcore.doctor.findings import Finding, Severity, VerifyReport
from rmqcore.doctor.verify import verify

__all__ = ["DumpField", "DumpItem", "Finding", "Severity", "VerifyReport", "dump", "verify"]
