"""Delay levels: parking, and delivery that is ordered, on time, and never loses a message."""

from __future__ import annotations

import errno
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from held_time import HeldTime

from golden.stores import RELEASES, unpack
from rmqcore._codec import decode_record, encode_record
from rmqcore.config import StoreConfig
from rmqcore.errors import (
    CorruptConsumeQueueError,
    MessageIllegalError,
    StoreNotWritableError,
)
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.message import Message, PutMessageResult
from rmqcore.services.delay_schedule import (
    SCHEDULE_TOPIC,
    DeliverDelayedMessageService,
    DeliveryReport,
    ScheduleMessageService,
    delay_level_deadline,
    park,
    queue_id_of_level,
    unpark,
)
from rmqcore.status import PutMessageStatus

pytestmark = pytest.mark.logic

LEVELS_MS = StoreConfig().delay_levels_ms
NOW = 1_700_000_000_000


class FakeStore:
    """Records by physical offset, units by queue; what was put is on disk after `flush`."""

    def __init__(self):
        self.now_ms = NOW
        self.topics = {}
        self.records: dict[int, bytes] = {}
        self.units: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self.min_offsets: dict[tuple[str, int], int] = {}
        self.end = 0
        self.flushed = 0
        self.refuse = None
        self.puts = 0

    def put_message(self, message):
        self.puts += 1
        answer = self.refuse(message) if self.refuse else None
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return PutMessageResult(answer, reason="as told")
        units = self.units.setdefault((message.topic, message.queue_id), [])
        record = encode_record(
            message,
            queue_offset=len(units),
            phy_offset=self.end,
            store_timestamp_ms=self.now_ms,
        )
        tags_code = 0
        if message.topic == SCHEDULE_TOPIC:
            level = int(message.properties["DELAY"])
            tags_code = delay_level_deadline(LEVELS_MS, level, self.now_ms)
        units.append((self.end, len(record), tags_code))
        self.records[self.end] = record
        self.end += len(record)
        return PutMessageResult(PutMessageStatus.PUT_OK, phy_offset=self.end - len(record))

    def park(self, body, level=1, *, topic="TopicA", queue_id=3, **fields):
        message = Message(topic, body, queue_id=queue_id, delay_level=level, **fields)
        self.put_message(park(message, level, LEVELS_MS))

    def queue_bounds(self, topic, queue_id):
        key = topic, queue_id
        return self.min_offsets.get(key, 0), len(self.units.get(key, []))

    def read_units(self, topic, queue_id, queue_offset, count):
        assert queue_offset >= self.queue_bounds(topic, queue_id)[0]
        units = self.units.get((topic, queue_id), [])[queue_offset : queue_offset + count]
        return b"".join(struct.pack(">qiq", *unit) for unit in units)

    def message_at(self, phy_offset):
        record = self.records.get(phy_offset)
        return None if record is None else decode_record(record)

    def get_message(self, topic, queue_id, offset, max_messages):
        at, _, _ = self.units[topic, queue_id][offset]
        if any(begin < at < begin + len(record) for begin, record in self.records.items()):
            raise CorruptConsumeQueueError("consumequeue", -1, "no record begins there")
        found = self.message_at(at)
        return SimpleNamespace(messages=[] if found is None else [found])

    def flush(self):
        self.flushed = self.end

    def bodies(self, topic="TopicA", queue_id=3):
        return [self.message_at(at).body for at, _, _ in self.units.get((topic, queue_id), [])]


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


def start(store, directory: Path, levels_ms=LEVELS_MS, **settings) -> ScheduleMessageService:
    offsets = DelayOffsetTable(directory, clock=lambda: store.now_ms)
    return ScheduleMessageService(store, offsets, levels_ms, **settings)


