"""What is exported comes back the same: topics, queues, order, properties, bodies."""

import importlib
import json
import os

import pytest

import rmqcore
from golden.stores import packed_stores
from rmqcore import scan, transfer
from rmqcore.errors import (
    ConfigError,
    CorruptRecordError,
    DiskFullError,
    MessageIllegalError,
    RmqCoreError,
)
from rmqcore.transfer import export_store

pytestmark = pytest.mark.engine

STORES = [store for store in packed_stores() if store[1] not in ("crashed", "delayed")]
FORMATS = ("jsonl", "parquet")
STORE_HOST_V6 = 0x20


def content(message):
    """What an export has to keep of a message."""
    # light queues number their messages anew
    given_anew = ("__CRC32#", "INNER_MULTI_QUEUE_OFFSET")
    properties = {k: v for k, v in message.properties.items() if k not in given_anew}
    return (
        message.topic,
        message.queue_id,
        message.body,
        list(properties.items()),
        message.flag,
        message.sys_flag & ~STORE_HOST_V6,
        message.born_timestamp_ms,
        message.born_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
    )


def all_messages(path, **selection):
    return [m for split in scan.plan(path) for m in transfer.messages(split, **selection)]


def of_queues(golden):
    """The messages of a store that its queues have: none of a topic that was deleted."""
    with rmqcore.open_store(golden.path, mode="r", config=golden.conf) as store:
        places = {
            message.phy_offset
            for topic, queue_id in store.queues()
            for message in store.messages(topic, queue_id)
        }
    return [message for message in all_messages(golden.path) if message.phy_offset in places]


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("store", STORES, ids="-".join)
def test_there_and_back(golden_store, tmp_path, store, file_format):
    if file_format == "parquet":
        pytest.importorskip("pyarrow")
    golden = golden_store(*store)
    target = tmp_path / "export"
    parts = export_store(
        golden.path, target, file_format=file_format, split_size=100_000, config=golden.conf
    )
    with rmqcore.open_store(tmp_path / "new") as opened:
        report = transfer.import_files(opened, target)
        assert report.messages == sum(part.rows for part in parts)
        assert report.files == len(parts)
        host = opened.config.store_host
    before, after = of_queues(golden), all_messages(tmp_path / "new")
    assert {message.store_host for message in after} == {host}
    assert [content(message) for message in after] == [content(message) for message in before]
    assert before


