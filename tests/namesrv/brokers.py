"""Brokers as a name server sees them, and what RocketMQ's own classes register."""

import json
import zlib

from rmqcore.namesrv.route_data import (
    BrokerRegistration,
    BrokerTopics,
    RegisteredTopic,
    TopicsVersion,
)
from rmqcore.remoting import RemotingCommand, RequestCode

#: what RegisterBrokerBody.encode of 5.5.0 writes, plain and compressed (of a broker from 5.0 on)
JAVA_BODY = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":7,'
    b'"stateVersion":0,"timestamp":1700000000000},"mappingDataVersion":{"counter":0,'
    b'"stateVersion":0,"timestamp":1795322775595},"topicConfigTable":{"TopicA":{"attributes":{},'
    b'"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
    b'"topicName":"TopicA","topicSysFlag":0,"writeQueueNums":5},"T2":{"attributes":{},'
    b'"order":false,"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG","topicName":"T2",'
    b'"topicSysFlag":0,"writeQueueNums":16}},"topicQueueMappingDetailMap":{},'
    b'"topicQueueMappingInfoMap":{}}}'
)
JAVA_COMPRESSED = bytes.fromhex(
    "78da636060b0a8564ace2fcd2b492d52b232d7512a2e492c490d4b2d2acecccf53b232d0512ac9cc4d050ae6162"
    "859199a1b20402d03030313104b85e41764263b2a9828982a9829047bfab9fbb8c68738ba2b5483544884182918"
    "9a8110a61c53742c90640000344c203e"
)
JAVA_TOPICS = BrokerTopics(
    TopicsVersion(7, 0, 1_700_000_000_000),
    {"TopicA": RegisteredTopic(4, 5, 6), "T2": RegisteredTopic(16, 16, 6)},
)
CLUSTER = "C"


def topics(*names, counter=1, perm=6, **more):
    """What a broker tells of topics with four queues each."""
    return BrokerTopics(
        TopicsVersion(counter), {name: RegisteredTopic(4, 4, perm) for name in names}, **more
    )


def registration(name="b", number=0, content=None, **more):
    """A broker that registers two topics."""
    fields = {
        "cluster": CLUSTER,
        "broker_name": name,
        "broker_id": number,
        "broker_addr": f"127.0.0.1:{10911 + number}",
        "ha_server_addr": f"127.0.0.1:{20911 + number}",
        "content": topics("T", "U") if content is None else content,
    }
    return BrokerRegistration(**fields | more)


def register_command(name="b", number=0, body=JAVA_BODY, version=513, **fields):
    """The same as a request."""
    header = {
        "clusterName": CLUSTER,
        "brokerName": name,
        "brokerId": str(number),
        "brokerAddr": f"127.0.0.1:{10911 + number}",
        "haServerAddr": f"127.0.0.1:{20911 + number}",
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
    }
    return RemotingCommand(RequestCode.REGISTER_BROKER, header | fields, body, version=version)


def plain_body(table, counter=1, **wrapper):
    """A registration's body with these topics: name -> members."""
    wrapper = {"dataVersion": {"counter": counter}, "topicConfigTable": table} | wrapper
    return json.dumps({"topicConfigSerializeWrapper": wrapper}).encode()


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s
