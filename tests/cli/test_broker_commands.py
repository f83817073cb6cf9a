"""`produce`, `consume` and `admin` against a broker."""

import asyncio
import json
import re

import pytest
from client.conftest import patient  # noqa: F401 - a fixture: waits for answers
from patience import TIMEOUT_S, until

from rmqcore.cli.exit_codes import ExitCode
from rmqcore.client.blocking import Consumer
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode
from rmqcore.testing import rocketmq_broker, rocketmq_topic  # noqa: F401 - fixtures
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine


@pytest.fixture
def remote(rmqcore, rocketmq_broker):  # noqa: F811 - the fixture
    """Run a command with the name server behind it."""

    def run(*words, stdin=None):
        return rmqcore(*words, "-n", rocketmq_broker.namesrv_addr, stdin=stdin)

    return run


@pytest.fixture
def topic(remote, rocketmq_topic):  # noqa: F811 - the fixture
    """A topic with one queue, three messages in it."""
    assert remote("admin", "updateTopic", "-t", rocketmq_topic, "-q", 1).exit_code == 0
    sent = remote("produce", rocketmq_topic, "a", "b", "--tags", "x", "--key", "k", "--json")
    assert [line["queue_offset"] for line in sent.json_lines] == [0, 1]
    assert remote("produce", rocketmq_topic, "--property", "p=1", stdin="c\n").exit_code == 0
    return rocketmq_topic


def test_what_was_produced_is_consumed(remote, topic, monkeypatch):
    group = "G1-" + topic[-12:]
    words = ("consume", topic, "-g", group, "--start", "first")
    assert remote(*words, "--count", 2).stdout == "a\nb\n"
    with monkeypatch.context() as patch:
        first = [TIMEOUT_S]
        receive = Consumer.receive

        def patient_at_first(consumer, timeout_s):
            return receive(consumer, first.pop() if first else timeout_s)

        patch.setattr(Consumer, "receive", patient_at_first)
        (last,) = remote(*words, "--idle", 0.2, "--json").json_lines
    assert last["body"] == "c"
    assert last["properties"]["p"] == "1"
    nothing = remote(*words, "--idle", 0.2)
    waiting, none = nothing.stderr.splitlines()
    assert none.startswith(f"no message of {topic} came; {group} goes on where it was, another")
    assert waiting.startswith(f"rmqcore: waiting for {topic} as group {group}; it begins where")
    assert (nothing.exit_code, nothing.stdout) == (ExitCode.FINDINGS, "")
    tagged = remote("consume", topic, "-g", group + "t", "--tags", "x", "--start", 0, "--count", 2)
    assert tagged.stdout == "a\nb\n"


def test_consume_ends_at_the_end_and_prints_as_a_format_says(remote, topic):
    words = ("consume", topic, "-g", "G3-" + topic[-12:], "--start", "first", "-e")
    outcome = remote(*words, "--format", r"%t/%p@%o %g %s\n")
    assert outcome.stdout == f"{topic}/0@0 x a\n{topic}/0@1 x b\n{topic}/0@2  c\n"
    again = remote(*words)
    assert (again.exit_code, again.stdout) == (ExitCode.FINDINGS, "")
    filtered = remote(
        "consume", topic, "-g", "G4-" + topic[-12:], "-e", "--start", 0, "--tags", "x"
    )
    assert filtered.stdout == "a\nb\n"


def test_a_consumer_says_where_it_begins_and_that_a_topic_is_not_there(remote, topic):
    asked = ("consume", topic + "s", "-g", "G5-" + topic[-12:], "--idle", 0)
    outcome = remote(*asked)
    missing, waiting, _ = outcome.stderr.splitlines()
    assert missing == (
        f"rmqcore: warning: no broker has the topic {topic}s, waiting for it; did you mean {topic}?"
    )
    assert "what comes from now on (--start first shows what is there)" in waiting
    assert "waiting" not in remote(*asked, "--json").stderr.splitlines()[-1]


