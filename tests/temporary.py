"""Temporary directories that tests of one process share, and that go with it."""

from contextlib import ExitStack
from tempfile import TemporaryDirectory

#: closed by conftest.py: a process of xdist's that takes long to end is killed before its exit
AT_END = ExitStack()


def shared_directory(name, parent=None):
    """Make a directory, which is there until this process ends; returns its path as a text."""
    return AT_END.enter_context(TemporaryDirectory(prefix=f"rmqcore-{name}-", dir=parent))
