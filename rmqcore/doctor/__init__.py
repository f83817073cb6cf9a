"""Looking into stores that may be damaged: verify, dump.

Floor: F8.
"""

from rmqcore.doctor.findings import Finding, Severity, VerifyReport
from rmqcore.doctor.verify import verify

__all__ = ["Finding", "Severity", "VerifyReport", "verify"]
