"""Everyday commands of the mqadmin of 4.9 and 5, at our broker and with a Python consumer."""

import asyncio
import json
import subprocess
import threading

import pytest
from broker.conftest import records
from patience import until

from interop.cluster import TIMEOUT_S, asker, java, mqadmin
from interop.peer import missing
from interop.writers import BOTH
from rmqcore._codec import encode_properties
from rmqcore.client import Consumer, Producer
from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.testing import running_broker
from rmqcore.world import wall_clock_ms

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]
COUNT = 60
#: command -> a text that it prints; {b} is the broker, {c} the consumer, {m} and {u} the ids of the
#: last message, {d} a directory, {t} and {g} lists of topics and groups. They run in this order.
COMMANDS = {
    "consumerStatus -g G -i {c} -s": "_pull_on",
    "queryMsgById -g G -d {c} -i {m} -t T": "CR_SUCCESS",
    "statsAll -t T": "Accumulation",
    "clusterList": "{b}",
    "clusterList -m": "#InTotalToday",
    "topicList": "TBW102",
    "topicList -c": "DefaultCluster",
    "topicClusterList -t T": "DefaultCluster",
    "topicRoute -t T": "{b}",
    "topicStatus -t T": "broker-a",
    "updateTopic -t Ordered -c DefaultCluster -o true -r 2 -w 2": "orderConf=[broker-a:2]",
    "updateOrderConf -m delete -t Ordered": "delete orderConf success",
    "updateTopic -t New -b {b} -r 2 -w 2": "create topic to {b} success",
    "updateTopic -t New2 -c DefaultCluster": "create topic to {b} success",
    "updateTopicPerm -t New -b {b} -p 4": "success",
    "deleteTopic -t New -c DefaultCluster": "from NameServer success",
    "updateSubGroup -b {b} -g NG": "create subscription group to {b} success",
    "updateSubGroup -c DefaultCluster -g NG2": "create subscription group to {b} success",
    "updateSubGroup -b {b} -g Odd -s false -m true -d true -q 2 -r 5": "retryMaxTimes=5",
    "getConsumerConfig -g NG": "retryMaxTimes",
    "deleteSubGroup -g NG -c DefaultCluster": "delete subscription group [NG]",
    "queryMsgById -i {m} -t T": "Keys:                [key]",
    "queryMsgByKey -t T -k key": "{u}",
    "queryMsgByOffset -t T -b broker-a -i 0 -o 0": "Queue Offset:        0",
    "queryMsgByUniqueKey -t T -i {u}": "Keys:                [key]",
    "printMsg -t T -d true": "{u}",
    "printMsg -t T -s a -b 0": "{u}",
    "printMsgByQueue -t T -a broker-a -i 0 -p true": "queueOffset=14",
    "printMsgByQueue -t T -a broker-a -i 0 -f true": "Count: 15",
    "consumeMessage -t T -b broker-a -i 0 -o 2 -c 3": "queueOffset=4",
    "sendMessage -t T -p hello -k sent -c tag": "SEND_OK",
    "sendMsgStatus -b broker-a -c 3": "sendStatus=SEND_OK",
    "checkMsgSendRT -t T -a 3": "Avg RT",
    "queryCq -t T -q 0 -i 0 -c 3 -b {b}": "physicOffset=0",
    "allocateMQ -t T -i a,b": '"queueId":3',
    "consumerProgress": "PUSH",
    "consumerProgress -g G": "broker-a",
    "consumerProgress -g G -s true": "127.0.0.1",
    "consumerConnection -g G": "{c}",
    "producerConnection -g rmqcore-producer -t T": "PYTHON",
    "producer -b {b}": "rmqcore-producer",
    "brokerStatus -b {b}": "commitLogMaxOffset",
    "brokerStatus -c DefaultCluster": "earliestMessageTimeStamp",
    "brokerConsumeStats -b {b}": "#Consumer Offset",
    "getBrokerConfig -b {b}": "flushDiskType",
    "getBrokerConfig -c DefaultCluster": "Master: {b}",
    "updateBrokerConfig -b {b} -k transactionCheckMax -v 14": "update broker config success",
    "cloneGroupOffset -s G -d G2 -t T": "clone group offset success",
    "resetOffsetByTime -g G -t T -s now": "broker-a",
    "skipAccumulatedMessage -g G -t T -f true": "broker-a",
    "wipeWritePerm -b broker-a": "OK",
    "addWritePerm -b broker-a": "OK",
    "cleanExpiredCQ -b {b}": "success",
    "cleanUnusedTopic -b {b}": "success",
    "deleteExpiredCommitLog -b {b}": "success",
    "exportMetadata -c DefaultCluster -f {d}": "metadata.json success",
    "exportMetadata -b {b} -t -f {d}": "topic.json success",
    "exportMetadata -b {b} -g -f {d}": "subscriptionGroup.json success",
    "exportConfigs -c DefaultCluster -f {d}": "configs.json success",
    "exportMetrics -c DefaultCluster -f {d}": "metrics.json success",
    "getNamesrvConfig": "orderMessageEnable",
}
COMMANDS_OF_5 = {
    "updateTopicList -b {b} -f {t}": "to {b} success",
    "topicRoute -t Listed -l": "DefaultCluster",
    "updateSubGroupList -b {b} -f {g}": "to {b} success",
    "getConsumerConfig -g ListedGroup": "GroupRetryPolicy",
    "updateTopic -t Typed -b {b} -a +message.type=FIFO": "success",
    "topicStatus -t T -c DefaultCluster": "broker-a",
    "resetOffsetByTime -g G -t T -s now -b {b} -q 0 -o 3": "reset consumer offset to 3",
    "resetMasterFlushOffset -b {b} -o 0": "success",
    "haStatus -b {b}": "#MasterAddr\t{b}",
    "setConsumeMode -b {b} -t T -g PopG -m POP -q 8": "success",
}


