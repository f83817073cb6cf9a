"""Another process reads beside a writer at full speed: whole messages, each once, in order."""

import threading

import pytest
from children import Program
from patience import TIMEOUT_S, until

import rmqcore

pytestmark = pytest.mark.process

#: Writes as fast as it can until it is told to stop; bodies say what they must be.
WRITER = """
import select, sys, rmqcore
path, how = sys.argv[1:]
settings = dict(mapped_file_size_commit_log=262144, mapped_file_size_consume_queue=20000,
    max_hash_slot_num=1000, max_index_num=4000)
if how == "pool":
    settings |= dict(transient_store_pool_enable=True, transient_store_pool_size=3)
elif how == "sync":
    settings |= dict(flush_disk_type="SYNC_FLUSH")
store = rmqcore.open_store(path, **settings)
print("open", flush=True)
number = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    if how == "batch":
        store.put_messages([rmqcore.Message("T", b"%08d" % (number + i) * (1 + (number + i) % 97))
            for i in range(8)])
        number += 8
    else:
        store.put("T", b"%08d" % number * (1 + number % 97), keys="k%d" % (number % 1000))
        number += 1
print(number, flush=True)
store.close()
"""


@pytest.mark.parametrize("how", ["async", "sync", "batch", "pool"])
def test_a_reader_beside_a_writer(store_path, how):
    # over several files, but where each put waits for the disk
    wanted = 200 if how == "sync" else 5000
    with Program("-c", WRITER, store_path, how) as writer:
        assert writer.line() == "open"
        with rmqcore.open_store(store_path, mode="r") as store:
            read = rounds = 0

            def has_read_enough():
                nonlocal read, rounds
                rounds += 1
                result = store.get_message("T", 0, read, max_messages=500)
                for message in result.messages:
                    check(message, read)
                    read += 1
                assert result.next_queue_offset in (read, 0)
                if rounds % 5 == 0 and read:
                    key = f"k{(read - 1) % 1000}"
                    for message in store.query_message("T", key).messages:
                        assert int(bytes(message.body[:8])) % 1000 == (read - 1) % 1000
                return rounds >= 10 and read >= wanted

            until(has_read_enough, f"ten rounds, and {wanted} messages in them")
            writer.say("stop")
            while writer.process.poll() is None:
                has_read_enough()
            total = int(writer.line())
            for message in store.messages("T", 0, start=read):
                check(message, read)
                read += 1
            assert read == total
            assert sum(1 for _ in store.messages()) == total


def check(message, number):
    assert message.queue_offset == number
    assert bytes(message.body) == b"%08d" % number * (1 + number % 97)


def test_a_reader_writes_nothing(store_path, tmp_path):
    from golden.check import digest_tree

    with rmqcore.open_store(store_path, mapped_file_size_commit_log=65536) as store:
        for number in range(300):
            store.put("T", b"x" * number, keys=f"k{number}")
    before = digest_tree(store_path)
    with rmqcore.open_store(store_path, mode="r") as store:
        assert len(list(store.messages())) == 300
        assert len(store.query_message("T", "k7")) == 1
        assert store.queue_offset_by_time("T", 0, 0) == 0
        with pytest.raises(AttributeError):
            store.put("T", b"x")
        assert store.why_not_writable() == 'the store was opened with mode="r"'
    assert digest_tree(store_path) == before
    with pytest.raises(FileNotFoundError):
        rmqcore.open_store(tmp_path / "nowhere", mode="r")
    assert not (tmp_path / "nowhere").exists()


def test_a_reader_survives_deletion_and_cutting(store_path):
    """Files that go, or grow shorter, while another process reads them are errors or gaps."""
    with (
        rmqcore.open_store(store_path, mapped_file_size_commit_log=65536) as store,
        rmqcore.open_store(store_path, mode="r") as reader,
    ):
        for number in range(500):
            store.put("T", b"%d " % number * 200)
        store.flush()
        assert len(reader.get_message("T", 0, 0, max_messages=1000)) == 500
        store.flush()
        store.log.queue.remove_first(3)
        store.consume_queues.delete_before(store.log.min_offset)
        low = store.min_queue_offset("T", 0)
        assert low > 0
        assert reader.min_queue_offset("T", 0) == low
        assert reader.get_message("T", 0, 0).status.name == "OFFSET_TOO_SMALL"
        result = reader.get_message("T", 0, low, max_messages=1000)
        assert [m.queue_offset for m in result.messages] == list(range(low, 500))
        last = store.log.queue.files[-2].path
        with last.open("r+b") as file:
            file.truncate(1000)
        with pytest.raises(rmqcore.CorruptStoreError) as caught:
            reader.get_message("T", 0, low, max_messages=1000).messages  # noqa: B018
        assert caught.value.path == last
        with last.open("r+b") as file:
            file.truncate(65536)


