"""A scan of some topics has all their messages, also where files of their queues have been lost."""

import shutil

import pytest

import rmqcore
from rmqcore.files.store_mark import MARK_NAME
from rmqcore.scan import open_log, read_store, select, shown

pytestmark = pytest.mark.engine

#: Units of a consume-queue file.
UNITS = 10
COUNT = 50


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """Rare/0 and Rare/1, in three files each, are a small part of the log; Most has the others."""
    path = tmp_path_factory.mktemp("lost-units") / "store"
    sizes = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 20 * UNITS}
    with rmqcore.open_store(path, **sizes) as store:
        for number in range(COUNT):
            store.put("Rare", b"%d" % number, queue_id=number % 2)
            store.put("Most", bytes(7000), queue_id=number % 2)
    return path


def gone(file):
    file.unlink()


def emptied(file):
    file.write_bytes(b"")


def zeroed(file):
    file.write_bytes(bytes(20 * UNITS))


def begun_with_zeros(file):
    file.write_bytes(bytes(20) + file.read_bytes()[20:])


def ended_elsewhere(file):
    """The last unit names a place behind the log."""
    data = file.read_bytes()
    last = len(data.rstrip(b"\0")) // 20 * 20
    file.write_bytes(data[:last] + b"\x10" + data[last + 1 :])


def offsets(path, **selection):
    return [
        offset
        for batch in read_store(path, ("phy_offset",), **selection)
        for offset in batch.numbers("phy_offset").tolist()
    ]


@pytest.mark.parametrize(
    ("damage", "first", "marked"),
    [
        (gone, 0, True),
        (gone, 0, False),
        (gone, 1, False),
        (emptied, 0, False),
        (emptied, 1, False),
        (zeroed, 0, False),
        (zeroed, 0, True),
        (zeroed, 1, False),
        (begun_with_zeros, 1, False),
        (begun_with_zeros, 2, False),
        (ended_elsewhere, 0, True),
        (ended_elsewhere, 1, True),
        (ended_elsewhere, 2, True),
    ],
)
@pytest.mark.parametrize(
    "selection",
    [
        {"topics": ["Rare"]},
        {"topics": ["Rare"], "queue_ids": [0]},
        {"topics": ["Rare"], "queue_offsets": {"Rare": {0: (3, 10), 1: (3, 20)}}},
    ],
    ids=["topic", "queue", "offsets"],
)
def test_lost_units_of_a_queue_are_messages_all_the_same(
    intact, tmp_path, damage, first, marked, selection
):
    log = open_log(intact)
    wanted = offsets(intact, **selection)
    assert all(split.units is not None for split in select(log, shown(log, selection)).splits())
    path = shutil.copytree(intact, tmp_path / "store")
    if not marked:
        (path / "config" / MARK_NAME).unlink()
    damage(path / "consumequeue" / "Rare" / "0" / f"{20 * UNITS * first:020d}")
    assert offsets(path, **selection) == wanted


@pytest.mark.parametrize("damage", [gone, emptied, zeroed])
def test_a_walk_for_a_topic_begins_with_the_messages_of_a_queue_that_was_lost(
    intact, tmp_path, damage
):
    wanted = offsets(intact, topics=["Most"])
    path = shutil.copytree(intact, tmp_path / "store")
    for file in (path / "consumequeue" / "Most" / "0").iterdir():
        damage(file)
    assert offsets(path, topics=["Most"]) == wanted
