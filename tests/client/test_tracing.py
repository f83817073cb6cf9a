"""Traces go from who sends through the message to what its consumer does; nothing when off."""

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from patience import TIMEOUT_S

from rmqcore import Message
from rmqcore.client import Consumer, Producer, TransactionState, blocking, tracing
from rmqcore.client.outgoing import Outgoing, batch_of, outgoing
from rmqcore.client.unique_id import UniqueIds
from rmqcore.errors import ArgumentError, MessageIllegalError, RmqCoreError
from rmqcore.world import wall_clock_ms

OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CONTEXT = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "tracestate": "a=1"}


class Traces:
    """A provider, and the spans that have ended."""

    def __init__(self):
        self.provider = TracerProvider(shutdown_on_exit=False)
        self._memory = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self.span = self.provider.get_tracer("the test").start_as_current_span

    def ended(self, operation=""):
        found = [span for span in self._memory.get_finished_spans() if operation in span.name]
        return found if operation else {span.name: span for span in found}


@pytest.fixture
def traces():
    return Traces()


def is_child(span, parent):
    return span.parent is not None and span.parent.span_id == parent.context.span_id


@pytest.mark.engine
def test_one_trace_goes_from_the_sender_to_the_consumers_work(
    rocketmq_broker, rocketmq_topic, run, traces
):
    namesrv, topic, provider = rocketmq_broker.namesrv_addr, rocketmq_topic, traces.provider

    async def scenario():
        async with Producer(namesrv, group="PG", tracer_provider=provider) as producer:
            with traces.span("order"):
                sent = await producer.send(topic, b"one", tags="TagA", keys=("k1", "k2"))
            client_id = producer.client_id
        async with Consumer(
            namesrv, "CG-otel", {topic: "*"}, start="first", tracer_provider=provider
        ) as consumer:
            with traces.span("shift"):
                message = await consumer.receive(TIMEOUT_S)
            with consumer.processing(message), traces.span("bill"):
                pass
            assert f"process {topic}" not in traces.ended()
            await consumer.ack(message)
        return sent, client_id, message

    sent, client_id, message = run(scenario())
    spans = traces.ended()
    order, send, process, bill = (
        spans[name] for name in ("order", f"send {topic}", f"process {topic}", "bill")
    )
    assert [is_child(*pair) for pair in ((send, order), (process, send), (bill, process))] == [
        True
    ] * 3
    assert [link.context for link in process.links] == [spans["shift"].context]
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    common = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(sent.queue_id),
        "messaging.message.id": sent.message_id,
        "messaging.message.body.size": 3,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "TagA",
        "messaging.rocketmq.message.keys": ("k1", "k2"),
    }
    assert send.attributes == common | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.client.id": client_id,
    }
    assert (
        process.attributes.items()
        >= (
            common
            | {
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.consumer.group.name": "CG-otel",
                "messaging.rocketmq.consumption_model": "clustering",
            }
        ).items()
    )
    assert process.status.status_code is StatusCode.UNSET
    assert message.properties["traceparent"].split("-")[2] == f"{send.context.span_id:016x}"


@pytest.mark.engine
def test_a_batch_and_a_table_have_one_span_a_request(rocketmq_broker, rocketmq_topic, traces):
    pa = pytest.importorskip("pyarrow")
    namesrv, topic = rocketmq_broker.namesrv_addr, rocketmq_topic
    one = Message(topic, b"one", properties={"colour": "red"})
    with blocking.Producer(namesrv, tracer_provider=traces.provider) as producer:
        producer.send_batch(topic, [one, b"two"])
        producer.send_columns(pa.table({"body": ["three", "four", "five"]}), topic=topic)
    with blocking.Consumer(namesrv, "CG-batch", {topic: "*"}, start="first") as consumer:
        found = {
            message.body: message for message in (consumer.receive(TIMEOUT_S) for _ in range(5))
        }
    batch, table = traces.ended("send")
    assert [span.attributes["messaging.batch.message_count"] for span in (batch, table)] == [2, 3]
    for span, bodies in ((batch, (b"one", b"two")), (table, (b"three", b"four", b"five"))):
        assert {found[body].properties["traceparent"].split("-")[2] for body in bodies} == {
            f"{span.context.span_id:016x}"
        }
    assert found[b"one"].properties["colour"] == "red"
    assert len({message.message_id for message in found.values()}) == 5


