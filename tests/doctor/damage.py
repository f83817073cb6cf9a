"""Ways to damage a copy of a store, and what of its messages stays whole."""

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import rmqcore


@dataclass(frozen=True)
class Known:
    """A message of the intact store."""

    topic: str
    queue_id: int
    queue_offset: int
    phy_offset: int
    record: bytes


def known_messages(store):
    """Every message that the queues of an intact store lead to."""
    found = []
    with rmqcore.open_store(store, mode="r") as opened:
        for topic, queue_id in opened.queues():
            for message in opened.messages(topic, queue_id):
                place = message.queue_offset
                if not topic.startswith("%LMQ%"):
                    record = bytes(message.record)
                    found.append(Known(topic, queue_id, place, message.phy_offset, record))
    return found


def log_files(store):
    return sorted((store / "commitlog").iterdir())


def whole(store, messages, file_size):
    """Those messages whose bytes all lie where they were."""
    files = {int(path.name): path.read_bytes() for path in log_files(store)}
    found = []
    for message in messages:
        start, at = divmod(message.phy_offset, file_size)
        if files.get(start * file_size, b"").startswith(message.record, at):
            found.append(message)
    return found


FILE_SIZE = 1 << 14
SIZES = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 20 * 16,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
}


def damage_all(path):
    """Make a small store with every kind of damage; the messages of which all bytes are left."""
    with rmqcore.open_store(path, config=SIZES) as store:
        for number in range(60):
            store.put("T", b"%d" % number * 300, queue_id=number % 2, keys=f"k{number}")
    known = known_messages(path)
    files = log_files(path)
    overwrite(files[0], 3000, bytes(2500))
    files[1].write_bytes(files[1].read_bytes()[:9000])
    (path / "commitlog" / f"{777:020d}").write_bytes(b"stray")
    last = [file for file in files if file.read_bytes().strip(b"\0")][-1]
    overwrite(last, len(last.read_bytes().rstrip(b"\0")), b"torn")
    (path / "config" / "subscriptionGroup.json").write_text("{")
    (path / "config" / "topics.json").write_text("{")
    (path / "config" / "topics.json.bak").write_text('{"topicConfigTable":{}}')
    (path / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:999}}}')
    (path / "checkpoint").write_bytes(b"\xff" * 40)
    (path / "abort").write_text("1")
    return whole(path, known, FILE_SIZE)


def assert_found(store, messages, *, at_once=32):
    """Every message is found through its queue, under its number, byte for byte.

    Beside damage each is read alone, at once 1: what is read with a damaged one is not had.
    """
    found = {}
    with rmqcore.open_store(store, mode="r") as opened:
        for one in messages:
            place = one.topic, one.queue_id, one.queue_offset
            if place not in found:
                for message in opened.get_message(*place, max_messages=at_once).messages:
                    found[*place[:2], message.queue_offset] = bytes(message.record)
            assert found.get(place) == one.record, one


def overwrite(path, at, data):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path, at, bits=1):
    overwrite(path, at, bytes([path.read_bytes()[at] ^ bits]))


def used(path):
    """Bytes of a file up to the last one that is not zero."""
    return len(path.read_bytes().rstrip(b"\0"))


