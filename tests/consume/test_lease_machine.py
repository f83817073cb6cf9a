"""Leases through any order of calls, time, closings and kills, against a small model.

The model has one line a message and group: fresh, free, leased until, put off until, or done. A
closing and a kill change nothing of it.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from consume.conftest import SMALL, Clock, places, stands_still
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import rmqcore
from rmqcore.files import lease_journal
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.world import World

pytestmark = pytest.mark.engine

GROUPS = st.sampled_from(["g", "h"])
HOLDERS = st.sampled_from(["a", "b"])
QUEUES = st.integers(0, 1)
RECONSUME_MAX = 3
#: due times are looked at in slots of so many milliseconds
SLOT_MS = 16


@dataclass
class Line:
    """What a group has of one message."""

    times: int = 0
    due_ms: int | None = None
    holder: str | None = None
    done: bool = False


class LeaseMachine(RuleBasedStateMachine):
    """One store, and the model of it."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        # a kill leaves the same file, which is a copy here
        self.patch.setattr(lease_journal, "_name_of", lambda _: "the same")
        stands_still(self.patch)
        self.folder = Path(tempfile.mkdtemp(prefix="leases"))
        self.generation = 0
        self.clock = Clock()
        self.counts = {0: 0, 1: 0}
        #: by group and queue
        self.lines = {(group, queue): [] for group in "gh" for queue in (0, 1)}
        self.dead = {"g": 0, "h": 0}
        #: every lease that was ever handed out, by group
        self.handed = {"g": [], "h": []}
        self.store = self.open()
        self.put(0, 4)
        self.put(1, 2)

    def open(self):
        path = self.folder / str(self.generation)
        return DefaultMessageStore(path, rmqcore.StoreConfig(**SMALL), world=World(self.clock))

    def teardown(self):
        self.patch.undo()
        self.store.close()
        shutil.rmtree(self.folder)

    # ---- the model

    def is_ready(self, line):
        return not line.done and (line.due_ms is None or self.is_due(line))

    def is_due(self, line):
        return line.due_ms // SLOT_MS * SLOT_MS + SLOT_MS <= self.clock.now_ms

    def line_of(self, group, lease):
        return self.lines[group, lease.queue_id][lease.queue_offset]

    def is_held(self, group, lease):
        line = self.line_of(group, lease)
        # a lease that is over stays its holder's until somebody looks
        return not line.done and line.holder is not None and line.times == lease.attempt + 1

    def look(self):
        """What is due is free, as any lease and any lag finds it."""
        for lines in self.lines.values():
            for line in lines:
                if line.due_ms is not None and self.is_due(line):
                    line.due_ms = line.holder = None

    # ---- what is done

    @rule(queue_id=QUEUES, count=st.integers(1, 5))
    def put(self, queue_id, count):
        for _ in range(count):
            number = self.counts[queue_id]
            self.store.put("T", b"%d/%d" % (queue_id, number), queue_id=queue_id)
            self.counts[queue_id] += 1
            for group in "gh":
                self.lines[group, queue_id].append(Line())

    @rule(group=GROUPS, holder=HOLDERS, count=st.integers(1, 6), lease_ms=st.integers(1, 200))
    def lease(self, group, holder, count, lease_ms):
        found = self.store.lease(
            group,
            {"T": "*"},
            holder=holder,
            max_messages=count,
            lease_ms=lease_ms,
            max_reconsume_times=RECONSUME_MAX,
        )
        self.look()
        for message in found:
            lease = message.place
            assert message.body == b"%d/%d" % (lease.queue_id, lease.queue_offset)
            line = self.line_of(group, lease)
            assert self.is_ready(line)
            assert message.reconsume_times == lease.attempt == line.times
            line.times += 1
            line.due_ms, line.holder = lease.due_ms, holder
            assert lease.due_ms == self.clock.now_ms + lease_ms
        for queue_id in (0, 1):
            lines = self.lines[group, queue_id]
            offsets = [m.place.queue_offset for m in found if m.place.queue_id == queue_id]
            again = [offset for offset in offsets if lines[offset].times > 1]
            fresh = [offset for offset in offsets if lines[offset].times == 1]
            assert offsets == sorted(again) + sorted(fresh)
            # nothing is left out below what was handed out
            for kind in (again, fresh):
                for offset in range(max(kind, default=0)):
                    line = lines[offset]
                    if self.is_ready(line) and (line.times > 0) == (kind is again):
                        self.bury(group, line)
        if len(found) < count:
            for queue_id in (0, 1):
                for line in self.lines[group, queue_id]:
                    if self.is_ready(line):
                        self.bury(group, line)
        self.handed[group] += places(found)

    def bury(self, group, line):
        assert line.times > RECONSUME_MAX, "it was ready, and was not handed out"
        line.done = True
        self.dead[group] += 1

    @rule(group=GROUPS, data=st.data())
    def acknowledge(self, group, data):
        some = self.some(group, data)
        open_before = {
            (lease.queue_id, lease.queue_offset)
            for lease in some
            if not self.line_of(group, lease).done
        }
        assert self.store.acknowledge(group, some) == len(open_before)
        for lease in some:
            self.line_of(group, lease).done = True

    @rule(group=GROUPS, data=st.data(), delay_ms=st.sampled_from([0, 50]))
    def give_back(self, group, data, delay_ms):
        some = list(dict.fromkeys(self.some(group, data)))
        held = [lease for lease in some if self.is_held(group, lease)]
        given = self.store.give_back(
            group, some, delay_ms=delay_ms, max_reconsume_times=RECONSUME_MAX
        )
        assert given == len(held)
        for lease in held:
            line = self.line_of(group, lease)
            if line.times > RECONSUME_MAX:
                line.done = True
                self.dead[group] += 1
            line.due_ms = self.clock.now_ms + delay_ms if delay_ms else None
            line.holder = None

    @rule(group=GROUPS, data=st.data(), lease_ms=st.integers(1, 300))
    def change(self, group, data, lease_ms):
        some = list(dict.fromkeys(self.some(group, data)))
        held = [lease for lease in some if self.is_held(group, lease)]
        assert self.store.change_lease(group, some, lease_ms) == len(held)
        for lease in held:
            self.line_of(group, lease).due_ms = self.clock.now_ms + lease_ms

    @rule(group=GROUPS, holder=HOLDERS, step=st.sampled_from(["release", "purge", "compact"]))
    def seldom(self, group, holder, step):
        if step == "release":
            self.release(holder)
        elif step == "purge":
            self.purge(group)
        elif self.store.parts.consuming._leases is not None:
            self.store.parts.consuming._leases._table._compact_at = 0

    def release(self, holder):
        held = [
            line
            for lines in self.lines.values()
            for line in lines
            if not line.done and line.holder == holder
        ]
        assert self.store.release_leases(holder) == len(held)
        for line in held:
            line.due_ms = line.holder = None

    def purge(self, group):
        self.look()
        ready = [
            (queue, offset)
            for queue in (0, 1)
            for offset, line in enumerate(self.lines[group, queue])
            if self.is_ready(line)
        ]
        stretches = self.store.ready(group, "T")
        assert ready == [
            (queue, offset) for queue, first, end in stretches for offset in range(first, end)
        ]
        assert self.store.purge(group, "T") == len(ready)
        for queue, offset in ready:
            self.lines[group, queue][offset].done = True

    def some(self, group, data):
        """Some leases of a group, the last ones above all; it gets one when it never had any."""
        if not self.handed[group]:
            self.lease(group, "a", 3, 100)
        handed = self.handed[group]
        if not handed:
            return []
        recent = st.sampled_from(handed[-4:])
        return data.draw(st.lists(recent | st.sampled_from(handed), min_size=1, max_size=5))

    @rule(slots=st.integers(1, 8))
    def pass_time(self, slots):
        self.clock.now_ms += 2 * slots * SLOT_MS

    @rule(kill=st.booleans())
    def open_anew(self, kill):
        if kill:
            # what a kill leaves: the files as they are now
            before = self.folder / str(self.generation)
            self.generation += 1
            shutil.copytree(before, self.folder / str(self.generation))
        self.store.close()
        self.store = self.open()

    # ---- what always holds

    @invariant()
    def lag_agrees(self):
        for group in "gh":
            found = {lag.queue_id: lag for lag in self.store.lag(group, ["T"]) if lag.topic == "T"}
            self.look()
            for queue_id in (0, 1):
                lines = self.lines[group, queue_id]
                if not lines:
                    assert queue_id not in found
                    continue
                lag = found[queue_id]
                still_open = [n for n, line in enumerate(lines) if not line.done]
                assert lag.committed_offset == min(still_open, default=len(lines))
                assert lag.ready == sum(map(self.is_ready, lines))
                assert lag.leased == len(still_open) - lag.ready

    @invariant()
    def dead_letters_are_there(self):
        for group, count in self.dead.items():
            assert self.store.max_queue_offset(f"%DLQ%{group}", 0) <= count


LeaseMachine.TestCase.settings = settings(max_examples=8, stateful_step_count=30)
TestLeases = LeaseMachine.TestCase
