"""A queue that was idle for long keeps its end, whatever becomes of its files."""

import json
import os
import shutil

import pytest
from children import die, die_at, run_child

import rmqcore
from crash.small_store import SETTINGS, body_of, check_against_log, put
from rmqcore.files.config_file import sealed
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.store_mark import StoreMark
from rmqcore.recovery import recovery

pytestmark = pytest.mark.engine

IDLE = 40
LATER = 160
#: an opening walks the last log file only
CHECKED = SETTINGS | {"open_check_bytes": 0}


def queue_files(path):
    return sorted((path / "consumequeue/Idle/0").iterdir())


def put_idle(store, number):
    return store.put("Idle", body_of(number), keys=(f"i{number}",))


@pytest.fixture
def idle(store_path):
    """A store whose queue Idle/0 has no message in the last log files."""
    with rmqcore.open_store(store_path, **CHECKED) as store:
        for number in range(IDLE):
            put_idle(store, number)
        for number in range(LATER):
            put(store, number)
    assert len(queue_files(store_path)) > 3
    return store_path


def lose_all(path):
    shutil.rmtree(path / "consumequeue/Idle")


def lose_last(path):
    for file in queue_files(path)[2:]:
        file.unlink()


def lose_first(path):
    queue_files(path)[0].unlink()


def lose_middle(path):
    queue_files(path)[1].unlink()


def zero_last(path):
    for file in queue_files(path)[-2:]:
        file.write_bytes(bytes(200))


LOSSES = [lose_all, lose_first, lose_last, lose_middle, zero_last]


def check_whole(path, clean=None):
    with rmqcore.open_store(path, **CHECKED) as store:
        if clean is not None:
            assert store.recovery_report.clean_shutdown is clean
        assert store.max_queue_offset("Idle", 0) == IDLE
        found = [bytes(m.body) for m in store.messages("Idle", 0)]
        assert found == [body_of(number) for number in range(IDLE)]
        check_against_log(store)
        assert put_idle(store, IDLE).queue_offset == IDLE
    with rmqcore.open_store(path, **CHECKED) as store:
        assert store.recovery_report.findings == []
        assert store.max_queue_offset("Idle", 0) == IDLE + 1


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lose", LOSSES)
def test_lost_files_of_an_idle_queue_are_derived_again(idle, lose, clean):
    if not clean:
        (idle / "abort").write_text("1")
    lose(idle)
    check_whole(idle, clean)


class Stopped(Exception):
    """Raised in the middle of an opening."""


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("steps", [0, 2, 6])
@pytest.mark.parametrize("save_every_s", [0, 1])
def test_an_opening_that_is_interrupted_leaves_no_empty_queue(
    idle, monkeypatch, lose, steps, save_every_s
):
    monkeypatch.setattr(recovery, "SAVE_EVERY_S", save_every_s)
    lose(idle)
    told = []

    def stop(progress):
        told.append(progress)
        if len(told) > steps:
            raise Stopped

    with pytest.raises(Stopped):
        rmqcore.open_store(idle, progress=stop, **CHECKED)
    check_whole(idle)


@pytest.mark.parametrize("lost_too", ["nothing", "config/storeMark.json*", "consumequeue/T/1/*"])
@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize("interruptions", [1, 2])
def test_an_opening_that_is_interrupted_takes_no_queue_that_it_found_for_one_that_it_filled(
    store_path, steps, interruptions, lost_too
):
    """RocketMQ numbers a queue anew whose files it has lost; nobody has deleted the topic."""
    with rmqcore.open_store(store_path, **CHECKED) as store:
        for number in range(10):
            store.put("T", b"%d" % number, queue_id=number % 2)
        for number in range(LATER):
            put(store, number)
    for mark in (store_path / "config").glob("storeMark.json*"):
        mark.unlink()
    with rmqcore.open_store(store_path, **CHECKED) as store:
        store.parts.files.consume_queues.drop("T", 0)
        store.parts.files.tail.set_next_queue_offset("T", 0, 0)
        assert [store.put("T", b"anew").queue_offset for _ in range(3)] == [0, 1, 2]
    shutil.rmtree(store_path / "consumequeue/T0")
    for file in store_path.glob(lost_too):
        file.unlink()
    for _ in range(interruptions):
        told = []

        def stop(progress, told=told):
            told.append(progress)
            if len(told) > steps:
                raise Stopped

        with pytest.raises(Stopped):
            rmqcore.open_store(store_path, progress=stop, **CHECKED)
    with rmqcore.open_store(store_path, **CHECKED) as store:
        assert [bytes(m.body) for m in store.messages("T", 0)] == [b"anew"] * 3
        assert [bytes(m.body) for m in store.messages("T", 1)] == [b"1", b"3", b"5", b"7", b"9"]
        assert store.max_queue_offset("T0", 0) > 0


