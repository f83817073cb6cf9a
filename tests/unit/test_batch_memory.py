"""The memory of a released batch serves the next one; that of a batch somebody holds stays."""

import os
import subprocess
import sys
import threading
import time
import zlib

import pytest

from reference.records import Record, encode_record
from rmqcore.errors import CorruptRecordError
from rmqcore.native.columns._columns import COLUMNS, ColumnDecoder
from rmqcore.native.format._next_record import ScanStatus

pytestmark = pytest.mark.logic

pyarrow = pytest.importorskip("pyarrow")
BODY_SIZE = 3000


def log(count):
    """A stretch of log whose bodies tell their number."""
    data = b""
    for number in range(count):
        body = number.to_bytes(4, "big") * (BODY_SIZE // 4)
        pairs = f"KEYS\1K{number}\2TAGS\1{'T' * (number % 7)}\2".encode()
        data += encode_record(
            Record(topic="T", body=body, properties_data=pairs, phy_offset=len(data))
        )
    return data


def batches(decoder, data):
    """The batches of a stretch of log, as they come."""
    at, status = 0, ScanStatus.CAPACITY
    while status is ScanStatus.CAPACITY:
        at, code = decoder.decode(data, at, len(data), base_offset=0)
        status = ScanStatus(code)
        yield decoder.take()


def address(batch):
    return batch.numbers("phy_offset").__array_interface__["data"][0]


def test_the_memory_of_a_released_batch_is_used_again():
    decoder = ColumnDecoder(["phy_offset", "body"], row_max=10)
    seen = [address(batch) for batch in batches(decoder, log(200))]
    # one batch is held by the loop while the next is made
    assert len(seen) == 20
    assert len(set(seen)) == 2


def test_batches_that_are_held_stay_what_they_are():
    data = log(60)
    decoder = ColumnDecoder(COLUMNS, row_max=7)
    alone = [pyarrow.record_batch(b) for b in batches(ColumnDecoder(COLUMNS, row_max=60), data)]
    held = list(batches(decoder, data))
    assert len({address(batch) for batch in held}) == len(held)
    for _ in batches(decoder, data):
        pass
    tables = pyarrow.Table.from_batches([batch.to_arrow() for batch in held])
    assert tables.combine_chunks() == pyarrow.Table.from_batches(alone)


def test_a_part_of_a_batch_keeps_the_memory_of_all_of_it():
    decoder = ColumnDecoder(["phy_offset", "body"], row_max=10)
    data = log(100)
    column = next(iter(batches(decoder, data))).to_arrow().column(1)
    before = column.to_pylist()
    list(batches(decoder, data))
    for batch in batches(decoder, data):
        assert address(batch)
    assert column.to_pylist() == before


def test_a_batch_without_values_after_one_that_had_them():
    plain = encode_record(Record(topic="T", body=b"b" * 100, phy_offset=0))
    decoder = ColumnDecoder(["keys", "body", "crc_ok", "properties"], row_max=1)
    first = log(1)
    decoder.decode(first, 0, len(first), base_offset=0)
    assert decoder.take().to_arrow()["keys"].to_pylist() == ["K0"]
    decoder.decode(plain, 0, len(plain), base_offset=0)
    batch = decoder.take().to_arrow()
    batch.validate(full=True)
    assert batch["keys"].to_pylist() == [None]
    assert batch["properties"].to_pylist() == [[]]
    assert decoder.take().to_arrow().num_rows == 0


@pytest.mark.parametrize("row_max", [1, 31, 32, 33, 100])
def test_rows_before_a_damaged_record_are_kept(row_max):
    data = bytearray(log(100))
    starts = [
        row["phy_offset"]
        for b in batches(ColumnDecoder(["phy_offset"]), bytes(data))
        for row in b.to_arrow().to_pylist()
    ]
    data[starts[70] + 4] ^= 1
    decoder = ColumnDecoder(["phy_offset", "keys"], row_max=row_max)
    rows = [row for batch in batches(decoder, data) for row in batch.to_arrow().to_pylist()]
    assert [row["phy_offset"] for row in rows] == starts[:70]
    decoder.decode(data, starts[71], len(data), base_offset=0)
    assert decoder.take().to_arrow()["keys"][0].as_py() == "K71"


def test_plain_bodies_of_each_batch_take_the_room_of_the_ones_before():
    data = b""
    for number in range(300):
        body = zlib.compress(b"%d" % number)
        data += encode_record(Record(topic="T", body=body, sys_flag=1, phy_offset=len(data)))
    decoder = ColumnDecoder(["body"], row_max=1, plain_bodies=True)
    bodies = [batch.to_arrow()["body"][0].as_py() for batch in batches(decoder, data)]
    assert bodies[:300] == [b"%d" % number for number in range(300)]


def test_a_decoder_goes_with_an_unfinished_batch():
    decoder = ColumnDecoder(["phy_offset", "body"], row_max=10, plain_bodies=True)
    bad = encode_record(Record(topic="T", body=b"no zlib", sys_flag=1))
    decoder.decode(bad, 0, len(bad), base_offset=0)
    with pytest.raises(CorruptRecordError, match="decompress"):
        decoder.take()
    assert decoder.row_count == 1


@pytest.mark.engine
def test_batches_are_released_by_other_threads():
    data = log(400)
    decoder = ColumnDecoder(["phy_offset", "body"], row_max=5)
    wrong, waiting, done = [], [], threading.Event()

    def check():
        while not done.is_set() or waiting:
            try:
                column = waiting.pop().column(1)
            except IndexError:
                time.sleep(0)
                continue
            wrong.extend(body for body in column.to_pylist() if body != body[:4] * (BODY_SIZE // 4))

    threads = [threading.Thread(target=check) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        waiting.extend(batch.to_arrow() for batch in batches(decoder, data))
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


MANY_BATCHES = """
import re, sys
sys.path[:0] = {paths!r}
from unit.test_batch_memory import BODY_SIZE, ColumnDecoder, batches, log

def resident():
    # page by page: what /proc/self/statm says may be some MiB off for each processor
    with open("/proc/self/smaps_rollup", encoding="ascii") as stream:
        return 1024 * int(re.search("Rss: *([0-9]+)", stream.read())[1])

data = log(1000)
decoder = ColumnDecoder(["phy_offset", "body"], row_max=1000)
held = [batch for _ in range(40) for batch in batches(decoder, data)]
full = resident()
held.clear()
print((full - resident()) / (40 * 1000 * BODY_SIZE))
"""


@pytest.mark.process
def test_the_memory_of_one_batch_at_most_is_kept():
    # in a process where what is freed goes back to the system at once, sanitized or not
    asan = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=0"
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "ASAN_OPTIONS": asan}
    done = subprocess.run(
        [sys.executable, "-c", MANY_BATCHES.format(paths=sys.path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    # of 40 batches one is kept
    assert float(done.stdout) > 0.9
