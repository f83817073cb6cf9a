"""Which tests are collected: those of another program only where `make test-adapters` runs."""

import os

#: they import what they adapt, and its suite
collect_ignore_glob = (
    [] if "RMQCORE_SUITES" in os.environ else ["test_*_suite.py", "test_*_live.py"]
)
