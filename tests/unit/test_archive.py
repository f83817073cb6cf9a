"""Sealed log files in an archive, and one log out of archive and store."""

import json
import os
import pickle
import shutil
import signal

import pytest
from children import die, run_child
from webhdfs import webhdfs

import rmqcore
from rmqcore import doctor
from rmqcore.cli import archive as archive_command
from rmqcore.errors import CorruptRecordError, RecordsGoneError, StoreError
from rmqcore.files.objects import directory, open_objects
from rmqcore.files.objects.errors import (
    ArchiveConflictError,
    ArchiveError,
    ObjectChangedError,
    ObjectStoreError,
    StoreUnsettledError,
)
from rmqcore.scan import ArchiveLog, open_any_log, read, read_store, select
from rmqcore.scan.dataset import StoreDataset
from rmqcore.scan.manifest import ArchivedFile, Manifest, commit, load_manifest, with_file
from rmqcore.store.parts.files import StoreFiles
from rmqcore.transfer.archive import Archiver, restore, verify_archive

pytestmark = pytest.mark.engine

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")
pytest.importorskip("fsspec")

FILE_SIZE = 1 << 18
SMALL = {"mapped_file_size_commit_log": FILE_SIZE}


def put(path, count, topic=None, first=0):
    """Append messages: a topic of the first hundreds only, and three that are everywhere."""
    with rmqcore.open_store(path, **SMALL) as store:
        for number in range(first, first + count):
            name = topic or f"T{number % 3}"
            store.put(name, b"x" * 300 + b"%d" % number, queue_id=number % 2, keys=f"k{number}")


COLUMNS = ("topic", "queue_offset", "phy_offset", "body")


def rows(place, **selection):
    return pa.table(read_store(place, COLUMNS, **selection))


@pytest.fixture(scope="module")
def archived(tmp_path_factory):
    """A store of some files, and its archive in a directory."""
    root = tmp_path_factory.mktemp("archived")
    put(root / "store", 300, "Early")
    put(root / "store", 3000)
    report = Archiver(root / "store", str(root / "archive")).run_once()
    return root / "store", root / "archive", report


def test_sealed_files_are_archived_byte_for_byte_and_read_as_the_store_is(archived):
    store, archive, report = archived
    assert len(report.files) == 5
    assert (report.start, report.end) == (0, 5 * FILE_SIZE)
    for name in report.files:
        path = archive / "commitlog" / name
        assert path.read_bytes() == (store / "commitlog" / name).read_bytes()
        index = json.loads(path.with_name(f"{name}.idx").read_text())
        inside = (pc.field("phy_offset") >= int(name)) & (
            pc.field("phy_offset") < int(name) + FILE_SIZE
        )
        assert index["rows"] == rows(archive).filter(inside).num_rows
    of_store = rows(store)
    assert rows(archive) == of_store.filter(pc.field("phy_offset") < report.end)
    assert rows(str(archive), topics=["T1"]).num_rows > 100
    assert verify_archive(str(archive)).clean
    assert Archiver(store, str(archive)).run_once().files == []


def test_topics_queues_and_times_choose_files_by_the_manifest_alone(archived):
    _, archive, _ = archived
    log = ArchiveLog(str(archive))

    def starts(**selection):
        return [split.start for split in select(log, selection).splits()]

    every = [number * FILE_SIZE for number in range(5)]
    assert starts() == starts(topics=["T0"]) == starts(queue_ids=[1]) == every
    assert starts(topics=["Early"]) == starts(topics=["Early", "None"]) == every[:1]
    assert starts(topics=["None"]) == starts(queue_ids=[7]) == []
    assert starts(topics=["None"], uncommitted=True) == every
    last = max(log.files(), key=lambda file: file.start).last_ms
    assert starts(begin_ms=last + 1) == starts(end_ms=1) == []
    assert starts(begin_ms=last)[-1] == every[-1]
    assert starts(begin_phy_offset=FILE_SIZE + 5, end_phy_offset=2 * FILE_SIZE + 5) == every[1:3]
    wanted = {"topics": ["T1"], "queue_offsets": {"T1": {0: (0, 3), 1: (0, 0)}}}
    assert starts(**wanted) == every[:1]
    assert rows(str(archive), **wanted).num_rows == 3
    counts = select(log, {"topics": ["Early"]}).queue_counts()
    assert counts == {("Early", 0): 150, ("Early", 1): 150}