class TestUnparking:
    def test_everything_but_the_delay_comes_back(self, store):
        store.park(
            b"body",
            2,
            tags="t",
            keys=("a", "b"),
            properties={"UNIQ_KEY": "u"},
            flag=7,
            born_timestamp_ms=NOW - 5,
            born_host="10.0.0.1:2",
            store_host="[2001:db8::1]:3",
            reconsume_times=4,
        )
        message = unpark(store.message_at(0))
        record = decode_record(
            encode_record(message, queue_offset=0, phy_offset=0, store_timestamp_ms=NOW)
        )
        assert (record.topic, record.queue_id, record.body, record.flag) == (
            "TopicA",
            3,
            b"body",
            7,
        )
        assert (record.tags, record.keys, record.unique_key) == ("t", ("a", "b"), "u")
        assert (record.born_timestamp_ms, record.reconsume_times) == (NOW - 5, 4)
        assert (record.born_host, record.store_host) == ("10.0.0.1:2", "[2001:db8::1]:3")
        assert record.properties == {
            "KEYS": "a b",
            "TAGS": "t",
            "UNIQ_KEY": "u",
            "REAL_TOPIC": "TopicA",
            "REAL_QID": "3",
        }
        assert not message.wait_store_msg_ok

    @pytest.mark.parametrize(
        "properties",
        [
            {"REAL_QID": "1"},
            {"REAL_TOPIC": "T"},
            {"REAL_TOPIC": "T", "REAL_QID": "-1"},
            {"REAL_TOPIC": SCHEDULE_TOPIC, "REAL_QID": "1"},
            {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "1"},
        ],
    )
    def test_a_message_without_a_place_to_go_is_refused(self, store, properties):
        store.put_message(Message(SCHEDULE_TOPIC, properties={"DELAY": "1", **properties}))
        with pytest.raises(MessageIllegalError, match="no place to go"):
            unpark(store.message_at(0))


class TestDelivery:
    def test_messages_come_when_they_are_due_and_not_before(self, store, tmp_path):
        service = start(store, tmp_path)
        store.park(b"five", 2)
        store.park(b"one", 1)
        for now_ms in (NOW, NOW + 999):
            report = service.run_once(now_ms)
            assert (report.delivered_count, report.next_due_ms) == (0, NOW + 1000)
        report = service.run_once(NOW + 1000)
        assert (report.delivered_count, report.next_due_ms) == (1, NOW + 5000)
        assert store.bodies() == [b"one"]
        report = service.run_once(NOW + 60_000)
        assert (report.delivered_count, report.next_due_ms) == (1, None)
        assert store.bodies() == [b"one", b"five"]

    def test_the_order_of_a_level_is_kept(self, store, tmp_path):
        for number in range(1000):
            store.park(b"%d" % number)
        assert start(store, tmp_path).run_once(NOW + 1000).delivered_count == 1000
        assert store.bodies() == [b"%d" % number for number in range(1000)]

    def test_nothing_is_delivered_twice(self, store, tmp_path):
        service = start(store, tmp_path)
        store.park(b"a")
        service.run_once(NOW + 1000)
        assert service.run_once(NOW + 9000).delivered_count == 0

    def test_a_clock_put_back_does_not_hold_messages_up(self, store, tmp_path):
        store.park(b"a", 1)
        report = start(store, tmp_path).run_once(NOW - 3_600_000)
        assert report.delivered_count == 1

    def test_the_last_level_is_delivered_on_time_whatever_the_clock_did(self, store, tmp_path):
        service = start(store, tmp_path)
        store.park(b"a", 18)
        assert service.run_once(NOW + 7_199_999).delivered_count == 0
        assert service.run_once(NOW - 1).delivered_count == 1

    def test_levels_that_are_no_longer_configured_are_delivered(self, store, tmp_path):
        store.park(b"late", 18)
        few = start(store, tmp_path, LEVELS_MS[:2])
        assert few.run_once(NOW + 7_200_000).delivered_count == 0
        all_parked = start(store, tmp_path, LEVELS_MS[:2], parked_queue_ids=[17])
        assert all_parked.run_once(NOW + 7_199_999).delivered_count == 0
        assert all_parked.run_once(NOW + 7_200_000).delivered_count == 1

    def test_an_extension_address_is_no_delivery_time(self, store, tmp_path):
        store.park(b"a", 2)
        phy_offset, size, _ = store.units[SCHEDULE_TOPIC, 1][0]
        store.units[SCHEDULE_TOPIC, 1] = [(phy_offset, size, -(2**63))]
        service = start(store, tmp_path)
        report = service.run_once(NOW + 4999)
        assert (report.delivered_count, report.next_due_ms) == (0, NOW + 5000)
        assert service.run_once(NOW + 5000).delivered_count == 1

    def test_a_message_that_only_its_queue_does_not_lead_to_comes_after_a_start(
        self, store, tmp_path
    ):
        for body in (b"0", b"1", b"2", b"3"):
            store.park(body)
        units = store.units[SCHEDULE_TOPIC, 0]
        whole = units[1]
        units[1] = (whole[0] + 8, *whole[1:])
        service = start(store, tmp_path)
        report = service.run_once(NOW + 1000)
        assert (report.delivered_count, report.skipped_count, report.held_up) == (3, 0, None)
        assert store.bodies() == [b"0", b"2", b"3"]
        store.park(b"4")
        assert service.run_once(NOW + 2000).delivered_count == 1
        service.persist()
        assert service.offsets()[1] == 1
        assert service.pending_from() == whole[0] + 8
        # the next opening derives the queue's file
        units[1] = whole
        assert start(store, tmp_path).run_once(NOW + 2000).delivered_count == 4
        assert store.bodies()[-4:] == [b"1", b"2", b"3", b"4"]

    def test_a_message_that_is_gone_is_skipped(self, store, tmp_path):
        for body in (b"a", b"b", b"c"):
            store.park(body)
        del store.records[store.units[SCHEDULE_TOPIC, 0][1][0]]
        report = start(store, tmp_path).run_once(NOW + 1000)
        assert (report.delivered_count, report.skipped_count) == (2, 1)
        assert store.bodies() == [b"a", b"c"]

    def test_a_unit_that_points_elsewhere_delivers_nothing(self, store, tmp_path):
        store.put_message(Message("TopicA", b"plain", queue_id=3))
        store.units[SCHEDULE_TOPIC, 0] = [(0, len(store.records[0]), NOW)]
        report = start(store, tmp_path).run_once(NOW)
        assert (report.delivered_count, report.skipped_count) == (0, 1)
        assert store.bodies() == [b"plain"]


