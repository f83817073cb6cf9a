"""Sending and consuming over gRPC: what comes is what was sent, once, until it is acknowledged."""

import asyncio

import pytest
from patience import until_async

from rmqcore.errors import StoreError
from rmqcore.proxy.codes import Code
from rmqcore.proxy.messages import DigestType, Encoding, MessageType, v2_class
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode, success
from rmqcore.remoting.local import LocalConnection, LocalServer
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

FIFO = MessageType.FIFO
DELAY = MessageType.DELAY


def test_what_is_received_is_what_was_sent(with_grpc):
    async def scenario(served, wire):
        entry = await wire.send(
            "T",
            b"body",
            message_id="01ABC",
            tag="tag",
            keys=["k1", "k2"],
            user_properties={"a": "b"},
            born_host="here",
            trace_context="trace",
        )
        assert (entry.status.code, entry.message_id, entry.offset) == (Code.OK, "01ABC", 0)
        status, (message,) = await wire.receive("T")
        assert status.code == Code.OK
        system = message.system_properties
        assert (message.body, message.topic.name) == (b"body", "T")
        assert dict(message.user_properties) == {"a": "b"}
        assert (system.message_id, system.tag, list(system.keys)) == ("01ABC", "tag", ["k1", "k2"])
        assert (system.born_host, system.trace_context) == ("here", "trace")
        assert system.message_type == MessageType.NORMAL
        assert system.body_encoding == Encoding.IDENTITY
        assert system.body_digest.type == DigestType.MD5
        assert system.body_digest.checksum == "841A2D689AD86BD1611447453C22C6FC"
        assert system.delivery_attempt == 1
        assert (await wire.ack("T", message)).status.code == Code.OK
        assert served.broker.managers.checkpoints.next_due_ms() is None

    with_grpc(scenario)


def test_a_message_that_is_not_acknowledged_comes_again_and_then_not_its_former_handle(
    with_grpc, clock
):
    async def scenario(served, wire):
        await wire.send("T", b"body")
        _, (first,) = await wire.receive("T", invisible_s=10)
        assert (await wire.receive("T"))[0].code == Code.MESSAGE_NOT_FOUND
        clock.go_on(11_000, served.broker)
        assert (await wire.ack("T", first)).status.code == Code.INVALID_RECEIPT_HANDLE
        _, found = await wire.receive("T", wait_s=20)
        assert found[0].body == b"body"
        assert found[0].system_properties.delivery_attempt == 2
        assert found[0].topic.name == "T"
        assert dict(found[0].user_properties) == {}
        assert (await wire.ack("T", found[0])).status.code == Code.OK
        assert served.broker.managers.checkpoints.next_due_ms() is None

    with_grpc(scenario)


def test_a_message_that_was_tried_often_enough_is_a_dead_letter(with_grpc, clock):
    async def scenario(served, wire):
        served.broker.managers.groups.put("G", {"retryMaxTimes": 0})
        await wire.send("T", b"body", message_id="01DEAD")
        assert len((await wire.receive("T", invisible_s=10))[1]) == 1
        clock.go_on(11_000, served.broker)
        assert (await wire.receive("T", wait_s=20))[0].code == Code.MESSAGE_NOT_FOUND
        store = served.broker.store
        assert store.get_message("%DLQ%G", 0, 0).messages[0].body == b"body"
        assert served.broker.managers.checkpoints.next_due_ms() is None

    with_grpc(scenario)


def test_one_that_cannot_be_a_dead_letter_now_holds_up_no_other(with_grpc, clock):
    async def scenario(served, wire):
        served.broker.managers.groups.put("G", {"retryMaxTimes": 0})
        for body in (b"one", b"two"):
            await wire.send("T", body)
        _, (tried,) = await wire.receive("T", count=1, invisible_s=10)
        clock.go_on(11_000, served.broker)
        store = served.broker.store
        await until_async(lambda: store.max_queue_offset("%RETRY%G_T", 0) == 1, "it comes again")
        served.broker._change({"brokerPermission": "4"})
        bodies = []
        for _ in range(2):
            bodies += [message.body for message in (await wire.receive("T"))[1]]
        assert bodies == [b"two" if tried.body == b"one" else b"one"]

    with_grpc(scenario)


