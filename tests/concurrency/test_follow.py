"""Another process reads beside a writer at full speed: whole messages, each once, in order."""

import subprocess
import sys

import pytest

import rmqcore

#: Writes as fast as it can for some seconds; bodies say what they must be.
WRITER = """
import sys, time, rmqcore
path, how, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
settings = dict(mapped_file_size_commit_log=262144, mapped_file_size_consume_queue=20000,
    max_hash_slot_num=1000, max_index_num=4000)
if how == "pool":
    settings |= dict(transient_store_pool_enable=True, transient_store_pool_size=3)
elif how == "sync":
    settings |= dict(flush_disk_type="SYNC_FLUSH")
store = rmqcore.open_store(path, **settings)
print("open", flush=True)
number, end = 0, time.monotonic() + seconds
while time.monotonic() < end:
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
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(store_path), how, "1.0"], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout.readline() == b"open\n"
        with rmqcore.open_store(store_path, mode="r") as store:
            read, rounds = 0, 0
            while writer.poll() is None:
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
            total = int(writer.stdout.read())
            for message in store.messages("T", 0, start=read):
                check(message, read)
                read += 1
            assert read == total
            assert rounds > 3
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