class TestObstacles:
    @pytest.mark.parametrize(
        "obstacle",
        [
            PutMessageStatus.SERVICE_NOT_AVAILABLE,
            PutMessageStatus.CREATE_MAPPED_FILE_FAILED,
            StoreNotWritableError("disk full"),
        ],
    )
    def test_a_failed_put_loses_nothing_and_keeps_the_order(self, store, tmp_path, obstacle):
        for body in (b"a", b"b", b"c"):
            store.park(body)
        service = start(store, tmp_path)
        store.refuse = lambda message: obstacle if message.body == b"b" else None
        report = service.run_once(NOW + 1000)
        assert (report.delivered_count, report.next_due_ms) == (1, NOW + 1000)
        assert report.held_up
        assert service.run_once(NOW + 1100).delivered_count == 0
        store.refuse = None
        assert service.run_once(NOW + 1200).delivered_count == 2
        assert store.bodies() == [b"a", b"b", b"c"]

    def test_a_level_that_is_held_up_does_not_hold_up_others(self, store, tmp_path):
        store.park(b"a", 1)
        store.park(b"b", 2, topic="TopicB")
        store.refuse = lambda message: (
            PutMessageStatus.UNKNOWN_ERROR if message.topic == "TopicA" else None
        )
        assert start(store, tmp_path).run_once(NOW + 5000).delivered_count == 1
        assert store.bodies("TopicB") == [b"b"]

    @pytest.mark.parametrize(
        "refusal",
        [
            MessageIllegalError("never"),
            PutMessageStatus.MESSAGE_ILLEGAL,
            PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
            OverflowError("whatever it is"),
        ],
    )
    def test_a_message_that_can_never_be_put_does_not_block_its_level(
        self, store, tmp_path, refusal
    ):
        for body in (b"bad", b"good"):
            store.park(body)
        store.refuse = lambda message: refusal if message.body == b"bad" else None
        service = start(store, tmp_path)
        report = service.run_once(NOW + 1000)
        assert (report.delivered_count, report.skipped_count) == (1, 1)
        assert service.skipped_count == 1
        assert store.bodies() == [b"good"]


