"""A store that rolls every file within a few dozen messages, and the oracle's view of it."""

from patience import until

from reference.index import IndexRule
from reference.store import ReferenceStore, Sizes, read_files

SIZES = Sizes(consume_queue_file=200, slot_num=16, entry_num=64)
SETTINGS = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 16,
    "max_index_num": 64,
}
NAMES = {
    *("abort", "checkpoint", "commitlog", "config", "consumequeue", "index", "lock"),
    # what an opening has cut off the log
    "doctor",
}


def body_of(number):
    """The body of message `number`, which says which it is."""
    return b"%d " % number * (1 + number % 23)


def put(store, number, **more):
    """Put message `number`; which queue and which keys follow from it."""
    return store.put(
        f"T{number % 2}",
        body_of(number),
        queue_id=number // 2 % 2,
        tags=f"tag{number % 3}",
        keys=(f"k{number}", f"m{number % 7}"),
        **more,
    )


def numbers_in(store):
    """The numbers of the messages in log order; each must be whole."""
    found = []
    for message in store.messages():
        body = bytes(message.body)
        number = int(body.split()[0])
        assert body == body_of(number)
        assert message.topic == f"T{number % 2}"
        found.append(number)
    return found


def check_against_log(store, sizes=SIZES):
    """Compare all that a store answers, and all its files, with what its log alone says."""
    path = store.path
    store.flush()
    oracle = ReferenceStore(path, sizes)
    assert [m.phy_offset for m in store.messages()] == [r.phy_offset for r in oracle.records]
    assert set(store.queues()) == set(oracle.queues)
    for topic, queue_id in oracle.queues:
        records = oracle.queue(topic, queue_id)
        first = oracle.min_queue_offset(topic, queue_id)
        result = store.get_message(topic, queue_id, first, max_messages=10**6)
        assert [m.phy_offset for m in result.messages] == [r.phy_offset for r in records]
        assert [bytes(m.body) for m in result.messages] == [r.body for r in records]
    for key in {(r.topic, key) for r in oracle.records for key in r.keys}:
        found = [m.phy_offset for m in store.query_message(*key, max_messages=10**6).messages]
        assert found == oracle.query(*key)
    check_files(path, oracle)


def check_files(path, oracle):
    """Consume queues and index are the oracle's byte for byte, and nothing else lies about."""
    queues = {
        f"consumequeue/{queue.parent.name}/{queue.name}/{start:020d}": data
        for queue in (path / "consumequeue").glob("*/*")
        for start, data in read_files(queue).items()
    }
    assert queues == oracle.consume_queue_files()
    index = [file.read_bytes() for file in sorted((path / "index").iterdir())]
    derived = oracle.index_files(IndexRule.KEYS_AND_TAGS)
    assert index == [bytes(file.data) for file in derived if file.header.index_count > 1]
    assert {entry.name for entry in path.iterdir()} <= NAMES
    assert all(len(entry.name) == 20 for entry in (path / "commitlog").iterdir())
    # a store that is open may be writing one of them at this moment
    until(
        lambda: not [entry for entry in (path / "config").iterdir() if "tmp" in entry.name],
        "every file below config/ has its name",
    )
