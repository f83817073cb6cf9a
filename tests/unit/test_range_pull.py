"""A range of a queue is pulled whole and in order, whatever its broker answers, and when."""

import itertools
import tracemalloc

import pytest

from rmqcore import Message
from rmqcore._codec import encode_record
from rmqcore.client import MessageQueue
from rmqcore.errors import CorruptRecordError
from rmqcore.remoting import (
    RemotingClosedError,
    RemotingCommand,
    RemotingConnectError,
    RequestRefusedError,
)
from rmqcore.scan.cluster import (
    Access,
    Cluster,
    MessagesGoneError,
    QueueRange,
    pulls,
    read_range,
)

pytestmark = pytest.mark.logic

ACCESS = Access(namesrv_addr="127.0.0.1:9876")


class Broker:
    """A queue whose message at offset n is the text "n,"; and how its broker answers.

    Args:
        begin, end: of the queue.
        most: messages in an answer.
        backwards: answers come in the other order.
        odd: (code, next offset or None) of single answers, by offset, once each; None: cut off.
    """

    def __init__(self, begin=0, end=1000, most=32, backwards=False, odd=None):
        self.begin, self.end, self.most, self.backwards = begin, end, most, backwards
        self.odd = dict(odd or {})
        self.asked = []
        self.most_waiting = 0

    def link(self, address, access):
        return Link(self, address)

    def answer(self, fields):
        offset, count = int(fields["queueOffset"]), int(fields["maxMsgNums"])
        self.asked.append((offset, count))
        if offset in self.odd:
            odd = self.odd.pop(offset)
            if odd is None:
                raise RemotingClosedError("there")
            code, following = odd
            return RemotingCommand(code, {} if following is None else place(following))
        if offset < self.begin:
            return RemotingCommand(21, place(self.begin))
        stop = min(offset + count, offset + self.most, self.end)
        body = "".join(f"{number}," for number in range(offset, stop)).encode()
        return RemotingCommand(0, place(stop), body)


def place(offset):
    return {"nextBeginOffset": str(offset)}


class Link:
    def __init__(self, broker, address):
        self.broker, self.address, self.waiting = broker, address, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.waiting = []

    def send(self, commands):
        for command in commands:
            command.opaque = len(self.broker.asked) + len(self.waiting) + 1
            self.waiting.append(command)
        self.broker.most_waiting = max(self.broker.most_waiting, len(self.waiting))

    def receive(self, code):
        command = self.waiting.pop(-1 if self.broker.backwards else 0)
        found = self.broker.answer(command.ext_fields)
        found.opaque = command.opaque
        return found


def pulled(monkeypatch, broker, first=0, stop=1000, sleep=lambda _seconds: None):
    monkeypatch.setattr(pulls, "BrokerLink", broker.link)
    monkeypatch.setattr(pulls, "sleep", sleep)
    one = QueueRange(MessageQueue("T", "b", 0), ("master", "slave"), first, stop)
    found = list(pulls.RangePull(ACCESS, one).run())
    for before, behind in itertools.pairwise(found):
        assert before.following == behind.first
    text = b"".join(each.records for each in found).decode()
    return [int(number) for number in text.split(",") if number]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("most", [1, 8, 32, 33, 5000])
def test_every_message_comes_once_and_in_order(monkeypatch, most, backwards):
    broker = Broker(most=most, backwards=backwards)
    assert pulled(monkeypatch, broker) == list(range(1000))
    assert broker.most_waiting >= 8


def test_pulls_ask_for_what_the_broker_gives(monkeypatch):
    broker = Broker(end=20_000, most=32)
    assert len(pulled(monkeypatch, broker, stop=20_000)) == 20_000
    assert len(broker.asked) < 1.2 * 20_000 / 32
    generous = Broker(end=20_000, most=5000)
    assert len(pulled(monkeypatch, generous, stop=20_000)) == 20_000
    assert len(generous.asked) < 80


@pytest.mark.parametrize("odd", [None, (2, None), (20, None), (19, 64), (215, None)])
def test_what_passes_by_itself_is_asked_again(monkeypatch, odd):
    assert pulled(monkeypatch, Broker(odd={64: odd, 96: odd})) == list(range(1000))