async def bury(wire, message):
    """Make a message a dead letter; the answer."""
    return await wire.call(
        "ForwardMessageToDeadLetterQueue",
        group={"name": "G"},
        topic={"name": "T"},
        receipt_handle=message.system_properties.receipt_handle,
        message_id=message.system_properties.message_id,
        delivery_attempt=1,
        max_delivery_attempts=3,
    )


def test_a_consumer_makes_a_message_a_dead_letter_once_however_often_it_asks(with_grpc):
    async def scenario(served, wire):
        await wire.send("T", b"body")
        _, (message,) = await wire.receive("T")
        # the first answer may be lost, or late
        answers = await asyncio.gather(*(bury(wire, message) for _ in range(2)))
        answers.append(await bury(wire, message))
        assert [answer.status.code for answer in answers] == 3 * [Code.OK]
        store = served.broker.store
        (dead,) = store.get_message("%DLQ%G", 0, 0).messages
        assert dead.body == b"body"
        assert served.broker.managers.checkpoints.next_due_ms() is None

    with_grpc(scenario)


def test_a_dead_letter_whose_message_could_not_be_acknowledged_is_not_made_again(
    with_grpc, monkeypatch
):
    async def scenario(served, wire):
        await wire.send("T", b"body")
        _, (message,) = await wire.receive("T", auto_renew=True)
        checkpoints = served.broker.managers.checkpoints

        def refuse(*_):
            raise StoreError("no room")

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "acknowledge", refuse)
            assert (await bury(wire, message)).status.code == Code.INTERNAL_SERVER_ERROR
        assert (await bury(wire, message)).status.code == Code.OK
        (dead,) = served.broker.store.get_message("%DLQ%G", 0, 0).messages
        assert dead.body == b"body"
        assert checkpoints.next_due_ms() is None

    with_grpc(scenario)


def test_a_receive_waits_for_a_message(with_grpc):
    async def scenario(served, wire):
        await wire.send("T", b"first")
        _, (message,) = await wire.receive("T")
        waiting = asyncio.create_task(wire.receive("T", wait_s=20))
        await until_async(lambda: len(served.broker.managers.waiting_pops) == 1, "a receive waits")
        await wire.send("T", b"second")
        status, (message,) = await waiting
        assert (status.code, message.body) == (Code.OK, b"second")

    with_grpc(scenario)


def test_what_is_handed_to_a_call_that_has_gone_is_given_to_others(with_grpc):
    async def scenario(served, wire):
        await wire.send("T", b"first")
        await wire.receive("T")
        other = await served.connect()
        request = v2_class("ReceiveMessageRequest")(
            group={"name": "G"},
            message_queue={"topic": {"name": "T"}, "id": -1},
            batch_size=1,
            invisible_duration={"seconds": 600},
            long_polling_timeout={"seconds": 20},
        )
        hold = served.broker.managers.waiting_pops
        stream = other.begin("ReceiveMessage", request)
        await until_async(lambda: len(hold) == 1, "a receive waits")
        stream.cancel()
        waiting = asyncio.create_task(wire.receive("T", wait_s=20))
        await until_async(lambda: len(hold) == 2, "another one waits")
        await wire.send("T", b"second")
        _, (message,) = await waiting
        assert message.body == b"second"
        assert message.system_properties.delivery_attempt == 1

    with_grpc(scenario)


