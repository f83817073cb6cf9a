"""A slave takes over which topics are static, and serves them no more than its master does."""

import asyncio
import json

import pytest
from ha.test_brokers import asks_when_told, running  # noqa: F401 - a fixture
from ha.test_promoted_anew import promoted

from rmqcore.files.config_tables import TopicConfig
from rmqcore.remoting import ResponseCode

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("asks_when_told")]


def test_a_slave_and_who_was_one_serves_no_static_topic_of_its_master(tmp_path):
    mapped = {"dataVersion": {"counter": 3}, "topicQueueMappingDetailMap": {"T": {"topic": "T"}}}
    for side, content in (("m", mapped), ("s", {})):
        (tmp_path / side / "config").mkdir(parents=True)
        file = tmp_path / side / "config" / "topicQueueMapping.json"
        file.write_text(json.dumps(content))

    async def scenario():
        async with running(tmp_path) as pair:
            await pair.in_step()
            for topic in ("T", "Plain"):
                pair.master.managers.topics.put(TopicConfig(topic_name=topic))
                await asyncio.to_thread(pair.master.store.put, topic, b"x")
            await pair.in_step()
            await pair.synchronize()
            assert json.loads(file.read_text()) == mapped
            for _ in range(2):
                refused = await pair.pull(pair.slave)
                assert refused.code == ResponseCode.NO_PERMISSION
                assert "static" in refused.remark
                assert (await pair.pull(pair.slave, topic="Plain")).code == ResponseCode.SUCCESS
                if pair.slave.managers.config().is_slave:
                    await promoted(pair, tmp_path)

    asyncio.run(scenario())


def test_what_a_master_tells_wrongly_changes_nothing(tmp_path, monkeypatch):
    async def scenario():
        async with running(tmp_path) as pair:
            statics = pair.slave.managers.static_topics
            statics.adopt('{"topicQueueMappingDetailMap":{"T":{}}}')
            monkeypatch.setattr(
                pair.master.managers.static_topics,
                "told",
                lambda: {"topicQueueMappingDetailMap": [1]},
            )
            await pair.in_step()
            assert not await pair.slave.replication._synchronize.synchronize()
            assert statics.names == {"T"}
            # one of RocketMQ 4 says nothing of any
            monkeypatch.setattr(pair.master.managers.static_topics, "told", dict)
            await pair.synchronize()
            assert statics.names == {"T"}

    asyncio.run(scenario())
