"""The walk over one log file, and the search for good records, against the reference walk."""

import struct

import pytest

from reference.records import (
    BLANK_SIZE,
    Record,
    RecordRejected,
    encode_blank,
    encode_record,
)
from reference.recovery import own_record
from reference.values import encode_properties
from rmqcore.errors import CorruptStoreError
from rmqcore.files.log_walker import (
    find_good_record,
    first_record,
    good_record_at,
    record_heads,
    view_of,
    walk_file,
)
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.native.format._next_record import (
    RECORD_HEAD_SIZE,
    ScanStatus,
    head_says,
    lacks_size_only,
    next_record,
)

pytestmark = pytest.mark.logic

BASE = 1 << 20


def log_file(rng, size=4096, ends=None):
    """The bytes of one log file: good records, then a blank to its end, zeros or nothing."""
    data, ends = b"", ends or rng.choice(("blank", "zeros", "cut"))
    while True:
        record = encode_record(
            Record(
                topic="T" * rng.choice((1, 127, 128)),
                body=rng.randbytes(rng.choice((0, 1, 90, 700))),
                queue_offset=rng.randrange(9),
                phy_offset=BASE + len(data),
                store_timestamp_ms=rng.randrange(1 << 40),
                properties_data=encode_properties({"KEYS": "k"}),
            )
        )
        if len(data) + len(record) + BLANK_SIZE > size or (data and rng.random() < 0.1):
            break
        data += record
    if ends == "blank":
        data += encode_blank(size - len(data))
    elif ends == "cut":
        data += record[: rng.randrange(len(record))]
    return data[:size].ljust(size, b"\0")


def damaged(rng, data):
    """The same bytes, changed in up to three places."""
    data = bytearray(data)
    for _ in range(rng.choice((0, 0, 1, 3))):
        at = rng.randrange(len(data) - 8)
        data[at : at + 4] = rng.choice((bytes(4), b"\xff" * 4, b"\0\0\1\0", rng.randbytes(4)))
    return bytes(data)


def one_of_each(size=4096):
    """Files with each kind of what may be at their first place."""
    record = encode_record(Record(topic="T", body=b"body", phy_offset=BASE))
    changes = {
        0: struct.pack(">i", size + 1),
        1: struct.pack(">i", len(record) + 1)[1:],
        4: b"\xff",
        35: b"\1",
        record.index(b"body"): b"x",
    }
    changed = [record[:at] + new + record[at + len(new) :] for at, new in changes.items()]
    return [data.ljust(size, b"\0") for data in (b"", record, encode_blank(size), *changed)]


def expected_at(data, at):
    """What is at a place of a file, by the reference: a record, "blank", "zeros" or None."""
    try:
        return own_record(data, at, BASE)
    except RecordRejected:
        if data[at : at + BLANK_SIZE] == encode_blank(len(data) - at):
            return "blank"
        return "zeros" if data[at : at + BLANK_SIZE] == bytes(BLANK_SIZE) else None


def answer(data, at, available):
    return next_record(
        data, at, at + available, base_offset=BASE, file_end=BASE + len(data), verify_crc=True
    )


def kind_of(status):
    kinds = {ScanStatus.BLANK: "blank", ScanStatus.EMPTY: "zeros"}
    return kinds.get(status, "record" if status is ScanStatus.OK else None)


def starts(data):
    """Where records begin as far as they are good, where they end, and places in between."""
    at = 0
    while isinstance(record := expected_at(data, at), Record):
        yield from (at, at + 1)
        at += record.store_size
    yield at


def test_a_place_is_what_the_reference_says_it_is(rng):
    seen = set()
    for data in (*one_of_each(), *(damaged(rng, log_file(rng)) for _ in range(400))):
        for at in starts(data):
            wanted = expected_at(data, at)
            status, size, stored = answer(data, at, len(data) - at)
            seen.add(status)
            if isinstance(wanted, Record):
                assert (status, size) == (ScanStatus.OK, wanted.store_size)
                assert stored == wanted.store_timestamp_ms
            else:
                assert kind_of(status) == wanted
    assert seen >= set(ScanStatus) - {ScanStatus.CAPACITY, ScanStatus.PARTIAL}


