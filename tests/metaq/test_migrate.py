"""Partitions become queues: in order, complete, resumable, verified."""

import itertools
import json
import os
import shutil
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metaq.forks import in_fork
from typer.testing import CliRunner

from reference import metaq as reference
from rmqcore import open_store
from rmqcore.cli.metaq import app
from rmqcore.errors import CorruptStoreError, StoreNotFoundError
from rmqcore.files.config_tables import TopicConfig
from rmqcore.metaq import Hole, Message, MessageStoreManager, MetaConfig, SystemConfig
from rmqcore.transfer.metaq import MigrationError, migrate, target_topic, to_rocketmq, to_row

pytestmark = pytest.mark.engine

ATTRIBUTES = [None, "", "attr", "ümläut", "a\1b", "\2", "long " * 4000, "a=b;c", " "]


def fill(path, *, topics=("t", "odd.topic%"), count=300, **system):
    """Partitions with every kind of attribute; returns the rows of each."""
    settings = {"unflush_threshold": 10**6, "num_partitions": 2, "max_segment_size": 60_000}
    config = MetaConfig(SystemConfig(data_path=str(path), **{**settings, **system}), topics)
    rows = {}
    with MessageStoreManager(config) as manager:
        for topic in topics:
            for partition in range(2):
                store = manager.get_or_create(topic, partition)
                for i in range(1, count + 1):
                    attribute = ATTRIBUTES[i % len(ATTRIBUTES)]
                    payload = b"%s-%d-%d" % (topic.encode(), partition, i) * (i % 7)
                    message = Message(topic, payload or b"-", attribute, i * 1000 + partition)
                    store.append(*message.row())
                    rows.setdefault((topic, partition), []).append(message)
    return rows


def queue(store, topic, queue_id):
    offset, copies = 0, []
    while found := store.get_message(topic, queue_id, offset, max_messages=100).messages:
        copies += found
        offset = copies[-1].queue_offset + 1
    return copies


def test_every_message_arrives_in_order_with_id_and_attribute(tmp_path):
    rows = fill(tmp_path / "metaq")
    before = {p: p.read_bytes() for p in (tmp_path / "metaq").rglob("*") if p.is_file()}
    reports = migrate(tmp_path / "metaq", tmp_path / "rocketmq")
    assert {p: p.read_bytes() for p in before} == before
    assert [(r.topic, r.partition, r.messages, r.moved) for r in reports] == [
        (topic, partition, 300, 300) for topic, partition in sorted(rows)
    ]
    with open_store(tmp_path / "rocketmq", mode="r") as store:
        for (topic, partition), messages in rows.items():
            copies = queue(store, target_topic(topic), partition)
            assert [to_row(copy) for copy in copies] == [message.row() for message in messages]
            for copy, message in zip(copies, messages, strict=True):
                assert copy.properties["METAQ_ID"] == str(message.message_id)
                if message.attribute in {"attr", "ümläut", "a=b;c", " "}:
                    assert copy.properties["METAQ_ATTRIBUTE"] == message.attribute
                    assert bytes(copy.body) == message.data
            found = store.query_message(target_topic(topic), "150000").messages
            assert [m.properties["METAQ_ID"] for m in found] == ["150000"]


def with_one_of(path, size):
    """Partitions t-0, whose second message has a body of so many bytes, and u-0."""
    config = MetaConfig(SystemConfig(data_path=str(path), unflush_threshold=10**6), ("t", "u"))
    with MessageStoreManager(config) as manager:
        for topic in ("t", "u"):
            for number, large in enumerate((False, topic == "t", False), 1):
                message = Message(topic, b"x" * (size if large else number), None, number)
                manager.get_or_create(topic, 0).append(*message.row())


def test_a_body_of_more_than_4_mib_is_moved(tmp_path):
    with_one_of(tmp_path / "metaq", 5 << 20)
    reports = migrate(tmp_path / "metaq", tmp_path / "rocketmq")
    assert [(report.moved, report.too_large) for report in reports] == [(3, ()), (3, ())]
    with open_store(tmp_path / "rocketmq", mode="r") as store:
        assert [len(copy.body) for copy in queue(store, "t", 0)] == [1, 5 << 20, 3]
    # a smaller limit makes nothing of what is there too large
    again = migrate(tmp_path / "metaq", tmp_path / "rocketmq", max_message_size=1 << 20)
    assert [(report.messages, report.moved, report.too_large) for report in again] == 2 * [
        (3, 0, ())
    ]


