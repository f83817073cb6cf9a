"""queuelib's own suite, on our queues: each alone, and many of them in one store."""

import re
from pathlib import Path

import pytest
from adapters import suites
from queuelib.tests import QueuelibTestCase, track_closed

from rmqcore.adapters.queuelib import FifoQueue, LifoQueue

pytestmark = pytest.mark.peers

queue = suites.module("queuelib", "queuelib/tests/test_queue.py")
pqueue = suites.module("queuelib", "queuelib/tests/test_pqueue.py")
rrqueue = suites.module("queuelib", "queuelib/tests/test_rrqueue.py")


class _Disk(queue.PersistentTestMixin, queue.QueueTestMixin):
    # the mixin marks it as one that may fail, because Scrapy's queues do; ours must not
    def test_non_bytes_raises_typeerror(self):
        queue.PersistentTestMixin.test_non_bytes_raises_typeerror(self)


class TestFifo(queue.FifoTestMixin, _Disk, QueuelibTestCase):
    def queue(self):
        return FifoQueue(self.qpath)


class TestLifo(queue.LifoTestMixin, _Disk, QueuelibTestCase):
    def queue(self):
        return LifoQueue(self.qpath)


class _Shared:
    """All queues of a test in one store, which is gone when they are empty."""

    def qfactory(self, key):
        store = Path(self.qdir, "store")
        return track_closed(self.make)(Path(self.qdir, str(key)), store=store)


class TestFifoPriority(_Shared, pqueue.FifoDiskPriorityQueueTest):
    make = FifoQueue


class TestLifoPriority(_Shared, pqueue.LifoDiskPriorityQueueTest):
    make = LifoQueue


class TestFifoRoundRobin(_Shared, rrqueue.FifoDiskRRQueueTest):
    make = FifoQueue


class TestLifoRoundRobin(_Shared, rrqueue.LifoDiskRRQueueTest):
    make = LifoQueue


class TestFifoStartDomains(_Shared, rrqueue.FifoDiskRRQueueStartDomainsTest):
    make = FifoQueue


class TestLifoStartDomains(_Shared, rrqueue.LifoDiskRRQueueStartDomainsTest):
    make = LifoQueue


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Path(suites.__file__).parents[2] / "docs/adapters/scrapy.md"
    example = re.search(r"```python\n(from queuelib.*?)```", page.read_text("utf-8"), re.DOTALL)[1]
    exec(example)
    assert not any((tmp_path / "jobs").iterdir())
