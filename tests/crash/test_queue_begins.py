"""A queue whose first files are lost is told from one whose first messages have expired."""

import pytest

import rmqcore
from rmqcore import Message
from rmqcore._codec import encode_batch
from rmqcore.files.config_file import sealed, unsealed
from rmqcore.java.json import format_java_json, parse_java_json
from rmqcore.native.format._numbers import SysFlag
from rmqcore.recovery.walk import Walk

pytestmark = pytest.mark.engine

#: a log file holds a message of U and ten of T, which are those of a file of T/0
SETTINGS = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 200,
    "open_check_bytes": 0,
}
COUNT = 40


def opened(path, **more):
    return rmqcore.open_store(path, **SETTINGS, **more)


def put_all(store):
    for number in range(COUNT):
        if number % 10 == 0:
            store.put("U", bytes(5500))
        store.put("T", b"%02d " % number * 1800)


def numbers(store):
    return [int(message.body.split()[0]) for message in store.messages("T", 0)]


def missing(path):
    with rmqcore.open_store(path, mode="r") as reader:
        return reader.missing()


def queue_files(path):
    return sorted((path / "consumequeue/T/0").iterdir())


@pytest.fixture
def cut_between_files(store_path):
    """The first file that is left of T/0 begins behind the log's first record, which is of U."""
    with opened(store_path) as store:
        put_all(store)
    with opened(store_path, retention_bytes=1 << 17) as store:
        store.delete_expired_files()
        assert store.min_phy_offset == 2 << 16
        assert numbers(store) == list(range(20, COUNT))
    assert [file.name for file in queue_files(store_path)] == [f"{400:020d}", f"{600:020d}"]
    return store_path


def forget_first_units(path):
    """Let the mark be one that does not say where queues begin."""
    for file in (path / "config").glob("storeMark.json*"):
        content = parse_java_json(unsealed(file.read_text()))
        content.pop("firstUnits", None)
        file.write_text(sealed(format_java_json(content)))


def forget_mark(path):
    for file in (path / "config").glob("storeMark.json*"):
        file.unlink()


def killed(path):
    (path / "abort").touch()


@pytest.mark.parametrize("more", [None, killed], ids=["closed", "killed"])
def test_a_queue_that_retention_has_cut_between_two_files_lacks_nothing(cut_between_files, more):
    if more is not None:
        more(cut_between_files)
    for _ in range(2):
        assert missing(cut_between_files) == []
        with opened(cut_between_files) as store:
            assert store.recovery_report.findings == []
            assert numbers(store) == list(range(20, COUNT))


@pytest.fixture
def looked_at(monkeypatch):
    """The stretches of the log that an opening has looked through without changing anything."""
    found, scan_range = [], Walk.scan_range

    def noted(self, start, end):
        if start < end:
            found.append((start, end))
        return scan_range(self, start, end)

    monkeypatch.setattr(Walk, "scan_range", noted)
    return found


FORGET = pytest.mark.parametrize("forget", [forget_first_units, forget_mark])


@FORGET
def test_where_no_mark_says_so_it_is_looked_for_once(cut_between_files, looked_at, forget):
    forget(cut_between_files)
    before = [file.read_bytes() for file in queue_files(cut_between_files)]
    assert missing(cut_between_files) == []
    for _ in range(2):
        with opened(cut_between_files) as store:
            assert store.recovery_report.findings == []
            assert numbers(store) == list(range(20, COUNT))
            (first,) = store.get_message("T", 0, 20, max_messages=1).messages
        assert looked_at == [(2 << 16, first.phy_offset)]
    assert [file.read_bytes() for file in queue_files(cut_between_files)] == before


@FORGET
@pytest.mark.parametrize("policy", ["raise", "truncate"])
def test_a_queue_that_lacks_nothing_is_not_derived_from_a_damaged_log(
    cut_between_files, forget, policy
):
    forget(cut_between_files)
    with (cut_between_files / "commitlog" / f"{2 << 16:020d}").open("r+b") as log:
        log.seek(10_000)
        log.write(b"\xff" * 20_000)
    with opened(cut_between_files, message_index_enable=False, on_corruption=policy) as store:
        assert (store.min_queue_offset("T", 0), store.max_queue_offset("T", 0)) == (20, COUNT)
        assert [len(store.get_message("T", 0, offset)) for offset in (30, COUNT - 1)] == [10, 1]


def test_a_file_that_it_loses_then_is_missed_and_derived_again(cut_between_files):
    queue_files(cut_between_files)[0].unlink()
    assert missing(cut_between_files) == ["queue T/0 begins at 30, and has begun sooner"]
    with opened(cut_between_files) as store:
        assert numbers(store) == list(range(20, COUNT))
        assert store.put("T", b"40").queue_offset == COUNT
    assert missing(cut_between_files) == []


@pytest.mark.parametrize("more", [[], [killed], [forget_mark], [forget_first_units, killed]])
def test_a_log_that_begins_at_0_has_lost_no_queue_file_to_retention(store_path, more):
    with opened(store_path) as store:
        put_all(store)
        assert missing(store_path) == []
    for file in queue_files(store_path)[:2]:
        file.unlink()
    for change in more:
        change(store_path)
    assert missing(store_path) == ["queue T/0 begins at 20, and has begun sooner"]
    with opened(store_path) as store:
        assert numbers(store) == list(range(COUNT))
        assert missing(store_path) == []


def test_what_is_lost_while_the_store_is_open_is_not_taken_for_right(store_path):
    with opened(store_path) as store:
        put_all(store)
        store.flush()
        queue_files(store_path)[0].unlink()
    assert missing(store_path) == ["queue T/0 begins at 10, and has begun sooner"]
    with opened(store_path) as store:
        assert numbers(store) == list(range(COUNT))


LIGHT = "%LMQ%a"


@pytest.mark.parametrize("light", [True, False])
def test_queues_of_batches_and_light_queues_come_again(store_path, light):
    sizes = {"mapper_file_size_batch_consume_queue": 460, "topic_queue_types": (("B", "BatchCQ"),)}
    on = {"enable_lmq": True, "enable_multi_dispatch": True}
    body = encode_batch([Message("B", b"%d" % number) for number in range(3)])
    inner = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
    with opened(store_path, **sizes, **on) as store:
        for _ in range(COUNT):
            store.put("B", body, sys_flag=inner, properties={"INNER_NUM": "3", "UNIQ_KEY": "u"})
            store.put("T", bytes(2000), properties={"INNER_MULTI_DISPATCH": LIGHT})
    for queue in ("batchconsumequeue/B/0", f"consumequeue/{LIGHT}/0"):
        (store_path / queue / f"{0:020d}").unlink()
    assert missing(store_path) == [
        f"queue {LIGHT}/0 begins at 10, and has begun sooner",
        "queue B/0 begins at 30, and has begun sooner",
    ]
    settings = on if light else dict.fromkeys(on, False)
    for more in (settings, on):
        with opened(store_path, **sizes, **more) as store:
            assert store.min_queue_offset("B", 0) == 0
            assert store.min_queue_offset(LIGHT, 0) == 0
        assert missing(store_path) == []