def test_earlier_files_stand_in_pages_that_are_read_where_they_matter(tmp_path):
    objects, manifest, count = open_objects(tmp_path), Manifest(writer="one"), 600
    for number in range(count):
        at = number * FILE_SIZE
        topics = {"Rare" if number == 300 else "Busy": [(0, 5, 500, number * 5, number * 5 + 4)]}
        times = (1000 * number, 1000 * number + 999)
        file = ArchivedFile(at, FILE_SIZE, f"{number:064x}", "", 5, *times, (at + 9,), topics)
        manifest = with_file(objects, manifest, file)
    commit(objects, manifest)
    log = ArchiveLog(str(tmp_path))
    assert [page.start for page in log.manifest.pages] == [0, 256 * FILE_SIZE]

    def numbers(log, **selection):
        return [split.start // FILE_SIZE for split in select(log, selection).splits()]

    assert numbers(log) == list(range(count))
    assert numbers(log, topics=["Rare"]) == [300]
    assert numbers(log, begin_ms=100_500, end_ms=101_500) == [100, 101]
    assert len(select(log, {"begin_phy_offset": 599 * FILE_SIZE}).splits(8)) == 2
    (tmp_path / objects.list("pages")[0].name).write_text("[]")
    fresh = ArchiveLog(str(tmp_path))
    assert numbers(fresh, topics=["Rare"]) == [300]
    with pytest.raises(ArchiveError, match="not the one"):
        numbers(fresh, topics=["Busy"])


def test_nothing_is_archived_of_a_log_that_may_still_change(archived, tmp_path, monkeypatch):
    store, archive = tmp_path / "store", tmp_path / "archive"
    shutil.copytree(archived[0], store)
    with rmqcore.open_store(store) as opened:
        assert opened.put("T0", b"x").ok
        shutil.copytree(store, tmp_path / "killed")
        assert len(Archiver(store, str(tmp_path / "live")).run_once().files) == 5
    killed = Archiver(tmp_path / "killed", str(archive))
    with pytest.raises(StoreUnsettledError, match="was not closed in order"):
        killed.run_once()
    recover = StoreFiles.recover

    def beside(self, *args, **settings):
        with pytest.raises(StoreUnsettledError, match="being opened or repaired"):
            killed.run_once()
        return recover(self, *args, **settings)

    monkeypatch.setattr(StoreFiles, "recover", beside)
    with rmqcore.open_store(tmp_path / "killed"):
        assert not archive.exists()
        assert len(killed.run_once().files) == 5


def test_a_file_that_a_repair_changes_while_it_is_archived_waits(archived, tmp_path):
    store, archive = tmp_path / "store", tmp_path / "archive"
    shutil.copytree(archived[0], store)
    first = store / "commitlog" / f"{0:020d}"

    def changed(step):
        if step == "archive: index written":
            with first.open("r+b") as file:
                file.seek(FILE_SIZE // 2)
                file.write(bytes(100))

    with pytest.raises(StoreUnsettledError, match="changed while it was archived"):
        Archiver(store, str(archive), failpoint=changed).run_once()
    assert not load_manifest(open_objects(str(archive))).generation
    assert not [path for path in archive.rglob("*") if path.is_file()]
    with pytest.raises(CorruptRecordError):
        Archiver(store, str(archive)).run_once()


def test_following_goes_on_when_the_store_is_settled(archived, tmp_path, monkeypatch, capsys):
    store = tmp_path / "store"
    shutil.copytree(archived[0], store)
    (store / "abort").write_text("1")

    def opened(_seconds):
        if (tmp_path / "archive").exists():
            raise KeyboardInterrupt
        rmqcore.open_store(store).close()

    monkeypatch.setattr(archive_command, "sleep", opened)
    with pytest.raises(KeyboardInterrupt):
        archive_command.archive(store, str(tmp_path / "archive"), follow=True, every="1s")
    assert "was not closed in order" in capsys.readouterr().err
    assert load_manifest(open_objects(str(tmp_path / "archive"))).end == 5 * FILE_SIZE


@pytest.mark.process
@pytest.mark.parametrize(
    "step", ["half a file", "file written", "page written", "manifest written"]
)
def test_an_archiver_that_is_killed_goes_on_and_loses_nothing(archived, tmp_path, step):
    store, _, report = archived
    url = str(tmp_path / "archive")

    def copy_half(source, target, _size):
        target.write(source.read(FILE_SIZE // 2))
        target.flush()
        die()

    def work(_tell):
        if step == "half a file":
            directory.shutil.copyfileobj = copy_half
        Archiver(store, url, failpoint=lambda at: at == f"archive: {step}" and die()).run_once()

    assert run_child(work)[0] == -signal.SIGKILL
    again = Archiver(store, url).run_once()
    assert len(again.files) == (4 if step == "manifest written" else 5)
    assert again.end == report.end
    assert verify_archive(url).clean
    assert rows(url) == rows(archived[1])
    assert not list((tmp_path / "archive").rglob(".*"))


def test_two_archivers_collide_and_overwrite_nothing(archived, tmp_path):
    store, _, _ = archived
    url = str(tmp_path / "archive")
    second = Archiver(store, url)

    def first_is_faster(reached):
        if reached == "archive: page written":
            first.run_once()

    first = Archiver(store, url)
    slow = Archiver(store, url, failpoint=first_is_faster)
    with pytest.raises(ArchiveConflictError, match="another archiver"):
        slow.run_once()
    assert verify_archive(url).files == 5
    assert second.run_once().files == []


def test_another_store_is_not_archived_over_one(archived, tmp_path):
    store, archive, report = archived
    before = {path: path.read_bytes() for path in archive.rglob("*") if path.is_file()}
    put(tmp_path / "other", 3500, "Other")
    with pytest.raises(ArchiveConflictError, match="another store"):
        Archiver(tmp_path / "other", str(archive)).run_once()
    (tmp_path / "fresh" / "commitlog").mkdir(parents=True)
    (tmp_path / "fresh" / "commitlog" / report.files[0]).write_bytes(b"not ours")
    with pytest.raises(ArchiveConflictError, match="is kept"):
        Archiver(store, str(tmp_path / "fresh")).run_once()
    assert before == {path: path.read_bytes() for path in archive.rglob("*") if path.is_file()}


def test_a_log_that_lost_its_end_and_grew_again_is_another_log(tmp_path):
    store, kept = tmp_path / "store", tmp_path / "kept"
    put(store, 300)
    shutil.copytree(store, kept)
    put(store, 1000)
    one = Archiver(store, str(tmp_path / "archive"))
    assert one.run_once().files
    shutil.rmtree(store)
    kept.rename(store)
    put(store, 3000, "Other")
    with pytest.raises(ArchiveConflictError, match="is not the one"):
        one.run_once()


def test_a_manifest_in_the_place_of_a_deleted_one_is_a_conflict(tmp_path):
    objects = open_objects(tmp_path)
    sleeper = manifest = commit(objects, Manifest(writer="one"))
    for _ in range(12):
        manifest = commit(objects, manifest)
    assert len(objects.list("manifest")) == 8
    with pytest.raises(ArchiveConflictError):
        commit(objects, sleeper)
    assert load_manifest(objects).generation == 13


def test_what_was_restored_is_the_store(archived, tmp_path):
    store, archive, report = archived
    restored = tmp_path / "restored"

    def killed(done, _total):
        if done == 3 * FILE_SIZE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(str(archive), restored, progress=killed)
    Archiver(store, "memory://archives/another").run_once()
    with pytest.raises(StoreError, match="interrupted here"):
        restore("memory://archives/another", restored)
    told = restore(str(archive), restored)
    assert (told.files, told.end) == (5, report.end)
    for name in report.files:
        assert (restored / "commitlog" / name).read_bytes() == (
            store / "commitlog" / name
        ).read_bytes()
    with rmqcore.open_store(restored, **SMALL) as opened:
        assert opened.get_message("Early", 1, 0).messages[0].body == b"x" * 300 + b"1"
        assert opened.query_message("T1", "k100").messages[0].keys == ("k100",)
    assert rows(restored) == rows(archive)
    with pytest.raises(StoreError, match="not empty"):
        restore(str(archive), restored)


@pytest.fixture
def half_restored(archived, tmp_path):
    """A store whose restoration was interrupted behind two of five files."""

    def killed(done, _total):
        if done == 2 * FILE_SIZE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(str(archived[1]), tmp_path / "restored", progress=killed)
    return tmp_path / "restored"


def test_half_a_restored_store_takes_no_messages(archived, half_restored):
    before = {path: path.read_bytes() for path in half_restored.rglob("*") if path.is_file()}
    with pytest.raises(StoreError, match="it is being restored from"):
        rmqcore.open_store(half_restored, **SMALL)
    now = {path: path.read_bytes() for path in half_restored.rglob("*") if path.is_file()}
    assert before.items() <= now.items()
    restore(str(archived[1]), half_restored)
    rmqcore.open_store(half_restored, **SMALL).close()


def test_half_a_restored_store_is_told_by_the_doctor_and_not_repaired(half_restored):
    before = {path: path.read_bytes() for path in half_restored.rglob("*") if path.is_file()}
    assert "it is being restored from" in doctor.explain(half_restored).reason
    (told,) = [one for one in doctor.verify(half_restored).findings if "restoration" in one.what]
    assert told.severity is doctor.Severity.ERROR
    assert told.path == half_restored / "restore.unfinished"
    for left in (doctor.plan(half_restored).left, doctor.repair(half_restored).left):
        assert "it is being restored from" in left[0]
    now = {path: path.read_bytes() for path in half_restored.rglob("*") if path.is_file()}
    assert now == before


@pytest.mark.parametrize("what", ["a hole", "a file behind"])
def test_a_restoration_does_not_go_on_over_what_was_written_since(archived, half_restored, what):
    log = half_restored / "commitlog"
    files = sorted(log.iterdir())
    if what == "a hole":
        files[1].write_bytes(files[1].read_bytes()[: FILE_SIZE // 2] + bytes(FILE_SIZE // 2))
    else:
        (log / f"{9 * FILE_SIZE:020d}").write_bytes(bytes(FILE_SIZE))
    with pytest.raises(StoreError, match="something has written to the store"):
        restore(str(archived[1]), half_restored)


def test_one_restoration_at_a_time(archived, tmp_path):
    def second(_done, _total):
        with pytest.raises(StoreError, match="another restoration is going on"):
            restore(str(archived[1]), tmp_path / "restored")

    restore(str(archived[1]), tmp_path / "restored", progress=second)


def test_a_restoration_that_was_killed_before_it_said_from_where_goes_on(archived, tmp_path):
    (tmp_path / "restored").mkdir()
    (tmp_path / "restored" / "restore.unfinished").touch()
    restore(str(archived[1]), tmp_path / "restored")


def test_an_object_that_changed_underneath_is_told(archived, tmp_path):
    store, _, report = archived
    archive = tmp_path / "archive"
    Archiver(store, str(archive)).run_once()
    path = archive / "commitlog" / report.files[1]
    data = bytearray(path.read_bytes())
    data[FILE_SIZE - 1] ^= 1
    path.write_bytes(data)
    (finding,) = verify_archive(str(archive)).findings
    assert "SHA-256" in finding
    with pytest.raises(ObjectChangedError, match="SHA-256"):
        restore(str(archive), tmp_path / "restored")
    data[FILE_SIZE // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match=report.files[1]):
        list(read_store(archive, verify_crc=True))
    damaged = []
    found = read_store(archive, COLUMNS, verify_crc=True, on_damage=damaged.append)
    assert 0 < rows(archived[1]).num_rows - pa.table(found).num_rows <= 2
    assert [str(place.path) for place in damaged] == [str(path)]
    path.write_bytes(data[:-10])
    with pytest.raises(ObjectChangedError, match="bytes"):
        list(read_store(archive))
    path.unlink()
    with pytest.raises(RecordsGoneError, match="deleted"):
        list(read_store(archive))
    assert verify_archive(str(archive)).findings
    damaged.clear()
    found = read_store(archive, COLUMNS, on_damage=damaged.append)
    assert pa.table(found).num_rows < rows(archived[1]).num_rows
    assert [place.reason for place in damaged] == ["the file is gone"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("generation",), "1"),
        (("file_size",), -1),
        (("pages",), [{"name": 1}]),
        (("files", 0, "start"), None),
        (("files", 0, "cuts"), [[]]),
        (("files", 0, "topics"), {"T0": [[0, 1]]}),
        (("tables",), []),
    ],
)
def test_a_manifest_that_nobody_here_has_written_is_told(archived, place, value):
    (newest,) = [max((archived[1] / "manifest").iterdir())]
    told = json.loads(newest.read_bytes())
    part = told
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    for text in (json.dumps(told), "[" * 100_000, "null"):
        with pytest.raises(ArchiveError, match="no manifest"):
            Manifest.from_json("s3://bucket", text.encode())


def test_a_manifest_of_terabytes_is_told(archived, tmp_path):
    archive = shutil.copytree(archived[1], tmp_path / "copy")
    os.truncate(max((archive / "manifest").iterdir()), 8 << 40)
    with pytest.raises(ArchiveError, match=f"{8 << 40} bytes"):
        restore(str(archive), tmp_path / "restored")


def test_a_manifest_under_the_name_of_a_newer_one_is_told(archived, tmp_path):
    archive = shutil.copytree(archived[1], tmp_path / "copy")
    first, *_, newest = sorted((archive / "manifest").iterdir())
    shutil.copy(first, newest)
    told = rf"{newest.name}: no manifest {int(newest.stem)}: by its content it is {int(first.stem)}"
    archiver = Archiver(archived[0], str(archive))
    for work in (lambda: ArchiveLog(str(archive)), lambda: verify_archive(str(archive))):
        with pytest.raises(ArchiveError, match=told):
            work()
    with pytest.raises(ArchiveError, match=told):
        archiver.run_once()


def test_a_damaged_record_keeps_its_file_out(tmp_path):
    put(tmp_path / "store", 1500)
    path = tmp_path / "store" / "commitlog" / f"{FILE_SIZE:020d}"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError):
        Archiver(tmp_path / "store", str(tmp_path / "archive")).run_once()
    assert ArchiveLog(str(tmp_path / "archive")).end == FILE_SIZE


class TestOneLog:
    """Archive and store together."""

    @pytest.fixture
    def cut(self, archived, tmp_path):
        """A store whose first files retention has deleted, its archive, and all of its rows."""
        put(tmp_path / "store", 3000)
        every = rows(tmp_path / "store")
        Archiver(tmp_path / "store", str(tmp_path / "archive")).run_once()
        for number in range(3):
            (tmp_path / "store" / "commitlog" / f"{number * FILE_SIZE:020d}").unlink()
        return tmp_path / "store", str(tmp_path / "archive"), every

    def test_what_was_deleted_below_is_answered_from_above(self, cut):
        store, archive, every = cut
        assert rows(store).num_rows < every.num_rows
        assert rows(store, archive=archive) == every
        one = rows(store, archive=archive, topics=["T2"], queue_ids=[1])
        assert one["queue_offset"].to_pylist() == list(range(500))
        dataset = pickle.loads(pickle.dumps(StoreDataset(store, archive=archive)))
        assert dataset.count_rows() == every.num_rows
        assert dataset.count_rows(filter=pc.field("topic") == "T0") == 1000
        with rmqcore.open_store(store, mode="r") as opened:
            assert opened.arrow_dataset(archive=archive).count_rows() == every.num_rows

    def test_a_file_that_is_deleted_before_it_is_read_is_read_above(self, tmp_path):
        store, archive = tmp_path / "store", str(tmp_path / "archive")
        put(store, 1000)
        Archiver(store, archive).run_once()
        put(store, 2000, first=1000)
        every = rows(store)
        splits = select(open_any_log(store, archive=archive), {}).splits(1 << 17)
        by_queue = read_store(store, COLUMNS, archive=archive, topics=["T1"])
        alone = read_store(store, COLUMNS)
        # also what was archived after the reading was planned
        for start in range(0, Archiver(store, archive).run_once().end, FILE_SIZE):
            (store / "commitlog" / f"{start:020d}").unlink()
        assert pa.concat_tables(pa.table(read(split, COLUMNS)) for split in splits) == every
        assert pa.table(by_queue).num_rows == 1000
        with pytest.raises(RecordsGoneError):
            list(alone)

    def test_a_gap_between_the_two_is_an_error(self, cut):
        store, archive, _ = cut
        put(store, 3000)
        for number in range(3, 5):
            (store / "commitlog" / f"{number * FILE_SIZE:020d}").unlink()
        with pytest.raises(ArchiveError, match="neither"):
            open_any_log(store, archive=archive)
        with pytest.raises(ArchiveError, match="keep_unarchived"):
            Archiver(store, archive).run_once()

    def test_a_deleted_topic_stays_deleted_when_the_store_has_forgotten_it(self, tmp_path):
        store, archive = tmp_path / "store", str(tmp_path / "archive")
        put(store, 900, "Gone")
        with rmqcore.open_store(store, **SMALL) as opened:
            opened.delete_topic("Gone")
        put(store, 2500)
        Archiver(store, archive).run_once()
        assert rows(archive, topics=["Gone"]).num_rows == 0
        # its records go, and with them what the store knows of the deletion
        for number in range(2):
            (store / "commitlog" / f"{number * FILE_SIZE:020d}").unlink()
        put(store, 1000, "T0")
        with rmqcore.open_store(store, **SMALL) as opened:
            opened.delete_topic("T2")
        assert "Gone" not in (store / "config" / "deletedTopics.json").read_text()
        Archiver(store, archive).run_once()
        assert rows(archive, topics=["Gone"]).num_rows == 0
        assert rows(store, archive=archive, topics=["Gone"]).num_rows == 0
        # a table that is another tells nothing
        for table in (tmp_path / "archive" / "tables").iterdir():
            table.write_bytes(table.read_bytes()[:-1])
        (found,) = verify_archive(archive).findings
        assert "the table is not the one that the manifest names" in found
        put(store, 1000, "T0")
        for broken in (
            lambda: rows(archive, topics=["Gone"]),
            lambda: restore(archive, tmp_path / "restored"),
            lambda: Archiver(store, archive).run_once(),
        ):
            with pytest.raises(ArchiveError, match="the table is not"):
                broken()


class TestRetention:
    """Only what the manifest names may go."""

    def test_nothing_goes_before_it_is_archived(self, tmp_path):
        store, archive = tmp_path / "store", str(tmp_path / "archive")
        put(store, 3000)
        settings = {**SMALL, "retention_bytes": FILE_SIZE}
        with rmqcore.open_store(store, **settings, keep_unarchived=True) as opened:
            opened.delete_expired_files()
            assert opened.min_phy_offset == 0
            assert opened.why_will_be_deleted(f"{0:020d}") is None
            assert opened.parts.upkeep.retention.delete_before(1 << 60) == 0
            Archiver(store, archive).run_once()
            assert "retention_bytes" in opened.why_will_be_deleted(f"{0:020d}")
            opened.delete_expired_files()
            assert 0 < opened.min_phy_offset <= ArchiveLog(archive).end
        assert rows(store, archive=archive).num_rows == 3000

    def test_nothing_goes_that_came_where_the_log_had_lost_its_archived_end(self, tmp_path):
        store, archive = tmp_path / "store", str(tmp_path / "archive")
        put(store, 3000)
        running = Archiver(store, archive)
        end = running.run_once().end
        with (store / "commitlog" / f"{FILE_SIZE:020d}").open("r+b") as file:
            file.seek(1000)
            file.write(bytes(1000))
        settings = {**SMALL, "retention_bytes": FILE_SIZE, "keep_unarchived": True}
        with rmqcore.open_store(store, **settings, on_corruption="truncate") as opened:
            cut = opened.max_phy_offset
            assert cut < end
        put(store, 3000, first=3000)
        for archiving in (running, Archiver(store, archive)):
            with pytest.raises(ArchiveConflictError, match="another store's archive"):
                archiving.run_once()
        with rmqcore.open_store(store, **settings) as opened:
            opened.delete_expired_files()
            assert opened.min_phy_offset <= cut
        assert rows(store).column("body")[-3000:].to_pylist()[0].endswith(b"x3000")


def test_an_archive_behind_fsspec_is_one_too(archived):
    url = "memory://archives/one"
    assert len(Archiver(archived[0], url).run_once().files) == 5
    assert rows(url) == rows(archived[1])
    assert verify_archive(url).clean


def test_an_archive_on_hdfs_is_read_through_webhdfs_and_not_written(archived):
    pytest.importorskip("requests")
    store, archive, _ = archived
    with webhdfs(archive.parent) as url:
        assert rows(f"{url}/archive") == rows(archive)
        with pytest.raises(ArchiveError, match="no archive is here"):
            read_store(f"{url}/none")
        with pytest.raises(ObjectStoreError, match="can be read, not written"):
            Archiver(store, f"{url}/none").run_once()
