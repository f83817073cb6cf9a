"""An import goes on where it was killed; nothing comes twice, and nothing is changed."""

import json
import os
import shutil

import pytest
from children import die, die_at, run_child
from unit.test_scan_export import FORMATS, STORES, all_messages

import rmqcore
from rmqcore.errors import MessageIllegalError, RmqCoreError
from rmqcore.files.config_tables import TopicConfig
from rmqcore.message import Message
from rmqcore.transfer import export_store, import_once
from rmqcore.transfer.import_files import exported_files, messages_in
from rmqcore.transfer.import_record import AlreadyImportedError, ImportRecord, digests_of
from rmqcore.transfer.trial_puts import TrialPuts

pytestmark = pytest.mark.engine

GOLDEN = [*(each for each in STORES if each[0] == "5.5.0"), ("5.5.0", "delayed")]
SMALL = {"mapped_file_size_commit_log": 65536}


@pytest.fixture
def exported(tmp_path):
    """A directory of three files with 40 messages, some of which are the same."""
    with rmqcore.open_store(tmp_path / "old", **SMALL) as store:
        for number in range(40):
            store.put("T", b"%d" % (number // 3) + b"." * 4000, keys=("k",), born_timestamp_ms=5)
    parts = export_store(tmp_path / "old", tmp_path / "e", file_format="jsonl", split_size=60_000)
    assert len(parts) == 3
    return tmp_path / "e"


class DyingStore:
    """A store that lets its process die when so many messages have been put."""

    def __init__(self, store, left):
        self.store, self.left = store, left

    def __getattr__(self, name):
        return getattr(self.store, name)

    def put_message(self, message):
        if self.left == 0:
            die()
        self.left -= 1
        return self.store.put_message(message)


@pytest.mark.process
@pytest.mark.parametrize("left", [0, 1, 13, 15, 39])
def test_an_import_that_was_killed_goes_on_where_it_ended(exported, tmp_path, left):
    def work(_):
        with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
            import_once(DyingStore(store, left), exported)

    run_child(work)
    run_child(work)  # a second one that is killed, or comes to its end
    old = [message.body for message in all_messages(tmp_path / "old")]
    with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
        before = sum(1 for _ in store.messages())
        if before < 40:
            assert import_once(store, exported).messages == 40 - before
        with pytest.raises(AlreadyImportedError):
            import_once(store, exported)
        assert [message.body for message in store.messages()] == old


@pytest.mark.process
@pytest.mark.parametrize("pieces", [1, 3, 4, 6])
def test_an_import_of_columns_goes_on_between_and_within_batches(tmp_path, pieces):
    """A batch of 4096 rows is three pieces; the last batch goes row by row."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    count, source = 9000, tmp_path / "in.parquet"
    bodies = [b"%d" % (number // 3) + b"." * 200 for number in range(count)]
    columns = {"topic": ["T"] * count, "body": bodies, "sys_flag": [0] * (count - 1) + [8]}
    pq.write_table(pa.table(columns), source)

    def work(_):
        die_at("store.parts.column_puts.ColumnPuts._append_records", "after", pieces)
        with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
            import_once(store, source)

    stored = []
    for _ in range(2):  # the second one goes on, and is killed, or comes to its end
        run_child(work)
        with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
            stored.append(sum(1 for _ in store.messages()))
    assert 0 < stored[0] < stored[1]
    assert (stored[0] % 4096 == 0) == (pieces % 3 == 0)
    with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
        if stored[1] < count:
            report = import_once(store, source)
            assert (report.already, report.messages) == (stored[1], count - stored[1])
        with pytest.raises(AlreadyImportedError):
            import_once(store, source)
        assert [message.body for message in store.messages()] == bodies


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("golden", GOLDEN, ids="-".join)
def test_what_an_import_has_put_is_known_again(golden_store, tmp_path, golden, file_format):
    old = golden_store(*golden)
    export_store(old.path, tmp_path / "e", file_format=file_format, config=old.conf)
    with rmqcore.open_store(tmp_path / "new", **SMALL, deliver_delayed=True) as store:
        put = import_once(store, tmp_path / "e").messages
        files = exported_files(tmp_path / "e")
        with ImportRecord(store.path) as record:
            # as a kill leaves it behind the last put
            record.note(dict.fromkeys(digests_of(files), 0))
        found = import_once(store, tmp_path / "e")
        assert (found.messages, found.already) == (0, put)
        assert put


@pytest.mark.parametrize(
    "fields",
    [
        {"born_host": "[2001:DB8:0::1]:9"},
        {"born_host": "[::ffff:1.2.3.4]:9"},
        {"born_host": "1.2.3.4:0080"},
        {"properties": {"DELAY": "99"}},
        {"properties": {"DELAY": "2", "REAL_TOPIC": "U", "REAL_QID": "3"}},
    ],
)
def test_what_a_put_spells_otherwise_than_the_file_is_known_again(tmp_path, fields):
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"topic": "T", "body": "a"} | fields) + "\n")
    with rmqcore.open_store(tmp_path / "new", **SMALL, deliver_delayed=True) as store:
        put_in_part(store, source, 1)
        report = import_once(store, source)
        assert (report.messages, report.already) == (0, 1)


def put_in_part(store, source, count):
    """Leave behind what a kill behind so many messages of a file leaves."""
    with ImportRecord(store.path) as record:
        record.note({digests_of([source])[0]: store.max_phy_offset})
    for message in list(messages_in(source))[:count]:
        store.put_message(message)


def test_a_file_that_was_begun_comes_first_whatever_it_is_called(tmp_path):
    """What another file has of the same messages is not taken for its rest."""
    (tmp_path / "in").mkdir()
    begun, other = tmp_path / "in" / "b.jsonl", tmp_path / "in" / "a.jsonl"
    begun.write_text("".join(f'{{"topic": "T", "body": "{body}"}}\n' for body in "123"))
    other.write_text('{"topic": "T", "body": "2"}\n')
    with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
        put_in_part(store, begun, 1)
        import_once(store, tmp_path / "in")
        assert [message.body for message in store.messages()] == [b"1", b"2", b"3", b"2"]


@pytest.mark.process
def test_equal_messages_that_others_put_behind_a_kill_are_none_of_the_imports(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"topic": "T", "body": "same"}\n' * 6)

    def work(_):
        with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
            import_once(DyingStore(store, 2), source)

    for _ in range(2):
        run_child(work)
        with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
            store.put("T", b"same")
    with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
        report = import_once(store, source)
        assert (report.already, report.messages) == (4, 2)
        assert sum(1 for _ in store.messages()) == 8


def test_what_others_put_behind_an_import_that_failed_is_none_of_its_messages(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"topic": "T", "body": "same"}\n' * 3)

    class FailingStore(DyingStore):
        def put_message(self, message):
            if self.left == 0:
                raise OSError
            self.left -= 1
            return self.store.put_message(message)

    with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
        with pytest.raises(OSError):
            import_once(FailingStore(store, 1), source)
        store.put("T", b"same")
        assert import_once(store, source).messages == 2


def test_nothing_is_noted_of_an_import_that_a_power_cut_could_take_back(
    exported, tmp_path, monkeypatch
):
    noted = []

    def watching(name):
        method = getattr(ImportRecord, name)

        def watched(record, *what):
            writer = store.parts.files.writer
            noted.append((name, writer.flushed_offset == store.max_phy_offset))
            return method(record, *what)

        monkeypatch.setattr(ImportRecord, name, watched)

    watching("begin")
    watching("finish")
    slow = {"flush_interval_commit_log_ms": 3_600_000}
    with rmqcore.open_store(tmp_path / "new", **SMALL, **slow) as store:
        store.put("T", b"other")
        import_once(store, exported)
    assert noted == [("begin", True), ("finish", True)] * 3


@pytest.mark.process
def test_what_others_put_where_the_log_has_lost_its_end_is_none_of_its_messages(tmp_path):
    """An opening had noted where the messages of a kill end; then a power cut took some."""
    source, path = tmp_path / "in.jsonl", tmp_path / "new"
    source.write_text('{"topic": "T", "body": "same"}\n' * 3)

    def work(_):
        with rmqcore.open_store(path, **SMALL) as store:
            import_once(DyingStore(store, 2), source)

    run_child(work)
    with rmqcore.open_store(path, **SMALL) as store:
        end = store.max_phy_offset
    file = path / "commitlog" / f"{0:020d}"
    with file.open("r+b") as log:
        log.seek(end // 2)
        log.write(bytes(end - end // 2))
    shutil.rmtree(path / "consumequeue")
    (path / "config" / "storeMark.json").unlink()
    (path / "abort").touch()
    with rmqcore.open_store(path, **SMALL) as store:
        assert store.max_phy_offset == end // 2
        store.put("T", b"same")
        report = import_once(store, source)
        assert (report.already, report.messages) == (1, 2)


def test_an_import_goes_on_in_a_log_that_ends_before_where_it_began(tmp_path):
    """As a repair may leave it: where it goes on is noted, and what comes there is known again."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(f'{{"topic": "T", "body": "{body}"}}\n' for body in "123"))
    digest = digests_of([source])[0]

    class FailingStore(DyingStore):
        def put_message(self, message):
            if self.left == 0:
                raise OSError
            self.left -= 1
            return self.store.put_message(message)

    with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
        with ImportRecord(store.path) as record:
            record.note({digest: 50})
        with pytest.raises(OSError):
            import_once(FailingStore(store, 2), source)
        assert import_once(store, source).already == 2
        assert [message.body for message in store.messages()] == [b"1", b"2", b"3"]


def test_a_part_without_messages_is_not_taken_for_one_that_was_imported(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jsonl").write_text(f'{{"topic": "T", "body": "{name}"}}\n')
        (tmp_path / name / "2.jsonl").write_text("")
    with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
        assert [import_once(store, tmp_path / name).messages for name in "ab"] == [1, 1]


def test_an_input_that_is_written_meanwhile_is_said_and_not_taken_for_imported(tmp_path):
    source = tmp_path / "in.jsonl"
    line = '{"topic": "T", "body": "a"}\n'
    source.write_text(line)

    def write_on(done, _):
        if done == 0:
            source.write_text(line * 2)

    with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
        with pytest.raises(RmqCoreError, match="was changed while it was read"):
            import_once(store, source, progress=write_on)
        source.write_text(line)
        with pytest.raises(AlreadyImportedError, match="ended early"):
            import_once(store, source)


def test_nothing_is_put_of_what_has_a_row_that_is_no_message(exported, tmp_path):
    last = max(exported.glob("*.jsonl"))
    content = last.read_bytes()
    with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
        last.write_bytes(content[:-3] + b"[}\n")
        with pytest.raises(MessageIllegalError, match="no JSON"):
            import_once(store, exported)
        assert list(store.messages()) == []
        last.write_bytes(content)
        assert import_once(store, exported).messages == 40


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"properties": {"DELAY": "3"}}, "row 3: delay level 3: .*deliver_delayed"),
        ({"properties": {"DELAY": "soon"}}, "row 3: property DELAY='soon' is no delay level"),
        ({"properties": {"p": "x" * 40_000}}, "row 3: .*propert"),
        ({"body_base64": "AAAA" * 500}, "row 3: the message has a body of 1500 bytes"),
        ({"queue_id": -1}, "row 3: queue_id -1"),
        ({"properties": {"TIMER_DELAY_SEC": "5"}}, "row 3: TIMER_DELIVER_MS.*no timer wheel"),
        ({"sys_flag": 0x80, "properties": {"INNER_NUM": "3"}}, "row 3: .*no batch consume queue"),
        ({"topic": "Batches", "sys_flag": 0x80}, "row 3: INNER_NUM=''"),
        ({"properties": {"INNER_MULTI_DISPATCH": "a"}}, "row 3: .*light queue begins"),
    ],
)
def test_nothing_is_put_of_what_has_a_row_that_the_store_does_not_take(tmp_path, fields, said):
    source = tmp_path / "in.jsonl"
    row = {"topic": "T", "body_base64": "AAAA"}
    source.write_text("".join(json.dumps(each) + "\n" for each in (row, row, row | fields)))
    settings = {"enable_lmq": True, "enable_multi_dispatch": True, "max_message_size": 1000}
    with rmqcore.open_store(tmp_path / "new", **settings) as store:
        store.topics.put(TopicConfig(topic_name="Batches", attributes={"queue.type": "BatchCQ"}))
        with pytest.raises(MessageIllegalError, match=said):
            import_once(store, source)
        assert list(store.messages()) == []


