"""Consume queues and index that the engine derives from a log, against RocketMQ's and ours."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.stores import packed_stores, unpack
from reference.consume_queue import queue_files, queues_of, unit_of
from reference.index import IndexRule, build_index
from reference.records import Record, encode_record
from reference.recovery import walk_log
from reference.store import ReferenceStore, Sizes, read_files
from reference.values import DELAY_LEVELS, delay_ms, encode_properties
from rmqcore.derived import consume_queue_store, index_service
from rmqcore.derived.consume_queue_store import ConsumeQueueStore
from rmqcore.derived.index_service import IndexService
from rmqcore.files.index_file import IndexFile
from rmqcore.files.mapped_file import OpenFiles
from rmqcore.files.store_dir import StoreDir
from rmqcore.native.derive._dispatch import DispatchBatch

pytestmark = pytest.mark.engine

DELAYS = [delay_ms(level) for level in range(1, len(DELAY_LEVELS.split()) + 1)]
#: deleted topics are not told from the log alone
WHOLE = [s for s in packed_stores() if s[1] not in ("aged", "crashed", "recreated")]


@pytest.fixture(autouse=True)
def no_disk(monkeypatch):
    """Nothing here asks what is on the disk, and waiting for it would take most of the time."""
    monkeypatch.setattr(IndexFile, "flush", lambda _: None)
    for module in (consume_queue_store, index_service):
        monkeypatch.setattr(module, "sync_directory", lambda _: None)


class Derived:
    """The engine's dispatchers over an empty directory."""

    def __init__(self, path, sizes, *, tags=True):
        self.directory = StoreDir(path)
        self.directory.create()
        files = OpenFiles()
        clock = count(1_700_000_000_000)
        self.queues = ConsumeQueueStore(self.directory, sizes.consume_queue_file, 460, files)
        self.index = IndexService(
            self.directory.index,
            sizes.slot_num,
            sizes.entry_num,
            files,
            clock_ms=lambda: next(clock),
        )
        self.batch = DispatchBatch(delays_ms=DELAYS, index_tags=tags, multi_dispatch=True)

    def dispatch(self, data, at, start):
        """Dispatch one log file from byte `at` on."""
        self.batch.scan(data, at, len(data), base_offset=start)
        self.queues.dispatch(self.batch)
        self.index.dispatch(self.batch)
        self.batch.clear()

    def consume_queues(self):
        root = self.directory.consume_queue
        return {
            f"consumequeue/{queue.parent.name}/{queue.name}/{start:020d}": data
            for queue in sorted(root.glob("*/*"))
            for start, data in read_files(queue).items()
        }

    def index_files(self):
        return [path.read_bytes() for path in sorted(self.directory.index.iterdir())]


def with_entries(files):
    """RocketMQ makes an index file as soon as any record could need it; we when a key does."""
    return [bytes(file.data) for file in files if file.header.index_count > 1]


@pytest.mark.parametrize("store", WHOLE, ids="-".join)
def test_derived_files_are_rocketmqs_byte_for_byte(store, tmp_path):
    golden = unpack(*store, tmp_path / "golden")
    manifest = golden.manifest
    sizes = Sizes(
        consume_queue_file=manifest["mappedFileSizeConsumeQueue"],
        slot_num=manifest["maxHashSlotNum"],
        entry_num=manifest["maxIndexNum"],
    )
    tags = golden.release != "4.9.7"
    reference = ReferenceStore(golden.path, sizes)
    derived = Derived(tmp_path / "derived", sizes, tags=tags)
    for start, data in reference.log_files.items():
        derived.dispatch(data, 0, start)
    assert derived.consume_queues() == reference.consume_queue_files()
    on_disk = [path.read_bytes() for path in sorted((golden.path / "index").iterdir())]
    assert derived.index_files() == on_disk
    for queue in manifest["queues"]:
        mine = derived.queues.find(queue["topic"], queue["queueId"])
        assert (mine.min_offset, mine.max_offset) == (queue["minOffset"], queue["maxOffset"])


