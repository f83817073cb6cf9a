"""Every byte of a small store flips once: what is read is right, or an error names the place."""

import shutil
import struct

import pytest
from held_time import HeldTime

import rmqcore
from crash.small_store import SETTINGS, put
from rmqcore.errors import (
    ConfigError,
    CorruptConsumeQueueError,
    CorruptStoreError,
    RmqCoreError,
)
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.store_mark import StoreMark
from rmqcore.services.store_marker import StoreMarker
from rmqcore.store.message_store import DefaultMessageStore

pytestmark = pytest.mark.engine

NUMBERS = 45
START_MS = 1_700_000_000_000
FIELDS = (
    *("topic", "queue_id", "queue_offset", "phy_offset", "flag", "sys_flag", "body"),
    *("properties", "born_host", "store_host", "born_timestamp_ms", "store_timestamp_ms"),
    *("reconsume_times", "prepared_transaction_offset"),
)


def build(path):
    with rmqcore.open_store(path, enabled_append_prop_crc=True, **SETTINGS) as store:
        for number in range(NUMBERS):
            # the same bytes whenever it is built, so that one seed flips the same of them
            store.parts.files.tail.fixed_time_ms = START_MS + number
            put(store, number, born_timestamp_ms=START_MS)
    return path


def all_that_can_be_read(path, mode):
    """Every answer of a store, field by field."""
    with rmqcore.open_store(path, mode=mode, force_verify_prop_crc=True) as store:
        answers = {"log": [fields(message) for message in store.messages()]}
        for topic, queue_id in store.queues():
            low = store.min_queue_offset(topic, queue_id)
            answers[topic, queue_id] = (low, store.max_queue_offset(topic, queue_id))
            result = store.get_message(topic, queue_id, low, max_messages=1000)
            answers["queue", topic, queue_id] = [fields(message) for message in result.messages]
            for tag in ("tag0", "tag1", "tag2"):
                result = store.get_message(topic, queue_id, low, max_messages=1000, tags=tag)
                answers[tag, topic, queue_id] = [m.phy_offset for m in result.messages]
        for topic in ("T0", "T1"):
            for key in [f"k{number}" for number in range(NUMBERS)] + ["m0", "m1", "m2"]:
                found = store.query_message(topic, key, max_messages=1000).messages
                answers["key", topic, key] = [message.phy_offset for message in found]
        return answers


def fields(message):
    return [
        bytes(value) if isinstance(value, memoryview) else value
        for value in (getattr(message, name) for name in FIELDS)
    ]


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    path = build(tmp_path_factory.mktemp("intact") / "store")
    return path, all_that_can_be_read(path, "r")


def flips(path, part, rng, share, whole):
    """(file, position, bit) of flipped bytes: of those that say something, and some of the rest.

    Of a queue that another process writes, the last unit may be newer than the log that was seen.
    """
    for file in sorted((path / part).rglob("*") if (path / part).is_dir() else [path / part]):
        if file.is_file():
            data = file.read_bytes()
            used = len(data.rstrip(b"\0"))
            last = sorted(file.parent.iterdir())[-1] == file and part == "consumequeue"
            for at in range(used - 20 if last and not whole else len(data)):
                if rng.random() < (share if at < used else share / 20):
                    yield file.relative_to(path), at, 1 << rng.randrange(8)


def check_flips(tmp_path, intact, rng, part, mode, share, known=()):
    path, good = intact
    copy = tmp_path / "copy"
    seen, refusals = {"right": 0, "refused": 0}, []
    last = good["log"][-1][FIELDS.index("phy_offset")]
    for name, at, bit in flips(path, part, rng, share, mode == "a"):
        if mode == "r" and part == "commitlog" and int(name.name) + at >= last:
            # the last record of a log that another process writes may just be being written
            continue
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        data = bytearray((copy / name).read_bytes())
        data[at] ^= bit
        (copy / name).write_bytes(data)
        try:
            answers = all_that_can_be_read(copy, mode)
        except RmqCoreError as error:
            seen["refused"] += 1
            # not the error itself: its traceback would keep the refused store's memory
            refusals.append((type(error), str(error)))
            continue
        wrong = [what for what in good if answers.get(what) != good[what]]
        wrong += answers.keys() - good.keys()
        wrong = [what for what in wrong if what[0] not in known]
        assert not wrong, f"{name} byte {at} bit {bit}: {wrong[:5]}"
        seen["right"] += 1
    for kind, text in refusals:
        assert str(copy) in text
        assert issubclass(kind, CorruptStoreError | ConfigError)
    return seen


@pytest.mark.parametrize("part", ["consumequeue", "index", "checkpoint", "lock"])
def test_derived_files_are_mended_on_opening(tmp_path, intact, rng, part):
    seen = check_flips(tmp_path, intact, rng, part, "a", 0.03)
    assert seen["right"] >= seen["refused"]


def test_the_log(tmp_path, intact, rng):
    seen = check_flips(tmp_path, intact, rng, "commitlog", "a", 0.01)
    assert seen["refused"] > seen["right"]


def test_the_log_of_another_process(tmp_path, intact, rng):
    check_flips(tmp_path, intact, rng, "commitlog", "r", 0.01)


@pytest.mark.parametrize("part", ["consumequeue", "checkpoint"])
def test_derived_files_of_another_process(tmp_path, intact, rng, part):
    """A tags code is compared with nothing when it does not match: only opening mends it."""
    check_flips(tmp_path, intact, rng, part, "r", 0.1, known=("tag0", "tag1", "tag2"))