def test_a_thread_sees_a_queue_as_it_was_while_another_looks_for_more(store_path, monkeypatch):
    """What is new of a queue is shown when the log's end is there, not before."""
    held, go, seen = threading.Event(), threading.Event(), threading.Event()
    counts = {}

    def read(name):
        counts[name] = len(reader.get_message("T", 0, 0, max_messages=100).messages)

    first = threading.Thread(target=read, args=("first",), daemon=True)
    second = threading.Thread(target=read, args=("second",), daemon=True)
    with (
        rmqcore.open_store(store_path) as store,
        rmqcore.open_store(store_path, mode="r") as reader,
    ):
        for _ in range(10):
            store.put("T", b"x", keys="k")
        assert len(reader.get_message("T", 0, store.max_queue_offset("T", 0) - 1)) == 1
        find_end, get_message = reader._follower._find_end, reader._follower.reader.get_message

        def find_end_late(*args, **settings):
            if threading.current_thread() is first:
                held.set()
                assert go.wait(TIMEOUT_S)
            return find_end(*args, **settings)

        def get_message_late(*args):
            if threading.current_thread() is second:
                seen.set()
                assert held.wait(TIMEOUT_S)
            return get_message(*args)

        monkeypatch.setattr(reader._follower, "_find_end", find_end_late)
        monkeypatch.setattr(reader._follower.reader, "get_message", get_message_late)
        second.start()
        assert seen.wait(TIMEOUT_S)
        for _ in range(10):
            store.put("T", b"y", keys="k")
        assert store.max_queue_offset("T", 0) == 20
        first.start()
        second.join(TIMEOUT_S)
        go.set()
        first.join(TIMEOUT_S)
    assert counts == {"first": 20, "second": 10}


def test_a_read_in_a_signal_handler_waits_for_no_other(store_path, monkeypatch):
    with (
        rmqcore.open_store(store_path) as store,
        rmqcore.open_store(store_path, mode="r") as reader,
    ):
        store.put("T", b"x", keys="k")
        assert store.max_queue_offset("T", 0) == 1
        find_end, inside = reader._follower._find_end, []

        def find_end_interrupted(*args, **settings):
            if not inside:
                inside.append(1)
                inside.append(len(reader.get_message("T", 0, 0).messages))
            return find_end(*args, **settings)

        monkeypatch.setattr(reader._follower, "_find_end", find_end_interrupted)
        assert len(reader.get_message("T", 0, 0).messages) == 1
        assert inside == [1, 1]


