"""Configuration text: what is written reads back, and nothing that is read breaks the reader."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqcore.config import StoreConfig, parse_broker_conf, to_broker_conf
from rmqcore.errors import ConfigError
from rmqcore.java.json import (
    format_compact_java_json,
    format_java_json,
    format_plain_object,
    parse_java_json,
)
from rmqcore.java.properties import format_property, parse_properties

pytestmark = pytest.mark.logic

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = st.text(string.ascii_letters + string.digits, min_size=1)
JSON = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)
DELAYS = st.from_regex(r"[0-9]{1,3}[smhd]", fullmatch=True)
SETTINGS = st.fixed_dictionaries(
    {
        "mapped_file_size_commit_log": st.integers(5 << 20, 2**31 - 1),
        "max_hash_slot_num": st.integers(1, 5_000_000),
        "max_index_num": st.integers(2, 20_000_000),
    },
    optional={
        "flush_disk_type": st.sampled_from(["SYNC_FLUSH", "ASYNC_FLUSH"]),
        "max_message_size": st.integers(1, 4 << 20),
        "warm_mapped_file_enable": st.booleans(),
        "file_reserved_time_hours": st.integers(0, 10_000),
        "delete_when": st.sampled_from(["04", "00;23", "1;2;3"]),
        "message_delay_level": st.lists(DELAYS, min_size=1).map(" ".join),
    },
)


@given(st.dictionaries(NAMES, TEXT.map(lambda value: value.strip())))
def test_properties_read_back(values):
    text = "\n".join(format_property(name, value) for name, value in values.items())
    assert text.isascii()
    assert parse_properties(text) == values


@given(st.text(alphabet="ab=:# !\\\n\r\tu0041é", max_size=40))
def test_any_properties_text_is_read_or_refused(text):
    try:
        values = parse_properties(text)
    except ConfigError:
        return
    assert all(value == value.strip() for value in values.values())


@given(JSON)
def test_json_reads_back(value):
    assert parse_java_json(format_java_json(value)) == value


@given(st.dictionaries(st.integers(0, 2**31), st.dictionaries(st.integers(0, 99), TEXT)))
def test_integer_keys_come_back_as_text(value):
    assert parse_java_json(format_java_json(value)) == {
        str(key): {str(inner): text for inner, text in entry.items()}
        for key, entry in value.items()
    }


@given(JSON)
def test_compact_json_reads_back(value):
    assert parse_java_json(format_compact_java_json(value)) == value


@given(st.dictionaries(TEXT, TEXT | st.integers() | st.booleans() | st.lists(st.integers())))
def test_a_plain_object_is_written_as_compact_json_is(value):
    assert format_plain_object(value) == format_compact_java_json(value)


def test_compact_json_has_no_blank_and_quotes_integer_keys_when_asked():
    value = {1: ["ä b", None, {}], "k": {2: True}, "none": None}
    assert format_compact_java_json(value) == '{1:["ä b",null,{}],"k":{2:true}}'
    assert (
        format_compact_java_json(value, quote_keys=True) == '{"1":["ä b",null,{}],"k":{"2":true}}'
    )


@given(st.text(alphabet='{}[]":,0123 -.\\atrufls', max_size=60))
def test_any_json_text_is_read_or_refused(text):
    try:
        value = parse_java_json(text)
    except ValueError:
        return
    assert parse_java_json(format_java_json(value)) == value


@pytest.mark.engine
@given(SETTINGS)
def test_a_configuration_reads_back(settings):
    config = StoreConfig(**settings)
    back = StoreConfig.from_properties(parse_broker_conf(to_broker_conf(config)))
    assert to_broker_conf(back) == to_broker_conf(config)
    for name in settings:
        assert getattr(back, name) == getattr(config, name) or name == "max_message_size"
    assert back.effective_max_message_size == config.effective_max_message_size