@pytest.mark.engine
def test_transactions_delays_and_oneway_sends_are_told_apart(
    rocketmq_broker, rocketmq_topic, traces
):
    topic = rocketmq_topic
    with blocking.Producer(
        rocketmq_broker.namesrv_addr, tracer_provider=traces.provider
    ) as producer:
        producer.send_in_transaction(topic, b"x", lambda _: TransactionState.ROLLBACK)
        producer.send(topic, b"x", delay_level=2)
        producer.send_oneway(topic, b"x", properties={"__SHARDINGKEY": "customer-7"})
    told = [
        {
            name.removeprefix("messaging.rocketmq.message."): value
            for name, value in span.attributes.items()
            if "rocketmq.message" in name
        }
        for span in traces.ended("send")
    ]
    assert told == [
        {"type": "transaction"},
        {"type": "delay", "delay_time_level": 2},
        {"type": "fifo", "group": "customer-7"},
    ]


@pytest.mark.engine
def test_failures_are_recorded_and_every_span_ends(rocketmq_broker, rocketmq_topic, run, traces):
    namesrv, topic, provider = rocketmq_broker.namesrv_addr, rocketmq_topic, traces.provider

    async def scenario():
        async with Producer(namesrv, tracer_provider=provider) as producer:
            with pytest.raises(MessageIllegalError):
                await producer.send(topic, b"x", queue_id=99)
            for _ in range(3):
                await producer.send(topic, b"x")
        async with Consumer(
            namesrv, "CG-errors", {topic: "*"}, start="first", tracer_provider=provider
        ) as consumer:
            raising, given_back, _ = [await consumer.receive(TIMEOUT_S) for _ in range(3)]
            with pytest.raises(KeyError), consumer.processing(raising):
                raise KeyError("work")
            await consumer.nack(raising, delay_level=-1)
            await consumer.nack(given_back, delay_level=-1)

    run(scenario())
    send, *_ = traces.ended("send")
    raising, given_back, left = traces.ended("process")
    for span, error in (
        (send, "MessageIllegalError"),
        (raising, "KeyError"),
        (given_back, "nack"),
    ):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes["error.type"] == error
    assert [event.name for event in raising.events] == ["exception"]
    assert left.status.status_code is StatusCode.UNSET
    assert [event.name for event in left.events] == ["not settled"]


@pytest.mark.engine
def test_all_clients_are_traced_while_that_is_wanted_also_from_threads_without_a_loop(
    rocketmq_broker, rocketmq_topic, traces
):
    namesrv, topic = rocketmq_broker.namesrv_addr, rocketmq_topic
    tracing.instrument(traces.provider)
    try:
        with blocking.Producer(namesrv) as producer, traces.span("order"):
            producer.send(topic, b"traced")
        with blocking.Consumer(namesrv, "CG-all", {topic: "*"}, start="first") as consumer:
            message = consumer.receive(TIMEOUT_S)
            with consumer.processing(message), traces.span("bill"):
                consumer.ack(message)
    finally:
        tracing.uninstrument()
    spans = traces.ended()
    assert is_child(spans[f"send {topic}"], spans["order"])
    assert is_child(spans["bill"], spans[f"process {topic}"])
    with blocking.Producer(namesrv) as producer:
        producer.send(topic, b"not traced")
    with blocking.Consumer(namesrv, "CG-all", {topic: "*"}) as consumer:
        message = consumer.receive(TIMEOUT_S)
        with consumer.processing(message):
            consumer.ack(message)
    assert (message.body, "traceparent" in message.properties) == (b"not traced", False)
    assert len(traces.ended()) == 4


@pytest.mark.engine
def test_a_message_that_has_a_context_keeps_it_and_is_linked_to(
    rocketmq_broker, rocketmq_topic, traces
):
    with blocking.Producer(
        rocketmq_broker.namesrv_addr, tracer_provider=traces.provider
    ) as producer:
        producer.send(rocketmq_topic, b"x", properties={"traceparent": OTHER})
    (send,) = traces.ended("send")
    assert send.parent is None
    assert [f"{link.context.span_id:016x}" for link in send.links] == [OTHER.split("-")[2]]