SMALL = {
    "mapped_file_size_commit_log": 65536,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 25,
    "max_index_num": 100,
    "retention_bytes": 200_000,
    "clean_resource_interval_ms": 3_600_000,
}
READS = {
    "get": lambda store: store.get_message("T", 0, 0, max_messages=600).status.name,
    "filter": lambda store: store.get_message("T", 0, 0, tags="a").status.name,
    "query": lambda store: len(store.query_message("T", "k1")),
    "time": lambda store: store.queue_offset_by_time("T", 0, 0),
    "low": lambda store: store.min_queue_offset("T", 0),
    "at": lambda store: getattr(store.message_at(0), "queue_offset", None),
    "log": lambda store: next(store.messages()).queue_offset,
    "queues": lambda store: store.queues(),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_whose_files_retention_removes_looks_again(store_path, monkeypatch, name):
    """The files go after the reader has listed them, before it opens them."""
    read = READS[name]
    with (
        rmqcore.open_store(store_path, **SMALL) as store,
        rmqcore.open_store(store_path, mode="r") as reader,
    ):
        # its first round may come at any moment
        assert store.parts.upkeep.runner.stop(store.parts.upkeep.retention)
        for number in range(600):
            store.put("T", b"x" * 1000, keys=f"k{number}", tags="a")
        assert store.max_queue_offset("T", 0) == 600
        reader.refresh()
        gone = []

        def remove_after(see):
            def seen(*args):
                see(*args)
                if not gone:
                    gone.append(store.min_phy_offset)
                    store.delete_expired_files()

            return seen

        follower = reader._follower
        for step in ("catch_up_queue", "catch_up_log", "catch_up_all"):
            monkeypatch.setattr(follower, step, remove_after(getattr(follower, step)))
        answer = read(reader)
        assert gone == [0]
        assert store.min_phy_offset > 0
        low = store.min_queue_offset("T", 0)
        # a file that was open already is read once more
        expected = {
            "get": ("OFFSET_TOO_SMALL", "FOUND"),
            "filter": ("OFFSET_TOO_SMALL", "FOUND"),
            "query": (0, 1),
            "time": (0, low),
            "low": (0, low),
            "at": (None, 0),
            "log": (0, low),
            "queues": ([("T", 0)],),
        }
        assert answer in expected[name]
        assert read(reader) == read(store)


BOUNDS = {
    "begin": lambda store: store.min_phy_offset,
    "end": lambda store: store.max_phy_offset,
    "bounds": lambda store: store.queue_bounds("T", 0),
}


@pytest.mark.parametrize("name", [*READS, *BOUNDS])
def test_a_look_for_the_end_of_the_log_whose_files_go_is_made_again(store_path, monkeypatch, name):
    """Retention removes them after the reader has listed them, before it walks them."""
    read = (READS | BOUNDS)[name]
    with rmqcore.open_store(store_path, **SMALL) as store:
        assert store.parts.upkeep.runner.stop(store.parts.upkeep.retention)
        store.put("T", b"x" * 1000, keys="k0", tags="a")
        assert store.max_queue_offset("T", 0) == 1
        with rmqcore.open_store(store_path, mode="r") as reader:
            for number in range(1, 600):
                store.put("T", b"x" * 1000, keys=f"k{number}", tags="a")
            assert store.max_queue_offset("T", 0) == 600
            find_end, gone = reader._follower._find_end, []

            def find_end_of_less(*args, **settings):
                if not gone:
                    gone.append(store.min_phy_offset)
                    deleter = threading.Thread(target=store.delete_expired_files)
                    deleter.start()
                    deleter.join(TIMEOUT_S)
                return find_end(*args, **settings)

            monkeypatch.setattr(reader._follower, "_find_end", find_end_of_less)
            read(reader)
            assert gone == [0]
            assert store.min_phy_offset > 0
            assert read(reader) == read(store)


#: Writes as fast as it can, keeps only the last files, and stops when it is told to. It waits for
#: retention, which syncs each file that it removes: on a busy disk readers would list thousands.
DELETER = """
import select, sys, time, rmqcore
settings = dict(mapped_file_size_commit_log=65536, mapped_file_size_consume_queue=2000,
    max_hash_slot_num=100, max_index_num=400, retention_bytes=600_000,
    clean_resource_interval_ms=5, delete_commit_log_files_interval_ms=0)
store = rmqcore.open_store(sys.argv[1], **settings)
print("open", flush=True)
number = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    store.put("T", b"%08d" % number * (1 + number % 97), keys="k%d" % (number % 1000))
    number += 1
    if number % 100 == 0:
        time.sleep(0.002)
        while store.max_phy_offset - store.min_phy_offset > 4_000_000:
            time.sleep(0.002)
store.close()
"""


def test_a_reader_beside_retention(store_path):
    with Program("-c", DELETER, store_path) as writer:
        assert writer.line() == "open"
        rounds, lows = 0, set()
        # until files have gone beside so many readers, and to the writer's end
        while writer.process.poll() is None:
            if rounds == 10:
                writer.say("stop")
            rounds += len(lows) > 1
            with rmqcore.open_store(store_path, mode="r") as store:
                for _ in range(10):
                    low = store.min_queue_offset("T", 0)
                    lows.add(low)
                    for message in store.get_message("T", 0, low, max_messages=500).messages:
                        check(message, message.queue_offset)
                    for message in store.query_message("T", f"k{rounds % 1000}").messages:
                        assert message.queue_offset % 1000 == rounds % 1000
                    store.queue_offset_by_time("T", 0, 1)
                    for message in store.messages(stop=store.min_phy_offset + 65536):
                        check(message, message.queue_offset)
                    store.message_at(store.min_phy_offset)
        assert rounds > 10
