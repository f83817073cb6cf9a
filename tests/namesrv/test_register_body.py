"""Bodies of registrations: RocketMQ's own are read, hostile ones are refused."""

import json
import struct
import zlib

import pytest
from children import peak_memory
from hypothesis import given
from hypothesis import strategies as st
from namesrv.brokers import JAVA_BODY, JAVA_COMPRESSED, JAVA_TOPICS, plain_body

from rmqcore.namesrv.register_body import PLAIN_SIZE_MAX, is_larger, read_register_body
from rmqcore.namesrv.route_data import BrokerTopics, RegisteredTopic, TopicsVersion
from rmqcore.remoting import RequestRefusedError

pytestmark = pytest.mark.logic


def read(body, version=513, compressed=False):
    return read_register_body(body, version, compressed=compressed)


def piece(content):
    return struct.pack(">i", len(content)) + content


def packed(lines, filters=b"[]", infos=None, version=b'{"counter":3}'):
    """A compressed body, as 4.9 (no infos) or 5.x writes it."""
    parts = [piece(version), struct.pack(">i", len(lines)), *map(piece, lines), piece(filters)]
    if infos is not None:
        parts += [struct.pack(">i", len(infos)), *map(piece, infos)]
    return zlib.compress(b"".join(parts), 9)


def test_javas_bodies_are_read():
    assert read(JAVA_BODY) == JAVA_TOPICS
    assert read(JAVA_COMPRESSED, compressed=True) == JAVA_TOPICS


def test_a_compressed_body_is_known_though_the_header_denies_it():
    assert read(JAVA_COMPRESSED, compressed=False) == JAVA_TOPICS


def test_a_body_of_4_9_lacks_what_it_does_not_know():
    members = json.loads(JAVA_BODY)
    wrapper = members["topicConfigSerializeWrapper"]
    for name in ("mappingDataVersion", "topicQueueMappingDetailMap", "topicQueueMappingInfoMap"):
        del wrapper[name]
    del wrapper["dataVersion"]["stateVersion"]
    for topic in wrapper["topicConfigTable"].values():
        del topic["attributes"]
    assert read(json.dumps(members).encode(), version=407) == JAVA_TOPICS
    lines = [b"TopicA 4 5 6 SINGLE_TAG", b"T2 16 16 6 SINGLE_TAG"]
    found = read(packed(lines), version=407, compressed=True)
    assert found == BrokerTopics(TopicsVersion(3), JAVA_TOPICS.topics)


def test_a_body_before_3_0_11_is_the_inner_part_alone():
    inner = json.dumps(json.loads(JAVA_BODY)["topicConfigSerializeWrapper"]).encode()
    assert read(inner, version=36) == JAVA_TOPICS


def test_no_body_is_no_topics():
    assert read(b"") == BrokerTopics()


def test_bare_integer_keys_are_read():
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"x":{0:1}}}}}'
    assert read(body).topics == {"T": RegisteredTopic(16, 16, 6)}


def test_static_topics_are_kept_as_they_came():
    info = {"topic": "S", "bname": "b", "epoch": 4, "currIdMap": {"0": 0}}
    body = plain_body({}, topicQueueMappingInfoMap={"S": info})
    assert read(body).mappings == {"S": info}
    body = packed([b"T 1 1 6 SINGLE_TAG {}"], infos=[json.dumps(info).encode()])
    assert read(body, compressed=True).mappings == {"S": info}


