"""What a receive without an event loop was given when a signal handler's exception ended it."""

import pytest
from interrupts import each_interrupt
from patience import TIMEOUT_S

from rmqcore.client import blocking

pytestmark = pytest.mark.engine


@pytest.fixture(params=[False, True], ids=["any order", "orderly"])
def consumer(rocketmq_broker, rocketmq_topic, request):
    """A consumer of a topic with one message in its one queue."""
    namesrv = rocketmq_broker.namesrv_addr
    with blocking.Producer(namesrv) as producer:
        producer.send(rocketmq_topic, b"one", queue_id=0)
    with blocking.Consumer(
        namesrv, f"G-{rocketmq_topic}", {rocketmq_topic: "*"}, start="first", orderly=request.param
    ) as consumer:
        yield consumer


WAYS = {
    "receive": lambda consumer: consumer.receive(TIMEOUT_S),
    "loop": lambda consumer: next(iter(consumer)),
}


# an interrupt may come between the making of a coroutine and its being waited for
@pytest.mark.filterwarnings("ignore:.*_Receiving.*:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine '_Receiving:RuntimeWarning")
@pytest.mark.parametrize("way", WAYS)
def test_it_comes_with_the_next_one(consumer, way):
    places = 0
    for interrupt in each_interrupt(1, ["blocking.py"]):
        got = interrupt.during(lambda: WAYS[way](consumer))
        if not interrupt.at:
            break
        assert got is None
        places += 1
    assert got.body == b"one"
    assert places > 10
    consumer.ack(got)
    assert consumer.receive(0) is None


def test_what_comes_when_nobody_waits_any_more_is_the_next_ones(
    consumer, rocketmq_broker, rocketmq_topic, monkeypatch
):
    consumer.ack(consumer.receive(TIMEOUT_S))

    def interrupted_before_it_waits(loop, method, *_):
        loop.soon(method)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(blocking._Loop, "call", interrupted_before_it_waits)
        with pytest.raises(KeyboardInterrupt):
            consumer.receive()
    with blocking.Producer(rocketmq_broker.namesrv_addr) as producer:
        producer.send(rocketmq_topic, b"two", queue_id=0)
    assert consumer.receive(TIMEOUT_S).body == b"two"