@st.composite
def logs(draw):
    """One log file: a few queues, some with a late beginning or a hole, keys, transactions."""
    data, offsets = b"", {}
    for _ in range(draw(st.integers(0, 40))):
        queue = draw(st.sampled_from([("T", 0), ("T", 1), ("U", 0)]))
        if queue not in offsets:
            offsets[queue] = draw(st.sampled_from([0, 0, 7, 23]))
        elif draw(st.integers(0, 15)) == 0:
            offsets[queue] += draw(st.integers(1, 12))
        words = draw(st.lists(st.sampled_from(["Aa", "BB", "k", "订单"]), max_size=3))
        properties = {"KEYS": " ".join(words)} if words else {}
        if draw(st.booleans()):
            properties["TAGS"] = draw(st.sampled_from(["a", "b"]))
        transaction = draw(st.sampled_from([0, 0, 0, 4, 8, 12]))
        record = Record(
            topic=queue[0],
            queue_id=queue[1],
            queue_offset=0 if transaction in (4, 12) else offsets[queue],
            phy_offset=len(data),
            sys_flag=transaction,
            store_timestamp_ms=1_700_000_000_000 + len(data),
            properties_data=encode_properties(properties),
        )
        if record.is_queued:
            offsets[queue] += 1
        data += encode_record(record)
    return data + bytes(16)


@given(logs(), st.lists(st.integers(0, 2**16), max_size=3), st.sampled_from(IndexRule))
def test_dispatching_again_changes_nothing(tmp_path_factory, data, again, rule):
    sizes = Sizes(consume_queue_file=200, slot_num=5, entry_num=7)
    derived = Derived(
        tmp_path_factory.mktemp("derived"), sizes, tags=rule is IndexRule.KEYS_AND_TAGS
    )
    records = walk_log({0: data}).records
    derived.dispatch(data, 0, 0)
    for choice in again:
        if records:
            derived.dispatch(data, records[choice % len(records)].phy_offset, 0)
    expected = {
        f"consumequeue/{topic}/{queue_id}/{start:020d}": file
        for (topic, queue_id), queue in queues_of(records).items()
        for start, file in queue_files({o: unit_of(r) for o, r in queue.items()}, 200).items()
    }
    assert derived.consume_queues() == expected
    assert derived.index_files() == with_entries(build_index(records, 5, 7, rule))


@given(logs(), st.integers(0, 5))
def test_a_lost_index_file_is_derived_again(tmp_path_factory, data, number):
    sizes = Sizes(consume_queue_file=200, slot_num=5, entry_num=7)
    derived = Derived(tmp_path_factory.mktemp("derived"), sizes)
    derived.dispatch(data, 0, 0)
    before = derived.index_files()
    derived.index.drop_from(min(number, len(before)))
    derived.dispatch(data, 0, 0)
    derived.dispatch(data, 0, 0)
    assert derived.index_files() == before


HOSTILE = [
    {"topic": "../../outside"},
    {"topic": ""},
    {"topic": ".."},
    {"topic": "."},
    {"topic": "a\0b"},
    {"topic": "x" * 3000},
    {"queue_id": -1},
    {"queue_offset": -5},
    {"queue_offset": 2**62},
]


def test_a_topic_that_is_a_path_writes_nothing_there(tmp_path):
    sizes = Sizes(consume_queue_file=200, slot_num=5, entry_num=7)
    derived = Derived(tmp_path / "store", sizes)
    derived.dispatch(encode_record(Record(topic=f"{tmp_path}/elsewhere")), 0, 0)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("fields", HOSTILE, ids=range(len(HOSTILE)))
def test_a_record_whose_head_was_damaged_writes_nothing_elsewhere(tmp_path, fields):
    (tmp_path / "a").mkdir()
    derived = Derived(
        tmp_path / "a" / "store", Sizes(consume_queue_file=200, slot_num=5, entry_num=7)
    )
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    data = encode_record(Record(**({"topic": "T"} | fields)))
    derived.dispatch(data, 0, 0)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
    good = encode_record(Record(topic="T", phy_offset=len(data)))
    derived.dispatch(data + good, len(data), 0)
    assert list(derived.consume_queues()) == ["consumequeue/T/0/00000000000000000000"]