@pytest.mark.process
@pytest.mark.parametrize("mark", ["kept", "lost"])
@pytest.mark.parametrize("lose", [lose_first, lose_middle, lose_all])
@pytest.mark.parametrize(
    "where",
    [
        "derived.consume_queue_store.ConsumeQueueStore.drop_damaged",
        "derived.consume_queue_store.ConsumeQueueStore.append",
        "files.store_mark.StoreMark.store",
        "recovery.recovery.Recovery._cut",
    ],
)
def test_an_opening_that_is_killed_leaves_no_empty_queue(idle, where, lose, mark):
    if mark == "lost":
        if lose is lose_all:
            return
        for file in (idle / "config").glob("storeMark*"):
            file.unlink()
    lose(idle)

    def open_again(moment, visit):
        def run(_):
            die_at(where, moment, visit)
            rmqcore.open_store(idle, **CHECKED)
            die()

        return run

    for moment, visit in (("middle", 1), ("after", 1), ("after", 3)):
        run_child(open_again(moment, visit))
    check_whole(idle)


def test_a_queue_whose_messages_have_expired_goes_on_at_its_end(idle):
    with rmqcore.open_store(idle, mode="r") as store:
        last = store.get_message("Idle", 0, IDLE - 1).messages[0].phy_offset
    for file in (idle / "commitlog").iterdir():
        if int(file.name) <= last:
            file.unlink()
    with rmqcore.open_store(idle, **CHECKED) as store:
        assert store.max_queue_offset("Idle", 0) == IDLE
    shutil.rmtree(idle / "consumequeue/Idle")
    for _ in range(2):
        with rmqcore.open_store(idle, **CHECKED) as store:
            assert store.min_queue_offset("Idle", 0) == IDLE
            assert store.max_queue_offset("Idle", 0) == IDLE
    with rmqcore.open_store(idle, **CHECKED) as store:
        assert put_idle(store, IDLE).queue_offset == IDLE
        assert [bytes(m.body) for m in store.messages("Idle", 0)] == [body_of(IDLE)]


def test_a_mark_of_another_log_says_nothing(idle, tmp_path):
    mark = (idle / "config/storeMark.json").read_text()
    with rmqcore.open_store(tmp_path / "other", **CHECKED) as store:
        store.put("Idle", b"the only one")
    (tmp_path / "other/config/storeMark.json").write_text(mark)
    with rmqcore.open_store(tmp_path / "other", **CHECKED) as store:
        assert store.max_queue_offset("Idle", 0) == 1
        assert store.queues() == [("Idle", 0)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"queueEnds":{"../x":{"0":5}}}',
        '{"queueEnds":{"T":{"a":5}}}',
        '{"queueEnds":{"T":{"-1":5}}}',
        '{"queueEnds":{"T":{"4294967296":5}}}',
        '{"queueEnds":{"Idle":{"0":4611686018427387904}}}',
        '{"queueEnds":{"%s":{"0":5}}}' % ("T" * 256),
        '{"logEnd":{}}',
    ],
)
def test_a_mark_that_cannot_be_read_says_nothing(idle, text):
    (idle / "config/storeMark.json").write_text(sealed(text) if text[1:] else text)
    (idle / "config/storeMark.json.bak").unlink(missing_ok=True)
    with rmqcore.open_store(idle, **CHECKED) as store:
        assert store.max_queue_offset("Idle", 0) == IDLE
        check_against_log(store)
    ends = json.loads(
        (idle / "config/storeMark.json").read_text().replace("0:", '"0":').replace("1:", '"1":')
    )
    assert ends["queueEnds"]["Idle"] == {"0": IDLE}


def test_a_mark_with_another_digit_says_nothing(idle):
    mark = idle / "config/storeMark.json"
    text = mark.read_bytes()
    place = text.index(b"0:", text.index(b'"Idle"')) + 2
    assert text[place : place + 1] < b"9"
    mark.write_bytes(text[:place] + b"9" + text[place + 1 :])
    mark.with_name("storeMark.json.bak").unlink(missing_ok=True)
    with rmqcore.open_store(idle, **CHECKED) as store:
        assert store.recovery_report.findings == []
        assert put_idle(store, IDLE).queue_offset == IDLE
        check_against_log(store)


@pytest.mark.parametrize("name", ["00", "4294967296", "99999999999"])
def test_a_directory_that_no_queue_has_is_left_alone(idle, name):
    foreign = idle / "consumequeue/Idle" / name
    shutil.copytree(idle / "consumequeue/Idle/0", foreign)
    with rmqcore.open_store(idle, **CHECKED) as store:
        assert put_idle(store, IDLE).queue_offset == IDLE
        store.flush()
        assert len(store.get_message("Idle", 0, 0, max_messages=999).messages) == IDLE + 1
    shutil.rmtree(foreign)
    with rmqcore.open_store(idle, **CHECKED) as store:
        assert store.recovery_report.findings == []
        check_against_log(store)


def test_the_mark_is_renewed_while_the_store_is_open(store_path):
    with rmqcore.open_store(store_path, **CHECKED) as store:
        for number in range(IDLE):
            put_idle(store, number)
        assert store.max_queue_offset("Idle", 0) == IDLE
        # whatever end a round of the store's own has seen, the log goes on for longer than that
        start = store.max_phy_offset
        for number in range(LATER):
            put(store, number)
        assert store.max_phy_offset - start > 3 * SETTINGS["mapped_file_size_commit_log"]
        # the first looks where the log ends, the second writes it
        for _ in range(2):
            store.flush()
        assert f"0:{IDLE}" in (store_path / "config/storeMark.json").read_text()