@pytest.mark.parametrize("limit", [{}, {"maxMessageSize": 1000}])
def test_messages_that_fit_into_a_log_file_one_by_one_are_moved(tmp_path, limit):
    path = tmp_path / "metaq"
    config = MetaConfig(SystemConfig(data_path=str(path), unflush_threshold=10**6), ("t",))
    with MessageStoreManager(config) as manager:
        for number in range(200):
            message = Message("t", b"x" * 900, None, number)
            manager.get_or_create("t", 0).append(*message.row())
    with open_store(tmp_path / "rocketmq", mapped_file_size_commit_log=1 << 16) as store:
        store.put("other", b"x")
    (report,) = migrate(path, tmp_path / "rocketmq", **limit)
    assert (report.moved, report.messages, report.too_large) == (200, 200, ())


@pytest.mark.parametrize("name", ["max_message_size", "maxMessageSize"])
def test_a_limit_that_is_given_holds_by_either_name(tmp_path, name):
    with_one_of(tmp_path / "metaq", 3000)
    reports = migrate(tmp_path / "metaq", tmp_path / "rocketmq", **{name: 1000})
    assert [(report.moved, report.too_large) for report in reports] == [(2, (21,)), (3, ())]


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) - 110])
def test_a_body_that_fits_into_no_log_file_keeps_no_other_from_being_moved(tmp_path, size):
    with_one_of(tmp_path / "metaq", size)
    with open_store(tmp_path / "rocketmq", mapped_file_size_commit_log=1 << 16) as store:
        store.put("other", b"x")
    answer = CliRunner().invoke(
        app, ["migrate", str(tmp_path / "metaq"), str(tmp_path / "rocketmq"), "--json"]
    )
    assert answer.exit_code == 1
    found = [(each["messages"], each["too_large"]) for each in json.loads(answer.stdout)]
    assert found == [(2, [21]), (3, [])]
    assert "t-0: the message at 21 is too large" in answer.stderr
    for report in migrate(tmp_path / "metaq", tmp_path / "rocketmq"):
        assert report.moved == 0
    with open_store(tmp_path / "rocketmq", mode="r") as store:
        assert [len(copy.body) for copy in queue(store, "t", 0)] == [1, 3]
        assert [len(copy.body) for copy in queue(store, "u", 0)] == [1, 2, 3]


@pytest.mark.parametrize(("name", "target"), [("a\1b", "a%01b"), ("a\udcc4", "a%C4")])
def test_a_topic_whose_name_no_property_can_hold_keeps_no_other_from_being_moved(
    tmp_path, name, target
):
    """As any client's put makes it, or a system whose names are no UTF-8."""
    fill(tmp_path / "metaq", topics=("a", "t"), count=3)
    for partition in range(2):
        (tmp_path / f"metaq/a-{partition}").rename(tmp_path / f"metaq/{name}-{partition}")
    reports = migrate(tmp_path / "metaq", tmp_path / "rocketmq")
    moved = [(report.topic, report.target_topic, report.messages) for report in reports]
    assert moved == 2 * [(name, target, 3)] + 2 * [("t", "t", 3)]
    with open_store(tmp_path / "rocketmq") as store:
        (first, *_) = queue(store, target, 0)
    assert "METAQ_TOPIC" not in first.properties


def test_a_broker_knows_each_partition_as_a_queue_to_read(tmp_path):
    """Without an entry in its table it answers no pull, and makes new topics with few queues."""
    system = SystemConfig(data_path=str(tmp_path / "metaq"), num_partitions=12)
    config = MetaConfig(system, ("t", "wide", "odd.topic"))
    with MessageStoreManager(config) as manager:
        for topic, partition in (("t", 0), ("t", 11), ("wide", 2), ("odd.topic", 3)):
            message = Message(topic, b"x", None, 1)
            manager.get_or_create(topic, partition).append(*message.row())
    with open_store(tmp_path / "rocketmq") as store:
        store.topics.put(TopicConfig(topic_name="t", read_queue_nums=4, write_queue_nums=4))
        store.topics.put(TopicConfig(topic_name="wide", read_queue_nums=16, write_queue_nums=8))
    migrate(tmp_path / "metaq", tmp_path / "rocketmq")
    with open_store(tmp_path / "rocketmq") as store:
        queues = {t.topic_name: (t.read_queue_nums, t.write_queue_nums) for t in store.topics}
    assert queues == {"t": (12, 4), "wide": (16, 8), "odd%2Etopic": (4, 4)}


