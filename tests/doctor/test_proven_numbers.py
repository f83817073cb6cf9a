"""What has another number than it had gets it back where the CRC of the whole record tells it."""

import shutil

import pytest
from doctor.damage import flip, log_files, overwrite

import rmqcore
from golden.check import digest_tree
from rmqcore import doctor
from rmqcore._codec import encode_batch

pytestmark = pytest.mark.engine

FILE_SIZE = 1 << 14
SETTINGS = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 20 * 16,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
    "enabled_append_prop_crc": True,
    "force_verify_prop_crc": True,
}


@pytest.mark.parametrize(
    ("kind", "place", "saved"),
    [("single", 5, True), ("single", -1, True), ("batch", 5, True), ("batch", -1, False)],
)
def test_a_number_that_rotted_is_put_back_where_reads_demand_a_crc_of_it(
    store_path, kind, place, saved
):
    settings = dict(SETTINGS)
    body, more = b"body", {}
    if kind == "batch":
        settings["topic_queue_types"] = (("T", "BatchCQ"),)
        body = encode_batch([rmqcore.Message("T", b"one"), rmqcore.Message("T", b"two")])
        more = {"sys_flag": 0xC0, "properties": {"INNER_NUM": "2"}}
    with rmqcore.open_store(store_path, **settings) as opened:
        places = [opened.put("T", body, **more).phy_offset for _ in range(12)]
    before = digest_tree(store_path / "commitlog")
    flip(log_files(store_path)[0], places[place] + 27, 64)
    report = doctor.repair(store_path, config=rmqcore.StoreConfig(**settings))
    assert report.left == report.plan.unnamed == []
    assert (digest_tree(store_path / "commitlog") == before) == saved
    with rmqcore.open_store(store_path, **settings) as opened:
        found = [message.phy_offset for message in opened.messages("T", 0)]
    assert found == (places if saved else places[:-1])


@pytest.mark.parametrize("lost", [False, True], ids=["", "queues lost"])
@pytest.mark.parametrize(
    "numbers",
    [
        {4: 1028, 5: 2053},
        {4: 5, 5: 4},
        {0: 7, 1: 0, 2: 1 << 40},
        {4: 99, 6: 99, 8: 8 << 20},
        {9: 3, 10: 1 << 33, 11: 9},
    ],
    ids=["two", "swapped", "first", "one queue's", "last"],
)
def test_numbers_that_rotted_beside_each_other_are_told_by_the_crc_of_the_records(
    store_path, numbers, lost
):
    with rmqcore.open_store(store_path, **SETTINGS) as opened:
        places = [opened.put("T", b"body", queue_id=n % 2).phy_offset for n in range(12)]
    before = digest_tree(store_path / "commitlog")
    for number, wrong in numbers.items():
        overwrite(log_files(store_path)[0], places[number] + 20, wrong.to_bytes(8, "big"))
    if lost:
        shutil.rmtree(store_path / "consumequeue")
    plan = doctor.plan(store_path, config=rmqcore.StoreConfig(**SETTINGS))
    kinds = {step.kind for step in plan.steps if step.start >= 0}
    assert kinds == {doctor.StepKind.RENUMBER}
    report = doctor.repair(store_path, config=rmqcore.StoreConfig(**SETTINGS), plan=plan)
    assert report.clean
    assert report.plan.lost == report.plan.unnamed == []
    assert digest_tree(store_path / "commitlog") == before
    with rmqcore.open_store(store_path, **SETTINGS) as opened:
        for queue_id in (0, 1):
            found = [message.phy_offset for message in opened.messages("T", queue_id)]
            assert found == places[queue_id::2]


@pytest.mark.parametrize(
    ("places", "lost"), [([4], False), ([0, 4, 5, -2, -1], False), ([0, 5, -1], True)], ids=str
)
@pytest.mark.parametrize(
    ("flag", "bits"), [(0, 4), (8, 4), (0, 8), (4, 4), (12, 4), (4, 8)], ids=str
)
def test_a_flag_that_rotted_is_put_back_where_reads_demand_a_crc_of_it(
    store_path, flag, bits, places, lost
):
    """Whether a queue leads to the record, too: none comes to a half message by that."""
    with rmqcore.open_store(store_path, **SETTINGS) as opened:
        flags = [flag if number in (0, 4, 5, 8, 9) else 0 for number in range(10)]
        put = [opened.put("T", b"body", sys_flag=one).phy_offset for one in flags]
    before = digest_tree(store_path / "commitlog")
    for place in places:
        flip(log_files(store_path)[0], put[place] + 39, bits)
    if lost:
        shutil.rmtree(store_path / "consumequeue")
    damaged = digest_tree(store_path)
    report = doctor.repair(store_path, config=rmqcore.StoreConfig(**SETTINGS))
    assert report.clean
    assert report.plan.lost == report.plan.unnamed == []
    assert digest_tree(store_path / "commitlog") == before
    with rmqcore.open_store(store_path, mode="r", **SETTINGS) as opened:
        found = [message.phy_offset for message in opened.messages("T", 0)]
    assert found == [at for at, one in zip(put, flags, strict=True) if one in (0, 8)]
    doctor.undo(store_path)
    assert digest_tree(store_path) == damaged