def renumber_mark(path, end):
    """Let the mark say that the idle queue ended elsewhere, as if the log had lost the rest."""
    mark = StoreMark(StoreDir(path))
    mark.load()
    mark.ends["Idle", 0] = end
    mark.store()


#: more units than a hole in a queue may have
FAR = 1_500_000
#: queue files that hold them
LONG = CHECKED | {"mapped_file_size_consume_queue": 6_000_000}


@pytest.fixture
def idle_long(store_path):
    """As `idle`, with queue files that are rarely full."""
    with rmqcore.open_store(store_path, **LONG) as store:
        for number in range(IDLE):
            put_idle(store, number)
        for number in range(LATER):
            put(store, number)
    return store_path


@pytest.mark.parametrize("end", [IDLE + 5, FAR])
def test_a_queue_that_ended_far_behind_its_units_keeps_them(idle_long, end):
    renumber_mark(idle_long, end)
    with rmqcore.open_store(idle_long, **LONG) as store:
        found = [bytes(message.body) for message in store.messages("Idle", 0)]
        assert found == [body_of(number) for number in range(IDLE)]
        assert store.max_queue_offset("Idle", 0) == end
    with rmqcore.open_store(idle_long, **LONG) as store:
        assert put_idle(store, IDLE).queue_offset == end
        assert [m.queue_offset for m in store.messages("Idle", 0)] == [*range(IDLE), end]


def test_a_queue_that_ended_far_behind_units_that_are_gone_begins_there(idle_long):
    with rmqcore.open_store(idle_long, **LONG) as store:
        last = store.get_message("Idle", 0, IDLE - 1).messages[0].phy_offset
    for file in sorted((idle_long / "commitlog").iterdir()):
        if int(file.name) <= last:
            file.unlink()
    renumber_mark(idle_long, FAR)
    with rmqcore.open_store(idle_long, **LONG) as store:
        assert store.min_queue_offset("Idle", 0) == FAR
        assert put_idle(store, IDLE).queue_offset == FAR
    assert [int(file.name) for file in queue_files(idle_long)] == [
        FAR * 20 // 6_000_000 * 6_000_000
    ]


def test_a_topic_made_again_whose_first_files_are_gone_keeps_its_numbers(idle):
    """As RocketMQ does it: queue files are removed, and numbers begin with 0; then retention."""
    mark = (idle / "config/storeMark.json").read_bytes()
    with rmqcore.open_store(idle, **CHECKED) as store:
        store.delete_topic("Idle")
        for number in range(IDLE // 2):
            put_idle(store, number)
        kept_from = store.get_message("Idle", 0, IDLE // 2 - 1).messages[0].phy_offset
    (idle / "config/storeMark.json").write_bytes(mark)
    for name in ("storeMark.json.bak", "deletedTopics.json", "deletedTopics.json.bak"):
        (idle / "config" / name).unlink(missing_ok=True)
    queue_files(idle)[0].unlink()
    for file in sorted((idle / "commitlog").iterdir()):
        if int(file.name) + SETTINGS["mapped_file_size_commit_log"] <= kept_from:
            file.unlink()
    with rmqcore.open_store(idle, **CHECKED) as store:
        assert store.max_queue_offset("Idle", 0) == IDLE // 2
        assert len(list(store.messages("Idle", 0))) > 0


def test_a_directory_that_is_no_text_brings_no_queue_into_being(idle):
    name = os.fsencode(idle) + b"/consumequeue/T\xff\xe9"
    shutil.copytree(os.fsencode(idle) + b"/consumequeue/T0", name)
    for _ in range(3):
        with rmqcore.open_store(idle, **CHECKED) as store:
            assert store.recovery_report.findings == []
            topics = {topic for topic, _ in store.queues()}
        assert topics == {"Idle", "T0", "T1", os.fsdecode(b"T\xff\xe9")}


@pytest.mark.parametrize("left", [0, 10])
def test_a_queue_of_a_store_without_a_mark_that_lacks_units_comes_again_whole(store_path, left):
    """An opening that compares the log's last file only meets its messages there too late."""
    sizes = {"mapped_file_size_commit_log": 1 << 12, "open_check_bytes": 0}
    with rmqcore.open_store(store_path, **sizes) as store:
        for number in range(40):
            store.put("T", b"%d" % number * 100, keys="k")
            store.put("Other", b"x")
    assert len(list((store_path / "commitlog").iterdir())) > 2
    for mark in (store_path / "config").glob("storeMark.json*"):
        mark.unlink()
    (file,) = (store_path / "consumequeue" / "T" / "0").iterdir()
    file.write_bytes(file.read_bytes()[: left * 20].ljust(file.stat().st_size, b"\0"))
    with rmqcore.open_store(store_path, **sizes) as store:
        found = store.get_message("T", 0, 0, max_messages=50).messages
        assert [message.queue_offset for message in found] == list(range(40))
