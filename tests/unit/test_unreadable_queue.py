"""A reader of another process's store: a queue with a damaged unit hides no other queue."""

import pytest

from rmqcore import CorruptConsumeQueueError, CorruptStoreError, open_store

pytestmark = pytest.mark.engine

COUNT = 300


@pytest.fixture
def damaged(store_path):
    """A store of three queues, of which T/0 has a unit that no writer makes."""
    with open_store(store_path) as store:
        for number in range(COUNT):
            for topic, queue_id in (("T", 0), ("T", 1), ("U", 0)):
                store.put(topic, b"%d" % number, queue_id=queue_id)
    damage(store_path, 0x80)
    return store_path


def damage(path, mask):
    with (path / "consumequeue/T/0" / f"{0:020}").open("r+b") as queue:
        queue.seek(150 * 20)
        (high,) = queue.read(1)
        queue.seek(150 * 20)
        queue.write(bytes([high ^ mask]))


def offsets(store, topic, queue_id):
    found, at = [], 0
    while messages := store.get_message(topic, queue_id, at, max_messages=COUNT).messages:
        found += [message.queue_offset for message in messages]
        at = found[-1] + 1
    return found


def test_all_others_are_read_and_it_is_told(damaged):
    with open_store(damaged, mode="r") as store:
        assert store.queues() == [("T", 0), ("T", 1), ("U", 0)]
        for queue in (("T", 1), ("U", 0)):
            assert offsets(store, *queue) == list(range(COUNT))
        for ask in (store.max_queue_offset, store.min_queue_offset, store.consume_queues.find):
            with pytest.raises(CorruptConsumeQueueError, match="no unit can look like the one"):
                ask("T", 0)
        with pytest.raises(CorruptConsumeQueueError):
            offsets(store, "T", 0)
        assert len(list(store.messages("U"))) == COUNT
        assert len(list(store.messages())) == 3 * COUNT
        (told,) = store.missing()
        assert told.startswith("queue T/0 cannot be read: ")
        assert store.missing(queues=False) == []


def test_it_is_read_when_a_writer_has_derived_it(damaged):
    with open_store(damaged, mode="r") as reader:
        with open_store(damaged) as writer:
            assert offsets(reader, "T", 0) == list(range(COUNT))
            writer.put("T", b"more")
            assert writer.max_queue_offset("T", 0) == COUNT + 1
            assert reader.max_queue_offset("T", 0) == COUNT + 1
        assert reader.missing() == []


@pytest.mark.parametrize("how", ["shorter", "longer", "missing"])
def test_a_queue_with_a_file_of_another_length_hides_no_other(store_path, how):
    with open_store(store_path, mapped_file_size_consume_queue=60 * 20) as store:
        for number in range(COUNT):
            for queue_id in (0, 1):
                store.put("T", b"%d" % number, queue_id=queue_id)
    file = store_path / "consumequeue/T/0" / f"{60 * 20:020}"
    raw = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(raw[:-20] if how == "shorter" else raw + raw)
    with open_store(store_path, mode="r") as store:
        assert offsets(store, "T", 1) == list(range(COUNT))
        with pytest.raises(CorruptStoreError, match=r"has|is missing"):
            offsets(store, "T", 0)
        (told,) = store.missing()
        assert told.startswith("queue T/0 cannot be read: ")
        file.write_bytes(raw)
        assert offsets(store, "T", 0) == list(range(COUNT))


def test_a_unit_that_says_fewer_bytes_than_none_is_damage(store_path):
    """Of a file that is looked at when it is read, and not before."""
    with open_store(store_path, mapped_file_size_consume_queue=20 * 8) as store:
        for number in range(64):
            store.put("T", b"%d" % number)
    with (store_path / "consumequeue/T/0" / f"{0:020}").open("r+b") as queue:
        queue.seek(20 * 3 + 8)
        queue.write(b"\xff")
    with open_store(store_path, mode="r") as store:
        with pytest.raises(CorruptConsumeQueueError, match="a unit says -"):
            store.get_message("T", 0, 3, max_messages=1)
        assert len(store.get_message("T", 0, 4, max_messages=60).messages) == 60
