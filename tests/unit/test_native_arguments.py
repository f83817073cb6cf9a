"""Objects and arguments that no part of the package makes end in an error, not in a signal."""

import pytest

from rmqcore import (
    GetMessageResult,
    GetMessageStatus,
    MessageExt,
    MessageIllegalError,
    PutMessageResult,
    PutMessageStatus,
)
from rmqcore._codec import decode_properties

pytestmark = pytest.mark.logic


@pytest.fixture
def result():
    return GetMessageResult(GetMessageStatus.FOUND, 0, 0, 0)


@pytest.mark.parametrize("first", [-1, -10, -(1 << 40)])
def test_units_are_not_read_in_front_of_the_first(result, first):
    with pytest.raises(IndexError):
        result.collect(b"x" * 100, 100, None, 0, bytes(20), first, 5, 100)


@pytest.mark.parametrize("codes", [object(), 7, [1]])
def test_tags_codes_are_bytes(result, codes):
    with pytest.raises(TypeError):
        result.collect(b"x" * 100, 100, None, 0, bytes(20), 0, 5, 100, codes)


class Growing(list):
    def __iter__(self):
        return iter(range(1000))


@pytest.mark.parametrize(("offsets", "ids"), [([], 0), (Growing([1]), 1000), ((5, 6), 2)])
def test_a_receipt_has_as_many_ids_as_offsets_come(offsets, ids):
    receipt = PutMessageResult(
        PutMessageStatus.PUT_OK, phy_offset=1, store_host=b"12345678", phy_offsets=offsets
    )
    text = receipt.message_id
    assert (0 if text is None else len(text.split(","))) == ids


def test_a_receipt_without_a_host_has_no_id():
    assert PutMessageResult(PutMessageStatus.PUT_OK, phy_offset=1).message_id is None


def test_a_message_that_no_read_made_is_empty():
    message = MessageExt.__new__(MessageExt)
    assert not message.check_crc()
    assert (message.born_host, message.store_host, message.body) == ("", "", b"")
    assert message == MessageExt.__new__(MessageExt)
    assert not message.has_key("T", "k")


def test_properties_of_a_gigabyte_are_refused():
    with pytest.raises(MessageIllegalError):
        decode_properties(bytes(1 << 30))
