"""Records: the vectors of the layout, and native against plain Python on any bytes."""

import contextlib
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import metaq as reference
from rmqcore.errors import CorruptRecordError, MessageIllegalError
from rmqcore.metaq import (
    IdWorker,
    Message,
    Verdict,
    decode_messages,
    encode_data,
    split_data,
)
from rmqcore.metaq._message_set import LAYOUT, checksum, encode_many, find_record, scan, scan_file
from rmqcore.world import World

pytestmark = pytest.mark.logic

VECTORS = [
    (1, None, b"hello", "000000053610a68600000000000000010000000068656c6c6f"),
    (2, "attr", b"hello", "0000000d4b62e51c000000000000000200000001000000046174747268656c6c6f"),
]
IDS = st.integers(1, 2**63 - 1)
ROWS = st.lists(
    st.tuples(
        st.integers(1, 2**63 - 1),
        st.binary(min_size=1, max_size=300),
        st.sampled_from([0, 1, 2, -1]),
    ),
    max_size=12,
)


@pytest.mark.parametrize(("message_id", "attribute", "payload", "vector"), VECTORS)
def test_vector_is_written_and_read(message_id, attribute, payload, vector):
    row = Message("t", payload, attribute, message_id).row()
    assert encode_many([row]).hex() == vector
    (message,) = decode_messages("t", bytes.fromhex(vector))
    assert message == Message("t", payload, attribute, message_id)
    assert message.stored_size == len(vector) // 2


def test_an_empty_attribute_is_not_a_missing_one():
    assert encode_data(b"x", "") == (b"\0\0\0\0x", 1)
    assert split_data(b"\0\0\0\0x", 1) == (b"", b"x")
    assert split_data(b"x", 0) == (None, b"x")


def test_an_attribute_that_is_no_utf8_survives():
    record = encode_many([(1, b"\0\0\0\2\xff\xfex", 1)])
    (message,) = decode_messages("t", record)
    assert encode_many([message.row()]) == record


@given(ROWS)
def test_encoding_agrees_with_the_reference(rows):
    assert encode_many(rows) == b"".join(reference.encode(*row) for row in rows)


@st.composite
def damaged(draw):
    """Valid records, some without data, then flipped, cut, spliced or zeroed somewhere."""
    rows = draw(ROWS) + [(5, b"", 0)] * draw(st.integers(0, 2))
    content = bytearray(b"".join(reference.encode(*row) for row in draw(st.permutations(rows))))
    for _ in range(draw(st.integers(0, 3))):
        if not content:
            break
        at = draw(st.integers(0, len(content) - 1))
        match draw(st.sampled_from(["flip", "cut", "splice", "zero", "length"])):
            case "flip":
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del content[at:]
            case "splice":
                content[at:at] = draw(st.binary(max_size=40))
            case "zero":
                content[at:] = bytes(len(content) - at)
            case "length":
                content[at : at + 4] = draw(st.sampled_from([b"\x7f\xff\xff\xff", b"\xff" * 4]))
    return bytes(content)


@given(st.one_of(damaged(), st.binary(max_size=200)))
def test_scanning_agrees_with_the_reference_also_on_rejection(content):
    rows, valid_up_to, verdict = scan(content)
    expected, expected_end = reference.walk(content)
    assert valid_up_to == expected_end
    assert [(at, i, flag, content[at + 20 : at + 20 + n]) for at, n, i, flag in rows] == expected
    assert (verdict == Verdict.END) == (valid_up_to == len(content))
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        count, end = reference.recoverable(content)
        assert scan_file(file.fileno(), 0, len(content)) == (end, count, verdict)


@given(st.one_of(damaged(), st.binary(max_size=200)))
def test_decoding_yields_all_before_the_damage(content):
    expected, _ = reference.walk(content)
    messages = []
    with contextlib.suppress(CorruptRecordError):
        messages.extend(decode_messages("t", content, base_offset=1000))
    plain = []
    for at, message_id, flag, data in expected:
        try:
            plain.append((1000 + at, message_id, flag, *reference.split(data, flag)))
        except ValueError:
            break
    got = [
        (
            m.offset,
            m.message_id,
            m.flag,
            None if m.attribute is None else m.attribute.encode("utf-8", "surrogateescape"),
            m.data,
        )
        for m in messages
    ]
    assert got == plain


@given(st.binary(max_size=400))
def test_checksum_agrees(data):
    assert checksum(data) == reference.checksum(data)


