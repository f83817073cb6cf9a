"""Frames are appended whole and once: tasks that fail, commits that repeat, aborts that race."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from staged_rows import pairs, stage, three_files

import rmqcore
from rmqcore import open_shared, open_store
from rmqcore.config import load_config
from rmqcore.errors import ConfigError, MessageIllegalError, StoreError, StoreLockedError

pytestmark = pytest.mark.process

pytest.importorskip("pyspark")


def messages_of(path, config=None):
    with open_store(path, mode="r", config=config) as store:
        return list(store.messages())


def bodies_of(path):
    return [message.body for message in messages_of(path)]


def append(frame, path, **options):
    frame.write.format("rmq").mode("append").options(**options).save(str(path))


@pytest.fixture
def numbers(spark):
    """`numbers(1000, parts=3)`: a frame with the body "0", "1", ..."""

    def frame(count, parts=3):
        return spark.range(0, count, 1, parts).selectExpr("CAST(id AS STRING) AS body")

    return frame


def test_each_row_is_appended_once_in_the_order_of_its_queue(numbers, store_path):
    append(numbers(3000), store_path, topic="T", queueCount="2")
    found = messages_of(store_path)
    assert sorted(int(m.body) for m in found) == list(range(3000))
    assert len({m.unique_key for m in found}) == 3000
    for queue_id in (0, 1):
        queue = [m for m in found if m.queue_id == queue_id]
        assert [m.queue_offset for m in queue] == list(range(1500))
        assert [int(m.body) for m in queue] == sorted(int(m.body) for m in queue)
    assert not list((store_path / "spark").glob("staging-*"))


def test_a_store_is_copied_with_all_that_makes_a_message(spark, golden_store, store_path):
    source = golden_store("5.5.0", "basic")
    frame = spark.read.format("rmq").option("columns", "full").load(str(source.path))
    append(frame.coalesce(1), store_path)

    def facts(message):
        kept = ("topic", "queue_id", "body", "properties", "flag", "sys_flag", "reconsume_times")
        return [getattr(message, name) for name in kept] + [message.born_timestamp_ms]

    def ordered(path):
        rows = sorted(messages_of(path), key=lambda m: (m.topic, m.queue_id, m.queue_offset))
        return [facts(message) for message in rows]

    old, new = ordered(source.path), ordered(store_path)
    for before, after in zip(old, new, strict=True):
        before[3].setdefault("UNIQ_KEY", after[3]["UNIQ_KEY"])
        assert after == before


def test_an_empty_frame_appends_nothing(numbers, store_path):
    append(numbers(0), store_path, topic="T")
    assert messages_of(store_path) == []


def failing(frame, marks, times):
    """The frame; its partition 1 fails behind its last row, so many times."""

    def fail(batches):
        yield from batches
        from pyspark import TaskContext

        tried = len(list(marks.iterdir()))
        if TaskContext.get().partitionId() == 1 and tried < times:
            (marks / str(tried)).touch()
            raise RuntimeError("the task failed")

    marks.mkdir()
    return frame.mapInArrow(fail, frame.schema)


@pytest.mark.peers
def test_a_task_that_fails_and_is_tried_again_doubles_nothing(numbers, store_path, tmp_path):
    append(failing(numbers(900), tmp_path / "marks", 1), store_path, topic="T")
    assert sorted(map(int, bodies_of(store_path))) == list(range(900))


@pytest.mark.peers
def test_a_job_that_fails_leaves_nothing_behind(numbers, store_path, tmp_path):
    frame = failing(numbers(900), tmp_path / "marks", 2)
    with pytest.raises(Exception, match="the task failed"):
        append(frame, store_path, topic="T")
    assert not (store_path / "commitlog").exists()
    append(frame, store_path, topic="T")
    assert sorted(map(int, bodies_of(store_path))) == list(range(900))


def test_a_job_with_an_id_is_appended_once(numbers, store_path):
    append(numbers(100), store_path, topic="T", jobId="nightly-7")
    append(numbers(100), store_path, topic="T", jobId="nightly-7")
    assert len(messages_of(store_path)) == 100
    append(numbers(100), store_path, topic="T", jobId="nightly-8")
    assert len(messages_of(store_path)) == 200


def test_a_store_in_use_is_refused_before_the_job_runs(numbers, store_path):
    with open_store(store_path), pytest.raises(Exception, match="open for writing"):
        append(numbers(10), store_path, topic="T")
    assert not list((store_path / "spark").glob("*"))


def test_a_frame_goes_into_a_store_that_its_owner_shares(numbers, store_path):
    with open_shared(store_path) as owner:
        owner.put("T", b"-1")
        append(numbers(100), store_path, topic="T", jobId="once")
        append(numbers(100), store_path, topic="T", jobId="once")
        assert sorted(int(m.body) for m in owner.messages()) == list(range(-1, 100))


@pytest.mark.parametrize(
    ("select", "options", "text"),
    [
        ("body", {}, "give it as an option"),
        ("body AS boddy", {"topic": "T"}, "did you mean body?"),
        ("CAST(1 AS INT) AS body", {"topic": "T"}, "its type is binary or string"),
        ("body, 1L AS queue_id", {"topic": "T"}, "its type is int"),
        ("'a' AS keys", {"topic": "T"}, "nothing to append"),
        ("body", {"topic": "T", "queuecont": "1"}, "did you mean queueCount?"),
        ("body", {"topic": "T", "jobId": "a/b"}, "expected letters, digits"),
    ],
)
def test_a_wrong_frame_or_option_is_refused(numbers, store_path, select, options, text):
    from rmqcore.spark.options import write_options
    from rmqcore.spark.write import check_columns

    schema = numbers(1).selectExpr(*select.split(",")).schema

    def check():
        check_columns(schema, write_options({"path": str(store_path), **options}).topic)

    with pytest.raises(ConfigError) as caught:
        check()
    assert text in str(caught.value)


def test_overwrite_is_refused(numbers, store_path):
    with pytest.raises(Exception, match="a log only grows"):
        numbers(1).write.format("rmq").mode("overwrite").option("topic", "T").save(str(store_path))


def test_a_row_that_breaks_a_limit_fails_before_anything_is_appended(spark, numbers, store_path):
    append(numbers(10), store_path, topic="T")
    bad = spark.createDataFrame([("T", "a"), ("x" * 40_000, "b")], "topic string, body string")
    with pytest.raises(Exception, match="of partition"):
        append(bad.coalesce(1), store_path)
    assert len(messages_of(store_path)) == 10


# ---- the owner of the log, without Spark


@pytest.fixture
def staged(store_path):
    return three_files(store_path)


def test_a_commit_that_is_repeated_appends_nothing(store_path, staged):
    from rmqcore.spark.log_owner import append_staged

    assert append_staged(str(store_path), None, "job", 0, staged) == 600
    before = bodies_of(store_path)
    assert append_staged(str(store_path), None, "job", 0, staged) == 0
    assert bodies_of(store_path) == before
    assert len(before) == 600


def dying_append(monkeypatch, die_at, *arguments):
    """`append_staged`, which dies before its so-many-th piece is put."""
    from rmqcore.spark.log_owner import append_staged
    from rmqcore.store import message_store

    puts, calls = message_store.DefaultMessageStore.put_records, iter(range(1, 100))

    def dying(self, *args, **settings):
        if next(calls) == die_at:
            raise KeyboardInterrupt
        return puts(self, *args, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(message_store.DefaultMessageStore, "put_records", dying)
        with pytest.raises(KeyboardInterrupt):
            append_staged(*arguments)


@pytest.mark.parametrize("die_after", [1, 2, 4, 5, 6])
@pytest.mark.parametrize("foreign", [0, 5])
@pytest.mark.parametrize("kind", ["SimpleCQ", "BatchCQ"])
def test_a_commit_that_died_is_finished(store_path, staged, monkeypatch, die_after, foreign, kind):
    from rmqcore.spark.log_owner import abort_staged, append_staged

    config = load_config(None, topic_queue_types=(("T", kind),))
    dying_append(monkeypatch, die_after, str(store_path), config, "query", 3, staged)
    abort_staged(str(store_path), "query", Path(staged[0].path).parent)
    with open_store(store_path, config=config) as store:
        for number in range(foreign):
            store.put("T", b"foreign %d" % number)
    other = [file for file in staged[:1] if shutil.copy(file.path, file.path + ".again")]
    append_staged(str(store_path), config, "query", 3, other)
    found = messages_of(store_path, config)
    ours = [m.unique_key for m in found if not m.body.startswith(b"foreign")]
    assert len(ours) == len(set(ours)) == 600
    assert len(found) == 600 + foreign


@pytest.fixture
def died(store_path, staged, monkeypatch):
    """The name of an append without a job id that died after 400 of 600 messages."""
    from rmqcore.store.append_ledger import anonymous_name

    name = anonymous_name()
    dying_append(monkeypatch, 5, str(store_path), None, name, 0, staged)
    return name


def test_after_an_append_without_a_job_id_died_the_next_one_is_refused(numbers, store_path, died):
    before = len(messages_of(store_path))
    assert 0 < before < 600
    with pytest.raises(Exception, match=rf"{died}.*rmqcore spark finish"):
        append(numbers(10), store_path, topic="T")
    assert len(messages_of(store_path)) == before
    append(numbers(10), store_path, topic="T", jobId="another")
    assert len(messages_of(store_path)) == before + 10


def test_an_append_that_died_is_finished_once(store_path, died):
    from rmqcore.spark import finish_appends

    before = len(messages_of(store_path))
    assert finish_appends(store_path) == {died: 600 - before}
    assert finish_appends(store_path) == {}
    keys = [m.unique_key for m in messages_of(store_path)]
    assert len(keys) == len(set(keys)) == 600
    assert not list((store_path / "spark").glob("staging-*"))


def test_an_append_whose_rows_are_gone_says_how_to_go_on(numbers, store_path, staged, died):
    from rmqcore.spark import finish_appends

    for file in staged:
        Path(file.path).unlink()
    ledger = store_path / "spark" / f"{died}.appending"
    with pytest.raises(StoreError, match=rf"remove {ledger}"):
        finish_appends(store_path)
    ledger.unlink()
    append(numbers(10), store_path, topic="T")


def test_what_is_done_is_forgotten_when_nobody_can_ask_for_it(store_path, staged):
    from rmqcore.spark import finish_appends
    from rmqcore.spark.log_owner import append_staged
    from rmqcore.store.append_ledger import anonymous_name

    root, day = store_path / "spark", 24 * 3600

    def ledgers():
        return sorted(path.stem for path in root.glob("*.json"))

    old, fresh = anonymous_name(), anonymous_name()
    for number, name in enumerate([old, "job-nightly", "query-q"]):
        append_staged(str(store_path), None, name, 0, staged[number : number + 1])
        then = (root / f"{name}.json").stat().st_mtime - 8 * day
        os.utime(root / f"{name}.json", (then, then))
    append_staged(str(store_path), None, fresh, 0, [])
    assert ledgers() == sorted([fresh, "job-nightly", "query-q"])
    finish_appends(store_path, forget_days=9)
    assert ledgers() == sorted([fresh, "job-nightly", "query-q"])
    finish_appends(store_path, forget_days=7)
    assert ledgers() == sorted([fresh, "query-q"])


def test_the_command_that_finishes_needs_no_spark(store_path, died):
    command = [sys.executable, "-m", "rmqcore", "spark", "finish", store_path, "--json"]
    env = {**os.environ, "PYTHONPATH": str(Path(rmqcore.__file__).parents[1]), "JAVA_HOME": "/no"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)) == [died]
    assert len(messages_of(store_path)) == 600


def test_a_piece_cut_in_its_middle_is_completed(store_path, staged):
    from rmqcore.spark.log_owner import append_staged
    from rmqcore.store.append_ledger import Ledger, staging_root
    from rmqcore.store.staged_records import records_in

    append_staged(str(store_path), None, "first", 0, staged[:1])
    rest = staged[1:]
    with open_store(store_path) as store:
        ledger = Ledger(staging_root(str(store_path)), "query")
        ledger.begin(0, store.max_phy_offset, rest)
        records = rest[0].records()
        seven = list(records_in(next(records.pieces())))[:7]
        assert store.put_records(b"".join(seven), records.queues).row_count == 7
    assert append_staged(str(store_path), None, "query", 0, []) == 393
    keys = [m.unique_key for m in messages_of(store_path)]
    assert len(keys) == len(set(keys)) == 600


@pytest.mark.parametrize("cut", [0, 1])
@pytest.mark.parametrize("size", [10, 333])
def test_an_append_ends_after_a_power_cut_below_its_start(store_path, staged, died, cut, size):
    """The log loses all that the append wrote, and more; another writer fills the place."""
    from rmqcore.spark import finish_appends

    shutil.rmtree(store_path / "commitlog")
    shutil.rmtree(store_path / "consumequeue")
    shutil.rmtree(store_path / "index")
    path = store_path / "spark" / f"{died}.appending"
    ledger = json.loads(path.read_text())
    with open_store(store_path) as store:
        for _ in range(3):
            store.put("Other", bytes(size))
        ledger["start"] = store.max_phy_offset + cut * 7
        for _ in range(40):
            store.put("Other", bytes(size))
    path.write_text(json.dumps(ledger))
    assert finish_appends(store_path) == {died: 600}
    assert finish_appends(store_path) == {}
    keys = [m.unique_key for m in messages_of(store_path) if m.topic == "T"]
    assert len(keys) == len(set(keys)) == 600


def test_an_append_that_another_writer_came_before_and_that_died_twice(
    store_path, staged, monkeypatch
):
    from rmqcore.spark.log_owner import append_staged
    from rmqcore.store.append_ledger import Ledger, staging_root

    with open_store(store_path) as store:
        store.put("T", b"first")
        Ledger(staging_root(str(store_path)), "query").begin(0, store.max_phy_offset, staged)
        store.put("T", b"foreign")
    for die_after in (2, 4):
        dying_append(monkeypatch, die_after, str(store_path), None, "query", 0, [])
    append_staged(str(store_path), None, "query", 0, [])
    keys = [m.unique_key for m in messages_of(store_path) if len(m.body) > 10]
    assert len(keys) == len(set(keys)) == 600


def test_an_append_that_dies_twice_with_another_writer_in_between_appends_each_row_once(
    store_path, staged, monkeypatch
):
    from rmqcore.spark.log_owner import append_staged

    job = (str(store_path), None, "job-x", 0, staged)
    for _ in range(3):
        dying_append(monkeypatch, 2, *job)
        with open_store(store_path) as store:
            store.put("Other", b"foreign")
            store.put("T", b"foreign")
    append_staged(*job)
    keys = [m.unique_key for m in messages_of(store_path) if m.body != b"foreign"]
    assert len(keys) == len(set(keys)) == 600


@pytest.mark.parametrize("die_at", [1, 2, 6])
def test_equal_rows_of_two_jobs_are_counted_for_the_job_that_appended_them(
    store_path, staged, monkeypatch, die_at
):
    from rmqcore.spark.log_owner import append_staged, finish_appends

    again = [replace(file, path=shutil.copy(file.path, file.path + ".2")) for file in staged]
    dying_append(monkeypatch, die_at, str(store_path), None, "job-x", 0, staged)
    assert append_staged(str(store_path), None, "job-y", 0, again) == 600
    finish_appends(store_path)
    keys = [m.unique_key for m in messages_of(store_path)]
    assert sorted(keys) == sorted(2 * list(set(keys)))
    assert len(keys) == 1200


def test_a_commit_reads_no_note_of_another_job(store_path, staged):
    from rmqcore.spark.log_owner import append_staged

    for number in range(20):
        (store_path / "spark" / f"job-{number}.json").write_text("not looked at")
    assert append_staged(str(store_path), None, "job-new", 0, staged) == 600


def test_a_log_that_is_shorter_than_where_an_append_began(store_path, staged):
    from rmqcore.spark.log_owner import append_staged
    from rmqcore.store.append_ledger import Ledger, staging_root

    with open_store(store_path) as store:
        store.put("T", b"first")
        ledger = Ledger(staging_root(str(store_path)), "query")
        ledger.begin(0, store.max_phy_offset + 1000, staged)
    assert append_staged(str(store_path), None, "query", 0, []) == 600
    assert len(messages_of(store_path)) == 601


def test_an_append_whose_first_record_was_deleted_or_damaged_is_not_begun_anew(store_path, staged):
    from rmqcore.spark.log_owner import append_staged
    from rmqcore.store.append_ledger import Ledger, staging_root

    size = 64 << 10
    with open_store(store_path, mapped_file_size_commit_log=size) as store:
        store.put("T", b"first")
        ledger = Ledger(staging_root(str(store_path)), "query")
        ledger.path.parent.mkdir(exist_ok=True)
        ledger.begin(0, store.max_phy_offset, staged)
        for _ in range(20):
            store.put("Other", bytes(10_000))
    first = store_path / "commitlog" / f"{0:020d}"
    with first.open("r+b") as log:
        log.seek(ledger.start + 2000)
        log.write(b"damage")
    with pytest.raises(StoreError):
        append_staged(str(store_path), None, "query", 0, [])
    first.unlink()
    with pytest.raises(StoreError, match=rf"begins at {size}.*Remove the file"):
        append_staged(str(store_path), None, "query", 0, [])
    with open_store(store_path) as store:
        assert {m.topic for m in store.messages()} == {"Other"}


def test_an_append_begins_behind_what_is_on_disk(store_path, staged, monkeypatch):
    from rmqcore.spark.log_owner import append_staged
    from rmqcore.store import message_store
    from rmqcore.store.append_ledger import Ledger

    done = []
    flush, begin = message_store.DefaultMessageStore.flush, Ledger.begin
    monkeypatch.setattr(
        message_store.DefaultMessageStore, "flush", lambda self: (done.append("flush"), flush(self))
    )
    monkeypatch.setattr(Ledger, "begin", lambda self, *a: (done.append("begin"), begin(self, *a)))
    append_staged(str(store_path), None, "query", 0, staged)
    assert done[:2] == ["flush", "begin"]


def test_earlier_batches_are_done(store_path, staged):
    from rmqcore.spark.log_owner import append_staged

    append_staged(str(store_path), None, "query", 5, staged[:1])
    assert append_staged(str(store_path), None, "query", 4, staged[1:2]) == 0
    assert append_staged(str(store_path), None, "query", 6, staged[2:]) == 200


def test_staged_rows_that_are_gone_or_cut_are_an_error(store_path, staged):
    from rmqcore.spark.log_owner import append_staged

    Path(staged[0].path).unlink()
    with pytest.raises(StoreError, match="the staged rows are gone"):
        append_staged(str(store_path), None, "a", 0, staged[:1])
    Path(staged[1].path).write_bytes(b"")
    with pytest.raises(StoreError, match="not complete"):
        append_staged(str(store_path), None, "b", 0, staged[1:2])


def test_staged_rows_that_are_damaged_are_an_error_wherever_a_byte_has_flipped(
    store_path, staged, rng
):
    from rmqcore.spark.log_owner import append_staged

    path = Path(staged[0].path)
    whole = path.read_bytes()
    for position in [0, len(whole) - 1, *rng.sample(range(len(whole)), 30)]:
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 8]) + whole[position + 1 :])
        with pytest.raises(StoreError, match="damaged"):
            append_staged(str(store_path), None, "a", 0, staged[:1])
    path.write_bytes(whole)
    append_staged(str(store_path), None, "a", 0, staged[:1])
    keys = [m.unique_key for m in messages_of(store_path)]
    assert len(keys) == len(set(keys)) == 200


def test_a_locked_store_appends_nothing(store_path, staged):
    from rmqcore.spark.log_owner import append_staged

    with open_store(store_path), pytest.raises(StoreLockedError):
        append_staged(str(store_path), None, "job", 0, staged)
    assert append_staged(str(store_path), None, "job", 0, staged) == 600


def test_a_message_too_large_is_refused_when_it_is_staged(tmp_path):
    config = {"max_message_size": 100_000}
    stage(tmp_path / "x", {"body": [bytes(100_000)]}, config=config)
    with pytest.raises(MessageIllegalError, match="longer than 100000 bytes"):
        stage(tmp_path / "y", {"body": [b"", bytes(100_001)]}, config=config)
    assert not (tmp_path / "y").exists()


def test_a_stream_is_appended_once(spark, store_path, tmp_path):
    source = tmp_path / "source"

    def put(count):
        with open_store(source) as store:
            for _ in range(count):
                store.put("T", b"x", properties={"UNIQ_KEY": uuid.uuid4().hex})

    def run():
        query = (
            spark.readStream.format("rmq")
            .options(startingOffsets="earliest", maxOffsetsPerTrigger="100")
            .load(str(source))
            .select("topic", "body", "unique_key")
            .writeStream.format("rmq")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start(str(store_path))
        )
        query.awaitTermination()

    put(200)
    run()
    assert len(messages_of(store_path)) == 200
    put(50)
    # the last batch has been appended, but Spark does not know it any more
    for path in (tmp_path / "c" / "commits").glob("*1*"):
        path.unlink()
    run()
    keys = [m.unique_key for m in messages_of(store_path)]
    assert len(keys) == len(set(keys)) == 250


def test_messages_of_light_queues_are_put_one_by_one(store_path):
    from rmqcore.spark.log_owner import append_staged

    config = load_config(None, enable_lmq=True, enable_multi_dispatch=True)
    names = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "77"}
    columns = {
        "body": [str(number) for number in range(4)],
        "queue_id": [1] * 4,
        "properties": pairs({}, names, {}, names),
    }
    files = [stage(store_path / "spark" / "staging-test" / "0.rows", columns, config=config)]
    assert append_staged(str(store_path), config, "job", 0, files) == 4
    with rmqcore.open_store(store_path, mode="r") as store:
        assert bodies_in(store, "T", 1) == [b"0", b"1", b"2", b"3"]
        assert bodies_in(store, "%LMQ%a", 0) == [b"1", b"3"]


def test_a_copy_into_a_store_with_light_queues_is_delayed_no_more(store_path):
    """Neither what was delivered already, nor what still waits, in the place where it does."""
    from rmqcore.spark.log_owner import append_staged

    config = load_config(None, enable_lmq=True, enable_multi_dispatch=True)
    waiting = {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "1"}
    columns = {
        "topic": ["T", "T", "SCHEDULE_TOPIC_XXXX"],
        "queue_id": [1, 1, 2],
        "body": ["a", "b", "c"],
        "properties": pairs({"INNER_MULTI_DISPATCH": "%LMQ%a"}, {"DELAY": "3"}, waiting),
    }
    path = store_path / "spark" / "staging-test" / "0.rows"
    files = [stage(path, columns, config=config, copy=True)]
    with rmqcore.open_shared(store_path, config=config, deliver_delayed=True) as store:
        assert append_staged(str(store_path), config, "job", 0, files) == 3
        assert bodies_in(store, "T", 1) == [b"a", b"b"]
        assert bodies_in(store, "%LMQ%a", 0) == [b"a"]
        (found,) = store.messages("SCHEDULE_TOPIC_XXXX", 2)
        assert found.properties == waiting


def bodies_in(store, topic, queue_id):
    return [bytes(message.body) for message in store.messages(topic, queue_id)]
