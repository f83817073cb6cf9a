"""JSON headers: what the native reader takes it reads as the general one does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remoting.frames import SEEN

from rmqcore.remoting import FrameError, RemotingCommand
from rmqcore.remoting._json_header import read_json, write_json
from rmqcore.remoting.codec import _read_any_json

pytestmark = pytest.mark.logic

WORDS = st.text(max_size=8)
VALUES = st.one_of(
    WORDS, st.integers(-(2**70), 2**70), st.booleans(), st.none(), st.floats(), st.lists(WORDS)
)
FIELDS = st.one_of(st.dictionaries(WORDS, st.one_of(WORDS, VALUES), max_size=5), VALUES)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(["code", "opaque", "flag", "version"], st.integers(-(2**33), 2**33)),
        "language": st.one_of(st.sampled_from(["JAVA", "GO", "PYTHON"]), VALUES),
        "remark": VALUES,
        "extFields": FIELDS,
        "serializeTypeCurrentRPC": VALUES,
        "news": VALUES,
    },
)


def both(header, field_count=100):
    """What the native reader says, and what the general one says."""
    try:
        general = _read_any_json(header, field_count)
    except FrameError:
        general = None
    return read_json(header, 0, len(header), field_count), general


@given(HEADERS, st.booleans(), st.sampled_from([None, 1]))
def test_both_readers_agree(header, as_ascii, indent):
    text = json.dumps(header, ensure_ascii=as_ascii, indent=indent)
    native, general = both(text.encode("utf-8", "surrogatepass"))
    assert native in (None, general)


@given(st.sampled_from(SEEN), st.data())
def test_both_readers_agree_on_damaged_headers(header, data):
    damaged = bytearray(header.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    native, general = both(bytes(damaged))
    assert native in (None, general)


@pytest.mark.parametrize("header", SEEN)
def test_headers_seen_on_the_wire_take_the_native_reader(header):
    native, general = both(header.encode())
    assert native is not None
    assert native == general


def test_a_header_is_read_where_it_lies():
    text = b'{"code":11,"extFields":{"i":"A\\u00012\\u0002\\u00e9\\u20ac\\n\\/"},"opaque":-7}'
    found = read_json(bytearray(b"before" + text + b"behind"), 6, len(text), 1)
    assert found.ext_fields == {"i": "A\x012\x02é€\n/"}
    assert (found.code, found.opaque) == (11, -7)
    assert read_json(text, 0, len(text), 0) is None
    with pytest.raises(ValueError, match="beyond"):
        read_json(text, 1, len(text), 1)


@given(st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=4), st.text(max_size=9))
def test_what_is_written_is_json(fields, remark):
    found = json.loads(write_json(RemotingCommand(5, fields, remark=remark, opaque=9)))
    assert found["extFields" if fields else "code"] == (fields or 5)
    assert (found["remark"], found["opaque"]) == (remark, 9)


@pytest.mark.parametrize("fields", [{"a": 1}, {1: "a"}, {"a": None}])
def test_a_field_that_is_no_text_is_refused(fields):
    with pytest.raises(TypeError):
        write_json(RemotingCommand(5, fields))
