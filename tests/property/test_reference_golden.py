"""The oracle against stores that RocketMQ wrote: it may judge the engine only where it agrees.

Every exception is named here and explained in docs/format/.
"""

import hashlib
import ipaddress
from dataclasses import replace

import pytest

from golden.stores import packed_stores, unpack
from reference.consume_queue import FILLER, UNIT_SIZE, Unit
from reference.index import IndexFile, IndexRule
from reference.records import CRC_RESERVED, decode_record, encode_record, masked_crc
from reference.recovery import Ending
from reference.store import ReferenceStore, Sizes, read_files

pytestmark = pytest.mark.engine

#: which topics were deleted is not told by the log alone, and that is all that the reference reads
ALL = [store for store in packed_stores() if store[1] != "recreated"]
WHOLE = [store for store in ALL if store[1] not in ("aged", "crashed")]


def named(stores):
    return {"argvalues": stores, "ids": ["-".join(store) for store in stores]}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """`opened(store)`: the golden store (release, name) and the oracle's reading of it."""
    cache = {}

    def open_once(store):
        if store not in cache:
            golden = unpack(*store, tmp_path_factory.mktemp("golden") / "store")
            manifest = golden.manifest
            sizes = Sizes(
                consume_queue_file=manifest["mappedFileSizeConsumeQueue"],
                slot_num=manifest["maxHashSlotNum"],
                entry_num=manifest["maxIndexNum"],
            )
            cache[store] = golden, ReferenceStore(golden.path, sizes)
        return cache[store]

    return open_once


def rule_of(golden):
    return IndexRule.KEYS if golden.release.startswith("4.") else IndexRule.KEYS_AND_TAGS


def host_text(java_text):
    address, _, port = java_text.partition("|")
    parsed = ipaddress.ip_address(address)
    return f"[{parsed}]:{port}" if parsed.version == 6 else f"{parsed}:{port}"


def java_index_files(golden, sizes):
    return [
        IndexFile(sizes.slot_num, sizes.entry_num, path.read_bytes())
        for path in sorted((golden.path / "index").iterdir())
    ]


@pytest.mark.parametrize("store", **named(ALL))
def test_log_ends_where_rocketmq_ended_it(opened, store):
    golden, reference = opened(store)
    assert reference.min_phy_offset == golden.manifest["minPhyOffset"]
    assert reference.max_phy_offset == golden.manifest["maxPhyOffset"]
    torn = golden.manifest.get("torn")
    assert reference.walk.ending is (Ending.TORN if torn else Ending.CLEAN)
    if torn:
        assert reference.walk.end == int(torn["file"]) + torn["position"]


@pytest.mark.parametrize("store", **named(ALL))
def test_every_field_of_every_message(opened, store):
    golden, reference = opened(store)
    checked = 0
    for queue in golden.manifest["queues"]:
        records = reference.queue(queue["topic"], queue["queueId"])
        assert len(records) == len(queue["messages"])
        for record, want in zip(records, queue["messages"], strict=True):
            data = reference.log_files[file_of(reference, record.phy_offset)]
            at = record.phy_offset - file_of(reference, record.phy_offset)
            raw = data[at : at + record.store_size]
            assert {
                "queueOffset": record.queue_offset,
                "phyOffset": record.phy_offset,
                "size": record.store_size,
                "flag": record.flag,
                "sysFlag": record.sys_flag,
                "bornTimestamp": record.born_timestamp_ms,
                "storeTimestamp": record.store_timestamp_ms,
                "reconsumeTimes": record.reconsume_times,
                "preparedTransactionOffset": record.prepared_transaction_offset,
                "bodyCRC": record.body_crc,
                "bodySize": len(record.body),
                "bodySha256": hashlib.sha256(record.body).hexdigest(),
                "recordSha256": hashlib.sha256(raw).hexdigest(),
                "msgId": record.message_id,
                "properties": record.properties,
                "bornHost": str(record.born_host),
                "storeHost": str(record.store_host),
            } == want | {
                "bornHost": host_text(want["bornHost"]),
                "storeHost": host_text(want["storeHost"]),
            }
            assert record.body_crc == masked_crc(record.body)
            checked += 1
    assert checked


@pytest.mark.parametrize("store", **named(ALL))
def test_encoding_gives_the_bytes_of_the_log_again(opened, store):
    _golden, reference = opened(store)
    for record in reference.records:
        start = file_of(reference, record.phy_offset)
        at = record.phy_offset - start
        assert encode_record(record) == reference.log_files[start][at : at + record.store_size]
    assert reference.records


@pytest.mark.parametrize("store", **named([s for s in ALL if s[1] == "record-crc"]))
def test_the_crc_property_is_made_and_verified(opened, store):
    _golden, reference = opened(store)
    for record in reference.records:
        start = file_of(reference, record.phy_offset)
        at = record.phy_offset - start
        stored = reference.log_files[start][at : at + record.store_size]
        bare = replace(record, properties_data=record.properties_data[:-CRC_RESERVED])
        assert encode_record(bare, append_crc=True) == stored
        assert decode_record(stored, verify_record=True).phy_offset == record.phy_offset


@pytest.mark.parametrize("store", **named(ALL))
def test_queue_limits(opened, store):
    golden, reference = opened(store)
    for queue in golden.manifest["queues"]:
        key = queue["topic"], queue["queueId"]
        assert reference.min_queue_offset(*key) == queue["minOffset"]
        assert reference.max_queue_offset(*key) == queue["maxOffset"]