class TestOffsets:
    def test_a_restart_goes_on_where_it_was(self, store, tmp_path):
        service = start(store, tmp_path)
        store.park(b"a")
        service.run_once(NOW + 1000)
        service.persist()
        assert (tmp_path / "delayOffset.json").exists()
        store.park(b"b")
        assert start(store, tmp_path).run_once(NOW + 2000).delivered_count == 1
        assert store.bodies() == [b"a", b"b"]

    def test_a_crash_repeats_rather_than_loses(self, store, tmp_path):
        store.park(b"a")
        start(store, tmp_path).run_once(NOW + 1000)
        start(store, tmp_path).run_once(NOW + 1000)
        assert store.bodies() == [b"a", b"a"]

    def test_delivered_messages_are_on_disk_before_the_offsets_say_so(self, store, tmp_path):
        store.park(b"a")
        service = start(store, tmp_path)
        service.run_once(NOW + 1000)

        def fail():
            raise OSError(errno.EIO, "no disk")

        flush, store.flush = store.flush, fail
        with pytest.raises(OSError, match="no disk"):
            service.persist()
        assert not (tmp_path / "delayOffset.json").exists()
        store.flush = flush
        service.persist()
        assert store.flushed == store.end
        assert DelayOffsetTable(tmp_path, clock=lambda: NOW).get(1) == 1

    def test_they_are_written_soon_and_then_once_an_interval(self, store, tmp_path):
        service = start(store, tmp_path, flush_interval_ms=10_000)
        file = tmp_path / "delayOffset.json"
        store.park(b"a")
        for step_ms in (1000, 1999):
            service.run_once(NOW + step_ms)
            assert not file.exists()
        service.run_once(NOW + 2000)
        assert file.exists()
        store.park(b"b")
        store.flushed = 0
        service.run_once(NOW + 11_999)
        assert store.flushed == 0
        service.run_once(NOW + 12_000)
        assert store.flushed == store.end
        store.flushed = 0
        service.run_once(NOW + 99_000)
        assert store.flushed == 0

    @pytest.mark.parametrize(
        ("committed", "least", "delivered"),
        [(None, 2, [b"2", b"3"]), (1, 2, [b"2", b"3"]), (9, 0, []), (3, 0, [b"3"])],
    )
    def test_an_offset_outside_its_queue_is_put_right(
        self, store, tmp_path, committed, least, delivered
    ):
        for number in range(4):
            store.park(b"%d" % number)
        store.min_offsets[SCHEDULE_TOPIC, 0] = least
        offsets = DelayOffsetTable(tmp_path, clock=lambda: NOW)
        if committed is not None:
            offsets.commit(1, committed)
        ScheduleMessageService(store, offsets, LEVELS_MS).run_once(NOW + 1000)
        assert store.bodies() == delivered
        assert offsets.get(1) == 4

    def test_what_is_put_into_a_queue_that_was_cut_off_is_delivered_also_behind_a_kill(
        self, store, tmp_path
    ):
        store.park(b"0")
        offsets = DelayOffsetTable(tmp_path, clock=lambda: NOW)
        offsets.commit(1, 3)
        offsets.persist()
        start(store, tmp_path)
        store.park(b"1")
        store.park(b"2")
        start(store, tmp_path).run_once(NOW + 1000)
        assert store.bodies() == [b"1", b"2"]

    def test_what_is_still_parked_can_be_protected(self, store, tmp_path):
        service = start(store, tmp_path)
        assert service.pending_from() is None
        for level in (1, 5, 1):
            store.park(b"x", level)
        assert service.pending_from() == 0
        service.run_once(NOW + 1000)
        assert service.pending_from() == store.units[SCHEDULE_TOPIC, 4][0][0]
        service.run_once(NOW + 60_000)
        assert service.pending_from() is None

    def test_runtime_info_names_each_level(self, store, tmp_path):
        service = start(store, tmp_path)
        store.park(b"x", 3)
        store.park(b"x", 3)
        service.run_once(NOW + 10_000)
        store.park(b"x", 3)
        assert service.runtime_info() == {"scheduleMessageOffset_3": "2,3"}


class TestService:
    """Its rounds, run by hand; `held` is their time."""

    @pytest.fixture
    def held(self):
        return HeldTime()

    def start(self, held, store, directory, errors):
        service = DeliverDelayedMessageService(
            start(store, directory, flush_interval_ms=0), clock=lambda: NOW + 1000
        )
        held.services.start(service, errors.append)
        held.services.advance(1.0)
        assert store.bodies() == [b"a"]
        return service

    def test_it_delivers_and_writes_its_offsets_at_the_end(self, held, store, tmp_path):
        store.park(b"a")
        errors = []
        service = self.start(held, store, tmp_path, errors)
        held.services.stop(service)
        assert errors == []
        assert DelayOffsetTable(tmp_path, clock=lambda: NOW).get(1) == 1

    def test_offsets_that_cannot_be_written_do_not_keep_it_from_stopping(
        self, held, store, tmp_path
    ):
        def fail():
            raise StoreNotWritableError("no disk")

        store.park(b"a")
        service = self.start(held, store, tmp_path, [])
        service.schedule._offsets.commit(1, 7)
        store.flush = fail
        assert held.services.stop(service)

    def test_a_disk_that_refuses_the_offsets_does_not_end_it(self, held, store, tmp_path):
        def fail():
            raise OSError(errno.EIO, "no disk")

        flush, store.flush = store.flush, fail
        store.park(b"a")
        errors = []
        self.start(held, store, tmp_path, errors)
        assert not (tmp_path / "delayOffset.json").exists()
        store.flush = flush
        held.services.advance(1.0)
        assert (tmp_path / "delayOffset.json").exists()
        assert errors == []

    def test_it_looks_when_something_is_due_and_once_in_a_shortest_delay(
        self, held, store, tmp_path
    ):
        schedule, rounds = start(store, tmp_path), []
        look = schedule.run_once
        schedule.run_once = lambda now_ms: rounds.append(now_ms - NOW) or look(now_ms)
        service = DeliverDelayedMessageService(schedule, clock=held.clock_ms)
        held.services.start(service, pytest.fail)
        held.services.advance(2.0)
        assert rounds == [0, 900, 1800]
        # parked behind a round, as late as can be; and one whose time is farther away
        store.now_ms = held.clock_ms()
        store.park(b"a", level=1)
        store.park(b"later", level=2)
        held.services.advance(6.0)
        assert rounds[3:6] == [2700, 3000, 3900]
        assert 7000 in rounds
        assert store.bodies() == [b"a", b"later"]


