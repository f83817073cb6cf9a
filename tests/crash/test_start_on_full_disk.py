"""A store is opened on a full disk: what is there is consumed, which alone makes room again."""

import contextlib
import os
import shutil

import pytest
from children import run_child
from patience import until

import rmqcore
from crash.small_store import SETTINGS, numbers_in, put
from crash.test_disk_full import fill, put_until_full
from rmqcore import DiskFullError, doctor

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs"),
]


def consume(store, most=None):
    """Consume what there is; the numbers of what was acknowledged."""
    done = []
    with rmqcore.Consumer(store, "workers", {"T0": "*", "T1": "*"}) as consumer:
        while (most is None or len(done) < most) and (
            received := consumer.receive(max_messages=1, timeout_ms=0)
        ):
            consumer.ack(*received)
            done += [int(bytes(message.body).split()[0]) for message in received]
    return done


def is_level(store):
    return store.dispatch_behind_bytes == 0 and store.why_not_writable() is None


@pytest.mark.parametrize("leave_kib", [0, 12, 48])
@pytest.mark.parametrize("consumed", [1, 60])
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_it_is_opened_consumed_from_and_written_again(
    small_disk,
    caplog,
    leave_kib,
    consumed,
    how,
):
    path = small_disk(4096) / "store"
    ballast = path.parent / "ballast"

    def work(tell):
        store = rmqcore.open_store(path, allocate_ahead=0, **SETTINGS)
        put_now = [n for n in range(200) if put(store, n).ok]
        seen = consume(store, consumed)
        fill(path.parent, leave_kib << 10)
        more, error = put_until_full(store, 200)
        assert error is not None
        tell((put_now + more, seen))
        if how == "closed":
            with contextlib.suppress(DiskFullError):
                store.close()

    code, told = run_child(work)
    assert code == 0
    put_now, seen = told[0]
    fill(path.parent, 0)
    store = rmqcore.open_store(path, allocate_ahead=0)
    assert "cut off" not in caplog.text
    assert numbers_in(store) == put_now
    seen += consume(store)
    assert len(seen) >= 150
    assert store.delete_consumed_files() > 0
    ballast.unlink()
    until(lambda: is_level(store), "all is dispatched, and puts are taken")
    put_now += [n for n in range(9990, 10_000) if put(store, n).ok]
    seen += consume(store)
    assert sorted(seen) == put_now
    store.close()
    with rmqcore.open_store(path) as store:
        assert store.recovery_report.clean_shutdown
        assert consume(store) == []
    assert doctor.verify(path, deep=True).findings == []


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_queue_that_was_only_put_into_has_room_for_who_gets(small_disk, how):
    path = small_disk(4096) / "jobs"
    settings = {"mapped_file_size_commit_log": 65_536, "allocate_ahead": 0}

    def work(tell):
        jobs = rmqcore.Queue(path, **settings)
        jobs.put(0)
        assert len(jobs) == 1
        fill(path.parent, 0)
        taken = 1
        with contextlib.suppress(DiskFullError):
            while True:
                jobs.put(taken)
                taken += 1
        tell(taken)
        if how == "closed":
            with contextlib.suppress(DiskFullError):
                jobs.close()

    code, (taken,) = run_child(work)
    assert code == 0
    fill(path.parent, 0)
    jobs, got = rmqcore.Queue(path, **settings), []
    while not jobs.empty():
        got.append(jobs.get(block=False))
        jobs.done()
    assert got == list(range(taken))
    with contextlib.suppress(DiskFullError):
        jobs.close()


def test_what_was_put_to_a_topic_made_anew_keeps_its_numbers(small_disk):
    path = small_disk(2048) / "store"

    def work(tell):
        store = rmqcore.open_store(path, allocate_ahead=0, **SETTINGS)
        for number in range(20):
            put(store, number)
        store.delete_topic("T0")
        fill(path.parent, 0)
        put_now, _ = put_until_full(store, 20)
        assert put_now
        tell([*range(1, 20, 2), *put_now])

    code, (put_now,) = run_child(work)
    assert code == 0
    fill(path.parent, 0)
    with rmqcore.open_store(path, allocate_ahead=0) as store:
        (path.parent / "ballast").unlink()
        until(lambda: is_level(store), "all is dispatched, and puts are taken")
        put_now += [number for number in range(9990, 10_000) if put(store, number).ok]
        for topic, queue_id in store.queues():
            numbers = [message.queue_offset for message in store.messages(topic, queue_id)]
            assert numbers == [*range(len(numbers))]
        assert sorted(consume(store)) == put_now


def queues_of(store):
    """The numbers of the messages of each queue, as a consumer gets them."""
    return {
        queue: [int(bytes(message.body).split()[0]) for message in store.messages(*queue)]
        for queue in store.queues()
    }


def lose_queues(path):
    shutil.rmtree(path / "consumequeue")


def lose_one_unit(path):
    """As a power cut does with a page: in front of units that are there, and far behind."""
    (path / "abort").touch()
    files = sorted((path / "consumequeue/T0/0").iterdir())
    with files[-2].open("r+b") as file:
        file.seek(60)
        file.write(bytes(20))


@pytest.mark.parametrize("lose", [lose_queues, lose_one_unit])
def test_what_its_queues_lack_is_not_passed_over(small_disk, lose):
    path = small_disk(8192) / "store"
    settings = SETTINGS | {"max_hash_slot_num": 2000, "max_index_num": 400}
    with rmqcore.open_store(path, allocate_ahead=0, **settings) as store:
        for number in range(400):
            put(store, number)
        put_now = queues_of(store)
    shutil.rmtree(path / "index")
    lose(path)
    fill(path.parent, 0)
    with contextlib.suppress(DiskFullError):
        store = rmqcore.open_store(path, allocate_ahead=0, **settings)
        (path.parent / "ballast").unlink()
        until(lambda: store.dispatch_behind_bytes == 0, "all is dispatched")
        found = queues_of(store)
        store.close()
        assert found == put_now
    (path.parent / "ballast").unlink(missing_ok=True)
    with rmqcore.open_store(path, **settings) as store:
        assert queues_of(store) == put_now