def test_what_a_killed_migration_has_put_does_not_count_as_deleted(tmp_path):
    """A broker's table lists all topics there are: others are deleted, once queues are lost."""
    fill(tmp_path / "metaq", topics=("t",), count=10)
    with open_store(tmp_path / "rocketmq") as store:
        store.topics.put(TopicConfig(topic_name="TBW102"))
    migrate(tmp_path / "metaq", tmp_path / "rocketmq")
    shutil.rmtree(tmp_path / "rocketmq" / "consumequeue")
    with open_store(tmp_path / "rocketmq") as store:
        assert [store.max_queue_offset("t", queue_id) for queue_id in range(2)] == [10, 10]


def test_topics_get_names_that_rocketmq_takes():
    assert target_topic("plain-Topic_1") == "plain-Topic_1"
    assert target_topic("a.b%c é") == "a%2Eb%25c%20%C3%A9"


@settings(max_examples=50)
@given(
    st.builds(
        Message,
        st.just("t"),
        st.binary(max_size=50),
        st.none() | st.text(max_size=20) | st.just("\udcff"),
        st.integers(-(2**63), 2**63 - 1),
    )
)
def test_nothing_of_a_message_is_lost(message):
    data, flag = message.row()[1:]
    source = Message("t", message.data, message.attribute, message.message_id, flag, 0, 0, 20)
    sent = to_rocketmq(source)
    assert to_row(sent) == (message.message_id, data, flag)


def test_again_moves_only_what_is_new(tmp_path):
    fill(tmp_path / "metaq", topics=("t",))
    first = migrate(tmp_path / "metaq", tmp_path / "rocketmq")
    assert [r.moved for r in migrate(tmp_path / "metaq", tmp_path / "rocketmq")] == [0, 0]
    fill(tmp_path / "metaq", topics=("t",), count=7)
    third = migrate(tmp_path / "metaq", tmp_path / "rocketmq")
    assert [(r.moved, r.messages) for r in third] == [(7, 307), (7, 307)]
    assert third[0].sha256 != first[0].sha256


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_killed_migration_goes_on_where_it_stopped(tmp_path, batches):
    fill(tmp_path / "metaq", count=400)
    folders = [tmp_path / "metaq", tmp_path / "rocketmq"]
    left = itertools.count(batches, -1)

    def progress(*_):
        if next(left) <= 1:
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_fork(lambda: migrate(*folders, progress=progress)) == -signal.SIGKILL
    reports = migrate(*folders)
    assert all(report.messages == 400 for report in reports)
    assert 0 < sum(report.moved for report in reports) < 1600


def test_a_target_that_holds_something_else_is_refused(tmp_path):
    fill(tmp_path / "metaq", topics=("t",), count=5)
    with open_store(tmp_path / "rocketmq") as store:
        store.put("t", b"somebody else's", queue_id=1)
    with pytest.raises(MigrationError, match="not from a migration") as caught:
        migrate(tmp_path / "metaq", tmp_path / "rocketmq")
    assert (caught.value.topic, caught.value.partition) == ("t", 1)


@pytest.mark.parametrize("size", [5, 6])
def test_another_brokers_partition_of_the_name_is_put_behind_no_queue(tmp_path, size):
    for broker, count in ((1, 5), (2, 9)):
        config = MetaConfig(SystemConfig(data_path=str(tmp_path / f"{broker}")), ["a", "t"])
        with MessageStoreManager(config) as manager:
            for number in range(broker):
                manager.get_or_create("a", 0).append(number, b"body")
            for number in range(count):
                body = b"x" * (5 if broker == 1 else size)
                manager.get_or_create("t", 0).append(number * 1000 + broker, body)
    migrate(tmp_path / "1", tmp_path / "rocketmq")
    with pytest.raises(MigrationError, match="from another broker's partition"):
        migrate(tmp_path / "2", tmp_path / "rocketmq")
    config = MetaConfig(SystemConfig(data_path=str(tmp_path / "1")), ["a", "t"])
    with MessageStoreManager(config) as manager:
        manager.get_or_create("t", 0).append(9001, b"later")
    reports = migrate(tmp_path / "1", tmp_path / "rocketmq")
    assert [(r.topic, r.moved, r.messages) for r in reports] == [("a", 0, 1), ("t", 1, 6)]