BAD = {
    "no JSON": b"{",
    "no object": b"[]",
    "not UTF-8": b'{"a":"\xff"}',
    "deep": b'{"a":' + b"[" * 100_000,
    "table no object": b'{"topicConfigSerializeWrapper":{"topicConfigTable":[]}}',
    "topic no object": plain_body({"T": 1}),
    "empty name": plain_body({"": {}}),
    "negative queues": plain_body({"T": {"readQueueNums": -1}}),
    "text as number": plain_body({"T": {"perm": "6"}}),
    "truth as number": plain_body({"T": {"perm": True}}),
    "perm of many bits": plain_body({"T": {"perm": 16}}),
    "fraction": plain_body({"T": {"perm": 6.5}}),
    "huge version": plain_body({}, counter=2**63),
    "filters no list": b'{"filterServerList":{"a":1}}',
    "filters no texts": b'{"filterServerList":[1]}',
    "no zlib": b"x\xda" + bytes(20),
    "cut": JAVA_COMPRESSED[:-20],
    "empty zlib": zlib.compress(b""),
    "piece too long": zlib.compress(struct.pack(">i", 2**31 - 1)),
    "piece negative": zlib.compress(struct.pack(">i", -1)),
    "too many topics": zlib.compress(piece(b"{}") + struct.pack(">i", 2**30)),
    "few items": packed([b"T 1 1 6"], infos=[]),
    "no number": packed([b"T one 1 6 SINGLE_TAG"], infos=[]),
    "long number": packed([b"T " + b"1" * 5000 + b" 1 6 SINGLE_TAG"], infos=[]),
    "no mappings though from 5.x": packed([b"T 1 1 6 SINGLE_TAG"]),
    "mapping without topic": packed([], infos=[b"{}"]),
    "large piece": packed([], infos=[b'{"topic":"S","a":[' + b"{}," * 25_000 + b"{}]}"]),
    "large mapping": plain_body({}, topicQueueMappingInfoMap={"S": {"a": [[{}]] * 8000}}),
    "mapping of a large text": plain_body({}, topicQueueMappingInfoMap={"S": {"a": "-" * 17_000}}),
    "many mappings": packed([], infos=[b'{"topic":"S"}'] * 4097),
    "many topics": packed([b"T 1 1 6 SINGLE_TAG"] * 100_001, infos=[]),
}


@pytest.mark.parametrize("name", BAD)
def test_what_no_broker_sends_is_refused(name):
    with pytest.raises(RequestRefusedError, match="the body is refused"):
        read(BAD[name])


@pytest.mark.parametrize("compressed", [True, False])
def test_how_large_a_body_is_counts_when_it_is_unpacked(compressed):
    body = packed([b"T 1 1 6 SINGLE_TAG"] * 100, infos=[])
    size = len(zlib.decompress(body))
    assert len(body) < size
    # brokers of 5.x say that it is not compressed
    assert is_larger(body, size - 1, compressed=compressed)
    assert not is_larger(body, size, compressed=compressed)
    assert not is_larger(b"x", 1, compressed=compressed)
    assert not is_larger(b"", 0, compressed=compressed)
    assert is_larger(b"{ }", 2, compressed=False)


@pytest.mark.process
def test_a_body_that_unpacks_to_too_much_is_refused_before_it_is_there():
    bomb = zlib.compress(bytes(PLAIN_SIZE_MAX + 1), 9)
    assert len(bomb) < 100_000

    def refuse():
        with pytest.raises(RequestRefusedError, match="too large"):
            read(bomb, compressed=True)

    assert peak_memory(refuse) < 3 * PLAIN_SIZE_MAX


@given(st.binary(max_size=300), st.booleans(), st.sampled_from([0, 407, 513]), st.booleans())
def test_any_body_is_read_or_refused(data, pack, version, compressed):
    try:
        found = read(zlib.compress(data) if pack else data, version, compressed)
    except RequestRefusedError:
        return
    assert isinstance(found, BrokerTopics)


@pytest.mark.engine
def test_damaged_bodies_are_read_or_refused(rng):
    refused = 0
    for _ in range(3000):
        seed = rng.choice([JAVA_BODY, zlib.decompress(JAVA_COMPRESSED)])
        body = bytearray(seed)
        for _ in range(rng.randint(1, 3)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        packed_body = bytes(body) if seed is JAVA_BODY else zlib.compress(bytes(body), 1)
        try:
            assert isinstance(read(packed_body), BrokerTopics)
        except RequestRefusedError:
            refused += 1
    assert 300 < refused < 3000
