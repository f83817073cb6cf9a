"""Stores written by rmqcore, one for each kind of record. Small files, so that every kind rolls.

Each writer takes an open store and a source of random numbers, and returns the pairs (topic, key)
to query and the number of messages that consumers will find in the queues.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from patience import until

from rmqcore import Message, PutMessageStatus
from rmqcore._codec import encode_batch

SIZES = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 50 * 20,
    "max_hash_slot_num": 64,
    "max_index_num": 256,
}
#: After a crash RocketMQ 5.5.0 dispatches again from the last ten log files only, those that were
#: reserved ahead of need included (commitLogRecoverMaxNum): what a crash leaves has to fit.
CRASH_SIZES = {**SIZES, "mapped_file_size_commit_log": 256 * 1024}
#: so that it fits, too, where the kill comes late
CRASH_PUTS_MAX = 2000
BOTH = ("5.5.0", "4.9.7")
HOSTS = ("10.1.2.3:10911", "192.168.7.9:40123", "[2001:db8::1]:10911", "[fe80::abcd]:50000")
UNICODE = ("订单", "a😀", "é", "Aa", "BB", "AaAa", "BBBB")
TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK = 0x4, 0x8, 0xC

Keys = list[tuple[str, str]]
Writer = Callable[[object, random.Random], tuple[Keys, int]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of store: how it is written, with which settings, and which releases can read it."""

    name: str
    write: Writer
    settings: dict = field(default_factory=dict)
    releases: tuple[str, ...] = BOTH


def put_ok(store, message):
    result = store.put_message(message)
    assert result.status is PutMessageStatus.PUT_OK
    return result


def singles(store, rng):
    """Topics, queues, keys, tags, properties, empty and large bodies; every kind of file rolls."""
    keys = []
    for number in range(900):
        topic, queues = rng.choice((("TopicA", 4), ("Topic_B-2", 2), ("%RETRY%group", 1)))
        key = rng.choice(UNICODE) if rng.random() < 0.2 else f"K{number}"
        size = rng.choice((0, 1, 100, 300, 300, 300, 4000))
        store.put(
            topic,
            rng.randbytes(size),
            queue_id=rng.randrange(queues),
            tags=rng.choice((None, "Tag1", "Tag2", "é")),
            keys=rng.choice(((), key, (key, f"X{number}"))),
            properties=rng.choice(
                (None, {"user-é": f"v {number}"}, {"UNIQ_KEY": f"{number:032X}"})
            ),
            flag=rng.randrange(1000),
            born_timestamp_ms=1_700_000_000_000 + number,
            born_host=rng.choice(HOSTS[:2]),
            reconsume_times=rng.randrange(3),
        )
        keys += [(topic, key), (topic, f"X{number}"), (topic, f"{number:032X}")][:: 1 + number % 3]
    return [*keys, ("TopicA", "no such key")], 900


def batches(store, rng):
    """Batches of 1 to 40, as messages and as an encoded body."""
    keys, count = [], 0
    for number in range(40):
        messages = [
            Message(
                "TopicBatch",
                rng.randbytes(rng.randrange(1, 100)),
                tags=f"T{item % 3}",
                keys=(f"B{number}-{item}",),
                properties={"UNIQ_KEY": f"{number:016X}{item:016X}"},
                queue_id=number % 2,
            )
            for item in range(rng.randrange(1, 41))
        ]
        if number % 4:
            result = store.put_messages(messages, queue_id=number % 2)
        else:
            body = encode_batch(messages)
            result = store.put_messages(body, topic="TopicBatch", queue_id=number % 2)
        assert result.status is PutMessageStatus.PUT_OK
        keys.append(("TopicBatch", f"B{number}-0"))
        count += len(messages)
    return keys, count


def hosts(store, rng):
    """IPv4 and IPv6 hosts in every mix."""
    for number in range(160):
        message = Message(
            "TopicV6",
            rng.randbytes(rng.randrange(300)),
            keys=(f"H{number}",),
            queue_id=number % 2,
            born_host=HOSTS[number % 4],
            store_host=HOSTS[number // 4 % 2 * 2],
        )
        put_ok(store, message)
    return [("TopicV6", f"H{number}") for number in range(160)], 160


def long_topics(store, rng):
    """Topics of more than 127 characters: V2 records, mixed with V1."""
    topics = ["L" * 127, "L" * 128, "%RETRY%" + "Long" * 38]
    for number in range(160):
        store.put(topics[number % 3], rng.randbytes(rng.randrange(300)), keys=f"V{number}")
    return [(topics[number % 3], f"V{number}") for number in range(160)], 160


def transactions(store, rng):
    """Prepared, committed, rolled back and plain: only committed and plain reach the queues."""
    flags = (0, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
    for number in range(240):
        message = Message(
            "TopicTx",
            rng.randbytes(rng.randrange(200)),
            keys=(f"X{number}",),
            queue_id=number // 4 % 2,
            sys_flag=flags[number % 4],
            prepared_transaction_offset=number * 7,
        )
        put_ok(store, message)
    return [("TopicTx", f"X{number}") for number in range(240)], 120


def delayed(store, rng):
    """Parked at their levels; those of level 1 are delivered before the store is closed."""
    for number in range(60):
        level = 1 if number < 10 else 5 + number % 14
        body = rng.randbytes(50)
        store.put("TopicLate", body, tags="late", keys=f"D{number}", delay_level=level)
    until(lambda: store.max_queue_offset("TopicLate", 0) >= 10, "messages of level 1 are delivered")
    return [("TopicLate", f"D{number}") for number in range(10)], 70


def light_queues(store, rng):
    """One record in its own queue and in several light ones."""
    light = (None, "%LMQ%a", "%LMQ%a,%LMQ%b")
    for number in range(120):
        names = light[number % 3]
        properties = {"INNER_MULTI_DISPATCH": names} if names else None
        store.put("TopicL", rng.randbytes(100), keys=f"L{number}", properties=properties)
    return [("TopicL", f"L{number}") for number in range(120)], 120 + 80 + 40


def record_crcs(store, rng):
    """Every record ends in the property that holds its CRC."""
    for number in range(150):
        keys = f"C{number}" if number % 5 else ()
        store.put("TopicCrc", rng.randbytes(rng.randrange(300)), keys=keys)
    return [("TopicCrc", f"C{number}") for number in range(150)], 150


KINDS = (
    Kind("singles", singles),
    Kind("batches", batches),
    Kind("hosts", hosts),
    Kind("long-topics", long_topics, releases=("5.5.0",)),
    Kind("transactions", transactions),
    Kind("delayed", delayed, {"deliver_delayed": True}),
    Kind("light-queues", light_queues, {"enable_lmq": True, "enable_multi_dispatch": True}),
    Kind("record-crc", record_crcs, {"enabled_append_prop_crc": True}),
    Kind("sync-flush", hosts, {"flush_disk_type": "SYNC_FLUSH"}),
    Kind("transient-pool", singles, {"transient_store_pool_enable": True}),
)