def test_what_a_call_is_to_be_handed_that_goes_beside_a_dead_letter_is_given_to_others(
    with_grpc, clock, monkeypatch
):
    async def scenario(served, wire):
        served.broker.managers.groups.put("G", {"retryMaxTimes": 0})
        await wire.send("T", b"tried")
        await wire.receive("T", invisible_s=10)
        clock.go_on(11_000, served.broker)
        store = served.broker.store
        await until_async(lambda: store.max_queue_offset("%RETRY%G_T", 0) == 1, "it comes again")
        await wire.send("T", b"fresh")
        consuming, calls, goes_on = served.service._consuming, [], asyncio.Event()
        hand_out, bury = consuming._hand_out_some, consuming._settling.bury_one

        async def noted(call, *more):
            calls.append(call)
            await hand_out(call, *more)

        async def slowly(*what):
            await goes_on.wait()
            await bury(*what)

        with monkeypatch.context() as patch:
            patch.setattr(consuming, "_hand_out_some", noted)
            patch.setattr(consuming._settling, "bury_one", slowly)
            request = v2_class("ReceiveMessageRequest")(
                group={"name": "G"},
                message_queue={"topic": {"name": "T"}, "id": -1},
                batch_size=2,
                auto_renew=True,
            )
            stream = (await served.connect()).begin("ReceiveMessage", request)
            await until_async(lambda: calls, "a dead letter is put")
            stream.cancel()
            await until_async(lambda: calls[0].closed, "the call has gone")
            goes_on.set()
            await until_async(lambda: store.max_queue_offset("%DLQ%G", 0) == 1, "it was put")
        waiting = asyncio.create_task(wire.receive("T", wait_s=20))
        clock.go_on(2_000, served.broker)
        _, (message,) = await waiting
        assert message.body == b"fresh"
        assert message.system_properties.delivery_attempt == 1
        assert len(served.service.renewals) == 0

    with_grpc(scenario)


def test_tags_and_conditions_choose(with_grpc):
    async def scenario(_, wire):
        for tag in "abc":
            await wire.send("T", tag.encode(), tag=tag, user_properties={"n": tag})
        chosen = {"type": 1, "expression": "a || c"}
        _, found = await wire.receive("T", "G1", filter_expression=chosen)
        assert sorted(message.body for message in found) == [b"a", b"c"]
        chosen = {"type": 2, "expression": "n = 'b'"}
        _, found = await wire.receive("T", "G2", filter_expression=chosen)
        assert [message.body for message in found] == [b"b"]
        chosen = {"type": 2, "expression": "n = ("}
        status, _ = await wire.receive("T", "G3", filter_expression=chosen)
        assert status.code == Code.ILLEGAL_FILTER_EXPRESSION

    with_grpc(scenario, enablePropertyFilter=True)


def test_messages_of_a_group_keep_their_order_one_batch_after_the_other(with_grpc):
    async def scenario(served, wire):
        served.broker.managers.groups.put("G", {"consumeMessageOrderly": True})
        for number in range(4):
            entry = await wire.send("T", b"%d" % number, message_group="same", message_type=FIFO)
            assert entry.offset == number
        _, first = await wire.receive("T", count=2, attempt_id="one")
        assert [message.body for message in first] == [b"0", b"1"]
        assert first[0].system_properties.message_group == "same"
        assert (await wire.receive("T", count=2))[0].code == Code.MESSAGE_NOT_FOUND
        _, again = await wire.receive("T", count=2, attempt_id="one")
        assert [message.body for message in again] == [b"0", b"1"]
        for message in again:
            assert (await wire.ack("T", message)).status.code == Code.OK
        _, rest = await wire.receive("T", count=2)
        assert [message.body for message in rest] == [b"2", b"3"]

    with_grpc(scenario)


def test_a_message_in_order_says_how_often_it_came_and_is_a_dead_letter_in_the_end(
    with_grpc, clock
):
    async def scenario(served, wire):
        more = {"consumeMessageOrderly": True, "retryMaxTimes": 1}
        served.broker.managers.groups.put("G", more)
        for number in range(2):
            await wire.send("T", b"%d" % number, message_group="same", message_type=FIFO)
        for attempt in (1, 2):
            _, found = await wire.receive("T", count=1, invisible_s=10)
            told = [(each.body, each.system_properties.delivery_attempt) for each in found]
            assert told == [(b"0", attempt)]
            clock.go_on(11_000, served.broker)
        await wire.receive("T", count=1)
        assert served.broker.store.get_message("%DLQ%G", 0, 0).messages[0].body == b"0"
        _, (message,) = await wire.receive("T", count=1)
        assert (message.body, message.system_properties.delivery_attempt) == (b"1", 1)

    with_grpc(scenario)


