"""The native scan of a log region against the oracle: units, index keys, and where it stops."""

import struct
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from golden.stores import packed_stores, unpack
from reference import records
from reference.consume_queue import queue_places, unit_of
from reference.index import IndexRule, record_keys
from reference.recovery import own_record
from reference.store import read_files
from reference.strategies import damaged, messages, record_of
from reference.values import DELAY_LEVELS, delay_ms, encode_properties, index_hash
from rmqcore.native.derive._dispatch import DispatchBatch

pytestmark = pytest.mark.engine

DELAYS = [delay_ms(level) for level in range(1, len(DELAY_LEVELS.split()) + 1)]
BASE = 1 << 40
GOOD, BLANK, EMPTY, REFUSED = 0, 1, 2, -1
SPECIAL_PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "UNIQ_KEY": st.sampled_from(["0A01", "Aa", "订单"]),
        "DELAY": st.sampled_from(["0", "1", "3", "18", "19", "999", "x", "-1", ""]).filter(bool),
        "INNER_NUM": st.sampled_from(["1", "3", "0", "x", "40000"]),
        "INNER_BASE": st.sampled_from(["0", "7", "x"]),
        "INNER_MULTI_DISPATCH": st.sampled_from(["%LMQ%a", "%LMQ%a,%LMQ%b", "other,%LMQ%b", "a/b"]),
        "INNER_MULTI_QUEUE_OFFSET": st.sampled_from(["5", "5,6", ",6", "5,", "x,1"]),
    },
)
TOPICS = st.sampled_from(["T", "Topic", "SCHEDULE_TOPIC_XXXX", "%RETRY%g", "rmq_sys_x", "%LMQ%a"])


@st.composite
def regions(draw):
    """Some records that follow each other in the log, and what stands behind them."""
    data = b""
    for number in range(draw(st.integers(0, 6))):
        message = draw(messages())
        message["topic"] = draw(TOPICS)
        message["queue_id"] = draw(st.integers(0, 2))
        message["sys_flag"] = draw(st.sampled_from([0, 0x1, 0x4, 0x8, 0xC, 0x80]))
        message["properties"] = message["properties"] | draw(SPECIAL_PROPERTIES)
        record = record_of(
            message,
            queue_offset=draw(st.sampled_from([number, 0, 100])),
            phy_offset=BASE + len(data),
            store_timestamp_ms=draw(st.integers(0, 2**42)),
        )
        data += records.encode_record(record)
    ending = draw(st.sampled_from(["none", "zeros", "blank", "raw"]))
    if ending == "zeros":
        data += bytes(draw(st.integers(1, 40)))
    elif ending == "blank":
        data += records.encode_blank(30) + bytes(22)
    elif ending == "raw":
        data += draw(st.binary(max_size=60))
    return data


def by_oracle(data, *, verify_crc, verify_crc_property):
    """Walk a region: where it ends and why, its queues' units, its index keys."""
    at, end, log = 0, GOOD, []
    while at < len(data):
        if records.is_blank(data, at, len(data)):
            end = BLANK
            break
        if data[at : at + 8] == bytes(8):
            end = EMPTY
            break
        try:
            record = records.decode_record(
                data,
                at,
                verify_body=verify_crc and not verify_crc_property,
                verify_record=verify_crc_property,
            )
        except records.RecordRejected:
            end = REFUSED
            break
        if record.phy_offset != BASE + at:
            end = REFUSED
            break
        log.append(record)
        at += record.store_size
    return at, end, log


def units_of(log, *, multi_dispatch):
    units = defaultdict(list)
    for record in log:
        places = queue_places(record)
        for place in places if multi_dispatch else places[:1]:
            row = (place.offset, *unit_of(record), record.store_timestamp_ms, place.message_count)
            units[place.queue].append(row)
    return dict(units)


def keys_of(log, rule):
    return [
        (index_hash(key), record.phy_offset, record.store_timestamp_ms)
        for record in log
        for key in record_keys(record, rule)
    ]


def rows_of(stretch):
    """As `units_of`."""
    rows = []
    for at, size, tags_code, time_ms, base, count, *rest in struct.iter_unpack(
        ">qiqqqhii", stretch.batch_units
    ):
        assert rest == [-1, 0]
        rows.append((base, at, size, tags_code, time_ms, count))
    return rows