def test_what_is_looked_at_takes_no_memory_of_a_log_files_size(tmp_path):
    most, size = 1 << 20, 1 << 28
    settings = {"mapped_file_size_commit_log": size, "max_message_size": most}
    with rmqcore.open_store(tmp_path / "s", **settings) as store, TrialPuts(store) as trial:
        assert memoryview(trial._file).nbytes < 2 * most
        rest = {"properties": {"p": "." * 32_000}}
        trial.put_message(Message("T" * 127, bytes(most), **rest))
        with pytest.raises(MessageIllegalError, match="max_message_size"):
            trial.put_message(Message("T", bytes(most + 1)))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_rows_and_columns_say_the_same_of_a_time(tmp_path, unit):
    """So that what was put as columns is known again, row by row."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    source, ns = tmp_path / "in.parquet", 1_700_000_000_000_000_000
    born = pa.array([ns, -ns // 9], pa.timestamp("ns")).cast(pa.timestamp(unit), safe=False)
    pq.write_table(
        pa.table({"topic": ["T"] * 2, "body": ["a", "b"], "born_timestamp": born}), source
    )
    with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
        import_once(store, source)
        found = [message.born_timestamp_ms for message in store.messages()]
    assert found == [message.born_timestamp_ms for message in messages_in(source)]
    assert found[0] == ns // 10**6


def test_nothing_is_put_of_columns_with_a_row_that_is_no_message(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    source = tmp_path / "in.parquet"
    bodies = ["b"] * 5000
    bodies[4500] = None
    pq.write_table(pa.table({"topic": ["T"] * 5000, "body": bodies}), source)
    with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
        with pytest.raises(MessageIllegalError, match=r"row 4501: the body"):
            import_once(store, source)
        assert list(store.messages()) == []


def test_a_part_that_was_cut_short_between_two_rows_is_not_imported(exported, tmp_path):
    first = min(exported.glob("*.jsonl"))
    lines = first.read_bytes().splitlines(keepends=True)
    first.write_bytes(b"".join(lines[:-1]))
    with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
        with pytest.raises(RmqCoreError, match="messages may be missing"):
            import_once(store, exported)
        assert list(store.messages()) == []


def test_a_digest_with_a_flipped_bit_forgets_no_import(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"topic": "T", "body_base64": "AAAA"}) + "\n")
    with rmqcore.open_store(tmp_path / "new", **SMALL) as store:
        import_once(store, source)
        noted = store.path / "config" / "imports.json"
        (digest,) = digests_of([source])
        other = digest.translate(str.maketrans("02468ace", "13579bdf"))
        noted.write_text(noted.read_text().replace(digest, other))
        assert import_once(store, source).already == 1
        assert len(list(store.messages())) == 1


def test_one_import_at_a_time(tmp_path):
    with (
        rmqcore.open_store(tmp_path / "new", **SMALL) as store,
        ImportRecord(store.path),
        pytest.raises(RmqCoreError, match="another import"),
    ):
        ImportRecord(store.path)


@pytest.mark.parametrize(
    "manifest",
    ["{", "[]", "{}", '{"parts": 5}', '{"parts": [5]}', '{"parts": [{}]}', "[" * 100_000, "\udcff"],
)
def test_what_is_no_manifest_is_said(exported, manifest):
    (exported / "_manifest.json").write_bytes(manifest.encode(errors="surrogateescape"))
    with pytest.raises(RmqCoreError, match="no manifest of an export"):
        exported_files(exported)


def test_a_manifest_of_terabytes_is_said(exported):
    os.truncate(exported / "_manifest.json", 8 << 40)
    with pytest.raises(RmqCoreError, match="no manifest of an export"):
        exported_files(exported)


def test_a_manifest_names_files_beside_it_only(exported):
    manifest = exported / "_manifest.json"
    told = json.loads(manifest.read_text("utf-8"))
    told["parts"][0]["file"] = "../old/checkpoint"
    manifest.write_text(json.dumps(told))
    with pytest.raises(RmqCoreError, match="which is no file of"):
        exported_files(exported)
