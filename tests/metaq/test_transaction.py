"""Journal entries and the replay of committed transactions."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import metaq as reference
from rmqcore.errors import CorruptStoreError
from rmqcore.metaq import (
    AddMsgLocation,
    MessageStoreManager,
    decode_locations,
    encode_locations,
    replay_transaction,
)

pytestmark = pytest.mark.logic

ENTRIES = st.lists(
    st.builds(
        AddMsgLocation,
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**31 - 1),
        st.text("abc-äöü", min_size=1, max_size=9).map(lambda name: f"{name}-7"),
    ),
    max_size=5,
)


@given(ENTRIES)
def test_round_trip(entries):
    assert decode_locations(encode_locations(entries)) == entries


def test_vector():
    encoded = encode_locations([AddMsgLocation(258, 3, 4, "t-0")])
    assert encoded.hex() == "0000000000000102" + "00000003" + "00000004" + "00000003" + "742d30"


@given(ENTRIES, st.data())
def test_damage_is_an_error_or_other_entries(entries, data):
    encoded = bytearray(encode_locations(entries) + data.draw(st.binary(max_size=30)))
    if encoded:
        encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(CorruptStoreError):
        assert encode_locations(decode_locations(bytes(encoded), "journal")) == encoded


@pytest.mark.parametrize(
    ("damaged", "at"),
    [
        (b"\0" * 19, 0),
        (b"\xff" + b"\0" * 30, 0),
        (bytes(8) + b"\xff" * 4 + bytes(8), 0),
        (bytes(16) + b"\x7f\xff\xff\xff" + b"t-0", 0),
        (bytes(16) + b"\0\0\0\3t-x", 0),
        (bytes(16) + b"\0\0\0\3t-0" + b"more", 23),
    ],
)
def test_each_damage_has_its_place(damaged, at):
    with pytest.raises(CorruptStoreError) as caught:
        decode_locations(damaged, "journal")
    assert (str(caught.value.path), caught.value.phy_offset) == ("journal", at)


@pytest.mark.engine
def test_replay_restores_what_a_partition_lost_and_nothing_else(config):
    rows = {"t-0": [(1, b"kept", 0)], "t-1": [(2, b"lost", 0), (3, b"too", 0)]}
    with MessageStoreManager(config(num_partitions=2, unflush_threshold=0)) as manager:
        kept = manager.get_or_create("t", 0).append_many(rows["t-0"])
        entries = [
            AddMsgLocation.of(kept, rows["t-0"], "t-0"),
            AddMsgLocation(0, 47, reference.checksum(b"whatever"), "t-1"),
        ]
        result = replay_transaction(manager, entries, rows)
        assert result[0] == entries[0]
        assert (result[1].offset, result[1].length) == (0, 47)
        assert replay_transaction(manager, result, rows) == result
        assert [m.message_id for m in manager.get("t", 1).messages()] == [2, 3]
        assert [m.message_id for m in manager.get("t", 0).messages()] == [1]