@pytest.mark.parametrize("kind", [4, 12], ids=["prepared", "rollback"])
@pytest.mark.parametrize("rotted", [[0, 1, 2], [1, 2, 3]], ids=str)
def test_what_is_in_no_queue_takes_no_number_of_what_is_beside_it(store_path, kind, rotted):
    """Half messages all have the number 0."""
    with rmqcore.open_store(store_path, **SETTINGS) as opened:
        flags = [0, kind, 0, 0] if 0 in rotted else [kind, kind, 0, 0]
        places = [opened.put("T", b"body", sys_flag=flag).phy_offset for flag in flags]
    before = digest_tree(store_path / "commitlog")
    for number in rotted:
        wrong = (1 << 40) + number
        overwrite(log_files(store_path)[0], places[number] + 20, wrong.to_bytes(8, "big"))
    report = doctor.repair(store_path, config=rmqcore.StoreConfig(**SETTINGS))
    assert report.clean
    assert report.plan.lost == report.plan.unnamed == []
    assert digest_tree(store_path / "commitlog") == before
    with rmqcore.open_store(store_path, **SETTINGS) as opened:
        found = [message.phy_offset for message in opened.messages("T", 0)]
    assert found == [place for place, flag in zip(places, flags, strict=True) if flag == 0]


@pytest.mark.parametrize(
    "rotted", [[4], [5], [4, 5], [10], [9, 10], range(5, 10), range(11)], ids=str
)
def test_numbers_that_rotted_where_a_log_file_begins_or_ends_are_put_back(store_path, rotted):
    body = bytes(3000)
    with rmqcore.open_store(store_path, **SETTINGS) as opened:
        places = [opened.put("T", body).phy_offset for _ in range(11)]
    assert places[5] == FILE_SIZE
    assert places[10] == 2 * FILE_SIZE
    before = digest_tree(store_path / "commitlog")
    for number in rotted:
        path, at = log_files(store_path)[places[number] // FILE_SIZE], places[number] % FILE_SIZE
        overwrite(path, at + 20, (1 << 40).to_bytes(8, "big"))
    report = doctor.repair(store_path, config=rmqcore.StoreConfig(**SETTINGS))
    assert report.clean
    assert digest_tree(store_path / "commitlog") == before
    with rmqcore.open_store(store_path, **SETTINGS) as opened:
        assert [message.phy_offset for message in opened.messages("T", 0)] == places


def test_a_number_that_rotted_is_put_back_behind_a_message_that_is_damaged(store_path):
    config = rmqcore.StoreConfig(**SETTINGS)
    with rmqcore.open_store(store_path, **SETTINGS) as opened:
        places = [opened.put("T", bytes(300)).phy_offset for _ in range(6)]
    (path, *_) = log_files(store_path)
    flip(path, places[2] + 200)
    overwrite(path, places[3] + 20, (1 << 40).to_bytes(8, "big"))
    report = doctor.repair(store_path, config=config)
    assert report.clean
    assert [one.queue_offset for one in report.plan.lost] == [2]
    with rmqcore.open_store(store_path, **SETTINGS) as opened:
        found = [one.phy_offset for one in opened.messages("T", 0) if one.body == bytes(300)]
    assert found == [*places[:2], *places[3:]]


def test_what_else_has_rotted_is_covered_where_reads_demand_a_crc_of_it(store_path):
    config = rmqcore.StoreConfig(**SETTINGS)
    with rmqcore.open_store(store_path, **SETTINGS) as opened:
        places = [opened.put("T", b"body", tags="tag").phy_offset for _ in range(6)]
    # a flag, and a number beside a flag
    flip(log_files(store_path)[0], places[2] + 19, 1)
    flip(log_files(store_path)[0], places[3] + 19, 1)
    flip(log_files(store_path)[0], places[3] + 27, 64)
    assert doctor.repair(store_path, config=config).left == []
    with rmqcore.open_store(store_path, **SETTINGS) as opened:
        found = [one.phy_offset for one in opened.messages("T", 0) if bytes(one.body) == b"body"]
    assert found == [*places[:2], *places[4:]]


def test_one_repair_is_enough_where_the_crc_of_the_last_record_has_rotted(store_path):
    """The record is whole for all that does not demand its CRC, such as the index."""
    with rmqcore.open_store(store_path, **SETTINGS) as opened:
        receipts = [opened.put("T", b"body", keys=f"k{number}") for number in range(5)]
    last = receipts[-1]
    flip(log_files(store_path)[0], last.phy_offset + last.store_size - 4)
    report = doctor.repair(store_path, config=rmqcore.StoreConfig(**SETTINGS))
    assert report.clean, report.left
    with rmqcore.open_store(store_path, **SETTINGS) as opened:
        assert len(list(opened.messages("T", 0))) == 4
