"""huey's own suite, on our storage: its storage, priority, consumer and API tests."""

import importlib
import os
import shutil
import tempfile
import unittest

import pytest

from rmqcore.adapters.huey import RmqHuey

pytestmark = pytest.mark.peers
# it is read when the suite is imported
os.environ["HUEY_SLOW_TESTS"] = "1"
base = importlib.import_module("huey.tests.base")

#: of the storage of another: its tables in memory
OF_MEMORY_STORAGE = {"test_chord_bookkeeping_cleared"}


def get_huey(case):
    folder = tempfile.mkdtemp(prefix="rmqcore-huey-")
    huey = RmqHuey("test", path=folder, utc=False, blocking=False)
    case.addCleanup(shutil.rmtree, folder)
    case.addCleanup(huey.storage.close)
    return huey


base.BaseTestCase.get_huey = get_huey
storage_tests = importlib.import_module("huey.tests.test_storage").StorageTests


class TestStorage(storage_tests, base.BaseTestCase):
    pass


class TestStorageThatBlocks(storage_tests, base.BaseTestCase):
    def get_huey(self):
        huey = super().get_huey()
        huey.storage.blocking = True
        return huey


class TestStorageWithLeases(storage_tests, base.BaseTestCase):
    def get_huey(self):
        huey = super().get_huey()
        huey.storage.lease_ms = 60_000
        return huey


def cases(name):
    """The test classes of a module of the suite, without what is another storage's."""
    module = importlib.import_module(f"huey.tests.{name}")
    for case in list(vars(module).values()):
        is_case = isinstance(case, type) and issubclass(case, unittest.TestCase)
        if is_case and case.__module__ == module.__name__:
            for other in OF_MEMORY_STORAGE & vars(case).keys():
                delattr(case, other)
            yield f"{name}_{case.__name__}", case


for _module in ("test_priority", "test_consumer", "test_api"):
    globals().update(cases(_module))
