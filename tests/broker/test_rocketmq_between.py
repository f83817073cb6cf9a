"""A broker of RocketMQ serves a store between two lives of ours, and makes a topic of it anew.

It notes no deletion, and forgets what groups had consumed; their clients go on where they were.
"""

import json
import shutil

import pytest
from broker.conftest import records
from broker.test_opened_between import NEW, between, fill, make_anew  # noqa: F401 - a fixture
from broker.test_state import COMMITS

from rmqcore.remoting import ResponseCode

pytestmark = pytest.mark.engine


def written_by_rocketmq(path, deleted=()):
    """Leave of the tables what RocketMQ's broker writes of them, which ends in order."""
    (path / "abort").unlink(missing_ok=True)
    for file in (path / "config").glob("topics.json*"):
        content = json.loads(file.read_text())
        content.pop("tableBegun", None)
        for topic in deleted:
            content["topicConfigTable"].pop(topic, None)
        file.write_text(json.dumps(content))
    for file in (path / "config").glob("consumerOffset.json*"):
        file.write_text('{"offsetTable":{}}')


def deletes(path):
    shutil.rmtree(path / "consumequeue" / "T")
    written_by_rocketmq(path, ["T"])


def deletes_and_makes_anew(path):
    names = ("topics.json", "storeMark.json", "readersOfLost.json")
    before = {name: (path / "config" / name).read_bytes() for name in names}
    make_anew(path)
    for note in ("deletedTopics*", "storeMark*", "readersOfLost*"):
        for file in (path / "config").glob(note):
            file.unlink()
    for name, content in before.items():
        (path / "config" / name).write_bytes(content)
    written_by_rocketmq(path)


def goes_on(path):
    written_by_rocketmq(path)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("how", [deletes, deletes_and_makes_anew])
def test_who_has_read_the_topic_before_gets_all_of_the_next(between, how, killed):  # noqa: F811
    async def first(_, peer):
        await fill(peer)
        await peer.pull("T", offset=5, sysFlag=COMMITS, commitOffset=5)

    async def second(_, peer):
        if how is deletes:
            for body in NEW:
                assert (await peer.send("T", body)).code == ResponseCode.SUCCESS
        moved = await peer.pull("T", offset=5, sysFlag=COMMITS, commitOffset=5)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.ext_fields["nextBeginOffset"] == "0"
        assert [message.body for message in records((await peer.pull("T")).body)] == NEW

    between(first, how, second, killed=killed)


def test_who_has_read_a_topic_that_was_not_deleted_goes_on(between):  # noqa: F811
    async def first(_, peer):
        await fill(peer)

    async def second(_, peer):
        await peer.send("T", b"more")
        assert (await peer.pull("T", offset=5)).code == ResponseCode.SUCCESS

    between(first, goes_on, second)
