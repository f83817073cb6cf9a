"""Leases, where a topic is deleted and made anew, and where a group's offset is set by others."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from consume.conftest import SMALL, TOPIC, bodies, places, put
from interrupts import Interrupt
from patience import TIMEOUT_S, until

import rmqcore

pytestmark = pytest.mark.engine


def as_after_a_kill(store, path):
    """The store as a kill leaves it now, opened in another place."""
    shutil.copytree(store.path, path)
    return rmqcore.open_store(path, **SMALL)


@pytest.fixture
def made_anew(store):
    """The place of a message of a topic that was deleted, and that of its successor."""
    put(store, 1)
    (old,) = places(store.lease("g", TOPIC))
    store.delete_topic("T")
    store.put("T", b"new")
    (new,) = places(store.lease("g", TOPIC))
    assert old[:4] == new[:4]
    return old, new


def test_what_a_call_was_given_of_a_deleted_topic_is_nothing_of_the_next_queue(store_path):
    """As where the owner ends whose answer a client has thrown away."""
    with rmqcore.open_store(store_path) as store:
        store.put("T", b"old")
        store.parts.consuming.lease_once("g", {"T": "*"}, call="one", holder="h")
        store.delete_topic("T")
    with rmqcore.open_store(store_path) as store:
        store.put("U", b"new")
        assert bodies(store.lease("g", {"U": "*"}, holder="h")) == [b"new"]
        store.parts.consuming.undo_lease("one", "h")
        assert store.lease("g", {"U": "*"}) == []


def test_what_is_settled_late_is_not_its_successor(store, clock, made_anew):
    old, new = made_anew
    assert store.acknowledge("g", [old]) == 0
    assert store.change_lease("g", [old], 60_000) == 0
    assert store.give_back("g", [old], delay_ms=0) == 0
    assert store.lease("g", TOPIC) == []
    clock.pass_ms(30_000)
    assert bodies(store.lease("g", TOPIC)) == [b"new"]
    assert store.acknowledge("g", [new]) == 1


def test_it_is_not_after_a_reopening_either(opened, store, clock, made_anew):
    old, _ = made_anew
    store.close()
    again = opened()
    assert again.acknowledge("g", [old]) == 0
    clock.pass_ms(30_000)
    assert bodies(again.lease("g", TOPIC)) == [b"new"]


def test_a_dead_letter_on_its_way_passes_over_no_successor(store, monkeypatch):
    put(store, 2)
    found = places(store.lease("g", TOPIC))
    real = store.parts.inner.put_message

    def meanwhile(message, **how):
        monkeypatch.undo()
        store.delete_topic("T")
        put(store, 2)
        return real(message, **how)

    monkeypatch.setattr(store.parts.inner, "put_message", meanwhile)
    store.give_back("g", found[:1], max_reconsume_times=0)
    assert bodies(store.lease("g", TOPIC)) == [b"0", b"1"]


@pytest.fixture
def done(store):
    """A store whose group has acknowledged five messages."""
    put(store, 5)
    store.acknowledge("g", places(store.lease("g", TOPIC)))
    store.flush()
    return store


SETTINGS = {
    "commit": lambda offsets: offsets.commit("T", "g", 0, 0),
    "remove": lambda offsets: offsets.remove(group="g"),
    "remove the topic's": lambda offsets: offsets.remove(topic="T"),
}


@pytest.mark.parametrize("set_back", SETTINGS.values(), ids=SETTINGS)
def test_an_offset_that_is_set_back_survives_a_kill(done, tmp_path, set_back):
    set_back(done.consumer_offsets)
    done.flush()
    with as_after_a_kill(done, tmp_path / "killed") as store:
        assert len(store.lease("g", TOPIC)) == 5


def test_one_that_is_set_forward_does(done, tmp_path):
    put(done, 3)
    done.consumer_offsets.commit("T", "g", 0, 7)
    done.flush()
    with as_after_a_kill(done, tmp_path / "killed") as store:
        assert bodies(store.lease("g", TOPIC)) == [b"2"]


def test_what_was_handed_out_since_is_open_after_a_kill(done, tmp_path):
    done.consumer_offsets.commit("T", "g", 0, 0)
    done.acknowledge("g", places(done.lease("g", TOPIC, max_messages=2))[:1])
    with as_after_a_kill(done, tmp_path / "killed") as store:
        assert store.consumer_offsets.get("T", "g", 0) == 1
        # its lease ended long ago by the clock of this one
        assert bodies(store.lease("g", TOPIC)) == [b"1", b"2", b"3", b"4"]


def test_an_offset_that_is_set_is_in_the_journal_at_once(done, tmp_path):
    done.consumer_offsets.commit("T", "g", 0, 2)
    done.consumer_offsets.commit("T", "g", 0, 1)
    done.consumer_offsets.persist()
    with as_after_a_kill(done, tmp_path / "killed") as store:
        assert len(store.lease("g", TOPIC)) == 4
    assert len(done.lease("g", TOPIC)) == 4


def test_one_that_a_signal_handler_removes_behind_a_reopening_is_gone(done, opened):
    done.close()
    store, found = opened(), []
    remove = Interrupt(
        1, lambda: store.consumer_offsets.remove(group="g"), files=["lease_table.py"]
    )
    found += remove.during(lambda: store.lease("g", TOPIC))
    assert remove.at
    found += store.lease("g", TOPIC)
    assert len(found) == 5


def test_one_that_another_thread_sets_while_messages_are_acknowledged_counts(store):
    """At each place of the acknowledgement the other thread may have its turn."""
    offsets, sent, number, at = store.consumer_offsets, put(store, 3), 0, "first"
    with ThreadPoolExecutor(1) as threads:
        while at:
            number += 1
            group, setting = f"g{number}", []
            first, *others = places(store.lease(group, TOPIC))
            store.acknowledge(group, [first])

            def set_back(group=group, setting=setting):
                setting.append(threads.submit(offsets.commit, "T", group, 0, 0))
                until(lambda: offsets.get("T", group, 0) == 0, "the offset is set")

            interrupt = Interrupt(number, set_back, files=["lease_table.py"])
            interrupt.during(lambda: store.acknowledge(group, others))  # noqa: B023
            at = interrupt.at
            if at:
                setting[0].result(TIMEOUT_S)
                assert bodies(store.lease(group, TOPIC)) == sent, at
