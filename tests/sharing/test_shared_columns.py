"""Whole tables put by a client of a shared store: it makes the records, the owner appends them."""

import asyncio
import os
import signal

import pyarrow as pa
import pytest
from sharing.processes import owner_of, while_asked

import rmqcore
from rmqcore import OwnerLostError, RowIllegalError
from rmqcore.store.parts.column_puts import PIECE_SIZE
from rmqcore.store.parts.put_columns_result import QueueSpan

pytestmark = pytest.mark.process


@pytest.fixture
def owner(tmp_path):
    """Another process that owns a store."""
    with owner_of(tmp_path / "store") as process:
        yield process


@pytest.fixture
def client(owner, tmp_path):
    """A client of the other process."""
    with rmqcore.open_shared(tmp_path / "store") as opened:
        yield opened


def test_owner_and_client_are_datasets_with_all_that_was_put(tmp_path):
    """As a store of `open_store` is."""
    with (
        rmqcore.open_shared(tmp_path / "store") as owner,
        rmqcore.open_shared(tmp_path / "store") as client,
    ):
        for number in range(40):
            (owner, client)[number % 2].put("T", b"%d" % number, tags="even")
            bodies = [
                each.arrow_dataset(["body"]).to_table()["body"].to_pylist()
                for each in (owner, client)
            ]
            assert bodies == [[b"%d" % each for each in range(number + 1)]] * 2
        for each in owner, client:
            assert each.arrow_dataset(tags=["odd"]).count_rows() == 0
            assert each.scan_polars(["tags"]).collect().height == 40
            assert "<td>40</td>" in each._repr_html_()


@pytest.mark.parametrize("durability", [None, "disk"])
def test_a_client_puts_whole_tables(client, durability):
    rows = 3 * PIECE_SIZE // 300
    table = pa.table(
        {
            "topic": [f"T{row % 2}" for row in range(rows)],
            "body": [f"{row:0300d}" for row in range(rows)],
            "keys": [f"K{row}" for row in range(rows)],
        }
    )
    client.put("T0", b"first")
    result = client.put_columns(table, durability=durability)
    assert (result.ok, result.row_count) == (True, rows)
    assert result.durability == (durability or "page_cache")
    half = rows // 2
    assert result.queue_offsets == {
        ("T0", 0): QueueSpan(1, rows - half, rows - half),
        ("T1", 0): QueueSpan(0, half - 1, half),
    }
    found = list(client.messages())[1:]
    assert [int(message.body) for message in found] == list(range(rows))
    places = [found[0].phy_offset, found[-1].phy_offset]
    assert places == [result.phy_offset, result.last_phy_offset]
    assert result.store_size == sum(message.store_size for message in found)
    one = asyncio.run(client.put_columns_async(table.slice(0, 1)))
    assert one.queue_offsets == {("T0", 0): QueueSpan(rows - half + 1, rows - half + 1, 1)}


def test_a_row_that_a_client_refuses_is_named_and_what_is_stored_counted(client):
    good = pa.table({"body": ["a"] * 4, "keys": ["k"] * 4})
    bad = pa.table({"body": ["a"] * 2, "keys": ["k", ""]})
    with pytest.raises(RowIllegalError, match="row 5, column keys") as caught:
        client.put_columns(pa.concat_tables([good, bad]), topic="T")
    assert caught.value.stored_count == len(list(client.messages())) == 4


def test_a_table_whose_owner_is_lost_is_not_put_a_second_time(client, owner, monkeypatch):
    # the last of three pieces is so short that it is sent to an owner that does not read
    rows = 2 * (PIECE_SIZE // 392) + 10
    table = pa.table({"body": [f"{row:0300d}" for row in range(rows)]})
    call, left = client._call, iter(range(2))

    def dying(method, args, settings):
        if method != "put_records" or next(left, None) is not None:
            return call(method, args, settings)
        os.kill(owner.pid, signal.SIGSTOP)
        with while_asked(client, lambda: os.kill(owner.pid, signal.SIGKILL)):
            return call(method, args, settings)

    monkeypatch.setattr(client, "_call", dying)
    with pytest.raises(OwnerLostError):
        client.put_columns(table, topic="T")
    monkeypatch.undo()
    found = [int(message.body) for message in client.messages()]
    assert found == list(range(len(found)))
    assert 0 < len(found) < len(table)
