"""What holds after closing, kills, cut journals and strangers: no more comes again than is open."""

import errno
import os
import shutil

import pytest
from children import die, run_child
from consume.conftest import TOPIC, bodies, places, put

import rmqcore
from rmqcore import CorruptConfigFileError, DiskFullError
from rmqcore.doctor import Severity, verify
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.store.consume import holders
from rmqcore.store.consume.holders import is_elsewhere, is_gone, is_mine, new_holder

pytestmark = pytest.mark.process

#: of the journal: the version
FIRST_RECORD_SIZE = 11


@pytest.fixture
def journal(store_path):
    return store_path / "config" / "consumerLeases.log"


@pytest.fixture
def filled(opened):
    """`opened`, of a store that has five messages and is closed."""
    store = opened()
    put(store, 5)
    store.close()
    return opened


@pytest.mark.engine
@pytest.mark.parametrize("write", [True, False])
def test_no_group_passes_over_what_is_put_after_a_power_cut(
    store_path, tmp_path, monkeypatch, write
):
    """The offsets were on the disk before the messages were that they passed over."""
    cut, name = tmp_path / "cut", "config/consumerOffset.json"
    with rmqcore.open_store(store_path) as store:
        put(store, 2)
        store.flush()
        shutil.copytree(store_path, cut, copy_function=shutil.copyfile)
        put(store, 5)
        store.acknowledge("g", places(store.lease("g", TOPIC)))
        store.flush()
        shutil.copyfile(store_path / name, cut / name)
    with monkeypatch.context() as full:
        if not write:
            full.setattr(ConsumerOffsetTable, "persist", _refused)
        store = rmqcore.open_store(cut)
        assert store.consumer_offsets.get("T", "g", 0) == 2
    if write:
        assert ConsumerOffsetTable(cut / "config", clock=int).get("T", "g", 0) == 2
    put(store, 3)
    assert bodies(store.lease("g", TOPIC)) == [b"0", b"1", b"2"]
    store.close()


