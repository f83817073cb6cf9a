"""A consume queue through any sequence of appends, cuts, expiries and reopenings."""

import shutil
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rmqcore.files.consume_queue import ConsumeQueue
from rmqcore.files.mapped_file import OpenFiles

pytestmark = pytest.mark.engine

FILE_SIZE = 100
RECORD = 100


class QueueMachine(RuleBasedStateMachine):
    """The model: the position of each message, by queue offset."""

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="queue"))
        self.units = {}
        self.next = 0
        self.log_end = 1000
        self.log_begin = 0
        self.queue = self.open()

    def open(self):
        queue = ConsumeQueue(self.directory / "T" / "0", "T", 0, FILE_SIZE, OpenFiles())
        queue.load()
        queue.correct_min_offset(self.log_begin)
        return queue

    def teardown(self):
        self.queue.close()
        shutil.rmtree(self.directory)

    @initialize(first=st.sampled_from([0, 3, 5, 12]))
    def begin(self, first):
        self.next = first
        self.append(1, 0)

    @rule(count=st.integers(1, 12), hole=st.sampled_from([0, 0, 0, 1, 6]))
    def append(self, count, hole):
        first = self.next + hole
        data = b""
        for offset in range(first, first + count):
            self.units[offset] = self.log_end
            data += struct.pack(">qiq", self.log_end, RECORD, offset)
            self.log_end += RECORD
        self.next = first + count
        assert self.queue.append_units(first, memoryview(data)) == count

    @rule()
    def append_again(self):
        last = [offset for offset in self.units if offset >= self.next - 3]
        for offset in last:
            data = struct.pack(">qiq", self.units[offset], RECORD, offset)
            assert self.queue.append_units(offset, memoryview(data)) == 0

    @rule(records=st.integers(0, 9))
    def cut_the_log(self, records):
        self.log_end = max(self.log_begin, 1000, self.log_end - records * RECORD)
        self.queue.truncate(self.log_end)
        self.units = {o: at for o, at in self.units.items() if at + RECORD <= self.log_end}
        self.next = self.queue.max_offset
        assert all(offset < self.next for offset in self.units)

    @rule(records=st.integers(0, 9))
    def expire(self, records):
        self.log_begin = min(self.log_end, max(self.log_begin, 1000) + records * RECORD)
        self.queue.delete_before(self.log_begin)
        self.units = {o: at for o, at in self.units.items() if at >= self.log_begin}

    @rule()
    def reopen(self):
        self.queue.close()
        self.queue = self.open()

    @invariant()
    def every_message_is_where_it_was(self):
        queue = self.queue
        assert queue.max_offset == self.next
        assert 0 <= queue.min_offset <= queue.max_offset
        assert queue.min_offset <= min(self.units, default=queue.max_offset)
        for offset in range(queue.min_offset, queue.max_offset):
            at = self.units.get(offset)
            assert queue.unit_at(offset) == (None if at is None else (at, RECORD))
        assert queue.unit_at(queue.max_offset) is None
        assert len(queue.read_units(queue.min_offset, 1000)) == 20 * (
            queue.max_offset - queue.min_offset
        )


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_file_of_zeros_holds_no_unit(tmp_path):
    directory = tmp_path / "T" / "0"
    directory.mkdir(parents=True)
    (directory / f"{FILE_SIZE * 3:020d}").write_bytes(bytes(FILE_SIZE))
    queue = ConsumeQueue(directory, "T", 0, FILE_SIZE, OpenFiles())
    queue.load()
    assert queue.max_offset == FILE_SIZE * 3 // 20
    assert queue.unit_at(FILE_SIZE * 3 // 20) is None


def test_fillers_stay_hidden_after_a_reopening(tmp_path):
    directory = tmp_path / "T" / "0"
    queue = ConsumeQueue(directory, "T", 0, FILE_SIZE, OpenFiles())
    queue.append_units(8, memoryview(struct.pack(">qiq", 0, RECORD, 1)))
    queue.close()
    again = ConsumeQueue(directory, "T", 0, FILE_SIZE, OpenFiles())
    again.load()
    again.correct_min_offset(0)
    assert (again.min_offset, again.max_offset) == (8, 9)
    assert again.end_phy_offset == RECORD