def test_a_message_comes_at_its_time_and_can_be_taken_back(with_grpc):
    async def scenario(served, wire):
        due_s = wall_clock_ms() // 1000 + 3600
        due = {"seconds": due_s}
        entry = await wire.send("T", b"later", delivery_timestamp=due, message_type=DELAY)
        assert entry.status.code == Code.OK
        assert (await wire.receive("T"))[0].code == Code.MESSAGE_NOT_FOUND
        answer = await wire.call(
            "RecallMessage", topic={"name": "T"}, recall_handle=entry.recall_handle
        )
        assert (answer.status.code, answer.message_id) == (Code.OK, entry.message_id)
        answer = await wire.call("RecallMessage", topic={"name": "T"}, recall_handle="x")
        assert answer.status.code == Code.BAD_REQUEST

    with_grpc(scenario, recallMessageEnable=True)


def test_taking_back_has_to_be_allowed(with_grpc):
    async def scenario(_, wire):
        due = {"seconds": wall_clock_ms() // 1000 + 3600}
        entry = await wire.send("T", b"later", delivery_timestamp=due, message_type=DELAY)
        answer = await wire.call(
            "RecallMessage", topic={"name": "T"}, recall_handle=entry.recall_handle
        )
        assert answer.status.code == Code.FORBIDDEN

    with_grpc(scenario)


def test_another_time_is_another_handle(with_grpc):
    async def scenario(_, wire):
        await wire.send("T", b"body")
        _, (message,) = await wire.receive("T")
        handle = message.system_properties.receipt_handle
        answer = await wire.call(
            "ChangeInvisibleDuration",
            group={"name": "G"},
            topic={"name": "T"},
            receipt_handle=handle,
            invisible_duration={"seconds": 60},
        )
        assert answer.status.code == Code.OK
        assert answer.receipt_handle != handle
        message.system_properties.receipt_handle = answer.receipt_handle
        assert (await wire.ack("T", message)).status.code == Code.OK

    with_grpc(scenario)


def test_several_messages_have_an_entry_each_and_keep_their_order(with_grpc):
    async def scenario(_, wire):
        def made(number, body):
            system = {"message_id": f"01{number}", "message_group": "g", "message_type": FIFO}
            return {"topic": {"name": "T"}, "system_properties": system, "body": body}

        answer = await wire.call("SendMessage", messages=[made(n, b"%d" % n) for n in range(3)])
        assert answer.status.code == Code.OK
        assert [entry.offset for entry in answer.entries] == [0, 1, 2]
        answer = await wire.call("SendMessage", messages=[made(4, b"4"), made(5, b"")])
        assert answer.status.code == Code.MULTIPLE_RESULTS
        codes = [entry.status.code for entry in answer.entries]
        assert codes == [Code.OK, Code.MESSAGE_BODY_EMPTY]

    with_grpc(scenario)


def test_acknowledgements_have_an_entry_each(with_grpc):
    async def scenario(_, wire):
        await wire.send("T", b"body")
        _, (message,) = await wire.receive("T")
        handle = message.system_properties.receipt_handle
        answer = await wire.call(
            "AckMessage",
            group={"name": "G"},
            topic={"name": "T"},
            entries=[
                {"message_id": "1", "receipt_handle": handle},
                {"message_id": "2", "receipt_handle": "x"},
            ],
        )
        assert answer.status.code == Code.MULTIPLE_RESULTS
        codes = [entry.status.code for entry in answer.entries]
        assert codes == [Code.OK, Code.INVALID_RECEIPT_HANDLE]

    with_grpc(scenario)


def test_a_new_topic_takes_the_type_of_its_first_message(with_grpc):
    async def scenario(_, wire):
        await wire.send("T", b"body", message_group="g", message_type=FIFO)
        answer = await wire.call("QueryRoute", topic={"name": "T"})
        assert {tuple(each.accept_message_types) for each in answer.message_queues} == {(FIFO,)}
        refused = await wire.send("T", b"body")
        assert refused.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE

    with_grpc(scenario)


def test_a_topic_that_a_consumer_makes_takes_any_message(with_grpc):
    async def scenario(_, wire):
        assert (await wire.receive("T"))[0].code == Code.MESSAGE_NOT_FOUND
        assert (await wire.send("T", b"1")).status.code == Code.OK
        entry = await wire.send("T", b"2", message_group="g", message_type=FIFO)
        assert entry.status.code == Code.OK

    with_grpc(scenario)


def test_a_broker_that_makes_no_topics_and_groups_says_what_is_missing(with_grpc):
    async def scenario(served, wire):
        assert (await wire.send("T", b"1")).status.code == Code.TOPIC_NOT_FOUND
        assert (await wire.receive("T"))[0].code == Code.TOPIC_NOT_FOUND
        answer = await wire.call("QueryRoute", topic={"name": "T"})
        assert answer.status.code == Code.TOPIC_NOT_FOUND
        served.broker.managers.topics.for_group("T", 1)
        assert (await wire.receive("T"))[0].code == Code.CONSUMER_GROUP_NOT_FOUND

    with_grpc(scenario, autoCreateTopicEnable=False, autoCreateSubscriptionGroup=False)


def test_what_came_over_the_other_protocol_is_received_and_the_other_way_round(with_grpc):
    async def scenario(served, wire):
        client = RemotingClient()
        fields = {"a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1"}
        fields |= {"h": "0", "i": "TAGS\x01tag\x02UNIQ_KEY\x01U1\x02", "j": "0"}
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, b"over remoting")
        await client.invoke(served.broker.address, command)
        await client.close()
        _, (message,) = await wire.receive("T")
        assert (message.body, message.system_properties.tag) == (b"over remoting", "tag")
        assert message.system_properties.message_id == "U1"
        await wire.send("T2", b"over gRPC", keys=["k"])
        (found,) = served.broker.store.query_message("T2", "k").messages
        assert found.body == b"over gRPC"

    with_grpc(scenario)


