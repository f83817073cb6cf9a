"""An export has what an import may put again: nothing deleted, nothing that was delivered."""

import pytest
from patience import rounds, until
from unit.test_delayed_delivery import HOUR_MS, SMALL, clock, delivered  # noqa: F401 - a fixture
from unit.test_scan_export import FORMATS

import rmqcore
from rmqcore.files.consume_queue import FILLER, SCHEDULE_TOPIC
from rmqcore.files.service_topics import HALF_TOPIC, OP_HALF_TOPIC
from rmqcore.files.timer_check import TIMER_TOPIC, TimerCheck, TimerProgress
from rmqcore.transfer import export_store, import_once

pytestmark = pytest.mark.engine

REVIVE_LOG = "rmq_sys_REVIVE_LOG_DefaultCluster"


def put(store, topic, *bodies):
    for body in bodies:
        store.put(topic, body)


def imported(tmp_path, **settings):
    """Topics and bodies of what comes of a store behind an export and an import, in order."""
    export_store(tmp_path / "old", tmp_path / "e", **settings)
    with rmqcore.open_store(tmp_path / "new", **SMALL, deliver_delayed=True) as store:
        import_once(store, tmp_path / "e")
        return [(message.topic, bytes(message.body)) for message in store.messages()]


def needs_pyarrow(file_format):
    if file_format == "parquet":
        pytest.importorskip("pyarrow")


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_deleted_topic_does_not_come_back(tmp_path, file_format, jobs):
    needs_pyarrow(file_format)
    with rmqcore.open_store(tmp_path / "old", **SMALL) as store:
        put(store, "Gone", b"old")
        put(store, "Again", b"old", b"older")
        put(store, "T", b"kept")
        store.delete_topic("Gone")
        store.delete_topic("Again")
        put(store, "Again", b"new")
    found = imported(tmp_path, file_format=file_format, jobs=jobs)
    assert found == [("T", b"kept"), ("Again", b"new")]


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_delayed_message_comes_once_whether_it_was_delivered_or_waits(
    tmp_path,
    clock,  # noqa: F811 - a fixture
    file_format,
):
    needs_pyarrow(file_format)
    with rmqcore.open_store(tmp_path / "old", **SMALL, deliver_delayed=True) as store:
        first = store.put("TopicA", b"delivered", delay_level=1)
        clock.now_ms = first.store_timestamp_ms + HOUR_MS
        rounds(store.parts.upkeep.delayed)
        until(lambda: delivered(store) == [b"delivered"], "what is due is delivered")
        store.put("TopicA", b"waits", delay_level=1)
        store.put("TopicA", b"waits longer", delay_level=2)
    found = imported(tmp_path, file_format=file_format)
    assert found == [
        ("TopicA", b"delivered"),
        (SCHEDULE_TOPIC, b"waits"),
        (SCHEDULE_TOPIC, b"waits longer"),
    ]


@pytest.mark.parametrize("file_format", FORMATS)
def test_what_services_note_and_have_delivered_stays_behind(tmp_path, file_format):
    needs_pyarrow(file_format)
    with rmqcore.open_store(tmp_path / "old", **SMALL) as store:
        put(store, HALF_TOPIC, b"decided", b"asked for")
        put(store, OP_HALF_TOPIC, b"0,")
        put(store, TIMER_TOPIC, b"rung", b"to ring")
        put(store, REVIVE_LOG, b"handed out")
        put(store, "T", b"x")
        store.consumer_offsets.commit(HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0, 1)
        TimerCheck(store.path / "config").store(TimerProgress(1, 2, 1 << 41, 1), 0)
    found = imported(tmp_path, file_format=file_format)
    assert found == [(HALF_TOPIC, b"asked for"), (TIMER_TOPIC, b"to ring"), ("T", b"x")]


def test_who_asks_for_them_gets_them(tmp_path):
    with rmqcore.open_store(tmp_path / "old", **SMALL) as store:
        put(store, OP_HALF_TOPIC, b"0,")
        put(store, "T", b"x")
    named = export_store(
        tmp_path / "old", tmp_path / "n", file_format="jsonl", topics=[OP_HALF_TOPIC]
    )
    all_of_it = export_store(
        tmp_path / "old", tmp_path / "a", file_format="jsonl", uncommitted=True
    )
    assert [part.rows for part in named + all_of_it] == [1, 2]


def test_of_lost_queues_all_is_exported_that_waits(tmp_path):
    with rmqcore.open_store(tmp_path / "old", **SMALL) as store:
        put(store, HALF_TOPIC, b"decided", b"asked for")
        store.consumer_offsets.commit(HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0, 1)
    for file in (tmp_path / "old" / "consumequeue" / HALF_TOPIC / "0").iterdir():
        file.unlink()
    assert [body for _, body in imported(tmp_path, file_format="jsonl")] == [
        b"decided",
        b"asked for",
    ]


@pytest.mark.parametrize(("lost", "waits"), [("message", [b"2"]), ("file", [b"0", b"1", b"2"])])
def test_a_delivered_offset_that_its_queue_has_no_more_hides_nothing_that_waits(
    tmp_path, lost, waits
):
    with rmqcore.open_store(tmp_path / "old", **SMALL, mapped_file_size_consume_queue=40) as store:
        put(store, HALF_TOPIC, b"0", b"1", b"2")
        store.consumer_offsets.commit(HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0, 1)
    first = tmp_path / "old" / "consumequeue" / HALF_TOPIC / "0" / f"{0:020d}"
    if lost == "message":
        first.write_bytes(first.read_bytes()[:20] + FILLER)
    else:
        first.unlink()
    assert [body for _, body in imported(tmp_path, file_format="jsonl")] == waits
