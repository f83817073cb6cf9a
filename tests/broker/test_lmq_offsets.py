"""A store of RocketMQ's broker with ``enableLmq=true``, which keeps the offsets in another file."""

import json

import pytest
from broker.test_state import commit

from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine

LIGHT = "%LMQ%of"


async def offset_of(peer, topic="T", group="CG"):
    fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "setZeroIfNotFound": "false"}
    answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    return int(answer.ext_fields["offset"]) if answer.code == ResponseCode.SUCCESS else None


@pytest.fixture
def as_rocketmq_leaves_it(tmp_path):
    """Write down offsets as RocketMQ's broker does, which has no other file of them."""

    def write(offset, *, alone=True, written_ms=1):
        folder = tmp_path / "store" / "config"
        for former in folder.glob("consumerOffset.json*") if alone else ():
            former.unlink()
        content = {
            "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": written_ms},
            "lmqOffsetTable": {f"{LIGHT}@{LIGHT}": 2},
            "offsetTable": {"T@CG": {"0": offset}},
        }
        (folder / "lmqConsumerOffset.json").write_text(json.dumps(content))

    return write


@pytest.fixture
def settings():
    return {"enableLmq": "true", "enableMultiDispatch": "true"}


async def fill(_, peer):
    for _ in range(5):
        sent = await peer.send("T", b"x", properties={"INNER_MULTI_DISPATCH": LIGHT})
        assert sent.code == ResponseCode.SUCCESS


def test_groups_go_on_where_rocketmqs_broker_was(lives, as_rocketmq_leaves_it, settings):
    async def goes_on(_, peer):
        assert await offset_of(peer) == 3
        assert await offset_of(peer, LIGHT, LIGHT) == 2

    lives(fill, **settings)
    as_rocketmq_leaves_it(3)
    lives(goes_on, goes_on, **settings)


def test_what_is_set_back_since_stays_so(lives, as_rocketmq_leaves_it, settings):
    async def sets_back(_, peer):
        assert (await commit(peer, 1)).code == ResponseCode.SUCCESS

    async def stays(_, peer):
        assert await offset_of(peer) == 1

    async def goes_on(_, peer):
        assert await offset_of(peer) == 4

    lives(fill, **settings)
    as_rocketmq_leaves_it(3)
    lives(sets_back, stays, **settings)
    # RocketMQ's broker has served it meanwhile
    as_rocketmq_leaves_it(4, alone=False)
    lives(goes_on, **settings)


def test_an_old_file_says_nothing_of_what_a_broker_of_ours_has(
    lives, as_rocketmq_leaves_it, settings
):
    async def commits(broker, peer):
        await fill(broker, peer)
        await commit(peer, 1)

    async def stays(_, peer):
        assert await offset_of(peer) == 1
        assert await offset_of(peer, LIGHT, LIGHT) == 2

    lives(commits, **settings)
    as_rocketmq_leaves_it(3, alone=False)
    lives(stays, **settings)


@pytest.mark.parametrize(("lmq_ms", "offset"), [(1, 2), (1000, 4)])
def test_the_offsets_count_that_rocketmqs_broker_has_written_last(
    lives, tmp_path, as_rocketmq_leaves_it, settings, lmq_ms, offset
):
    async def goes_on(_, peer):
        assert await offset_of(peer) == offset
        assert await offset_of(peer, LIGHT, LIGHT) == 2

    lives(fill, **settings)
    as_rocketmq_leaves_it(4, written_ms=lmq_ms)
    content = {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 500},
        "offsetTable": {"T@CG": {"0": 2}},
    }
    (tmp_path / "store/config/consumerOffset.json").write_text(json.dumps(content))
    lives(goes_on, **settings)


@pytest.mark.parametrize("backup", [None, 4])
def test_a_file_that_rots_when_it_is_taken_over_changes_nothing(
    lives, tmp_path, as_rocketmq_leaves_it, settings, backup
):
    async def sets_back(_, peer):
        assert (await commit(peer, 1)).code == ResponseCode.SUCCESS

    async def stays(_, peer):
        assert await offset_of(peer) == 1

    lives(fill, **settings)
    as_rocketmq_leaves_it(5)
    lives(sets_back, **settings)
    file = tmp_path / "store/config/lmqConsumerOffset.json"
    if backup is not None:
        as_rocketmq_leaves_it(backup, alone=False)
        file.rename(file.with_name(file.name + ".bak"))
    file.write_text("rotten")
    lives(stays, **settings)