def test_a_broker_that_starts_again_is_waited_for(monkeypatch):
    broker, waited = Broker(), []

    def link(address, access):
        if broker.asked and sum(waited) < 45:
            raise RemotingConnectError(address, "nobody listens")
        return Link(broker, address)

    def answer(fields):
        if len(broker.asked) == 3 and not waited:
            raise RemotingClosedError("master")
        return Broker.answer(broker, fields)

    monkeypatch.setattr(broker, "link", link)
    monkeypatch.setattr(broker, "answer", answer)
    assert pulled(monkeypatch, broker, sleep=waited.append) == list(range(1000))
    assert max(waited) == 5


def test_what_does_not_pass_is_an_error_in_the_end(monkeypatch):
    with pytest.raises(RequestRefusedError):
        pulled(monkeypatch, Broker(odd={64: (16, None)}))
    with pytest.raises(RequestRefusedError) as caught:
        pulled(monkeypatch, Broker(end=500))
    assert caught.value.code == 0


def test_a_queue_that_has_lost_its_begin_goes_on_with_what_it_has(monkeypatch):
    assert pulled(monkeypatch, Broker(begin=500)) == list(range(500, 1000))


def test_a_batch_that_reaches_further_is_not_read_again(monkeypatch):
    broker = Broker(odd={64: (0, 70)})
    assert pulled(monkeypatch, broker) == [*range(64), *range(70, 1000)]


# ---- as columns


class Records(Broker):
    """The same, whose messages are records; of those in `lacks` it has only the offset."""

    lacks = frozenset()

    def answer(self, fields):
        found = super().answer(fields)
        offsets = [int(number) for number in found.body.decode().split(",") if number]
        found.body = b"".join(record(n) for n in offsets if n not in self.lacks)
        return found


def record(number):
    message = Message("T", b"%d" % number, queue_id=0)
    # records of a queue lie anywhere in a log
    return encode_record(
        message, queue_offset=number, phy_offset=number * 7919, store_timestamp_ms=number
    )


def rows_of(monkeypatch, broker, first=0, stop=1000, **settings):
    monkeypatch.setattr(pulls, "BrokerLink", broker.link)
    monkeypatch.setattr(Cluster, "begins", lambda _, queues: dict.fromkeys(queues, broker.begin))
    monkeypatch.setattr(Cluster, "ends", lambda _, queues: dict.fromkeys(queues, broker.end))
    one = QueueRange(MessageQueue("T", "b", 0), ("master",), first, stop)
    batches = read_range(ACCESS, one, ("queue_offset", "phy_offset"), batch_rows=100, **settings)
    tables = [batch.to_arrow().to_pylist() for batch in batches]
    return [(row["queue_offset"], row["phy_offset"]) for table in tables for row in table]


def test_records_from_anywhere_in_a_log_are_rows(monkeypatch):
    expected = [(number, number * 7919) for number in range(1000)]
    assert rows_of(monkeypatch, Records(most=130)) == expected


def test_what_retention_has_deleted_is_told(monkeypatch):
    with pytest.raises(MessagesGoneError, match=r"T/b/0 from 0 to 1000.* 0 and up to 500"):
        rows_of(monkeypatch, Records(begin=500))
    left = rows_of(monkeypatch, Records(begin=500), fail_on_loss=False)
    assert [offset for offset, _ in left] == list(range(500, 1000))


def test_records_that_are_no_rows_are_not_kept(monkeypatch):
    """Where bodies that do not decompress are passed over, records are read once more."""
    broker, chosen = Records(end=20_000), {"tags": ["none"], "stop": 20_000}
    tracemalloc.start()
    try:
        assert rows_of(monkeypatch, broker, **chosen, fail_on_loss=False, batch_bytes=9999) == []
        assert tracemalloc.get_traced_memory()[1] < 20_000 * len(record(0)) / 2
    finally:
        tracemalloc.stop()


def test_an_offset_that_never_had_a_record_is_no_loss(monkeypatch):
    broker = Records()
    broker.lacks = {3, 500}
    assert len(rows_of(monkeypatch, broker)) == 998


def test_what_is_no_record_is_an_error_with_its_place(monkeypatch):
    broker = Broker(most=8)
    with pytest.raises(CorruptRecordError, match=r"T/b/0 .*pull of 0\)"):
        rows_of(monkeypatch, broker)