def test_15m_is_in_15_minutes_where_a_time_to_come_is_asked_for(remote, topic, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "rmqcore.client.blocking.Producer.send",
        lambda *_, deliver_at_ms, **__: asked.append(deliver_at_ms) or 1 / 0,
    )
    before = wall_clock_ms()
    for when in ("15m", "+15m", "2100-01-01"):
        with pytest.raises(ZeroDivisionError):
            remote("produce", topic, "x", "--deliver-at", when)
    assert before + 900_000 <= asked[0] <= asked[1] <= wall_clock_ms() + 900_000
    assert asked[2] > asked[1]
    assert remote("produce", topic, "x", "--deliver-at", "-15m").exit_code == ExitCode.USAGE
    monkeypatch.undo()
    late = remote("produce", topic, "x", "--deliver-at", "2020-01-01")
    assert late.stderr.startswith("rmqcore: warning: 2020-01-01 is over: the messages are deliv")


def test_what_is_not_there_is_not_said_to_be_done(remote, topic):
    for words, named, nearest in (
        (("deleteTopic", "-t", topic + "x"), topic + "x", topic),
        (("deleteSubGroup", "-g", "nobodys-group"), "nobodys-group", ""),
        (("wipeWritePerm", "-b", "broker-b"), "broker-b", "broker-a"),
        (("wipeWritePerm", "-b", "127.0.0.1:1"), "127.0.0.1:1", ""),
        (("brokerStatus", "-b", "broker-b"), "broker-b", "broker-a"),
        (("resetOffsetByTime", "-g", "g", "-t", topic + "x", "-s", "0"), topic + "x", topic),
    ):
        outcome = remote("admin", *words)
        assert (outcome.exit_code, outcome.stdout) == (ExitCode.STORE, ""), words
        assert named in outcome.stderr
        assert (f"did you mean {nearest}?" in outcome.stderr) is bool(nearest), words


def test_a_broker_goes_by_its_name_and_its_address(remote):
    (row,) = remote("admin", "clusterList", "--json").json
    status = remote("admin", "brokerStatus", "-b", "broker-a", "--json").json
    assert status["brokerVersionDesc"] == row["version"]
    for named in (row["address"], "broker-a"):
        wiped = remote("admin", "wipeWritePerm", "-b", named, "--json").json
        assert (wiped["broker_name"], wiped["topics"] > 0) == ("broker-a", True)
        assert remote("admin", "addWritePerm", "-b", named).exit_code == 0


def test_topics_are_listed_and_measured(remote, topic):
    assert topic in remote("admin", "topicList").stdout.splitlines()
    words = ("admin", "topicStatus", "-t", topic, "--json")
    until(lambda: remote(*words).json[0]["max_offset"] == 3, "all three in the queue")
    (row,) = remote(*words).json
    assert (row["topic"], row["queue_id"], row["max_offset"]) == (topic, 0, 3)
    (route,) = remote("admin", "topicRoute", "-t", topic, "--json").json
    assert (route["broker_name"], route["read_queues"]) == ("broker-a", 1)
    assert "max offset" in remote("admin", "topicStatus", "-t", topic).stdout
    assert remote("admin", "deleteTopic", "-t", topic).exit_code == 0
    gone = remote("admin", "topicRoute", "-t", topic)
    assert gone.exit_code == ExitCode.STORE
    assert topic in gone.stderr


def test_groups_are_followed_and_reset(remote, topic):
    group = "G2-" + topic[-12:]
    assert remote("admin", "updateSubGroup", "-g", group).exit_code == 0
    remote("consume", topic, "-g", group, "--start", "first", "--count", 2)
    words = ("admin", "consumerProgress", "-g", group, "-t", topic, "--json")
    (row,) = remote(*words).json
    assert (row["consumer_offset"], row["broker_offset"], row["lag"]) == (2, 3, 1)
    # its retry topic is one more when its client had the time to commit where that begins
    consumed = {row["topic"] for row in remote(*words[:4], "--json").json}
    assert consumed - {f"%RETRY%{group}"} == {topic}
    every = remote("admin", "consumerProgress", "--json").json
    assert {"group": group, "topics": len(consumed), "consumers": 0, "lag": 1} in every
    unknown = remote("admin", "consumerProgress", "-g", group + "x")
    assert (unknown.exit_code, unknown.stdout) == (ExitCode.STORE, "")
    assert f"consumer group {group}x; did you mean {group}?" in unknown.stderr
    (reset,) = remote(
        "admin", "resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "--json"
    ).json
    assert reset["offset"] == 0
    assert remote("admin", "consumerConnection", "-g", group).exit_code == ExitCode.FINDINGS
    assert remote("admin", "deleteSubGroup", "-g", group).exit_code == 0