def test_what_only_single_puts_can_do_is_imported_row_by_row(tmp_path):
    """Between batches that are put as columns, in their order."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    count = 10_000
    table = pa.table(
        {
            "topic": ["T"] * count,
            "queue_id": pa.array([number % 3 for number in range(count)], pa.int32()),
            "body": [b"%d" % number for number in range(count)],
            "tags": ["A" if number != 5000 else "" for number in range(count)],
            "keys": [[f"k{number}", "all"] for number in range(count)],
            "sys_flag": pa.array([0 if number < 9000 else 8 for number in range(count)]),
            "born_timestamp": pa.array(range(0, 1000 * count, 1000), pa.timestamp("us")),
            "remark": ["is none of a message"] * count,
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    calls = []
    with rmqcore.open_store(tmp_path / "new") as store:

        class Counted:
            def put_message(self, message):
                calls.append(1)
                return store.put_message(message)

            def put_columns(self, table):
                result = store.put_columns(table)
                calls.append(result.row_count)
                return result

        report = transfer.import_files(Counted(), tmp_path / "in.parquet")
        found = list(store.messages())
    assert (report.messages, report.body_bytes) == (count, sum(map(len, map(str, range(count)))))
    assert calls == [4096] + [1] * (count - 4096)
    assert [message.body for message in found] == [b"%d" % number for number in range(count)]
    told = [
        (m.queue_id, m.tags, m.keys, m.sys_flag, m.born_timestamp_ms)
        for m in (found[4095], found[5000], found[9999])
    ]
    assert told == [
        (0, "A", ("k4095", "all"), 0, 4095),
        (2, None, ("k5000", "all"), 0, 5000),
        (0, "A", ("k9999", "all"), 8, 9999),
    ]


def test_a_parquet_row_that_is_no_message_is_named(store_path, tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    topics = ["T"] * 5000
    topics[4500] = "../x"
    pq.write_table(pa.table({"topic": topics, "body": ["b"] * 5000}), tmp_path / "in.parquet")
    with rmqcore.open_store(store_path) as store:
        with pytest.raises(MessageIllegalError, match=r"row 4501: .*topic"):
            transfer.import_files(store, tmp_path / "in.parquet")
        assert len(list(store.messages())) == 4500


@pytest.mark.process
def test_an_export_again_writes_the_same_files(golden_store, tmp_path):
    golden = golden_store("5.5.0", "basic")
    first = export_store(golden.path, tmp_path / "a", file_format="jsonl", split_size=100_000)
    again = export_store(
        golden.path, tmp_path / "a", file_format="jsonl", split_size=100_000, jobs=2
    )
    assert first == again
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {part.file for part in first} | {"_manifest.json"}
    assert first[1].file == f"part-{first[1].start:020d}.jsonl"


@pytest.mark.logic
@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("ends", [True, False], ids=["ends", "fails"])
def test_a_task_that_runs_twice_at_a_time_writes_the_file_once(
    golden_store, tmp_path, monkeypatch, file_format, ends
):
    golden, module = golden_store(*STORES[0]), importlib.import_module("rmqcore.transfer.export")
    (split,) = scan.plan(golden.path)
    (alone := tmp_path / "alone").mkdir()
    (target := tmp_path / "target").mkdir()
    transfer.export(split, alone, file_format=file_format)
    name = {"jsonl": "write_jsonl", "parquet": "write_parquet"}[file_format]
    write = getattr(module, name)

    def write_beside_another(*facts):
        monkeypatch.setattr(module, name, write if ends else failing)
        rows = write(*facts)
        if ends:
            transfer.export(split, target, file_format=file_format)
        else:
            with pytest.raises(KeyboardInterrupt):
                transfer.export(split, target, file_format=file_format)
        return rows

    def failing(*_facts):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, write_beside_another)
    part = transfer.export(split, target, file_format=file_format)
    assert [path.name for path in target.iterdir()] == [part.file]
    assert (target / part.file).read_bytes() == (alone / part.file).read_bytes()


def test_what_killed_exports_have_left_goes_a_day_later(store_path, tmp_path):
    rmqcore.open_store(store_path).close()
    target = tmp_path / "target"
    export_store(store_path, target)
    old = {target / ".part-0.parquet.1.tmp", target / "._manifest.json.1.tmp"}
    young = {target / ".part-0.parquet.2.tmp", target / "._manifest.json.2.tmp"}
    for left in old | young:
        left.touch()
        if left in old:
            os.utime(left, (0, 0))
    export_store(store_path, target)
    assert set(target.glob(".*")) == young


def test_a_manifest_is_whole_when_another_is_written_meanwhile(tmp_path, monkeypatch):
    module = importlib.import_module("rmqcore.transfer.export")
    sync = module.sync_file

    def another_first(path):
        monkeypatch.setattr(module, "sync_file", sync)
        module.write_manifest(tmp_path, {"parts": ["another's"]})
        sync(path)

    monkeypatch.setattr(module, "sync_file", another_first)
    module.write_manifest(tmp_path, {"parts": []})
    assert [path.name for path in tmp_path.iterdir()] == [module.MANIFEST]
    assert json.loads((tmp_path / module.MANIFEST).read_text()) == {"parts": []}


def test_lines_hold_the_names_of_message_attributes(golden_store, tmp_path):
    golden = golden_store("5.5.0", "basic")
    export_store(golden.path, tmp_path, file_format="jsonl")
    lines = [
        json.loads(line)
        for path in sorted(tmp_path.glob("*.jsonl"))
        for line in path.read_text("utf-8").splitlines()
    ]
    for line, message in zip(lines, all_messages(golden.path), strict=True):
        line.pop("body", None), line.pop("body_base64", None)
        for name, value in line.items():
            own = getattr(message, name)
            assert value == (list(own) if name == "keys" else own)


@pytest.mark.logic
def test_topics_and_transactions_are_selected(golden_store, tmp_path):
    golden = golden_store("5.5.0", "transactions")
    queued = export_store(golden.path, tmp_path / "q", file_format="jsonl")
    whole = export_store(golden.path, tmp_path / "w", file_format="jsonl", uncommitted=True)
    assert sum(part.rows for part in queued) == 124
    assert sum(part.rows for part in whole) == 240
    basic = golden_store("5.5.0", "basic")
    parts = export_store(basic.path, tmp_path / "t", file_format="jsonl", topics=["TopicA"])
    expected = [m for m in all_messages(basic.path) if m.topic == "TopicA"]
    assert sum(part.rows for part in parts) == len(expected) > 0


@pytest.mark.logic
@pytest.mark.parametrize("file_format", FORMATS)
def test_a_damaged_record_leaves_no_half_file(golden_store, tmp_path, file_format):
    golden = golden_store("5.5.0", "basic")
    path = sorted((golden.path / "commitlog").iterdir())[2]
    data = bytearray(path.read_bytes())
    data[4] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError) as caught:
        export_store(golden.path, tmp_path / "e", file_format=file_format)
    assert caught.value.phy_offset == int(path.name)
    assert not [p.name for p in (tmp_path / "e").iterdir() if "131072" in p.name or "tmp" in p.name]


@pytest.mark.parametrize(
    ("file_format", "what"),
    [("jsonl", "write_jsonl"), ("parquet", "write_parquet"), ("jsonl", "sync_file")],
)
def test_a_full_disk_is_told_with_the_file_and_leaves_no_half_one(
    golden_store, tmp_path, monkeypatch, file_format, what
):
    if file_format == "parquet":
        pytest.importorskip("pyarrow")
    golden = golden_store(*STORES[0])

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(importlib.import_module("rmqcore.transfer.export"), what, refuse)
    with pytest.raises(DiskFullError) as caught:
        export_store(golden.path, tmp_path, file_format=file_format, config=golden.conf)
    assert caught.value.path.parent == tmp_path
    assert not list(tmp_path.glob("*part-*"))


def test_a_parked_message_is_parked_again(golden_store, tmp_path):
    golden = golden_store("5.5.0", "delayed")
    export_store(golden.path, tmp_path / "e", file_format="jsonl")
    with rmqcore.open_store(tmp_path / "plain") as store, pytest.raises(MessageIllegalError):
        transfer.import_files(store, tmp_path / "e")
    part = sorted((tmp_path / "e").glob("*.jsonl"))[0]
    row = json.loads(part.read_text("utf-8").splitlines()[0])
    message = transfer.message_of(row)
    assert message.topic == row["properties"]["REAL_TOPIC"]
    assert message.queue_id == int(row["properties"]["REAL_QID"])
    assert message.properties["DELAY"] == row["properties"]["DELAY"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "no JSON"),
        ("[]", "not a JSON object"),
        ("{}", "no topic"),
        ('{"topic": "T", "body_base64": "!"}', "the body"),
        ('{"topic": "T", "body": "\\ud800"}', "the body"),
        ('{"topic": "T", "body": 5}', "the body"),
        ('{"topic": "T"}', "the body"),
        ("[" * 100_000, "no JSON"),
        (
            '{"topic": "SCHEDULE_TOPIC_XXXX", "body": "",'
            ' "properties": {"REAL_TOPIC": "T", "REAL_QID": "x"}}',
            "REAL_QID",
        ),
        ('{"topic": "../x", "body": ""}', "topic"),
        ('{"topic": "T", "body": "", "properties": [1]}', "properties"),
        ('{"topic": "T", "body": "", "queue_id": "x"}', "row 2"),
        ('{"topic": "T", "body": "", "queue_id": 99999999999}', "row 2"),
        ('{"topic": "T", "body": "", "properties": {"a\\u0001": "b"}}', "row 2"),
    ],
)
def test_a_row_that_is_no_message_is_named(store_path, tmp_path, line, what):
    source = tmp_path / "in.jsonl"
    source.write_text('{"topic": "T", "body": "first"}\n' + line + "\n")
    with rmqcore.open_store(store_path) as store:
        with pytest.raises(MessageIllegalError, match=what) as caught:
            transfer.import_files(store, source)
        assert "row 2" in str(caught.value)
        assert [message.body for message in store.messages()] == [b"first"]


def test_a_part_that_the_manifest_names_must_be_there(golden_store, store_path, tmp_path):
    golden = golden_store("5.5.0", "basic")
    parts = export_store(golden.path, tmp_path / "e", file_format="jsonl", split_size=100_000)
    (tmp_path / "e" / parts[1].file).unlink()
    with rmqcore.open_store(store_path) as store, pytest.raises(RmqCoreError, match="missing"):
        transfer.import_files(store, tmp_path / "e")


def test_an_export_that_ended_early_is_not_imported(golden_store, store_path, tmp_path):
    golden = golden_store("5.5.0", "basic")
    target = tmp_path / "e"
    export_store(golden.path, target, file_format="jsonl", split_size=100_000)
    file = sorted((golden.path / "commitlog").iterdir())[0]
    content = bytearray(file.read_bytes())
    content[3000:3100] = bytes(100)
    file.write_bytes(content)
    with pytest.raises(CorruptRecordError):
        export_store(golden.path, target, file_format="jsonl", split_size=100_000)
    with rmqcore.open_store(store_path) as store:
        with pytest.raises(RmqCoreError, match="did not come to its end"):
            transfer.import_files(store, target)
        assert list(store.messages()) == []


@pytest.mark.logic
def test_unknown_formats_are_refused(golden_store, tmp_path):
    golden = golden_store("5.5.0", "basic")
    with pytest.raises(ConfigError, match="one of"):
        export_store(golden.path, tmp_path, file_format="csv")
