"""Records that their headers leave out of the queue that leads to them: which of them it has."""

import importlib

import pytest
from doctor.damage import assert_found, flip, known_messages, log_files, overwrite

import rmqcore
from golden.check import digest_tree
from rmqcore import doctor
from rmqcore.files.consume_queue import UNIT

pytestmark = pytest.mark.engine

SIZES = {
    "mapped_file_size_commit_log": 1 << 14,
    "mapped_file_size_consume_queue": 20 * 16,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
}
LIGHT = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}


@pytest.mark.parametrize("places", [[0], [4], [8], [3, 4], range(9)], ids=str)
def test_a_flag_that_rotted_to_a_half_messages_takes_nothing_out_of_light_queues(
    store_path, places
):
    """A light queue that led to one in its middle said that it is not the record's."""
    settings = SIZES | {"enable_multi_dispatch": True, "enable_lmq": True}
    with rmqcore.open_store(store_path, config=settings) as store:
        put = [store.put("T", b"%d" % number, properties=LIGHT) for number in range(9)]
        before = {queue: len(list(store.messages(*queue))) for queue in store.queues()}
    assert sorted(before.values()) == [9, 9, 9]
    log = digest_tree(store_path / "commitlog")
    for place in places:
        flip(log_files(store_path)[0], put[place].phy_offset + 39, 4)
    damaged = digest_tree(store_path)
    report = doctor.repair(store_path)
    assert report.clean
    assert report.plan.lost == report.plan.unnamed == []
    assert digest_tree(store_path / "commitlog") == log
    with rmqcore.open_store(store_path, mode="r") as store:
        assert {queue: len(list(store.messages(*queue))) for queue in store.queues()} == before
    doctor.undo(store_path)
    assert digest_tree(store_path) == damaged


@pytest.mark.parametrize("flag", [4, 12], ids=["half", "rolled back"])
@pytest.mark.parametrize("known_by", ["CRC", "sender"])
def test_what_is_a_half_message_becomes_none_by_a_unit_that_leads_to_it(store_path, flag, known_by):
    """Such a unit may be left of a record that a power cut has taken from the log's end."""
    settings = SIZES | {"enabled_append_prop_crc": known_by == "CRC"}
    more = {"properties": {"TRAN_MSG": "true"}} if known_by == "sender" else {}
    with rmqcore.open_store(store_path, config=settings) as store:
        half = store.put("T", b"half", sys_flag=flag, **more)
    log = digest_tree(store_path / "commitlog")
    (store_path / "consumequeue" / "T" / "0").mkdir(parents=True)
    unit = UNIT.pack(half.phy_offset, half.store_size, 0)
    path = store_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    path.write_bytes(unit.ljust(20 * 16, b"\0"))
    assert doctor.repair(store_path).clean
    assert digest_tree(store_path / "commitlog") == log
    with rmqcore.open_store(store_path, mode="r") as store:
        assert store.max_queue_offset("T", 0) == 0


def test_what_a_writer_puts_while_a_plan_is_made_is_no_damage(store_path, monkeypatch):
    """The queue leads to it, and the log has been read before."""
    module = importlib.import_module("rmqcore.doctor.plan")
    really = module.merged_runs
    with rmqcore.open_store(store_path, config=SIZES) as store:
        store.put("T", b"before")

        def merged_runs(*arguments):
            found = really(*arguments)
            for topic in ("T", "New"):
                for _ in range(3):
                    store.put(topic, b"meanwhile")
                # read, they are in their queues
                assert list(store.messages(topic, 0))
            return found

        monkeypatch.setattr(module, "merged_runs", merged_runs)
        assert doctor.plan(store_path).steps == []


@pytest.mark.parametrize("anew", [0, 1, 4])
@pytest.mark.parametrize("rot", [None, (39, b"\x04"), (20, b"\x40")], ids=["", "half", "number"])
def test_units_of_a_topic_that_was_deleted_give_its_records_nothing(store_path, anew, rot):
    """Its queue's files have come back, such as from a backup."""
    with rmqcore.open_store(store_path, config=SIZES) as store:
        old = [store.put("T", b"old") for _ in range(9)]
    units = (store_path / "consumequeue" / "T" / "0" / f"{0:020d}").read_bytes()
    with rmqcore.open_store(store_path) as store:
        store.delete_topic("T")
        for _ in range(anew):
            store.put("T", b"new")
        store.put("Other", b"other")
    known = known_messages(store_path)
    path = store_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.read_bytes()[: 20 * anew] if anew else b""
    path.write_bytes(new + units[len(new) :])
    if rot is not None:
        overwrite(log_files(store_path)[0], old[anew].phy_offset + rot[0], rot[1])
    log = digest_tree(store_path / "commitlog")
    assert doctor.repair(store_path).clean
    assert digest_tree(store_path / "commitlog") == log
    assert_found(store_path, known)
    with rmqcore.open_store(store_path, mode="r") as store:
        assert store.max_queue_offset("T", 0) == anew