def single(properties, body=b"x"):
    return outgoing(
        "T",
        body,
        tags=None,
        keys=None,
        properties=properties,
        delay_level=0,
        deliver_at_ms=None,
        unique_id="ID",
        compress_above=None,
    )


@pytest.mark.logic
@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({"colour": "red"}, CONTEXT),
        ({"tracestate": "mine"}, {"traceparent": CONTEXT["traceparent"]}),
        ({"traceparent": OTHER}, {}),
        ({"large": "x" * 30_000}, CONTEXT),
        ({"large": "x" * 31_000}, {}),
        ({"large": "x" * 32_000}, {}),
    ],
)
def test_a_context_is_added_where_there_is_room_and_none(given, added):
    alone = single(given)
    before = dict(alone.properties)
    alone.carry(CONTEXT)
    assert alone.properties == before | added
    ids = UniqueIds("127.0.0.1", wall_clock_ms)
    batch = batch_of("T", [Message("T", b"one", properties=given), b"two"], ids)
    names = batch.unique_id.split(",")
    batch.carry(CONTEXT)
    expected = [
        Message("T", b"one", properties=given | {"UNIQ_KEY": names[0], "WAIT": "true"} | added),
        Message("T", b"two", properties={"UNIQ_KEY": names[1], "WAIT": "true"} | CONTEXT),
    ]
    assert items(batch) == [(each.body, dict(each.properties)) for each in expected]


def items(batch):
    """The bodies and properties of a batch, read by its table in docs/format/batch-body.md."""
    from rmqcore import _codec

    found, at = [], 0
    while at < len(batch.body):
        size = int.from_bytes(batch.body[at : at + 4], "big")
        body_size = int.from_bytes(batch.body[at + 16 : at + 20], "big")
        body = batch.body[at + 20 : at + 20 + body_size]
        tail_at = at + 20 + body_size
        assert int.from_bytes(batch.body[tail_at : tail_at + 2], "big") == at + size - tail_at - 2
        found.append((body, _codec.decode_properties(batch.body[tail_at + 2 : at + size])))
        at += size
    assert at == len(batch.body)
    return found


@pytest.mark.logic
def test_a_batch_that_would_be_too_large_and_a_context_that_no_property_can_be_stay_out():
    batch = batch_of("T", [b"x" * (4 * 1024 * 1024 - 300)], UniqueIds("127.0.0.1", wall_clock_ms))
    before = batch.body
    batch.carry(CONTEXT)
    assert batch.body == before
    alone = single({})
    before = dict(alone.properties)
    alone.carry({"traceparent": "with\x02a separator"})
    alone.carry({})
    assert alone.properties == before


@pytest.mark.logic
def test_properties_without_their_last_separator_get_one():
    encoded = b"a\x01b"
    size = 22 + 1 + len(encoded)
    head = size.to_bytes(4, "big") + bytes(12) + (1).to_bytes(4, "big") + b"x"
    batch = Outgoing("T", head + len(encoded).to_bytes(2, "big") + encoded, {}, "ID", 320)
    batch.carry(CONTEXT)
    assert items(batch) == [(b"x", {"a": "b"} | CONTEXT)]


@pytest.mark.logic
def test_what_is_no_provider_is_refused_and_a_missing_package_named(monkeypatch):
    for make in (
        tracing.instrument,
        lambda given: Producer("127.0.0.1:1", tracer_provider=given),
        lambda given: Consumer("127.0.0.1:1", "G", {"T": "*"}, tracer_provider=given),
    ):
        with pytest.raises(ArgumentError, match="tracer_provider"):
            make("here")
    monkeypatch.delitem(sys.modules, "rmqcore.client.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(RmqCoreError, match=r"pip install 'rmqcore\[otel\]'"):
        tracing.instrument()


@pytest.mark.process
def test_without_traces_nothing_of_them_is_loaded():
    program = """
import sys
from rmqcore.client import Consumer, Producer, blocking, tracing
Producer("127.0.0.1:1"), Consumer("127.0.0.1:1", "G", {"T": "*"}), blocking.Producer("127.0.0.1:1")
tracing.uninstrument()
print(*(name for name in sys.modules if "opentelemetry" in name or name.endswith(".spans")))
tracing.instrument()
print("opentelemetry.trace" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\nTrue\n"