@pytest.mark.parametrize(
    ("content", "verdict"),
    [
        (b"", Verdict.END),
        (b"\0" * 19, Verdict.TORN_HEADER),
        (b"\0" * 20, Verdict.ZEROS),
        (b"\0" * 4096, Verdict.ZEROS),
        (b"\x7f\xff\xff\xff" + b"\1" * 16, Verdict.TORN_DATA),
        (b"\xff\xff\xff\xff" + b"\1" * 16, Verdict.NEGATIVE_LENGTH),
        (b"\0\0\0\1\0\0\0\0" + b"\1" * 13, Verdict.WRONG_CHECKSUM),
    ],
)
def test_each_ending_has_its_verdict(content, verdict):
    good = reference.encode(7, b"good")
    assert scan(good + content)[1:] == (len(good), verdict)


def test_a_record_larger_than_the_window_is_verified(tmp_path):
    big = reference.encode(1, bytes(range(256)) * 16_000)
    path = tmp_path / "big"
    path.write_bytes(reference.encode(5, b"x" * 1_048_570) + big + big[:-1] + b"!")
    with path.open("rb") as file:
        size = path.stat().st_size
        assert scan_file(file.fileno(), 0, size)[0] == size - len(big)


def test_the_next_whole_record_is_found(tmp_path):
    path = tmp_path / "holes"
    path.write_bytes(b"\xff" * 333 + reference.encode(9, b"here") + b"\0" * 50)
    with path.open("rb") as file:
        assert find_record(file.fileno(), 0, path.stat().st_size) == 333
        assert find_record(file.fileno(), 334, path.stat().st_size) == -1


def test_a_message_without_data_cannot_be_stored_but_is_read():
    with pytest.raises(MessageIllegalError, match="checksum of zeros"):
        encode_many([(1, b"", 0)])
    empty = reference.encode(1, b"")
    assert [m.data for m in decode_messages("t", empty)] == [b""]


def test_a_header_whose_first_page_was_lost_is_no_message(tmp_path):
    good, empty = reference.encode(1, b"good"), reference.encode(2, b"")
    lost = bytes(8) + reference.encode(3, b"lost")[8:]
    path = tmp_path / "f"
    for content, expected in [
        (good + lost, (len(good), 1, Verdict.TORN_DATA)),
        (good + empty + empty, (len(good) + 40, 3, Verdict.END)),
        (good + empty + good, (2 * len(good) + 20, 3, Verdict.END)),
        (good + empty + bytes(30), (len(good), 1, Verdict.ZEROS)),
    ]:
        path.write_bytes(content)
        with path.open("rb") as file:
            found = scan_file(file.fileno(), 0, len(content))
        assert found[:2] == expected[:2]


@pytest.mark.parametrize("call", [scan, checksum])
def test_what_is_no_buffer_is_a_type_error(call):
    with pytest.raises(TypeError):
        call("text")


def test_ranges_outside_the_bytes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="outside"):
        scan(b"abc", 4)
    with (tmp_path / "f").open("wb") as file, pytest.raises(ValueError, match="no range"):
        scan_file(file.fileno(), 5, 4)


def test_a_limit_refuses_large_data():
    record = reference.encode(1, b"x" * 11)
    with pytest.raises(CorruptRecordError, match="at most 10"):
        list(decode_messages("t", record, max_data_size=10))
    assert len(list(decode_messages("t", record, max_data_size=11))) == 1


def test_ids_rise_when_the_clock_stands_or_steps_back():
    moments = iter([2_000_000_000_000, 2_000_000_000_000, 1_999_999_999_000, 2_000_000_000_001])
    worker = IdWorker(3, world=World(clock_ms=lambda: next(moments)))
    ids = [worker.next_id() for _ in range(4)]
    assert ids == sorted(set(ids))
    assert {(i >> 12) & 1023 for i in ids} == {3}
    assert ids[0] >> 22 == 2_000_000_000_000 - 1_303_895_660_503


def test_a_full_millisecond_borrows_the_next():
    worker = IdWorker(0, world=World(clock_ms=lambda: 2_000_000_000_000))
    ids = [worker.next_id() for _ in range(5000)]
    assert len(set(ids)) == 5000
    assert ids == sorted(ids)


def test_a_broker_id_has_ten_bits():
    with pytest.raises(MessageIllegalError):
        IdWorker(1024)


def test_the_layout_is_the_specifications():
    assert LAYOUT["HEADER_SIZE"] == reference.HEADER.size == 20
