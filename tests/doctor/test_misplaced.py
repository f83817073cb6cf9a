"""A header that was damaged takes no other message's place, and makes no queue."""

import shutil

import pytest
from doctor.damage import assert_found, flip, known_messages, log_files

import rmqcore
from golden.check import digest_tree
from rmqcore import doctor
from rmqcore.rebuild.consume_queues import rebuild_consume_queues

FILE_SIZE = 1 << 14
SIZES = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 20 * 16,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
}


@pytest.fixture
def store(store_path):
    with rmqcore.open_store(store_path, config=SIZES) as opened:
        for number in range(40):
            opened.put("T", b"%d" % number * 100, queue_id=number % 2, keys=f"k{number}")
    return store_path


def check(store, at, bits, *, queues):
    """Flip bits of the eleventh record, without or with the consume queues; repair, undo."""
    known = known_messages(store)
    one = known[10]
    flip(log_files(store)[one.phy_offset // FILE_SIZE], one.phy_offset % FILE_SIZE + at, bits)
    if not queues:
        shutil.rmtree(store / "consumequeue")
    plan = doctor.plan(store)
    if plan.clean:
        return plan
    assert doctor.repair(store, plan=plan).clean, (at, bits)
    assert_found(store, [other for other in known if other != one])
    return plan


@pytest.mark.parametrize(
    ("at", "bits"),
    [(15, 1), (14, 1), (20, 1), (23, 1), (25, 128), (27, 1), (27, 2), (39, 4)],
)
def test_a_flip_in_the_header_is_covered_and_the_place_kept(store, at, bits):
    plan = check(store, at, bits, queues=True)
    assert plan.steps[0].kind is doctor.StepKind.COVER
    assert [(one.queue_id, one.queue_offset) for one in plan.lost] == [(0, 10)]


@pytest.mark.parametrize(("at", "bits"), [(20, 1), (22, 1), (24, 1)])
def test_an_offset_that_no_queue_can_have_is_found_without_queues(store, at, bits):
    assert check(store, at, bits, queues=False).steps[0].kind is doctor.StepKind.COVER


def test_a_flipped_flag_of_a_stored_batch_makes_no_queue_of_batches(store):
    known = known_messages(store)
    one = known[10]
    flip(log_files(store)[one.phy_offset // FILE_SIZE], one.phy_offset % FILE_SIZE + 39, 128)
    assert doctor.plan(store).clean
    assert rebuild_consume_queues(store).identical
    assert not (store / "batchconsumequeue").exists()


@pytest.fixture
def long_store(store):
    with rmqcore.open_store(store) as opened:
        for number in range(80):
            opened.put("T", b"%d" % number * 100)
    return store


def test_log_files_with_each_others_names_are_named_and_not_covered(long_store, tmp_path):
    store = long_store
    first, second = log_files(store)[:2]
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    before = digest_tree(store)
    plan = doctor.plan(store)
    assert plan.steps == []
    assert [one.split()[4:7:2] for one in plan.left] == [
        [f"commitlog/{first.name}", f"{second.name};"],
        [f"commitlog/{second.name}", f"{first.name};"],
    ]
    assert doctor.repair(store).left[:2] == plan.left
    assert digest_tree(store) == before


def test_a_second_copy_of_a_queue_file_gives_up_no_whole_record(store):
    known = known_messages(store)
    (file,) = sorted((store / "consumequeue" / "T" / "1").iterdir())[-1:]
    shutil.copyfile(file, file.with_name(f"{int(file.name) + 320:020d}"))
    one = [message for message in known if message.queue_id == 1][-2]
    flip(log_files(store)[0], one.phy_offset + 4)
    assert doctor.repair(store).clean
    assert_found(store, [other for other in known if other != one])


def test_a_second_copy_of_a_log_file_is_covered(long_store):
    store = long_store
    first, second = log_files(store)[:2]
    known = [one for one in known_messages(store) if one.phy_offset // FILE_SIZE != 1]
    shutil.copyfile(first, second)
    assert doctor.repair(store).clean
    assert_found(store, known)


def test_no_record_is_covered_because_a_wrong_queue_leads_to_it(store):
    with rmqcore.open_store(store) as opened:
        for number in range(9):
            opened.put("T", b"%d" % number, queue_id=1)
    known = known_messages(store)
    even, odd = store / "consumequeue" / "T" / "0", store / "consumequeue" / "T" / "1"
    even.rename(store / "aside")
    odd.rename(even)
    (store / "aside").rename(odd)
    plan = doctor.plan(store)
    assert [step.kind.value for step in plan.steps] == ["rebuild-queues", "checkpoint"]
    assert doctor.repair(store, plan=plan).clean
    assert_found(store, known)


@pytest.mark.slow
def test_no_flip_of_a_record_takes_another_message_away(store, tmp_path):
    size = len(known_messages(store)[10].record)
    for at in range(size):
        for bits in (1, 128):
            copy = shutil.copytree(store, tmp_path / "copy")
            check(copy, at, bits, queues=True)
            shutil.rmtree(copy)