@pytest.mark.parametrize("place", [0, 4, -1])
@pytest.mark.parametrize("flipped", [1, 1 << 4, 1 << 17, 1 << 40])
def test_a_queue_offset_that_rotted_moves_no_queue(tmp_path, place, flipped):
    """Nothing in a record protects its queue offset: the queue and its neighbours know better."""
    with rmqcore.open_store(tmp_path / "store") as store:
        receipts = [store.put("T", b"x") for _ in range(9)]
    record = receipts[place]
    log = tmp_path / "store" / "commitlog" / f"{0:020d}"
    queue = tmp_path / "store" / "consumequeue" / "T" / "0" / f"{0:020d}"
    units = queue.read_bytes()
    with log.open("r+b") as file:
        file.seek(record.phy_offset + 20)
        file.write((record.queue_offset ^ flipped).to_bytes(8, "big"))
    with pytest.raises(CorruptConsumeQueueError, match=f"the record at {record.phy_offset} says"):
        rmqcore.open_store(tmp_path / "store")
    assert queue.read_bytes() == units


@pytest.mark.storm
@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize(
    "part",
    ["commitlog", "consumequeue", "checkpoint", pytest.param("lock", marks=pytest.mark.engine)],
)
def test_every_byte(tmp_path, intact, rng, part, mode):
    known = ("tag0", "tag1", "tag2") if mode == "r" else ()
    check_flips(tmp_path, intact, rng, part, mode, 1.0, known=known)


@pytest.mark.storm
def test_every_byte_of_the_index(tmp_path, intact, rng):
    check_flips(tmp_path, intact, rng, "index", "a", 1.0)


@pytest.mark.parametrize(
    ("at", "mask", "numbers"), [(7, 8, [5]), (11, 1, [5]), (7, 8, [4, 5]), (7, 8, [0, 1])]
)
def test_a_unit_that_has_rotted_while_the_store_was_open_is_derived_at_the_next_opening(
    store_path, at, mask, numbers
):
    settings = {
        "mapped_file_size_commit_log": 1 << 16,
        "message_index_enable": False,
        # the queue has to be held against more of the log than is usual
        "open_check_bytes": 0,
    }
    with rmqcore.open_store(store_path, **settings) as store:
        for number in range(300):
            store.put(f"T{number % 2}", bytes(1000))
        store.flush()
        assert store.max_queue_offset("T0", 0) == 150
        with (store_path / "consumequeue/T0/0" / f"{0:020}").open("r+b") as queue:
            for number in numbers:
                queue.seek(number * 20 + at)
                (byte,) = queue.read(1)
                queue.seek(number * 20 + at)
                queue.write(bytes([byte ^ mask]))
        with pytest.raises(CorruptConsumeQueueError, match="rebuild the consume queue"):
            store.get_message("T0", 0, numbers[-1], max_messages=1)
    for _ in range(2):
        with rmqcore.open_store(store_path, **settings) as store:
            found = store.get_message("T0", 0, 0, max_messages=150).messages
            assert [message.queue_offset for message in found] == list(range(150))
    assert store.recovery_report.start_offset > 0


def test_a_rotten_unit_lets_no_opening_take_other_queues_for_emptied(store_path, tmp_path):
    # as RocketMQ leaves it that has lost the files of T/0: its numbers begin again, T/1 stays
    queue, kept = store_path / "consumequeue/T/1", tmp_path / "kept"
    with rmqcore.open_store(store_path) as store:
        for number in range(6):
            store.put("T", b"old %d" % number, queue_id=number % 2)
        for _ in range(50):
            store.put("V", b"v")
    shutil.copytree(queue, kept)
    with rmqcore.open_store(store_path) as store:
        store.delete_topic("T")
        for _ in range(3):
            store.put("T", b"new")
    shutil.copytree(kept, queue)
    for name in ("deletedTopics", "storeMark"):
        for file in (store_path / "config").glob(f"{name}*"):
            file.unlink()
    with rmqcore.open_store(store_path) as store:
        with (store_path / "consumequeue/V/0" / f"{0:020}").open("r+b") as file:
            file.seek(9 * 20)
            file.write(struct.pack(">q", 7))
        with pytest.raises(CorruptConsumeQueueError, match="rebuild the consume queue"):
            store.get_message("V", 0, 9, max_messages=1)
    for _ in range(2):
        with rmqcore.open_store(store_path) as store:
            assert len(store.get_message("V", 0, 9, max_messages=1).messages) == 1
            found = [bytes(message.body) for message in store.messages("T", 1)]
            assert found == [b"old 1", b"old 3", b"old 5"]


def test_what_a_get_finds_damaged_is_noted_beside_a_mark_that_is_whole(store_path, monkeypatch):
    seen = []
    held = HeldTime()
    config = rmqcore.StoreConfig()
    # without the service that marks by itself
    with DefaultMessageStore(store_path, config, world=held.world, runner=held.services) as store:
        store.put("T", b"1")
        store.flush()
        first_units = StoreMarker._first_units

        def noted(marker, first):
            marker._mark.doubt_from(0)
            mark = StoreMark(StoreDir(store_path))
            mark.load()
            seen.append((mark.log_end, mark.ends, mark.doubted_from))
            return first_units(marker, first)

        monkeypatch.setattr(StoreMarker, "_first_units", noted)
    # what was there before: no mark
    assert seen[-1] == (0, {}, 0)
    with rmqcore.open_store(store_path) as store:
        assert store.get_message("T", 0, 0).messages[0].body == b"1"
