"""Import of what waits in kombu's and huey's own files."""

import sqlite3
import struct
from contextlib import closing
from datetime import datetime, timedelta

import pytest
from children import die_at, run_child
from huey.storage import FileStorage, SqliteStorage
from kombu import Connection
from patience import until
from typer.testing import CliRunner

from rmqcore import open_shared
from rmqcore.adapters import task_queue_files
from rmqcore.adapters.huey import RmqStorage
from rmqcore.adapters.names import topic_of
from rmqcore.adapters.queuelib import FifoQueue
from rmqcore.adapters.queuelib_files import elements, import_queues
from rmqcore.adapters.task_queue_files import import_huey, import_kombu
from rmqcore.cli.app import app
from rmqcore.world import World, wall_clock_ms

pytestmark = pytest.mark.engine


def imported(*arguments, fails=False):
    """Run `rmqcore import`; what it printed."""
    done = CliRunner().invoke(app, ["import", *map(str, arguments)])
    assert bool(done.exit_code) is fails, done.output
    return done.output


def filesystem(folder):
    folders = {"data_folder_in": str(folder / "m"), "data_folder_out": str(folder / "m")}
    for name in ("m", "control"):
        (folder / name).mkdir()
    options = {**folders, "control_folder": str(folder / "control")}
    return Connection("filesystem://", transport_options=options), folder / "m"


def sqlite(folder):
    return Connection(f"sqla+sqlite:///{folder}/queue.db"), folder / "queue.db"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("old", [filesystem, sqlite])
def test_kombu(tmp_path, old):
    connection, source = old(tmp_path)
    with connection:
        queue = connection.SimpleQueue(f"mail.{old.__name__}")
        for number in range(3):
            queue.put({"number": number})
        taken = queue.get(block=False)
        taken.ack()
        queue.put({"number": 9}, priority=9)
        queue.put({"number": 10}, expiration=0.001)
    store = tmp_path / "store"
    before = wall_clock_ms()
    assert "4 messages" in imported("--from", "kombu", store, source)
    assert "twice" in imported("--from", "kombu", store, source, fails=True)
    until(lambda: wall_clock_ms() > before + 100, "the end of what lives a millisecond")
    with Connection(f"rmqcore://{store}") as connection:
        queue = connection.SimpleQueue(f"mail.{old.__name__}")
        got = []
        for _ in range(3):
            message = queue.get(block=False)
            message.ack()
            got.append(message.payload["number"])
        rest = {0, 1, 2} - {taken.payload["number"]}
        # names of files tell no order within a millisecond
        assert (got[0], set(got[1:])) == (9, rest)
        assert old is filesystem or got == [9, 1, 2]
        with pytest.raises(queue.Empty):
            queue.get(block=False)


def file_storage(folder):
    return FileStorage("app", path=str(folder / "old")), folder / "old", ("--name", "app")


def sqlite_storage(folder):
    return SqliteStorage("app", filename=str(folder / "old.db")), folder / "old.db", ()


@pytest.mark.parametrize("old", [file_storage, sqlite_storage])
def test_huey(tmp_path, old):
    storage, source, options = old(tmp_path)
    for number, priority in enumerate((0, 5, 0, 5)):
        storage.enqueue(b"%d" % number, priority)
    storage.dequeue()
    now = datetime.fromisoformat("2026-07-01T12:00")
    storage.add_to_schedule(b"later", now + timedelta(hours=1))
    storage.add_to_schedule(b"now", now)
    storage.put_data("result", b"value")
    storage.incr("count", 7)
    storage.close()
    store = tmp_path / "store"
    output = imported("--from", "huey", *options, store, source)
    assert f"{6 if options else 7} messages" in output
    assert "twice" in imported("--from", "huey", *options, store, source, fails=True)
    new = RmqStorage("app", path=store, blocking=False)
    assert [new.dequeue() for _ in range(4)] == [b"3", b"0", b"2", None]
    assert new.read_schedule(now) == [b"now"]
    assert new.scheduled_items() == [b"later"]
    assert new.peek_data("result") == b"value"
    assert new.incr("count") == (1 if options else 8)
    new.close()


def half_written(database):
    """Leave a database as a program does that is killed in the middle of a transaction."""
    paths = database, database.with_name(f"{database.name}-journal")
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size=5")
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE half (written)")
        for _ in range(100):
            connection.execute("INSERT INTO half VALUES (?)", (bytes(2000),))
        left = [path.read_bytes() for path in paths]
        connection.execute("ROLLBACK")
    for path, content in zip(paths, left, strict=True):
        path.write_bytes(content)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_database_of_a_program_that_was_killed_in_a_transaction_is_imported(tmp_path):
    connection, source = sqlite(tmp_path)
    with connection:
        queue = connection.SimpleQueue("mail")
        for number in range(3):
            queue.put(number)
    half_written(source)
    assert "3 messages" in imported("--from", "kombu", tmp_path / "store", source)
    assert "twice" in imported("--from", "kombu", tmp_path / "store", source, fails=True)


def test_a_queue_of_a_crawl_that_was_killed_in_a_transaction_is_imported(tmp_path):
    source = tmp_path / "requests.queue"
    source.mkdir()
    for name in ("0", "-1s"):
        with closing(sqlite3.connect(source / name)) as connection, connection:
            connection.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY, item BLOB)")
            connection.executemany("INSERT INTO queue (item) VALUES (?)", [(b"1",), (b"2",)])
        half_written(source / name)
    report = import_queues(source / "rmqcore", source)
    assert (report.files, report.messages) == (2, 4)
    queue = FifoQueue(source / "-1s", store=source / "rmqcore")
    assert [queue.pop() for _ in range(3)] == [b"1", b"2", None]
    queue.close()


