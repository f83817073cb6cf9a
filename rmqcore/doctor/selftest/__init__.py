"""What a store survives, tried out: power cuts, kills, failing system calls, damaged bytes.

Every test writes stores of its own in a scratch directory, damages them, opens them again and
compares what they answer with what was put. Never touches a store of the user's.

Floor: F8.
"""

from rmqcore.doctor.selftest.report import Row, SelfTestReport
from rmqcore.doctor.selftest.runner import crash, faults

__all__ = ["Row", "SelfTestReport", "crash", "faults"]
