"""Damage in a store whose files or directories have each other's names, or seem to."""

import pytest
from doctor.damage import SIZES, assert_found, flip, known_messages, log_files, overwrite

import rmqcore
from rmqcore import doctor
from rmqcore._codec import encode_batch

pytestmark = pytest.mark.engine


def swap(queues, one, other):
    """Give two topics' directories each other's names."""
    for source, target in ((one, "between"), (other, one), ("between", other)):
        (queues / source).rename(queues / target)


@pytest.mark.parametrize("damaged", [0, 4])
def test_a_lost_message_takes_no_place_in_the_queue_whose_directory_it_got(store_path, damaged):
    """Whether it lies behind all of the other as if that had been made again, or went on."""
    with rmqcore.open_store(store_path, config=SIZES) as opened:
        for number in range(9):
            opened.put("First" if number < 3 else "Second", b"%d" % number)
    known = known_messages(store_path)
    (lost,) = (one for one in known if (one.topic, one.queue_offset) == ("Second", damaged))
    swap(store_path / "consumequeue", "First", "Second")
    overwrite(log_files(store_path)[0], lost.phy_offset, bytes(len(lost.record)))
    report = doctor.repair(store_path)
    assert report.left == report.plan.lost == []
    assert_found(store_path, [one for one in known if one != lost])
    assert doctor.verify(store_path).clean


def test_a_lost_batch_takes_no_place_in_the_queue_whose_directory_it_got(store_path):
    settings = SIZES | {"topic_queue_types": (("First", "BatchCQ"), ("Second", "BatchCQ"))}
    body = encode_batch([rmqcore.Message("T", b"one"), rmqcore.Message("T", b"two")])
    more = {"sys_flag": 0xC0, "properties": {"INNER_NUM": "2"}}
    with rmqcore.open_store(store_path, **settings) as opened:
        put = [opened.put("First" if number < 3 else "Second", body, **more) for number in range(9)]
    swap(store_path / "batchconsumequeue", "First", "Second")
    overwrite(log_files(store_path)[0], put[3].phy_offset, bytes(put[3].store_size))
    report = doctor.repair(store_path, config=rmqcore.StoreConfig(**settings))
    assert report.left == report.plan.lost == []
    with rmqcore.open_store(store_path, **settings) as opened:
        found = {topic: list(opened.messages(topic, 0)) for topic in ("First", "Second")}
    assert [one.phy_offset for one in found["First"]] == [one.phy_offset for one in put[:3]]
    assert [one.phy_offset for one in found["Second"]] == [one.phy_offset for one in put[4:]]


def test_a_first_record_that_names_a_wrong_place_does_not_rename_its_file(store_path):
    with rmqcore.open_store(store_path, config=SIZES) as opened:
        for number in range(3):
            opened.put("T", b"%d" % number)
    known = known_messages(store_path)
    flip(log_files(store_path)[0], 28 + 5, 8)
    assert doctor.repair(store_path).clean
    assert_found(store_path, known[1:])