@pytest.mark.parametrize("store", **named(ALL))
def test_offsets_by_time(opened, store):
    golden, reference = opened(store)
    by_time = {"lower": reference.offset_by_time_lower, "upper": reference.offset_by_time_upper}
    for queue in golden.manifest["queues"]:
        for time_ms, boundary, offset in queue["offsetByTime"]:
            if boundary != "any":
                got = by_time[boundary](queue["topic"], queue["queueId"], time_ms)
                assert got == offset, (queue["topic"], queue["queueId"], time_ms, boundary)


@pytest.mark.parametrize("store", **named(ALL))
def test_key_queries_but_for_collisions_and_repetitions(opened, store):
    golden, reference = opened(store)
    for query in golden.manifest["keyQueries"]:
        topic, key = query["topic"], query["key"]
        true_hits = set(reference.query(topic, key))
        false_hits = set(query["phyOffsets"]) - true_hits
        assert true_hits <= set(query["phyOffsets"])
        for phy_offset in false_hits:
            record = reference.message_at(phy_offset)
            assert key not in [*record.keys, record.unique_key]


@pytest.mark.parametrize("store", **named(WHOLE))
def test_consume_queues_come_again_byte_for_byte(opened, store):
    golden, reference = opened(store)
    assert consume_queues_on_disk(golden) == reference.consume_queue_files()


@pytest.mark.parametrize("store", **named([s for s in ALL if s[1] == "crashed"]))
def test_consume_queues_of_the_crashed_store_but_for_the_lost_units(opened, store):
    golden, reference = opened(store)
    on_disk, derived = consume_queues_on_disk(golden), reference.consume_queue_files()
    differing = [name for name in derived if derived[name] != on_disk.get(name)]
    assert on_disk.keys() == derived.keys()
    assert differing == [max(name for name in derived if "/TopicA/0/" in name)]
    damaged, good = on_disk[differing[0]], derived[differing[0]]
    kept = len(damaged.rstrip(b"\0"))
    kept += -kept % UNIT_SIZE
    assert damaged[:kept] == good[:kept]
    assert not any(damaged[kept:])
    assert len(good.rstrip(b"\0")) > kept


@pytest.mark.parametrize("store", **named([s for s in ALL if s[1] == "aged"]))
def test_consume_queues_of_the_aged_store_but_for_units_of_deleted_records(opened, store):
    golden, reference = opened(store)
    on_disk, derived = consume_queues_on_disk(golden), reference.consume_queue_files()
    assert on_disk.keys() == derived.keys()
    for name in derived:
        for at in range(0, len(derived[name]), UNIT_SIZE):
            theirs = Unit.decode(on_disk[name][at : at + UNIT_SIZE])
            if theirs.is_valid and theirs.phy_offset < reference.min_phy_offset:
                assert derived[name][at : at + UNIT_SIZE] == FILLER.encode()
            else:
                assert derived[name][at : at + UNIT_SIZE] == theirs.encode()


@pytest.mark.parametrize("store", **named(WHOLE))
def test_index_files_come_again_byte_for_byte(opened, store):
    golden, reference = opened(store)
    theirs = [bytes(file.data) for file in java_index_files(golden, reference.sizes)]
    assert [bytes(file.data) for file in reference.index_files(rule_of(golden))] == theirs


@pytest.mark.parametrize("store", **named([s for s in ALL if s[1] == "crashed"]))
def test_index_files_of_the_crashed_store_but_for_the_lost_one(opened, store):
    golden, reference = opened(store)
    theirs = [bytes(file.data) for file in java_index_files(golden, reference.sizes)]
    derived = [bytes(file.data) for file in reference.index_files(rule_of(golden))]
    assert derived[:-1] == theirs


@pytest.mark.parametrize("store", **named([s for s in ALL if s[1] == "aged"]))
def test_index_content_of_the_aged_store_but_for_deleted_records(opened, store):
    golden, reference = opened(store)

    def content(files):
        return [
            (entry.key_hash, entry.phy_offset)
            for file in files
            for entry in file.entries()
            if entry.phy_offset >= reference.min_phy_offset
        ]

    theirs = content(java_index_files(golden, reference.sizes))
    assert content(reference.index_files(rule_of(golden))) == theirs
    assert theirs


@pytest.mark.parametrize("store", **named([s for s in ALL if s[1] == "basic"]))
def test_the_other_index_rule_does_not_fit(opened, store):
    golden, reference = opened(store)
    other = next(rule for rule in IndexRule if rule is not rule_of(golden))
    theirs = [bytes(file.data) for file in java_index_files(golden, reference.sizes)]
    assert [bytes(file.data) for file in reference.index_files(other)] != theirs


@pytest.mark.parametrize("store", **named(ALL))
def test_walking_the_index_finds_what_rocketmq_found(opened, store):
    golden, reference = opened(store)
    files = reference.index_files(rule_of(golden))
    for query in golden.manifest["keyQueries"]:
        found = set()
        for file in reversed(files):
            for phy_offset in file.walk(f"{query['topic']}#{query['key']}"):
                if len(found) < 64:
                    found.add(phy_offset)
        assert found == set(query["phyOffsets"])


def file_of(reference, phy_offset):
    return max(start for start in reference.log_files if start <= phy_offset)


def consume_queues_on_disk(golden):
    root = golden.path / "consumequeue"
    return {
        f"consumequeue/{directory.parent.name}/{directory.name}/{start:020d}": data
        for directory in sorted(root.glob("*/*"))
        for start, data in read_files(directory).items()
    }