class RocketmqStore(FakeStore):
    """A golden store: parked messages and their units as RocketMQ wrote them."""

    def __init__(self, path: Path):
        super().__init__()
        log = b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir()))
        for queue in (path / "consumequeue" / SCHEDULE_TOPIC).iterdir():
            raw = b"".join(file.read_bytes() for file in sorted(queue.iterdir()))
            units = [unit for unit in struct.iter_unpack(">qiq", raw) if unit[1]]
            self.units[SCHEDULE_TOPIC, int(queue.name)] = units
            for phy_offset, size, _ in units:
                self.records[phy_offset] = log[phy_offset : phy_offset + size]
        self.end = len(log)

    @property
    def parked(self):
        return [
            (queue_id + 1, self.message_at(phy_offset), tags_code)
            for (topic, queue_id), units in self.units.items()
            for phy_offset, _, tags_code in units
            if topic == SCHEDULE_TOPIC
        ]


class TestRocketmqsOwnStore:
    @pytest.fixture
    def store(self, tmp_path) -> RocketmqStore:
        return RocketmqStore(unpack("5.5.0", "delayed", tmp_path / "5.5.0").path)

    def test_parked_twice_is_a_place_that_nobody_meant(self, tmp_path):
        # The messages of this store were parked by their writer and once more by the store.
        store = RocketmqStore(unpack("4.9.7", "delayed", tmp_path / "4.9.7").path)
        due_ms = max(tags_code for _, _, tags_code in store.parked)
        report = start(store, tmp_path / "config").run_once(due_ms)
        assert report == DeliveryReport(0, len(store.parked), None)

    @pytest.mark.parametrize("release", RELEASES)
    def test_deadlines_are_those_that_rocketmq_computed(self, release, tmp_path):
        store = RocketmqStore(unpack(release, "delayed", tmp_path / release).path)
        assert len(store.parked) > 50
        for level, message, tags_code in store.parked:
            deadline = delay_level_deadline(LEVELS_MS, level, message.store_timestamp_ms)
            assert deadline == tags_code

    def test_parking_gives_the_bytes_that_rocketmq_wrote(self, store):
        for level, message, _ in store.parked:
            again = park(unpark(message), level, LEVELS_MS)
            assert (again.topic, again.queue_id) == (message.topic, message.queue_id)
            assert again.properties == message.properties
            again = Message(
                again.topic,
                again.body,
                queue_id=again.queue_id,
                properties=dict(message.properties),
                flag=again.flag,
                sys_flag=again.sys_flag,
                born_timestamp_ms=again.born_timestamp_ms,
                born_host=again.born_host,
                store_host=again.store_host,
                reconsume_times=again.reconsume_times,
            )
            record = encode_record(
                again,
                queue_offset=message.queue_offset,
                phy_offset=message.phy_offset,
                store_timestamp_ms=message.store_timestamp_ms,
            )
            assert record == bytes(message.record)

    def test_everything_is_delivered_once_to_its_real_queue(self, store, tmp_path):
        parked = store.parked
        due_ms = max(tags_code for _, _, tags_code in parked)
        store.now_ms = due_ms
        report = start(store, tmp_path / "config").run_once(due_ms)
        assert report == DeliveryReport(len(parked), 0, None)
        wanted = sorted(
            (message.properties["REAL_TOPIC"], int(message.properties["REAL_QID"]), message.body)
            for _, message, _ in parked
        )
        delivered = sorted(
            (topic, queue_id, body)
            for topic, queue_id in store.units
            if topic != SCHEDULE_TOPIC
            for body in store.bodies(topic, queue_id)
        )
        assert delivered == wanted


def test_the_queue_of_a_level():
    assert [queue_id_of_level(level) for level in (1, 18)] == [0, 17]
