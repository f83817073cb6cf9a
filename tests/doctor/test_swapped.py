"""Damage in a store whose files or directories have each other's names, or seem to."""

import pytest
from doctor.damage import SIZES, assert_found, flip, known_messages, log_files

import rmqcore
from rmqcore import doctor

pytestmark = pytest.mark.engine


def test_a_first_record_that_names_a_wrong_place_does_not_rename_its_file(store_path):
    with rmqcore.open_store(store_path, config=SIZES) as opened:
        for number in range(3):
            opened.put("T", b"%d" % number)
    known = known_messages(store_path)
    flip(log_files(store_path)[0], 28 + 5, 8)
    assert doctor.repair(store_path).clean
    assert_found(store_path, known[1:])