def test_fewer_bytes_lead_to_the_same_answer_by_asking_for_more(rng):
    for _ in range(150):
        data = damaged(rng, log_file(rng))
        for at in starts(data):
            left = len(data) - at
            whole = answer(data, at, left)
            for given in rng.sample(range(left + 1), min(left, 12)):
                status, size, stored = answer(data, at, given)
                available, asked = given, 0
                while status is ScanStatus.PARTIAL:
                    assert available < size <= left
                    if available >= RECORD_HEAD_SIZE and whole[0] is ScanStatus.OK:
                        assert (size, stored) == whole[1:]
                    available, asked = size, asked + 1
                    status, size, stored = answer(data, at, available)
                assert asked <= 2
                assert kind_of(status) == kind_of(whole[0])
                if status in (ScanStatus.OK, ScanStatus.BLANK):
                    assert (size, stored) == whole[1:]


def test_a_blank_that_does_not_reach_the_end_of_the_file_is_damage():
    data = encode_blank(100).ljust(200, b"\0")
    for file_end, status in ((100, ScanStatus.BLANK), (200, ScanStatus.BAD_SIZE)):
        for stop in (8, 50, 100):
            found = next_record(data, 0, stop, base_offset=0, file_end=file_end)
            assert found[0] is status


def test_a_place_outside_the_buffer_is_refused():
    for at, stop in ((-1, 3), (2, 1), (0, 4)):
        with pytest.raises(IndexError):
            next_record(b"abc", at, stop, base_offset=0, file_end=9)


def opened(path, data, *, writable):
    path.write_bytes(data)
    return MappedFile(path, len(data), BASE, OpenFiles(), writable=writable)


def walked(file, kernel, piece_size, take, stop=None):
    """The last step of a walk over a file, after each of which something is taken."""
    steps = []
    for step in walk_file(
        view_of(file),
        kernel,
        BASE,
        BASE + (stop or file.size),
        file_end=BASE + file.size,
        piece_size=piece_size,
        first_piece_size=min(piece_size, 100),
    ):
        take()
        steps.append(step)
    assert all(step.is_good for step in steps[:-1])
    return steps[-1]


def expected_walk(data):
    """(offsets of the good records, where the walk ends, what is there: "record" at the end)."""
    offsets, at = [], 0
    while at < len(data) and isinstance(record := expected_at(data, at), Record):
        offsets.append(BASE + at)
        at += record.store_size
    return offsets, BASE + at, "record" if at == len(data) else expected_at(data, at)


@pytest.mark.parametrize("writable", [True, False], ids=["mapped", "read"])
def test_a_walk_sees_what_the_reference_sees_whatever_is_read_at_once(rng, tmp_path, writable):
    for number in range(150):
        data = damaged(rng, log_file(rng))
        offsets, end, there = expected_walk(data)
        file = opened(tmp_path / str(number), data, writable=writable)
        for piece_size in (1, 80, rng.randrange(1, 5000)):
            found = []
            decoder = ColumnDecoder(("phy_offset",), row_max=3, verify_crc=True)

            def take(found=found, decoder=decoder):
                found.extend(decoder.take().numbers("phy_offset"))

            step = walked(file, decoder.decode, piece_size, take)
            assert (found, step.phy_offset) == (offsets, end)
            assert kind_of(step.status) == there
            assert step.is_good == (there in ("blank", "record"))
        file.close()


def test_a_walk_ends_at_its_stop_and_tells_a_record_that_goes_on_behind_it(rng, tmp_path):
    offsets = []
    while len(offsets) < 3:
        data = log_file(rng, ends="blank")
        offsets = expected_walk(data)[0]
    file = opened(tmp_path / "file", data, writable=False)
    batch = DispatchBatch()
    for piece_size in (80, 1 << 20):
        step = walked(file, batch.scan, piece_size, batch.clear, stop=offsets[2] - BASE)
        assert step == (ScanStatus.OK, offsets[2])
        step = walked(file, batch.scan, piece_size, batch.clear, stop=offsets[2] + 9 - BASE)
        assert step == (ScanStatus.TRUNCATED, offsets[2])
        assert (step.is_good, step.reason) == (False, "the record is cut short")


def test_a_file_that_became_shorter_is_an_error_with_its_place(rng, tmp_path):
    path = tmp_path / "file"
    file = opened(path, log_file(rng, ends="blank"), writable=False)
    path.write_bytes(path.read_bytes()[:50])
    batch = DispatchBatch()
    with pytest.raises(CorruptStoreError, match="cut short: it ends at byte 50") as caught:
        walked(file, batch.scan, 1 << 20, batch.clear)
    assert (caught.value.path, caught.value.phy_offset) == (path, BASE + 50)


