"""RocketMQ's own client filters by SQL92, sends for later and pops at our broker."""

import json
import subprocess

import pytest
from broker.conftest import records
from patience import until

from interop.cluster import TIMEOUT_S, asker, java, java_broker, name_server
from interop.peer import missing
from rmqcore.remoting import RemotingError, RequestCode, ResponseCode
from rmqcore.testing import running_broker
from rmqcore.world import wall_clock_ms

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]


def play(tmp_path, scenario, broker):
    """Run a scenario; (body, attempts, PULLED or POPPED, time) of what was got, and all lines."""
    command, environment = java("5.5.0", tmp_path / "java", "Scenario", scenario, broker)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    lines = done.stdout.splitlines()
    got = [line.split("\t")[1:] for line in lines if line.startswith("GOT\t")]
    return [(body, int(n), how, int(at)) for body, n, how, at in got], lines


def create_topic(ask):
    topic = {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    assert ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic).code == ResponseCode.SUCCESS


def test_a_consumer_filters_by_sql92_and_is_told_of_what_cannot_be_used(tmp_path):
    with running_broker(tmp_path / "store", enablePropertyFilter=True) as broker:
        create_topic(asker(broker.broker_addr))
        got, lines = play(tmp_path, "sql", broker.namesrv_addr)
    assert sorted(body for body, *_ in got) == ["10", "12", "14"]
    (refused,) = (line for line in lines if line.startswith("REFUSED"))
    assert "at character 7: LIKE" in refused


def test_messages_for_later_come_at_their_time(tmp_path):
    with running_broker(tmp_path / "store") as broker:
        create_topic(asker(broker.broker_addr))
        got, lines = play(tmp_path, "timer", broker.namesrv_addr)
    assert lines.count("SENT SEND_OK") == 2
    assert got[0][0] == "plain"
    timed = [(int(body.removeprefix("due ")), at) for body, _, _, at in got[1:]]
    assert [due for due, _ in timed] == sorted(due for due, _ in timed)
    assert len(timed) == 2
    for due, at in timed:
        assert due <= at < due + 30_000


def test_a_group_that_pops_gets_everything_and_what_failed_again(tmp_path):
    with running_broker(tmp_path / "store") as broker:
        ask = asker(broker.broker_addr)
        create_topic(ask)
        mode = {"consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 0, "topic": "T"}
        answer = ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())
        assert answer.code == ResponseCode.SUCCESS
        got, _ = play(tmp_path, "pop", broker.namesrv_addr)
        assert {how for _, _, how, _ in got} == {"POPPED"}
        wanted = [(f"m{n}", 0) for n in range(20)] + [("late", 0), ("m7", 1)]
        assert sorted((body, n) for body, n, _, _ in got) == sorted(wanted)
        first, again = (at for body, _, _, at in got if body == "m7")
        assert again - first >= 10_000
        stats = ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG", "topic": "T"})
        assert stats.code == ResponseCode.SUCCESS


def test_rocketmq_takes_over_messages_for_later(tmp_path):
    sizes = {
        "mappedFileSizeCommitLog": 1024 * 1024,
        "mappedFileSizeConsumeQueue": 60_000,
        "maxIndexNum": 4000,
        "maxHashSlotNum": 1000,
    }
    store = tmp_path / "store"

    def send(ask, body, deliver_ms):
        header = {"a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "h": "0"}
        header["g"] = str(wall_clock_ms())
        header["i"] = f"TIMER_DELIVER_MS\x01{deliver_ms}\x02"
        assert ask(RequestCode.SEND_MESSAGE_V2, header, body).code == ResponseCode.SUCCESS

    def pulled(ask):
        header = {
            "consumerGroup": "CG",
            "topic": "T",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "0",
            "subscription": "*",
        }
        try:
            answer = ask(RequestCode.PULL_MESSAGE, header)
        except RemotingError:
            return []
        return [m.body for m in records(answer.body)] if answer.code == 0 else []

    with running_broker(store, **sizes) as broker:
        ask = asker(broker.broker_addr)
        create_topic(ask)
        send(ask, b"soon", wall_clock_ms() + 300)
        due_ms = wall_clock_ms() + 15_000
        send(ask, b"later", due_ms)
        until(lambda: pulled(ask) == [b"soon"], "the first is delivered")
    with (
        name_server() as (names, _),
        java_broker(
            "5.5.0",
            tmp_path / "java",
            names,
            "broker-a",
            **sizes,
            storePathRootDir=store,
            storePathCommitLog=store / "commitlog",
        ) as (_, address),
    ):
        until(lambda: len(pulled(asker(address))) > 1, "RocketMQ delivers the other")
        assert wall_clock_ms() >= due_ms
        assert pulled(asker(address)) == [b"soon", b"later"]
