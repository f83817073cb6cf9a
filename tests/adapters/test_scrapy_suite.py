"""Scrapy's own suite of its queues, on ours: of objects, and of requests."""

import marshal
import pickle

import pytest
from adapters import suites
from queuelib.tests import QueuelibTestCase
from queuelib.tests import test_queue as mixins
from scrapy.squeues import _pickle_serialize, _serializable_queue
from scrapy.utils.misc import build_from_crawler

from rmqcore.adapters import scrapy as ours
from rmqcore.adapters.queuelib import FifoQueue, LifoQueue

pytestmark = pytest.mark.peers

objects = suites.module("scrapy", "tests/test_squeues.py")
requests = suites.module("scrapy", "tests/test_squeues_request.py")

crawler = requests.crawler
_PickleFifo = _serializable_queue(FifoQueue, _pickle_serialize, pickle.loads)
_PickleLifo = _serializable_queue(LifoQueue, _pickle_serialize, pickle.loads)
_MarshalFifo = _serializable_queue(FifoQueue, marshal.dumps, marshal.loads)
_MarshalLifo = _serializable_queue(LifoQueue, marshal.dumps, marshal.loads)


class TestPickleFifo(objects.PickleFifoDiskQueueTest):
    # these three look into the files of queuelib's own queue
    test_chunks = test_not_szhdr = test_clear_removes_chunks = None

    def queue(self):
        return _PickleFifo(self.qpath)


class TestPickleLifo(objects.PickleLifoDiskQueueTest):
    test_file_size_shrinks = None  # of queuelib's own file, too

    def queue(self):
        return _PickleLifo(self.qpath)


class TestMarshalFifo(
    mixins.FifoTestMixin,
    mixins.PersistentTestMixin,
    mixins.QueueTestMixin,
    QueuelibTestCase,
    objects.FifoQueueTestMixin,
):
    def queue(self):
        return _MarshalFifo(self.qpath)


class TestMarshalLifo(
    mixins.LifoTestMixin,
    mixins.PersistentTestMixin,
    mixins.QueueTestMixin,
    QueuelibTestCase,
    objects.LifoQueueTestMixin,
):
    def queue(self):
        return _MarshalLifo(self.qpath)


class _Requests(requests.TestRequestQueueBase):
    @pytest.fixture
    def q(self, crawler, tmp_path):
        queue = build_from_crawler(self.queue_class, crawler, key=str(tmp_path / "some" / "queue"))
        yield queue
        queue.close()


class TestPickleFifoRequests(_Requests):
    is_fifo = True
    queue_class = ours.PickleFifoQueue


class TestPickleLifoRequests(_Requests):
    is_fifo = False
    queue_class = ours.PickleLifoQueue


class TestMarshalFifoRequests(_Requests):
    is_fifo = True
    queue_class = ours.MarshalFifoQueue


class TestMarshalLifoRequests(_Requests):
    is_fifo = False
    queue_class = ours.MarshalLifoQueue