@pytest.mark.parametrize("writable", [True, False], ids=["mapped", "read"])
def test_the_next_good_record_is_the_first_that_the_reference_accepts(rng, tmp_path, writable):
    for number in range(40):
        data = damaged(rng, log_file(rng, size=1500))
        good = {}
        for at in range(len(data)):
            found = expected_at(data, at)
            if isinstance(found, Record):
                good[at] = (BASE + at, BASE + at + found.store_size, found.store_timestamp_ms)
        file = opened(tmp_path / str(number), data, writable=writable)
        assert first_record(file) == good.get(0)
        for at in range(0, len(data), 13):
            assert good_record_at(file, at) == good.get(at)
            following = next((good[one] for one in sorted(good) if one >= at), None)
            assert find_good_record([file], at) == following
        file.close()


def test_a_good_record_is_found_behind_holes_and_where_its_size_lies_in_one(tmp_path):
    place = (3 << 20) - 2
    record = encode_record(Record(topic="T", body=b"x" * 300, phy_offset=BASE + place))
    assert record[:2] == bytes(2)
    path = tmp_path / "file"
    with path.open("wb") as stream:
        stream.truncate(8 << 20)
        stream.seek(place + 2)
        stream.write(record[2:])
    file = MappedFile(path, 8 << 20, BASE, OpenFiles(), writable=False)
    assert list(record_heads(file, 0)) == [place]
    assert find_good_record([file]).phy_offset == BASE + place
    assert find_good_record([file], 0, place + len(record)).phy_offset == BASE + place
    assert find_good_record([file], 0, place + len(record) - 1) is None
    assert find_good_record([file], place + 1) is None


def test_a_good_record_is_found_across_the_pieces_of_a_search(tmp_path):
    path, size = tmp_path / "file", 3 << 20
    places = [(1 << 20) - shift for shift in (36, 35, 5, 1)]
    for place in places:
        record = encode_record(Record(topic="T", phy_offset=BASE + place))
        data = bytearray(b"\xda" * size)
        data[place : place + len(record)] = record
        struct.pack_into(">i", data, 0, -1)
        file = opened(path, bytes(data), writable=False)
        assert list(record_heads(file, 0)) == [place]
        assert find_good_record([file]).phy_offset == BASE + place
        file.close()


# ---- a record's first bytes


def one_record(body=b"body"):
    return encode_record(Record(topic="T", body=body, phy_offset=BASE))


def test_a_head_says_its_size_and_its_place_as_far_as_there_are_bytes():
    record = one_record()
    assert head_says(record) == head_says(record[:36]) == (len(record), BASE)
    assert head_says(record[:35]) == head_says(record[:4]) == (len(record), -1)
    assert head_says(record[:3]) == head_says(b"") == (-1, -1)


def test_a_record_lacks_its_size_only_when_nothing_else_is_wrong():
    record = one_record()
    unpublished = bytes(4) + record[4:]
    assert lacks_size_only(unpublished, base_offset=BASE)
    assert unpublished[:4] == bytes(4)
    assert not lacks_size_only(record, base_offset=BASE)
    assert not lacks_size_only(unpublished, base_offset=BASE + 1)
    for wrong in (unpublished[:-1], unpublished + b"\0", unpublished[:RECORD_HEAD_SIZE], b""):
        assert not lacks_size_only(wrong, base_offset=BASE)
    flipped = bytearray(unpublished)
    flipped[record.index(b"body")] ^= 1
    assert not lacks_size_only(flipped, base_offset=BASE)


@pytest.mark.parametrize("size", [300, 512, 65_536, 70_000])
def test_a_size_of_which_only_the_first_bytes_are_there_is_lacking(size):
    record = one_record()
    record = one_record(b"x" * (size - len(record) + len(b"body")))
    assert len(record) == size
    for there in range(5):
        partly = record[:there].ljust(4, b"\0") + record[4:]
        assert lacks_size_only(partly, base_offset=BASE) == (partly != record)
    for wrong in (b"\0\0\0\1", b"\1\0\0\0", b"\0\2\0\0"):
        assert not lacks_size_only(wrong + record[4:], base_offset=BASE)