class Consuming(threading.Thread):
    """A consumer that settles all it gets; sends a few messages first."""

    def __init__(self, namesrv_addr):
        super().__init__()
        self._namesrv_addr = namesrv_addr
        self._stopping = threading.Event()
        self.ready = threading.Event()
        self.client_id = self.message_id = self.unique_id = None
        self.got = []

    def run(self):
        asyncio.run(self._consume())

    async def _consume(self):
        async with (
            Producer(self._namesrv_addr) as producer,
            Consumer(self._namesrv_addr, "G", {"T": "a"}, start="first") as consumer,
        ):
            self.client_id = consumer.client_id
            for _ in range(COUNT):
                sent = await producer.send("T", b"x", tags="a", keys=("key",))
            self.message_id, self.unique_id = sent.offset_message_id, sent.message_id
            while not self._stopping.is_set():
                message = await consumer.receive(0.2)
                if message is not None:
                    self.got.append(message.offset_message_id)
                    await consumer.ack(message)
                if len(self.got) == COUNT:
                    self.ready.set()

    def stop(self):
        self._stopping.set()
        self.join(30)


@pytest.mark.parametrize("release", BOTH)
def test_mqadmin_does_what_it_does_at_rocketmqs_broker(tmp_path, release):
    commands = COMMANDS | (COMMANDS_OF_5 if release == "5.5.0" else {})
    with running_broker(tmp_path / "store") as broker:
        consumer = Consuming(broker.namesrv_addr)
        consumer.start()
        try:
            assert consumer.ready.wait(120)
            ids = {"b": broker.broker_addr, "c": consumer.client_id, "m": consumer.message_id}
            ids |= {"u": consumer.unique_id, "d": tmp_path / "exported"}
            ids |= {"t": tmp_path / "topics.json", "g": tmp_path / "groups.json"}
            ids["t"].write_text(json.dumps([{"topicName": "Listed", "perm": 6}]), "utf-8")
            ids["g"].write_text(json.dumps([{"groupName": "ListedGroup"}]), "utf-8")
            wanted = {
                command.format(**ids): text.format(**ids) for command, text in commands.items()
            }
            if release == "4.9.7":  # it knows the topic of an id by itself
                wanted = {
                    command.removesuffix(" -t T") if "queryMsgById" in command else command: text
                    for command, text in wanted.items()
                }
            printed, errors = mqadmin(release, tmp_path / "admin", broker.namesrv_addr, *wanted)
        finally:
            consumer.stop()
    assert "Exception" not in errors, errors
    assert {command: text for command, text in wanted.items() if text not in printed[command]} == {}
    assert consumer.got.count(consumer.message_id) == 2, "consumed once more for queryMsgById -d"
    (row,) = [
        line.split() for line in printed["statsAll -t T"].splitlines() if line.startswith("T ")
    ]
    assert row[1] == "G"
    assert float(row[3]) > 0
    assert row[5:7] == [str(COUNT), str(COUNT)]
    exported = json.loads((tmp_path / "exported" / "configs.json").read_text("utf-8"))
    assert "brokerConfigs" in exported