def middle(store):
    files = log_files(store)
    return files[len(files) // 2]


def last_used(store):
    return [path for path in log_files(store) if used(path)][-1]


def torn_tail(store):
    path = last_used(store)
    end = used(path)
    overwrite(path, end - 40, bytes(25))
    if end + 300 < path.stat().st_size:
        overwrite(path, end, b"\xda" * 300)


def zeroed_region(store):
    path = middle(store)
    overwrite(path, path.stat().st_size // 3, bytes(path.stat().st_size // 5))


def flipped_body(store):
    path = middle(store)
    flip(path, int.from_bytes(path.read_bytes()[:4], "big") - 1 - 200 % 3)
    flip(path, 100, 255)


def damaged_head_of_a_file(store):
    overwrite(middle(store), 0, b"\xff" * 1000)


def damaged_head_of_the_log(store):
    overwrite(log_files(store)[0], 0, bytes(64))


def damaged_end_of_a_file(store):
    path = middle(store)
    size = path.stat().st_size
    overwrite(path, size - size // 8, b"\x55" * (size // 8))


def zeroed_file(store):
    path = middle(store)
    path.write_bytes(bytes(path.stat().st_size))


def missing_log_file(store):
    middle(store).unlink()


def short_log_file(store):
    path = middle(store)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2 + 11)


def empty_log_file(store):
    middle(store).write_bytes(b"")


def long_log_file(store):
    with middle(store).open("ab") as file:
        file.write(b"something that was appended")


def short_last_log_file(store):
    path = last_used(store)
    with path.open("r+b") as file:
        file.truncate(used(path) + 3)


def stray_log_file(store):
    (store / "commitlog" / f"{12345:020d}").write_bytes(b"no log")


def queue_files(store):
    return sorted(path for path in (store / "consumequeue").glob("*/*/*") if used(path))


def copied_log_file(store):
    shutil.copyfile(log_files(store)[0], store / "commitlog" / f"{12345:020d}")


def renamed_queues(store):
    topic = queue_files(store)[0].parent.parent
    topic.rename(topic.with_name(topic.name + "-bak"))


def flipped_unit(store):
    flip(queue_files(store)[0], 5)


def missing_queue_file(store):
    queue_files(store)[-1].unlink()


def short_queue_file(store):
    path = queue_files(store)[0]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2 + 7)


def no_consume_queues(store):
    shutil.rmtree(store / "consumequeue")


def index_files(store):
    return sorted((store / "index").iterdir())


def flipped_index(store):
    flip(index_files(store)[0], 40 + 2)
    flip(index_files(store)[0], 38)


def missing_index_file(store):
    index_files(store)[0].unlink()


def no_index(store):
    shutil.rmtree(store / "index")


def short_index_file(store):
    path = index_files(store)[0]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 10)


def garbled_json(store):
    config = store / "config"
    config.mkdir(exist_ok=True)
    (config / "topics.json").write_text('{"topicConfigTable":{"T')
    (config / "topics.json.bak").write_text('{"topicConfigTable":{}}')
    (config / "subscriptionGroup.json").write_bytes(b"\0" * 50)
    (config / "delayOffset.json.bak").write_text("{")
    (config / "delayOffset.json").write_text('{"offsetTable":{}}')


def offsets_ahead(store):
    config = store / "config"
    config.mkdir(exist_ok=True)
    topic, queue = queue_files(store)[0].parts[-3:-1]
    (config / "consumerOffset.json").write_text(
        f'{{"offsetTable":{{"{topic}@group":{{{queue}:99999999}}}}}}'
    )


def broken_checkpoint(store):
    (store / "checkpoint").write_bytes(b"\xff" * 100)


def checkpoint_of_the_future(store):
    overwrite(store / "checkpoint", 0, (2**50).to_bytes(8, "big") * 3)


def missing_checkpoint_and_abort(store):
    (store / "checkpoint").unlink()
    (store / "abort").write_text("4711")


DAMAGES = (
    torn_tail,
    zeroed_region,
    flipped_body,
    damaged_head_of_a_file,
    damaged_head_of_the_log,
    damaged_end_of_a_file,
    zeroed_file,
    missing_log_file,
    short_log_file,
    empty_log_file,
    long_log_file,
    short_last_log_file,
    stray_log_file,
    copied_log_file,
    renamed_queues,
    flipped_unit,
    missing_queue_file,
    short_queue_file,
    no_consume_queues,
    flipped_index,
    missing_index_file,
    no_index,
    short_index_file,
    garbled_json,
    offsets_ahead,
    broken_checkpoint,
    checkpoint_of_the_future,
    missing_checkpoint_and_abort,
)


def some_damage(store: Path, rng: random.Random) -> list[str]:
    """A few random damages anywhere in a store; what was done, in words."""
    done = []
    for _ in range(rng.randint(1, 4)):
        files = sorted(path for path in store.rglob("*") if path.is_file() and path.name != "lock")
        path = rng.choice(files)
        size = path.stat().st_size
        kind = rng.choice(["zeros", "noise", "flip", "cut", "remove", "append"])
        if kind == "remove":
            path.unlink()
        elif kind == "cut":
            with path.open("r+b") as file:
                file.truncate(rng.randint(0, size))
        elif kind == "append":
            with path.open("ab") as file:
                file.write(rng.randbytes(rng.randint(1, 300)))
        elif size:
            at = rng.randrange(size)
            length = 1 if kind == "flip" else rng.randint(1, min(size - at, 6000))
            noise = bytes(length) if kind == "zeros" else rng.randbytes(length)
            overwrite(path, at, noise)
        done.append(f"{kind} {path.relative_to(store)}")
    return done