@pytest.mark.engine
def test_no_group_passes_over_what_is_put_after_a_tail_was_cut_off(store_path, journal):
    with rmqcore.open_store(store_path) as store:
        receipts = [store.put("T", b"%d" % number) for number in range(7)]
        store.acknowledge("g", places(store.lease("g", TOPIC)))
    journal.unlink()
    with (store_path / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(receipts[2].phy_offset)
        log.write(bytes(2000))
    with rmqcore.open_store(store_path, on_corruption="truncate") as store:
        assert store.consumer_offsets.get("T", "g", 0) == store.max_queue_offset("T", 0) == 2
        put(store, 3)
        assert bodies(store.lease("g", TOPIC)) == [b"0", b"1", b"2"]


def _refused(_):
    raise DiskFullError("/disk")


def killed(opened, work):
    """Do something with the store in a process that is killed right behind it."""

    def child(_):
        work(opened())
        die()

    assert run_child(child)[0] == -9


def some_of_each(store):
    """Lease 0 to 3, acknowledge 0 and 2, give back 3; 4 is untouched."""
    found = places(store.lease("g", TOPIC, max_messages=4, holder="h"))
    store.acknowledge("g", [found[0], found[2]])
    store.give_back("g", [found[3]], delay_ms=0)


def check_some_of_each(store, clock):
    assert store.consumer_offsets.get("T", "g", 0) == 1
    again = store.lease("g", TOPIC)
    assert bodies(again) == [b"3", b"4"]
    assert [m.place.attempt for m in again] == [1, 0]
    clock.pass_ms(30_000)
    assert bodies(store.lease("g", TOPIC)) == [b"1", b"3", b"4"]


def test_all_holds_after_closing(filled, clock):
    store = filled()
    some_of_each(store)
    store.close()
    check_some_of_each(filled(), clock)


def test_all_holds_after_a_kill(filled, clock):
    killed(filled, some_of_each)
    check_some_of_each(filled(), clock)


def test_all_holds_after_a_kill_while_the_offsets_are_written_at_close(filled, clock):
    def close(store):
        some_of_each(store)
        store.consumer_offsets.persist = die
        store.close()

    killed(filled, close)
    check_some_of_each(filled(), clock)


@pytest.mark.parametrize("closes", [False, True])
def test_what_is_leased_for_nobody_by_name_comes_again_with_the_end_of_its_process(filled, closes):
    def work(store):
        assert len(store.lease("g", TOPIC, max_messages=3, lease_ms=3_600_000)) == 3
        if closes:
            store.close()

    killed(filled, work)
    assert bodies(filled().lease("g", TOPIC)) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_consumer_that_was_killed_leaves_all_at_once(filled):
    killed(filled, lambda store: rmqcore.Consumer(store, "g", TOPIC).receive(3))
    again = rmqcore.Consumer(filled(), "g", TOPIC).receive(9)
    assert bodies(again) == [b"0", b"1", b"2", b"3", b"4"]
    assert [m.reconsume_times for m in again] == [1, 1, 1, 0, 0]


def test_holders_are_known_to_be_gone_or_not():
    assert is_mine(new_holder())
    assert not is_gone(new_holder())
    assert not is_gone("")
    assert not is_gone("worker-7")
    # as a client of a shared store may call itself: more digits than a number of Python's may have
    _, _, namespace = new_holder().partition("-")[0].split(".")
    assert not is_gone(f"{'9' * 5000}.5.{namespace}-x")
    assert not is_gone(f"5.{'9' * 5000}.{namespace}-x")
    pid, tick, namespace = new_holder().partition("-")[0].split(".")
    other_start = f"{pid}.{int(tick) + 1}.{namespace}-x"
    assert is_gone(other_start)
    assert not is_mine(other_start)
    elsewhere = f"{pid}.{tick}.{int(namespace) + 1}-x"
    assert not is_gone(elsewhere)
    assert not is_mine(elsewhere)


def test_a_process_that_proc_hides_is_not_gone(tmp_path, monkeypatch):
    """As ``hidepid`` hides those of other users."""
    holder = new_holder()
    _, _, namespace = holder.partition("-")[0].split(".")
    (tmp_path / "self").symlink_to("/proc/self")
    monkeypatch.setattr(holders, "_PROC", tmp_path)
    assert not is_gone(holder)
    assert is_elsewhere(holder)
    # more than Linux counts to
    for pid in (2**22 + 1, 10**19):
        assert is_gone(f"{pid}.5.{namespace}-x")
        assert not is_elsewhere(f"{pid}.5.{namespace}-x")


def test_who_holds_in_another_pid_namespace_holds_on_after_a_kill(filled):
    pid, tick, namespace = new_holder().partition("-")[0].split(".")
    holder = f"{pid}.{int(tick) + 1}.{int(namespace) + 1}-x"
    killed(filled, lambda store: store.lease("g", TOPIC, holder=holder, max_messages=3))
    assert bodies(filled().lease("g", TOPIC)) == [b"3", b"4"]


def test_what_a_power_cut_leaves_of_the_journal_counts(filled, journal, clock):
    """Whatever is left: nothing that is open is lost, and nothing comes that was never there."""
    killed(filled, some_of_each)
    whole = journal.read_bytes()
    clock.pass_ms(30_000)
    # the file as it was opened is on the disk: at least its first record, of 11 bytes
    for number, cut in enumerate(range(11, len(whole), 7)):
        journal.write_bytes(whole[:cut] + (b"", b"\0" * 7, b"\xff" * 20)[number % 3])
        store = filled()
        found = bodies(store.lease("g", TOPIC))
        assert set(found) >= {b"1", b"3", b"4"}
        assert len(set(found)) == len(found)
        store.close()
        store.consumer_offsets.remove(group="g")
        store.consumer_offsets.persist()


def test_offsets_that_were_saved_later_than_the_journal_count(filled, journal, store_path, clock):
    killed(filled, some_of_each)
    table = ConsumerOffsetTable(store_path / "config", clock=clock)
    table.commit("T", "g", 0, 2)
    table.persist()
    store = filled()
    clock.pass_ms(30_000)
    assert bodies(store.lease("g", TOPIC)) == [b"3", b"4"]


@pytest.mark.parametrize("offset", [0, 3, 5])
def test_an_offset_that_somebody_set_meanwhile_counts(filled, store_path, clock, offset):
    store = filled()
    some_of_each(store)
    store.close()
    table = ConsumerOffsetTable(store_path / "config", clock=clock)
    table.commit("T", "g", 0, offset)
    table.persist()
    assert bodies(filled().lease("g", TOPIC)) == [b"%d" % n for n in range(offset, 5)]


def test_a_group_that_somebody_removed_meanwhile_begins_anew(filled, store_path, clock):
    store = filled()
    some_of_each(store)
    store.close()
    table = ConsumerOffsetTable(store_path / "config", clock=clock)
    table.remove(group="g")
    table.persist()
    assert len(filled().lease("g", TOPIC)) == 5


def test_a_file_of_another_kind_is_refused_and_stays(filled, journal):
    journal.write_bytes(b"something else altogether")
    with pytest.raises(CorruptConfigFileError, match="journal of leases"):
        filled()
    assert journal.read_bytes() == b"something else altogether"


def test_nothing_counts_that_has_no_room(filled, monkeypatch):
    store = filled()
    found = places(store.lease("g", TOPIC, max_messages=2))
    write = os.write

    def full(file, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFullError):
        store.acknowledge("g", found)
    with pytest.raises(DiskFullError):
        store.lease("g", TOPIC)
    monkeypatch.setattr(os, "write", write)
    assert store.lag("g", ["T"])[0].leased == 2
    again = store.lease("g", TOPIC)
    assert bodies(again) == [b"2", b"3", b"4"]
    assert {m.place.attempt for m in again} == {0}
    assert store.acknowledge("g", found) == 2


def test_half_a_record_hides_nothing(filled, monkeypatch, clock):
    store = filled()
    found = places(store.lease("g", TOPIC))
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
    with pytest.raises(DiskFullError):
        store.acknowledge("g", found[:1])
    monkeypatch.setattr(os, "write", write)
    assert store.acknowledge("g", found[1:]) == 4
    store.close()
    clock.pass_ms(30_000)
    assert bodies(filled().lease("g", TOPIC)) == [b"0"]


def test_the_journal_is_compacted(filled, journal, monkeypatch, clock):
    monkeypatch.setattr("rmqcore.store.consume.lease_table._COMPACT_AT_LEAST", 4000)
    store = filled()
    kept = places(store.lease("g", TOPIC, holder="h", max_messages=1, lease_ms=1 << 30))
    for _ in range(1000):
        (message,) = store.lease("g", TOPIC, max_messages=1, max_reconsume_times=5000)
        store.give_back("g", [message.place], delay_ms=0, max_reconsume_times=5000)
    assert journal.stat().st_size < 8000
    store.close()
    store = filled()
    assert store.lag("g", ["T"])[0][2:] == (0, 4, 1)
    assert store.acknowledge("g", kept) == 1


def test_a_log_that_was_cut_takes_the_leases_of_its_end_with_it(filled, store_path, clock):
    """Messages that a power cut took are put once more, and come."""
    killed(filled, lambda store: store.acknowledge("g", places(store.lease("g", TOPIC))))
    log = store_path / "commitlog" / f"{0:020}"
    with rmqcore.open_store(store_path, mode="r") as reader:
        end = list(reader.messages())[2].phy_offset
    size = log.stat().st_size
    with log.open("r+b") as file:
        file.truncate(end)
        file.truncate(size)
    for part in ("consumequeue", "index"):
        for path in sorted((store_path / part).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    (store_path / "config" / "storeMark.json").unlink()
    store = filled()
    assert store.max_queue_offset("T", 0) == 2
    assert store.lease("g", TOPIC) == []
    put(store, 1)
    assert bodies(store.lease("g", TOPIC)) == [b"0"]


@pytest.mark.parametrize("count", [40, pytest.param(None, marks=pytest.mark.storm)])
def test_a_flipped_bit_of_the_journal_loses_nothing(filled, journal, clock, rng, count):
    """Found in the first record; behind that, what was acknowledged after it may come again."""
    killed(filled, some_of_each)
    whole = journal.read_bytes()
    clock.pass_ms(30_000)
    places_of_bits = range(8 * len(whole))
    for bit in places_of_bits if count is None else rng.sample(places_of_bits, count):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        journal.write_bytes(damaged)
        if bit // 8 < FIRST_RECORD_SIZE:
            with pytest.raises(CorruptConfigFileError, match="journal of leases"):
                filled()
            continue
        store = filled()
        found = bodies(store.lease("g", TOPIC))
        assert set(found) >= {b"1", b"3", b"4"}
        assert len(set(found)) == len(found)
        store.close()
        store.consumer_offsets.remove(group="g")
        store.consumer_offsets.persist()


def test_an_offset_of_the_file_beyond_the_end_passes_over_nothing(filled, store_path, clock):
    """The log lost its end, or the topic was deleted, and a kill came before all was written."""
    table = ConsumerOffsetTable(store_path / "config", clock=clock)
    table.commit("T", "g", 0, 9)
    table.persist()
    killed(filled, lambda store: (store.lease("g", TOPIC), put(store, 3)))
    assert bodies(filled().lease("g", TOPIC)) == [b"0", b"1", b"2"]


def test_an_offset_that_was_set_back_holds_after_a_kill(filled, clock):
    store = filled()
    store.acknowledge("g", places(store.lease("g", TOPIC)))
    store.close()

    def set_back(store):
        store.consumer_offsets.commit("T", "g", 0, 0)
        assert len(store.lease("g", TOPIC)) == 5

    killed(filled, set_back)
    clock.pass_ms(30_000)
    assert len(filled().lease("g", TOPIC)) == 5


def test_a_deleted_topic_is_forgotten_on_the_disk(filled, journal, clock):
    """What a power cut may bring back of the journal passes over no message of a new topic."""
    store = filled()
    store.acknowledge("g", places(store.lease("g", TOPIC)))
    store.delete_topic("T")
    put(store, 3)
    assert b"g\0T" not in journal.read_bytes()
    assert len(store.lease("g", TOPIC)) == 3


def test_a_dead_letter_is_on_the_disk_before_its_place_is_given_up(filled, monkeypatch):
    store = filled()
    found = places(store.lease("g", TOPIC, max_messages=1))
    waited = []
    put_message = store.put_message

    def told(message, **settings):
        waited.append(settings["durability"])
        return put_message(message, **settings)

    monkeypatch.setattr(store.parts.inner, "put_message", told)
    store.give_back("g", found, max_reconsume_times=0)
    assert waited == [rmqcore.Durability.DISK]


def test_a_journal_that_rotted_in_its_middle_is_told_and_kept(filled, journal, store_path, caplog):
    killed(filled, some_of_each)
    rotten = bytearray(journal.read_bytes())
    rotten[FIRST_RECORD_SIZE + 8] ^= 1
    journal.write_bytes(rotten)
    (finding,) = [one for one in verify(store_path).findings if one.path == journal]
    assert finding.severity is Severity.WARNING
    assert "comes again" in finding.what
    with caplog.at_level("WARNING", "rmqcore"):
        filled()
    assert "is kept as consumerLeases.log.damaged" in caplog.text
    assert journal.with_name("consumerLeases.log.damaged").read_bytes() == rotten


def test_a_journal_that_rotted_before_stays_kept_beside_the_next_one(filled, journal):
    kept = [journal.with_name(f"{journal.name}.damaged{more}") for more in ("", "-2")]
    rotten = []
    for _ in kept:
        killed(filled, some_of_each)
        raw = bytearray(journal.read_bytes())
        raw[FIRST_RECORD_SIZE + 8 + len(rotten)] ^= 1
        journal.write_bytes(raw)
        rotten.append(bytes(raw))
    filled()
    assert [path.read_bytes() for path in kept] == rotten


def test_the_hole_of_a_rotten_journal_that_was_made_far_too_long_is_not_kept(filled, journal):
    killed(filled, some_of_each)
    raw = bytearray(journal.read_bytes())
    raw[FIRST_RECORD_SIZE + 8] ^= 1
    journal.write_bytes(raw)
    os.truncate(journal, 1 << 40)
    filled()
    kept = journal.with_name(f"{journal.name}.damaged").read_bytes()
    assert (kept[: len(raw)], kept[len(raw) :].strip(b"\0")) == (raw, b"")


def test_what_somebody_holds_of_a_store_nobody_holds_of_its_copy(store_path, tmp_path):
    """As `cp -a` makes one, of a store that is open: both are used by processes that live."""
    with rmqcore.open_store(store_path) as store:
        store.put("T", b"one")
        (held,) = store.lease("g", {"T": "*"}, holder="somebody", lease_ms=600_000)
        shutil.copytree(store_path, tmp_path / "copy")
    with rmqcore.open_store(tmp_path / "copy") as copy:
        (again,) = copy.lease("g", {"T": "*"})
        assert again.body == b"one"
    with rmqcore.open_store(store_path) as store:
        assert store.lease("g", {"T": "*"}) == []
        assert store.acknowledge("g", [held.place]) == 1
