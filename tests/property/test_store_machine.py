"""A whole store through puts, deletions, closings, kills, cuts and lost files, against the oracle.

After every opening all that was put, and was neither deleted nor cut off, is there, found by queue,
key, time, position and id, and the derived files are those that the oracle derives from the log.
"""

import shutil
import struct
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from reference.consume_queue import FILLER, UNIT_SIZE, Unit
from reference.index import IndexRule
from reference.records import BLANK_SIZE
from reference.recovery import Ending
from reference.store import ReferenceStore, Sizes, read_files
from rmqcore import Message, open_store

pytestmark = pytest.mark.engine

LOG_FILE = 4096
SIZES = Sizes(consume_queue_file=200, slot_num=5, entry_num=9)
SETTINGS = {
    "mapped_file_size_commit_log": LOG_FILE,
    "mapped_file_size_consume_queue": SIZES.consume_queue_file,
    "max_hash_slot_num": SIZES.slot_num,
    "max_index_num": SIZES.entry_num,
    "allocate_ahead": 0,
    "warm_mapped_file_enable": False,
}
TOPICS = st.sampled_from(["T", "Topic_B-2", "%RETRY%g"])
KEYS = ["Aa", "BB", "k", "订单", "polygenelubricants"]
PUT = {
    "topic": TOPICS,
    "queue_id": st.integers(0, 1),
    "body": st.binary(max_size=1200),
    "tags": st.none() | st.sampled_from(["a", "😀"]),
    "keys": st.lists(st.sampled_from(KEYS), max_size=2).map(tuple),
    "sys_flag": st.sampled_from([0, 0, 0, 0x4, 0x8, 0xC]),
}
#: of these flags: not half of a transaction, and not rolled back
QUEUED = (0, 0x8)


def units_from(phy_offset, files):
    """The units of queue files that point at or behind a log position, by file and place."""
    return {
        (name, at): unit
        for name, data in files.items()
        for at in range(0, len(data), UNIT_SIZE)
        if (unit := Unit.decode(data[at : at + UNIT_SIZE])).is_valid
        and unit.phy_offset >= phy_offset
        and unit != FILLER
    }


