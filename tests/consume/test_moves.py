"""What is put elsewhere in a place of a message is put once, whoever gives it back or goes."""

import errno
from pathlib import Path

import pytest
from consume.conftest import TOPIC, bodies, places, put
from syncs import watched

from rmqcore import Consumer, MessageIllegalError
from rmqcore.store.consume.holders import new_holder

pytestmark = pytest.mark.engine


def dead_letters(store):
    return [bytes(message.body) for message in store.messages("%DLQ%g", 0)]


@pytest.fixture
def meanwhile(monkeypatch):
    """`meanwhile(store, act)`: `act` is called once, inside of the store's next put."""

    def wait_for(store, act):
        real = store.parts.inner.put_message

        def put_message(message, **how):
            monkeypatch.undo()
            act()
            return real(message, **how)

        monkeypatch.setattr(store.parts.inner, "put_message", put_message)

    return wait_for


def test_a_lease_that_is_named_twice_is_one(store):
    put(store, 1)
    (place,) = places(store.lease("g", TOPIC))
    assert store.change_lease("g", [place, place], 1000) == 1
    assert store.give_back("g", [place, place], max_reconsume_times=0) == 1
    assert dead_letters(store) == [b"0"]


@pytest.mark.parametrize("group", ["%RETRY%" + "g" * 121, "%DLQ%" + "g" * 123, "g" * 128])
def test_a_group_is_refused_that_could_not_have_dead_letters(store, group):
    put(store, 1)
    for call in (
        lambda: store.lease(group, TOPIC),
        lambda: Consumer(store, group, TOPIC),
        lambda: store.purge(group, "T"),
    ):
        with pytest.raises(MessageIllegalError, match="group of 128 characters"):
            call()
    (message,) = store.lease(group[:127], TOPIC)
    assert store.give_back(group[:127], [message.place], max_reconsume_times=0) == 1
    assert [bytes(m.body) for m in store.messages(f"%DLQ%{group[:127]}", 0)] == [b"0"]


ACTS = {
    "given back again": lambda store, place: store.give_back("g", [place], max_reconsume_times=0),
    "given back at once": lambda store, place: store.give_back("g", [place], delay_ms=0),
    "changed": lambda store, place: store.change_lease("g", [place], 1),
    "released": lambda store, _: store.release_leases("h"),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_nobody_has_what_is_on_its_way(store, clock, meanwhile, act):
    put(store, 1)
    (place,) = places(store.lease("g", TOPIC, holder="h"))
    found = []

    def others():
        assert act(store, place) == 0
        clock.pass_ms(1)
        found.extend(store.lease("g", TOPIC))

    meanwhile(store, others)
    assert store.give_back("g", [place], max_reconsume_times=0) == 1
    assert found == []
    assert dead_letters(store) == [b"0"]
    assert store.lag("g", ["T"])[0].leased == 0


def test_a_dead_letter_is_put_once_although_who_found_it_goes(store, clock, meanwhile):
    put(store, 1)
    store.lease("g", TOPIC, lease_ms=1)
    clock.pass_ms(1)

    def goes():
        store.release_leases("h")
        clock.pass_ms(1)
        assert store.lease("g", TOPIC, max_reconsume_times=0) == []

    meanwhile(store, goes)
    assert store.lease("g", TOPIC, holder="h", lease_ms=1, max_reconsume_times=0) == []
    assert dead_letters(store) == [b"0"]


def test_what_is_on_its_way_at_a_closing_comes_again(opened, meanwhile):
    store = opened()
    put(store, 1)
    (place,) = places(store.lease("g", TOPIC))
    meanwhile(store, store.close)
    with pytest.raises(Exception, match="closed"):
        store.give_back("g", [place], max_reconsume_times=0)
    assert bodies(opened().lease("g", TOPIC)) == [b"0"]


def refuses_the_journal(_, file):
    name = Path(f"/proc/self/fd/{file}").readlink().name
    return errno.EIO if name == "consumerLeases.log" else None


def sync_fails(store):
    """The disk refuses the journal once; the next entry is written into one made anew."""
    store.put("Other", b"")
    store.lease("g", {"Other": "*"})
    with watched(refuses_the_journal), pytest.raises(OSError, match="Input/output"):
        store.consumer_offsets.commit("Other", "g", 0, 1)


def test_what_is_on_its_way_is_put_once_behind_a_failed_sync(store, meanwhile):
    put(store, 2)
    first, second = places(store.lease("g", TOPIC, holder="h"))
    bury = lambda place: store.give_back("g", [place], max_reconsume_times=0)  # noqa: E731
    assert bury(first) == 1
    sync_fails(store)
    again = []
    meanwhile(store, lambda: again.append(bury(second)))
    assert bury(second) == 1
    assert again == [0]
    assert dead_letters(store) == [b"0", b"1"]


def test_what_somebody_is_given_behind_a_failed_sync_is_theirs(store):
    put(store, 1)
    holder, another = new_holder(), new_holder()
    assert store.acknowledge("g", places(store.lease("g", TOPIC, holder=holder))) == 1
    sync_fails(store)
    # a queue that the group has not had is written down behind the holder's name
    for topic, who in (("One", holder), ("Two", another)):
        put(store, 1, topic=topic)
        assert bodies(store.lease("g", {topic: "*"}, holder=who)) == [b"0"]
    assert [store.release_leases(who) for who in (holder, another)] == [1, 1]