def test_verification_notices_a_message_too_many(tmp_path):
    fill(tmp_path / "metaq", topics=("t",), count=5)
    migrate(tmp_path / "metaq", tmp_path / "rocketmq")
    with open_store(tmp_path / "rocketmq") as store:
        (last,) = store.get_message("t", 0, 4).messages
        properties = {k: v for k, v in last.properties.items() if k.startswith("METAQ")}
        store.put("t", bytes(last.body), flag=last.flag, properties=properties)
    with pytest.raises(MigrationError, match="more than the 5"):
        migrate(tmp_path / "metaq", tmp_path / "rocketmq")


def test_holes_torn_tails_and_empty_messages_are_reported_and_kept(tmp_path):
    folder = tmp_path / "metaq" / "t-0"
    folder.mkdir(parents=True)
    first = reference.encode(1, b"first") + reference.encode(2, b"")
    (folder / f"{0:020d}.meta").write_bytes(first)
    (folder / f"{100:020d}.meta").write_bytes(reference.encode(3, b"third") + b"torn")
    (report,) = migrate(tmp_path / "metaq", tmp_path / "rocketmq")
    assert (report.messages, report.left_behind) == (3, 4)
    assert report.holes == (Hole(len(first), 100),)
    assert [r.moved for r in migrate(tmp_path / "metaq", tmp_path / "rocketmq")] == [0]


def test_damage_in_the_middle_stops_the_migration(tmp_path):
    folder = tmp_path / "metaq" / "t-0"
    folder.mkdir(parents=True)
    record = reference.encode(1, b"first")
    damaged = record[:-1] + b"!"
    (folder / f"{0:020d}.meta").write_bytes(record + damaged)
    (folder / f"{50:020d}.meta").write_bytes(record)
    with pytest.raises(CorruptStoreError) as caught:
        migrate(tmp_path / "metaq", tmp_path / "rocketmq")
    assert caught.value.phy_offset == 25


@pytest.mark.parametrize("source", ["nowhere", "."])
def test_a_source_without_partitions_is_refused(tmp_path, source):
    with pytest.raises(StoreNotFoundError):
        migrate(tmp_path / source, tmp_path / "rocketmq")
    assert not (tmp_path / "rocketmq").exists()


def test_a_source_that_deletes_old_segments_meanwhile(tmp_path):
    fill(tmp_path / "metaq", topics=("t",))
    migrate(tmp_path / "metaq", tmp_path / "rocketmq")
    oldest = min((tmp_path / "metaq" / "t-0").glob("*.meta"))
    oldest.unlink()
    reports = migrate(tmp_path / "metaq", tmp_path / "rocketmq")
    assert reports[0].messages < reports[1].messages == 300


@pytest.mark.process
def test_the_demonstration(tmp_path):
    done = CliRunner().invoke(app, ["demo", str(tmp_path), "--messages", "3000", "--json"])
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["acknowledged"] >= 3000
    assert (result["lost"], result["found_by_id"]) == (0, True)
    assert result["recovered"] >= result["acknowledged"]
    assert result["truncated"] >= 2 * 4096
    assert result["served"] == result["recovered"]
    assert sum(report["messages"] for report in result["migrated"]) == result["served"]


@pytest.mark.parametrize("size", [b"\0\0\0\x63", b"\xff\xff\xff\xff", b"\0"])
def test_a_malformed_attribute_stops_neither_cat_nor_the_migration(tmp_path, size):
    folder = tmp_path / "metaq" / "t-0"
    folder.mkdir(parents=True)
    rows = [(1, b"before", 0), (2, size, 1), (3, b"behind", 0)]
    (folder / f"{0:020d}.meta").write_bytes(b"".join(reference.encode(*row) for row in rows))
    done = CliRunner().invoke(app, ["cat", str(tmp_path / "metaq"), "t", "0"])
    assert done.stdout_bytes == b"before\n" + size + b"\nbehind\n"
    assert done.stderr == "26: no attribute where the flag promises one\n"
    assert done.exit_code == 1
    (report,) = migrate(tmp_path / "metaq", tmp_path / "rocketmq")
    assert (report.messages, report.moved, report.left_behind) == (3, 3, 0)
    assert migrate(tmp_path / "metaq", tmp_path / "rocketmq")[0].moved == 0
    with open_store(tmp_path / "rocketmq", mode="r") as store:
        copies = queue(store, "t", 0)
    assert [to_row(copy) for copy in copies] == rows
    assert copies[1].properties["METAQ_RAW"] == "1"