class StoreMachine(RuleBasedStateMachine):
    """One store, what its log must hold, and of each queue the log positions by queue offset."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="store"))
        self.generation = 0
        self.path = self.folder / "0"
        self.put_at = []
        self.queues = defaultdict(list)
        self.deleted_below = {}
        self.store = open_store(self.path, **SETTINGS)

    def teardown(self):
        self.store.close()
        shutil.rmtree(self.folder)

    # ---- what is done to it

    @rule(fields=st.fixed_dictionaries(PUT))
    def put(self, fields):
        receipt = self.store.put(**fields)
        self.put_at.append((receipt.phy_offset, fields["body"]))
        if fields["sys_flag"] in QUEUED:
            self.queues[fields["topic"], fields["queue_id"]].append(receipt.phy_offset)

    @rule(
        topic=TOPICS, bodies=st.lists(st.binary(min_size=1, max_size=400), min_size=1, max_size=5)
    )
    def put_batch(self, topic, bodies):
        receipt = self.store.put_messages([Message(topic, body, keys=("k",)) for body in bodies])
        offsets = [int(message_id[-16:], 16) for message_id in receipt.message_id.split(",")]
        self.put_at += zip(offsets, bodies, strict=True)
        self.queues[topic, 0] += offsets

    @rule(topic=TOPICS)
    def delete_topic(self, topic):
        of_topic = [key for key in self.queues if key[0] == topic]
        assert self.store.delete_topic(topic) == bool(of_topic)
        if of_topic:
            self.deleted_below[topic] = self.store.max_phy_offset
        for key in of_topic:
            del self.queues[key]
        self.check()

    @rule(count=st.integers(1, 3))
    def expire_log_files(self, count):
        self.store.flush()
        log = self.store.log.queue
        begin = min(log.files[0].file_from_offset + count * LOG_FILE, self.last_file())
        self.store.parts.upkeep.retention.delete_before(begin)
        assert self.store.min_phy_offset == begin
        self.put_at = [(at, body) for at, body in self.put_at if at >= begin]
        self.check()

    @rule()
    def flush(self):
        self.store.flush()

    @rule()
    def close_and_open(self):
        self.store.close()
        self.store = open_store(self.path, **SETTINGS)
        self.check()

    @rule(flushed=st.booleans())
    def die_and_open(self, flushed):
        self.die(flushed)
        self.reopen(Ending.CLEAN)

    @rule(kept=st.integers(4, 100))
    def die_with_a_torn_tail(self, kept):
        self.die(flushed=False)
        walk = self.oracle().walk
        at = walk.end % LOG_FILE
        path = self.path / "commitlog" / f"{walk.end - at:020d}"
        if path.exists() and at + kept + BLANK_SIZE < LOG_FILE:
            with path.open("r+b") as file:
                file.seek(at)
                file.write((struct.pack(">iI", 300, 0xDAA320A7) + b"\xee" * 100)[:kept])
        self.reopen(None)

    @rule(number=st.integers(0, 50), clean=st.booleans())
    def cut_the_log_at_a_damaged_record(self, number, clean):
        if clean:
            self.store.close()
        else:
            self.die(flushed=False)
        behind_others = [at for at, _ in self.put_at if at > self.last_file()]
        if behind_others:
            end = behind_others[number % len(behind_others)]
            path = self.path / "commitlog" / f"{end - end % LOG_FILE:020d}"
            with path.open("r+b") as file:
                file.seek(end % LOG_FILE + 4)
                file.write(b"\xee")
            self.forget_from(end)
        self.store = open_store(self.path, **SETTINGS, on_corruption="truncate")
        self.check()

    @rule(number=st.integers(0, 50), clean=st.booleans())
    def lose_a_derived_file(self, number, clean):
        if clean:
            self.store.close()
        else:
            self.die(flushed=True)
        files = [
            path
            for folder in ("consumequeue", "index")
            for path in sorted((self.path / folder).rglob("*"))
            if path.is_file()
        ]
        if files:
            files[number % len(files)].unlink()
        self.store = open_store(self.path, **SETTINGS)
        self.check()

    @rule()
    def lose_all_that_is_derived(self):
        self.store.close()
        for name in ("consumequeue", "index"):
            shutil.rmtree(self.path / name)
        (self.path / "checkpoint").unlink(missing_ok=True)
        self.store = open_store(self.path, **SETTINGS)
        self.check()

    # ---- how

    def die(self, flushed):
        """Go on with what the files hold at this moment, as after a kill."""
        if flushed:
            self.store.flush()
        # no service renames a file, or goes on, between the copies of two files
        for service in self.store.parts.upkeep.services:
            assert self.store.parts.upkeep.runner.stop(service)
        self.generation += 1
        after = self.folder / str(self.generation)
        shutil.copytree(self.path, after)
        self.store.close()
        shutil.rmtree(self.path)
        self.path = after

    def reopen(self, ending):
        self.store = open_store(self.path, **SETTINGS)
        assert not self.store.recovery_report.clean_shutdown
        if ending is not None:
            assert self.store.recovery_report.ending.value == ending.value
        self.check()

    def forget_from(self, end):
        """The log has been cut: what was behind its end is gone, its queue offsets are free."""
        self.put_at = [(at, body) for at, body in self.put_at if at < end]
        self.deleted_below = {topic: min(at, end) for topic, at in self.deleted_below.items()}
        for key, positions in list(self.queues.items()):
            self.queues[key] = [at for at in positions if at < end]
            if not self.queues[key]:
                del self.queues[key]

    def last_file(self):
        """Log position of the first byte of the file that is written."""
        last = self.put_at[-1][0] if self.put_at else 0
        return last - last % LOG_FILE

    def oracle(self):
        return ReferenceStore(self.path, SIZES, self.deleted_below)

    # ---- what must hold

    def check(self):
        oracle = self.oracle()
        assert oracle.walk.ending is Ending.CLEAN
        assert [(r.phy_offset, r.body) for r in oracle.records] == self.put_at
        self.check_reads(oracle)
        self.store.flush()
        self.check_derived(oracle)

    def check_reads(self, oracle):
        store = self.store
        assert store.max_phy_offset == oracle.max_phy_offset
        assert set(store.queues()) == self.queues.keys()
        assert store.min_phy_offset == oracle.min_phy_offset
        for (topic, queue_id), positions in self.queues.items():
            records = oracle.queue(topic, queue_id)
            end = len(positions)
            first = end - len(records)
            assert [r.phy_offset for r in records] == positions[first:]
            assert store.min_queue_offset(topic, queue_id) == first
            assert store.max_queue_offset(topic, queue_id) == end
            found = store.get_message(topic, queue_id, first, max_messages=1000).messages
            assert [m.phy_offset for m in found] == [r.phy_offset for r in records]
            assert [bytes(m.body) for m in found] == [r.body for r in records]
            times = {record.store_timestamp_ms + step for record in records for step in (-1, 0, 1)}
            for time_ms in times:
                lower, upper = (
                    store.queue_offset_by_time(topic, queue_id, time_ms, boundary=boundary)
                    for boundary in ("lower", "upper")
                )
                assert lower == oracle.offset_by_time_lower(topic, queue_id, time_ms)
                assert upper == oracle.offset_by_time_upper(topic, queue_id, time_ms)
        for topic in {record.topic for record in oracle.records}:
            for key in KEYS:
                found = store.query_message(topic, key, max_messages=1000).messages
                assert [m.phy_offset for m in found] == oracle.query(topic, key)
        for record in oracle.records[-5:]:
            assert store.message_at(record.phy_offset).message_id == record.message_id
            assert store.message_by_id(record.message_id).phy_offset == record.phy_offset

    def check_derived(self, oracle):
        root = self.path / "consumequeue"
        on_disk = {
            f"consumequeue/{queue.parent.name}/{queue.name}/{start:020d}": data
            for queue in root.glob("*/*")
            for start, data in read_files(queue).items()
        }
        derived = oracle.consume_queue_files()
        if oracle.min_phy_offset == 0:
            assert on_disk == derived
        begin = oracle.min_phy_offset
        assert units_from(begin, on_disk) == units_from(begin, derived)
        if begin > 0:  # how much is left of what was derived from deleted files is free
            return
        index = [path.read_bytes() for path in sorted((self.path / "index").iterdir())]
        derived = oracle.index_files(IndexRule.KEYS_AND_TAGS)
        assert index == [bytes(f.data) for f in derived if f.header.index_count > 1]


TestStoreMachine = StoreMachine.TestCase
# a failure is made small in the slow run only: that may take minutes
TestStoreMachine.settings = settings(
    max_examples=25,
    stateful_step_count=12,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", range(8))
def test_any_lost_file_is_derived_again(clean, number):
    machine = StoreMachine()
    for step in range(25):
        message = {"topic": "T", "queue_id": step % 2, "body": b"x" * 100, "keys": ("k",)}
        machine.put(message | {"tags": None, "sys_flag": 0})
    machine.lose_a_derived_file(number, clean)
    machine.teardown()


@pytest.mark.parametrize("clean", [True, False])
def test_a_queue_whose_messages_were_all_cut_off_is_gone(clean):
    machine = StoreMachine()
    message = {"queue_id": 0, "body": b"x" * 100, "tags": None, "keys": ("k",), "sys_flag": 0}
    for topic in ("T", "Topic_B-2"):
        machine.put(message | {"topic": topic})
    machine.cut_the_log_at_a_damaged_record(0, clean)
    assert machine.store.queues() == [("T", 0)]
    for _ in range(3):
        machine.put(message | {"topic": "T"})
    machine.die_and_open(flushed=False)
    machine.put(message | {"topic": "Topic_B-2"})
    machine.close_and_open()
    machine.teardown()


class LongStoreMachine(StoreMachine):
    """The same, for longer."""


TestLongStoreMachine = pytest.mark.storm(LongStoreMachine.TestCase)
TestLongStoreMachine.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
