"""What a kill leaves of a store that is open in this process."""

import shutil
import threading

from rmqcore.files.config_file import ConfigFile

_TABLE_IS_WRITTEN = threading.Lock()


def written_apart(monkeypatch):
    """Have `copy_as_killed` wait for a table that is being written, while a test runs."""
    store = ConfigFile.store

    def alone(file, text):
        with _TABLE_IS_WRITTEN:
            store(file, text)

    monkeypatch.setattr(ConfigFile, "store", alone)


def copy_as_killed(store, copy):
    """Copy what a kill leaves of a store now.

    A table's file is renamed while it is written: a copy beside that may have it under neither
    name, which no kill leaves.
    """
    with _TABLE_IS_WRITTEN:
        shutil.copytree(store, copy, ignore=shutil.ignore_patterns("*.tmp"))
