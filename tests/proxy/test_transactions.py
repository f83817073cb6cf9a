"""Transactions over gRPC: decided by their id, whenever; asked for over Telemetry."""

import asyncio

import pytest
from patience import until_async
from proxy.conftest import serving

from rmqcore.proxy.codes import Code
from rmqcore.proxy.messages import SERVICE, MessageType, TelemetryCommand

pytestmark = pytest.mark.engine

TELEMETRY = f"/{SERVICE}/Telemetry".encode()
COMMIT, ROLLBACK = 1, 2


async def prepared(wire, topic, body):
    entry = await wire.send(topic, body, message_type=MessageType.TRANSACTION)
    assert entry.status.code == Code.OK
    return entry


async def ended(wire, topic, entry, resolution):
    answer = await wire.call(
        "EndTransaction",
        topic={"name": topic},
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=resolution,
    )
    return answer.status.code


async def telemetry(wire, **settings):
    """A Telemetry stream whose settings were answered; the stream and the answer."""
    stream = wire.open(TELEMETRY)
    stream.send(TelemetryCommand(settings=settings).SerializeToString())
    await stream.until(stream.messages)
    return stream, TelemetryCommand.FromString(stream.messages()[0])


def test_only_what_is_committed_is_received(with_grpc):
    async def scenario(_, wire):
        kept, dropped = await prepared(wire, "T", b"kept"), await prepared(wire, "T", b"dropped")
        assert (await wire.receive("T"))[0].code == Code.MESSAGE_NOT_FOUND
        assert await ended(wire, "T", kept, COMMIT) == Code.OK
        assert await ended(wire, "T", dropped, ROLLBACK) == Code.OK
        _, (message,) = await wire.receive("T")
        assert message.body == b"kept"
        assert message.system_properties.message_id == kept.message_id
        assert dict(message.user_properties) == {}
        assert await ended(wire, "T", kept, 0) == Code.BAD_REQUEST
        kept.transaction_id = "x"
        assert await ended(wire, "T", kept, COMMIT) == Code.INVALID_TRANSACTION_ID

    with_grpc(scenario)


def test_a_transaction_is_committed_after_a_restart(tmp_path):
    async def main():
        async with serving(tmp_path / "store") as served:
            entry = await prepared(await served.connect(), "T", b"kept")
        async with serving(tmp_path / "store") as served:
            wire = await served.connect()
            assert await ended(wire, "T", entry, COMMIT) == Code.OK
            _, (message,) = await wire.receive("T")
            assert message.body == b"kept"

    asyncio.run(main())


def test_a_producer_is_asked_for_what_it_did_not_decide(with_grpc):
    async def scenario(served, wire):
        stream, _ = await telemetry(wire, client_type=1, publishing={"topics": [{"name": "T"}]})
        other, _ = await telemetry(
            await served.connect(), client_type=1, publishing={"topics": [{"name": "U"}]}
        )
        producers = served.broker.managers.producers
        await until_async(lambda: "T" in producers.groups, "the broker knows the producer")
        entry = await prepared(wire, "T", b"body")
        transactions = served.broker.managers.transactions
        while not await transactions.check():
            await asyncio.sleep(0)
        await stream.until(lambda: len(stream.messages()) == 2)
        command = TelemetryCommand.FromString(stream.messages()[1])
        asked = command.recover_orphaned_transaction_command
        assert asked.message.body == b"body"
        assert asked.message.topic.name == "T"
        assert asked.message.system_properties.message_id == entry.message_id
        assert len(other.messages()) == 1
        entry.transaction_id = asked.transaction_id
        assert await ended(wire, "T", entry, COMMIT) == Code.OK
        assert len((await wire.receive("T"))[1]) == 1

    with_grpc(scenario, transactionTimeOut=1, transactionCheckInterval=3_600_000)


def test_settings_are_answered_with_what_the_server_says(with_grpc):
    async def scenario(served, wire):
        served.broker.managers.groups.put("G", {"retryMaxTimes": 3, "consumeMessageOrderly": True})
        _, answer = await telemetry(
            wire, client_type=2, subscription={"group": {"name": "G"}}, user_agent={"version": "1"}
        )
        settings = answer.settings
        assert answer.status.code == Code.OK
        assert settings.subscription.fifo
        assert settings.backoff_policy.max_attempts == 4
        assert len(settings.backoff_policy.customized_backoff.next) == 18
        assert settings.subscription.receive_batch_size == 32
        assert settings.user_agent.version == "1"
        _, answer = await telemetry(wire, client_type=1, publishing={"topics": [{"name": "T"}]})
        assert answer.settings.publishing.max_body_size == 4 << 20
        assert answer.settings.backoff_policy.max_attempts == 3
        stream, answer = await telemetry(wire, client_type=2, subscription={"group": {"name": "!"}})
        assert answer.status.code == Code.ILLEGAL_CONSUMER_GROUP
        assert not stream.closed

    with_grpc(scenario)
