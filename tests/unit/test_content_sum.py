"""Rows that were staged are known again by a sum of their content."""

import pyarrow as pa
import pytest

from rmqcore.native.columns._encode_columns import ColumnEncoder

pytestmark = pytest.mark.logic

MAP = pa.map_(pa.string(), pa.string())
LIMITS = {"body_max": 4096, "log_file_size": 1 << 16, "store_host": "10.1.2.3:10911"}


def content_sum(columns, parts=1, **settings):
    """Of the rows of a table that comes in so many parts."""
    table = pa.table({"topic": ["T"] * 4} | columns)
    size, total = len(table) // parts, 0
    for first in range(0, len(table), size):
        prefix = b"%016X" % first
        encoder = ColumnEncoder(
            table[first : first + size], unique_prefix=prefix, **LIMITS | settings
        )
        while encoder.next_batch() is not None:
            while encoder.next_piece(200) is not None:
                pass
        total += encoder.content_sum
    return total % (1 << 64)


def test_rows_are_known_again_by_a_sum_whatever_their_order_and_their_parts():
    rows = {
        "body": ["a", "b", "c", "d"],
        "tags": ["x", None, "y", "x"],
        "keys": pa.array([["k", "l"], ["m"], None, []]),
        "properties": pa.array([[("p", "1")], None, [("q", "2")], [("p", "1")]], MAP),
    }
    known = content_sum(rows)
    assert content_sum(rows, 2) == content_sum(rows, 4, queue_count=3) == known
    order = pa.array([3, 1, 0, 2])
    assert content_sum({name: pa.array(rows[name]).take(order) for name in rows}) == known
    for name, other in {
        "topic": ["T", "T", "T", "U"],
        "body": ["a", "b", "c", "e"],
        "tags": ["x", None, "y", "z"],
        "keys": pa.array([["k", "l"], ["n"], None, []]),
        "properties": pa.array([[("p", "1")], None, [("q", "3")], [("p", "1")]], MAP),
        "unique_key": [None, None, None, "mine"],
    }.items():
        assert content_sum(rows | {name: other}) != known
