"""A descriptor is closed once: the number may be another file's a moment later."""

import os

import pytest

from rmqcore.native.base._descriptor import Descriptor

pytestmark = pytest.mark.logic


def opened(tmp_path):
    return os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)


def test_a_second_close_leaves_who_has_the_number_now_alone(tmp_path):
    number = opened(tmp_path)
    descriptor = Descriptor(number)
    assert (descriptor.fileno(), descriptor.closed) == (number, False)
    descriptor.close()
    again = opened(tmp_path)
    assert again == number
    descriptor.close()
    del descriptor
    os.close(again)


def test_who_drops_it_closes_it(tmp_path):
    number = opened(tmp_path)
    Descriptor(number)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_a_closed_one_has_no_number():
    descriptor = Descriptor(-1)
    assert descriptor.closed
    with pytest.raises(ValueError, match="closed"):
        descriptor.fileno()