def test_messages_are_found(remote, topic):
    (sent,) = remote("produce", topic, "needle", "--key", "n", "--json").json_lines
    words = ("admin", "queryMsgById", "-i", sent["offset_message_id"])
    assert remote(*words).stdout == "needle\n"
    by_key = ("admin", "queryMsgByKey", "-t", topic, "-k", "n")
    until(lambda: remote(*by_key).exit_code == 0, "the message in the index")
    assert remote(*by_key).stdout == "needle\n"
    words = ("admin", "queryMsgByUniqueKey", "-t", topic, "-i", sent["message_id"])
    assert remote(*words).stdout == "needle\n"
    none = remote("admin", "queryMsgByKey", "-t", topic, "-k", "none")
    assert none.exit_code == ExitCode.FINDINGS
    assert none.stderr == f"{topic} has no message with none\n"


def test_brokers_are_listed_and_set(remote):
    (row,) = remote("admin", "clusterList", "--json").json
    assert re.fullmatch(r"\d+\.\d\d", row["put_tps"])
    assert (row["cluster"], row["broker_name"], row["broker_id"]) == (
        "DefaultCluster",
        "broker-a",
        0,
    )
    address = row["address"]
    assert "putTps" in remote("admin", "brokerStatus", "-b", address).stdout
    key = "brokerPermission"
    for value in ("4", "6"):
        words = ("admin", "updateBrokerConfig", "-b", address, "-k", key, "-v", value)
        assert remote(*words).exit_code == 0
        assert remote("admin", "getBrokerConfig", "-b", address, "--json").json[key] == value
    wiped = remote("admin", "wipeWritePerm", "-b", "broker-a", "--json").json
    assert wiped["topics"] > 0
    assert remote("admin", "addWritePerm", "-b", "broker-a").exit_code == 0


def test_what_is_wrong_is_one_line(remote, rmqcore):
    nobody = rmqcore("produce", "T", "x", "-n", "127.0.0.1:1")
    assert nobody.exit_code == ExitCode.SYSTEM
    assert "cannot connect to 127.0.0.1:1" in nobody.stderr
    assert "rmqcore serve runs one" in nobody.stderr
    assert rmqcore("produce", "T", "x", "-n", "nowhere").exit_code == ExitCode.USAGE
    alone = remote("produce", "T", "x", "--access-key", "me")
    assert (alone.exit_code, "belong together" in alone.stderr) == (ExitCode.USAGE, True)
    assert remote("consume", "T", "--start", "soon").exit_code == ExitCode.USAGE
    refused = remote("admin", "updateTopic", "-t", "not a topic")
    assert refused.exit_code == ExitCode.STORE
    assert "code 29" in refused.stderr
    assert remote("admin", "queryMsgById", "-i", "zz").exit_code == ExitCode.USAGE


def test_no_name_of_a_topic_reaches_the_terminal_as_it_is(remote, rocketmq_broker):  # noqa: F811
    """A name server takes any name of a topic from brokers, and tells it to everybody."""
    evil = "Topic\nAnother\x1b[2J\u202e"

    def ask(code, body=b""):
        async def once():
            client = RemotingClient()
            command = RemotingCommand(code, {"topic": evil}, body)
            answer = await client.invoke(rocketmq_broker.namesrv_addr, command, TIMEOUT_S * 1000)
            await client.close()
            return answer.code

        return asyncio.run(once())

    queues = {"queueDatas": [{"brokerName": "broker-a", "perm": 6, "readQueueNums": 1}]}
    assert ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, json.dumps(queues).encode()) == 0
    try:
        listed = remote("admin", "topicList").stdout
        assert "\nTopic\\nAnother\\x1b[2J\\u202e\n" in f"\n{listed}"
        assert evil in remote("admin", "topicList", "--json").json
    finally:
        assert ask(RequestCode.DELETE_TOPIC_IN_NAMESRV) == 0