# ---- what mqadmin has no command for

GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"


def called(home, address, *words):
    """What a method of RocketMQ's administration gives."""
    command, environment = java("5.5.0", home, "AdminCalls", address, *words, heap="128m")
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (result,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return result.removeprefix("RESULT ")


def send(ask, topic, flag=0, born_ms=None, **properties):
    fields = {
        **{"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": str(flag), "h": "0"},
        **{"g": str(born_ms or wall_clock_ms()), "i": encode_properties(properties).decode()},
    }
    assert ask(RequestCode.SEND_MESSAGE_V2, fields, b"x").code == ResponseCode.SUCCESS


def pulled(ask, topic):
    fields = {
        **{"consumerGroup": "G", "topic": topic, "queueId": "0", "queueOffset": "0"},
        **{"maxMsgNums": "9", "sysFlag": "4", "commitOffset": "0", "subscription": "*"},
        **{"suspendTimeoutMillis": "0", "subVersion": "0"},
    }
    return ask(RequestCode.PULL_MESSAGE, fields)


def test_java_forbids_a_topic_to_a_group_and_allows_it_again(tmp_path):
    with running_broker(tmp_path / "store") as broker:
        ask = asker(broker.broker_addr)
        send(ask, "T")
        method = "updateAndGetGroupReadForbidden"
        for readable, code in (
            ("false", ResponseCode.NO_PERMISSION),
            ("true", ResponseCode.SUCCESS),
        ):
            words = (method, broker.broker_addr, "G", "T", readable)
            told = called(tmp_path / "java", broker.namesrv_addr, *words)
            assert told == f"GroupForbidden [topic=T, group=G, readable={readable}]"
            assert pulled(ask, "T").code == code


def test_java_has_a_half_message_asked_for_again(tmp_path):
    # one of which there is nobody to ask is given up at once
    settings = {"transactionCheckInterval": 100, "fileReservedTime": 0}
    with running_broker(tmp_path / "store", **settings) as broker:
        ask = asker(broker.broker_addr)
        send(ask, "T", 4, TRAN_MSG="true", PGROUP="PG")

        def given_up():
            found = pulled(ask, GIVEN_UP)
            return records(found.body) if found.code == ResponseCode.SUCCESS else []

        (kept,) = until(given_up, "it is given up")
        words = ("resumeCheckHalfMessage", GIVEN_UP, kept.message_id)
        assert called(tmp_path / "java", broker.namesrv_addr, *words) == "true"
        # it is looked at as a new one is, and given up once more
        again = until(lambda: given_up()[1:], "it is given up again")
        assert [message.properties["TRANSACTION_CHECK_TIMES"] for message in again] == ["0"]
