"""A partition against plain Python: the same answers after any sequence of steps."""

import tempfile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reference import metaq as reference
from rmqcore.metaq import (
    DiscardDeletePolicy,
    MessageStore,
    MetaConfig,
    OffsetTooSmallError,
    SystemConfig,
)

pytestmark = pytest.mark.engine

SEGMENT = 400
ROW = st.tuples(st.integers(1, 2**63 - 1), st.binary(min_size=1, max_size=120), st.integers(-1, 3))


class PartitionMachine(RuleBasedStateMachine):
    @initialize(threshold=st.sampled_from([0, 3, 1000]), start=st.sampled_from([0, 7, 10**12]))
    def create(self, threshold, start):
        self.folder = tempfile.TemporaryDirectory()
        self.config = MetaConfig(
            SystemConfig(
                data_path=self.folder.name,
                unflush_threshold=threshold,
                unflush_interval_ms=10**9,
                max_segment_size=SEGMENT,
            )
        )
        self.threshold = threshold
        self.unflushed = 0
        self.model = reference.Partition(SEGMENT, start)
        self.store = self.open(offset_if_create=start)

    def open(self, **options):
        return MessageStore("t", 0, self.config, delete_policy=DiscardDeletePolicy(-1), **options)

    def after_append(self):
        full = len(self.model.segments[-1][1]) >= SEGMENT
        self.unflushed += 1
        if self.threshold <= 0 or full or self.unflushed > self.threshold:
            self.model.flush()
            self.unflushed = 0

    @rule(row=ROW)
    def append(self, row):
        location = self.store.append(*row)
        assert (location.offset, location.length) == self.model.append([row])
        self.after_append()
        self.model.roll_if_full()

    @rule(rows=st.lists(ROW, min_size=1, max_size=5))
    def append_many(self, rows):
        location = self.store.append_many(rows)
        assert (location.offset, location.length) == self.model.append(rows)
        self.after_append()
        self.model.roll_if_full()

    @precondition(lambda self: self.threshold > 0)
    @rule()
    def flush(self):
        self.store.flush()
        self.model.flush()
        self.unflushed = 0

    @rule()
    def delete(self):
        self.store.run_delete_policy()
        while len(self.model.segments) > 1:
            self.model.delete_oldest()

    @rule(torn=st.one_of(st.just(b""), st.just(bytes(60)), st.binary(max_size=30)))
    def reopen(self, torn):
        self.store.close()
        newest = self.store.segments[-1]
        if reference.record_at(torn, 0) is None:
            with newest.messages.path.open("ab") as file:
                file.write(torn)
        self.model.recover()
        self.unflushed = 0
        self.store = self.open()

    @rule(offset=st.integers(-5, 3000), size=st.integers(1, 500))
    def read(self, offset, size):
        offset += self.model.segments[0][0]
        assert self.store.nearest_offset(offset) == self.model.nearest(offset)
        expected = self.model.slice(offset, size)
        try:
            found = self.store.slice(offset, size)
            found = None if found is None else found.read()
        except OffsetTooSmallError:
            found = "small"
        assert found == expected

    @invariant()
    def agree(self):
        if not hasattr(self, "store"):
            return
        assert self.store.max_offset == self.model.durable
        assert self.store.min_offset == self.model.segments[0][0]
        got = [(m.offset, m.message_id, m.flag) for m in decoded(self.store)]
        assert got == [(at, i, flag) for at, i, flag, _ in self.model.messages()]

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()


def decoded(store):
    """Messages whose flag fits their data: the flag is not checked when a record is appended."""
    from rmqcore.metaq import Message
    from rmqcore.metaq._message_set import scan

    for segment in store.segments:
        view = segment.messages.slice(0, 10**9) if segment.messages.mutable else segment.messages
        for at, _, message_id, flag in scan(view.read())[0]:
            yield Message("t", b"", None, message_id, flag, 0, segment.start + at)


PartitionMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestPartition = PartitionMachine.TestCase
