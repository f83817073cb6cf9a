"""A directory, a pipe or a link to nowhere in the place of a file ends in an error of ours."""

import os
import shutil
from functools import partial

import pytest

import rmqcore
from golden.check import digest_tree
from rmqcore import CorruptStoreError, RmqCoreError, doctor
from rmqcore.doctor.kept_files import remove

pytestmark = pytest.mark.engine

FILE_SIZE = 1 << 14
SIZES = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 20 * 16,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
}
LOG_FILES = [f"commitlog/{number * FILE_SIZE:020d}" for number in (0, 1, 2, 7)]
PLACES = [
    "checkpoint",
    "abort",
    "lock",
    "doctor",
    "doctor/0001",
    "config",
    "config/topics.json",
    "config/storeMark.json",
    "config/consumerLeases.log",
    "config/timercheck",
    "consumequeue",
    "consumequeue/T",
    "consumequeue/T/0",
    f"consumequeue/T/0/{0:020d}",
    f"consumequeue/T/0/{320:020d}",
    "index",
]
WORKS = [
    doctor.verify,
    doctor.plan,
    doctor.explain,
    partial(rmqcore.open_store, mode="r"),
    doctor.repair,
    rmqcore.open_store,
]


def link_to_nowhere(path):
    path.symlink_to("/nowhere/at/all")


def link_to_itself(path):
    path.symlink_to(path)


def directory(path):
    path.mkdir()


def regular_file(path):
    path.write_bytes(b"x")


KINDS = [directory, link_to_nowhere, link_to_itself, os.mkfifo, regular_file]


@pytest.fixture
def store(store_path):
    with rmqcore.open_store(store_path, config=SIZES) as opened:
        for number in range(60):
            opened.put("T", b"%d" % number * 100, queue_id=number % 2)
        opened.put("rmq_sys_wheel_timer", b"later")
    return store_path


def copies(store, name, kind):
    """A copy of the store for each kind of work, with something else in a place of it."""
    for work in WORKS:
        copy = shutil.copytree(store, store.with_name("copy"))
        place = copy / name
        remove(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        kind(place)
        yield copy, work
        shutil.rmtree(copy)


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("name", LOG_FILES)
def test_what_is_no_log_file_is_named_by_all_and_nothing_is_changed(store, name, kind):
    for copy, work in copies(store, name, kind):
        before = digest_tree(copy)
        with pytest.raises(CorruptStoreError, match=f"{name}: .* move it away"):
            work(copy)
        assert digest_tree(copy) == before


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_what_has_the_name_of_a_queue_file_is_told_and_repaired(store, kind):
    place = store / f"consumequeue/T/0/{1:020d}"
    kind(place)
    with pytest.raises(CorruptStoreError, match="move it away"):
        rmqcore.open_store(store)
    found = doctor.verify(store)
    assert not found.clean
    assert {one.path for one in found.findings} == {place}
    assert not doctor.explain(store).found
    assert doctor.repair(store).clean
    rmqcore.open_store(store).close()


@pytest.mark.parametrize("name", ["consumequeue/T", "consumequeue/T/0"])
def test_a_file_in_the_place_of_a_queue_is_what_explain_tells(store, name):
    shutil.rmtree(store / name)
    (store / name).write_bytes(b"x")
    told = doctor.explain(store)
    assert not told.found
    with pytest.raises(CorruptStoreError) as refused:
        rmqcore.open_store(store)
    assert told.reason == str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PLACES)
def test_no_kind_of_file_ends_in_an_error_of_the_system(store, name, kind):
    for copy, work in copies(store, name, kind):
        try:
            done = work(copy)
        except RmqCoreError:
            continue
        if isinstance(done, rmqcore.ReadOnlyMessageStore | rmqcore.DefaultMessageStore):
            done.close()