@pytest.mark.parametrize("program", ["kombu", "huey"])
def test_what_is_nothing_of_the_kind_is_refused(tmp_path, program):
    store, empty, file = tmp_path / "store", tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.write_bytes(b"no database")
    assert "is here" in imported("--from", program, store, empty, fails=True)
    assert "no database" in imported("--from", program, store, file, fails=True)
    (empty / "1_x.q.msg").write_bytes(b"[]")
    (empty / "queue").mkdir()
    (empty / "queue" / "task").write_bytes(b"x")
    assert "no " in imported("--from", program, store, empty, fails=True)


@pytest.mark.parametrize(
    "payload", ["[" * 100_000, '{"properties": []}', '{"properties": {"priority": 1e999}}']
)
def test_a_file_that_is_no_message_of_kombus_is_named(tmp_path, payload):
    (tmp_path / "1_x.q.msg").write_text(payload, "utf-8")
    told = imported("--from", "kombu", tmp_path / "store", tmp_path, fails=True)
    assert "no message of kombu" in told


def kombu_of(folder, store):
    connection, source = sqlite(folder)
    with connection:
        queue = connection.SimpleQueue("mail")
        for number in range(5):
            queue.put({"number": number})

    def found():
        with Connection(f"rmqcore://{store}") as connection:
            queue = connection.SimpleQueue("mail")
            return [queue.get(block=False).payload["number"] for _ in range(queue.qsize())]

    return lambda: import_kombu(store, source), found, list(range(5))


def huey_of(folder, store):
    storage, source, _ = sqlite_storage(folder)
    storage.enqueue(b"task")
    storage.add_to_schedule(b"due", datetime.fromisoformat("2026-07-01"))
    storage.put_data("result", b"value")
    storage.put_data("empty", b"")
    storage.incr("count", 7)
    storage.close()

    def found():
        new = RmqStorage("app", path=store)
        try:
            return [new.queue_size(), new.scheduled_items(), new.result_items(), new.incr("count")]
        finally:
            new.close()

    results = {"result": b"value", "empty": b""}
    return lambda: import_huey(store, source), found, [1, [b"due"], results, 8]


def queuelib_of(folder, store):
    bodies = [b"%d" % (number // 2) for number in range(5)]
    (folder / "old").mkdir()
    pushed = b"".join(struct.pack(">L", len(body)) + body for body in bodies)
    (folder / "old" / "q00000").write_bytes(pushed)

    def found():
        queue = FifoQueue(store)
        try:
            return [queue.pop() for _ in range(len(queue))]
        finally:
            queue.close()

    return lambda: import_queues(store, folder / "old"), found, bodies


@pytest.mark.process
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("of", [kombu_of, huey_of, queuelib_of])
def test_an_import_that_was_killed_goes_on_where_it_ended(tmp_path, of, moment):
    run, found, whole = of(tmp_path, tmp_path / "store")
    put = []
    for number in (1, 2, 2):

        def killed(tell, number=number):
            die_at("transfer.import_progress.ImportProgress.advance", moment, number)
            run()

        code, _ = run_child(killed)
        put.append(code)
    report = run()
    assert put == [-9] * 3
    assert report.already > 0
    assert report.messages + report.already == 5
    assert found() == whole


@pytest.mark.process
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_equal_message_that_another_one_puts_behind_a_kill_is_none_of_the_imports(tmp_path):
    connection, source = sqlite(tmp_path)
    with connection:
        queue = connection.SimpleQueue("mail")
        queue.put({"number": 1})
    (body,) = [payload for _, payload in task_queue_files._of_kombu_tables(source)]

    def killed(tell):
        die_at("transfer.import_progress.ImportProgress.passes", "after", 1)
        import_kombu(tmp_path / "store", source)

    assert run_child(killed)[0] == -9
    with open_shared(tmp_path / "store") as store:
        store.put(topic_of("kombu", "mail"), body, queue_id=0)
        report = import_kombu(tmp_path / "store", source)
        assert (report.already, report.messages) == (0, 1)


@pytest.mark.process
def test_who_declares_a_queue_ends_its_deletion_for_one_who_was_killed(tmp_path, monkeypatch):
    url = f"rmqcore://{tmp_path / 'store'}"

    def killed(tell):
        die_at("adapters.kombu.Channel._delete_messages", "before", 1)
        with Connection(url) as connection:
            connection.SimpleQueue("mail").put("old")
            connection.default_channel.queue_delete("mail")

    assert run_child(killed)[0] == -9
    slept = []
    with Connection(url) as connection:
        monkeypatch.setattr(connection.default_channel.store, "world", World(sleep=slept.append))
        queue = connection.SimpleQueue("mail")
        assert queue.qsize() == 0
        queue.put("new")
        assert queue.get(block=False).payload == "new"
    assert not slept


def test_a_queue_of_queuelib_whose_path_has_the_marks_of_a_url(tmp_path):
    for name, body in (("old", b"another"), ("old#1?%20", b"mine")):
        with closing(sqlite3.connect(tmp_path / name)) as database, database:
            database.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY, item BLOB)")
            database.execute("INSERT INTO queue (item) VALUES (?)", (body,))
    assert list(elements(tmp_path / "old#1?%20")) == [b"mine"]