def test_a_namespace_keeps_topics_and_groups_apart(with_grpc):
    async def scenario(served, wire):
        topic = {"resource_namespace": "ns", "name": "T"}
        message = {"topic": topic, "system_properties": {"message_id": "1"}, "body": b"x"}
        answer = await wire.call("SendMessage", messages=[message])
        assert answer.status.code == Code.OK
        assert served.broker.managers.topics.get("ns%T") is not None
        _, (found,) = await wire.receive("T", message_queue={"topic": topic, "id": -1})
        assert (found.topic.resource_namespace, found.topic.name) == ("ns", "T")

    with_grpc(scenario)


@pytest.mark.parametrize("how", ["at once", "by a coroutine", "later", "failing", "failing later"])
def test_a_connection_keeps_nothing_of_a_request_that_was_answered(how):
    async def soon(_, __):
        if how == "failing later":
            raise ValueError
        return success()

    def processor(connection, request):
        if how == "failing":
            raise ValueError
        if how == "later":
            asyncio.get_running_loop().call_soon(connection.answer, request, success())
            return None
        return success() if how == "at once" else soon(connection, request)

    async def scenario():
        connection = LocalConnection("", None, None)
        answer = LocalServer({1: processor}).ask(connection, RemotingCommand(1))
        answer = answer if isinstance(answer, RemotingCommand) else await answer
        assert (answer.code == 0) == (not how.startswith("failing"))
        assert not connection._answers

    asyncio.run(scenario())