def check_parts(stretch, rows):
    """What `QueueStretch.since` leaves of a stretch with these rows."""
    assert stretch.since(rows[0][1]) is stretch
    assert stretch.since(rows[-1][1] + 1) is None
    for at in {len(rows) // 2, len(rows) - 1} - {0}:
        part = stretch.since(rows[at - 1][1] + 1)
        assert rows_of(part) == rows[at:]
        assert part.behind_gap
        assert (part.topic, part.queue_id, part.first_queue_offset) == (
            stretch.topic,
            stretch.queue_id,
            rows[at][0],
        )
        assert next(first for first, _ in part.plain()) == rows[at][0]
        assert b"".join(units for _, units in part.plain()) == stretch.units[20 * at :]


def scanned(data, rule=IndexRule.KEYS_AND_TAGS, *, multi_dispatch=True, **options):
    batch = DispatchBatch(
        delays_ms=DELAYS,
        index_tags=rule is IndexRule.KEYS_AND_TAGS,
        multi_dispatch=multi_dispatch,
    )
    at, status = batch.scan(data, 0, len(data), base_offset=BASE, **options)
    units = {}
    for stretch in batch.stretches():
        rows = rows_of(stretch)
        queue = stretch.topic, stretch.queue_id
        assert bytes(stretch.units) == b"".join(struct.pack(">qiq", *row[1:4]) for row in rows)
        assert stretch.first_queue_offset == rows[0][0]
        assert all(row[0] + row[5] == after[0] for row, after in pairwise(rows))
        assert stretch.behind_gap == (queue in units)
        if stretch.behind_gap:
            *_, last = units[queue]
            assert last[0] + last[5] != rows[0][0]
        in_plain_queue = [
            (first + at, bytes(packed[20 * at : 20 * at + 20]))
            for first, packed in stretch.plain()
            for at in range(len(packed) // 20)
        ]
        assert in_plain_queue == [(row[0], struct.pack(">qiq", *row[1:4])) for row in rows]
        check_parts(stretch, rows)
        units.setdefault(queue, []).extend(rows)
    count = batch.key_count
    columns = (batch.key_hashes, batch.key_offsets, batch.key_timestamps)
    keys = list(zip(*(column[:count].tolist() for column in columns), strict=True))
    assert batch.end_offset == BASE + at
    return at, max(status, REFUSED), batch.record_count, units, keys


def expected(data, rule=IndexRule.KEYS_AND_TAGS, *, multi_dispatch=True, **options):
    options = {"verify_crc": False, "verify_crc_property": False} | options
    at, end, log = by_oracle(data, **options)
    return at, end, len(log), units_of(log, multi_dispatch=multi_dispatch), keys_of(log, rule)


@given(regions(), st.booleans(), st.sampled_from(IndexRule))
def test_regions_are_dispatched_alike(data, multi_dispatch, rule):
    got = scanned(data, rule, multi_dispatch=multi_dispatch)
    assert got == expected(data, rule, multi_dispatch=multi_dispatch)


@given(damaged(regions()), st.booleans(), st.booleans())
def test_damaged_regions_are_dispatched_alike(data, verify_crc, verify_crc_property):
    options = {"verify_crc": verify_crc, "verify_crc_property": verify_crc_property}
    got, wanted = scanned(data, **options), expected(data, **options)
    assert got[:3] == wanted[:3]
    if "\ufffd" not in str(wanted[3]) and b"\xed" not in data:
        assert got[3:] == wanted[3:]


@given(st.binary(max_size=300))
@example(bytes(8))
@example(b"\x00\x00\x00\x07\xcb\xd4\x31\x94")
def test_raw_regions_are_dispatched_alike(data):
    assert scanned(data) == expected(data)


@given(regions(), st.integers(-3, 500), st.integers(-3, 500))
def test_a_part_of_a_region(data, at, stop):
    batch = DispatchBatch()
    if 0 <= at <= stop <= len(data):
        end, _ = batch.scan(data, at, stop, base_offset=BASE)
        assert at <= end <= stop
    else:
        with pytest.raises(IndexError):
            batch.scan(data, at, stop, base_offset=BASE)


@settings(max_examples=12)
@given(st.integers(0, 3), st.integers(1, 12))
def test_a_full_batch_stops_and_goes_on(light_queues, count):
    names = ",".join("%LMQ%" + "ab"[number % 2] for number in range(3500))
    offsets = ",".join("0" for _ in range(3500))
    properties = {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}
    data, log = b"", []
    for number in range(count):
        record = records.Record(
            topic="T",
            queue_offset=number,
            phy_offset=BASE + len(data),
            properties_data=encode_properties(properties if number % (light_queues + 1) else {}),
        )
        data += records.encode_record(record)
        log.append(records.decode_record(data, record.phy_offset - BASE))
    batch, at, rows = DispatchBatch(multi_dispatch=True), 0, 0
    while at < len(data):
        end, _ = batch.scan(data, at, len(data), base_offset=BASE)
        assert end > at
        at, rows = end, rows + len(batch)
    assert rows == sum(len(queue_places(record)) for record in log)


@pytest.mark.parametrize(
    ("queues", "enough", "stretch"), [(1, 100, 100), (1, 0, 64), (5, 0, 320), (20, 0, 400)]
)
def test_a_stretch_is_long_enough_for_its_queues(queues, enough, stretch):
    data = b""
    for number in range(400):
        data += records.encode_record(
            records.Record(
                topic="T",
                queue_id=number % queues,
                queue_offset=number // queues,
                phy_offset=BASE + len(data),
                properties_data=b"",
            )
        )
    batch, at, rows = DispatchBatch(row_count_enough=enough), 0, []
    while at < len(data):
        at, _ = batch.scan(data, at, len(data), base_offset=BASE)
        rows.append(len(batch))
    assert rows[0] == stretch
    assert sum(rows) == 400


@pytest.mark.parametrize("store", packed_stores(), ids="-".join)
def test_golden_stores_are_dispatched_alike(store, tmp_path):
    golden = unpack(*store, tmp_path / "store")
    for start, data in read_files(golden.path / "commitlog").items():
        batch = DispatchBatch(delays_ms=DELAYS, multi_dispatch=True)
        end, _ = batch.scan(data, 0, len(data), base_offset=start, verify_crc=True)
        at, log = 0, []
        while at < end:
            log.append(own_record(data, at, start))
            at += log[-1].store_size
        assert at == end
        assert batch.record_count == len(log)
        units = defaultdict(list)
        for stretch in batch.stretches():
            units[stretch.topic, stretch.queue_id] += rows_of(stretch)
        assert units == units_of(log, multi_dispatch=True)
