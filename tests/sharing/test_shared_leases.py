"""Leases over the border of a process: handed out, kept and freed, whoever ends."""

from __future__ import annotations

import asyncio

import pytest
from children import die
from consume.conftest import stands_still
from held_time import HeldTime
from patience import until
from sharing.processes import TIMEOUT_MS, leased, program, told
from sharing.test_put_again import SETTINGS, dying_owner

import rmqcore
from rmqcore import ReceivedMessage, Sql
from rmqcore.store.consume.holders import new_holder
from rmqcore.store.sharing import owner as owner_module
from rmqcore.store.sharing.opening import open_handle
from rmqcore.world import World

pytestmark = pytest.mark.process


def test_a_client_leases_settles_and_counts(store_path):
    with program("lease", store_path), rmqcore.open_shared(store_path) as store:
        for number in range(4):
            store.put("T", b"%d" % number, tags="odd" if number % 2 else "even")
        first, second = leased(store, max_messages=2)
        assert (first.body, first.tags, first.place.topic) == (b"0", "even", "T")
        assert not first.reconsume_times
        assert store.acknowledge("g", [first.place]) == 1
        assert store.give_back("g", [second.place], delay_ms=0) == 1
        (again,) = leased(store, max_messages=1)
        assert (again.body, again.reconsume_times) == (b"1", 1)
        assert store.change_lease("g", [again.place], 60_000) == 1
        (lag,) = store.lag("g", ["T"])
        assert (lag.committed_offset, lag.ready, lag.leased) == (1, 2, 1)
        by_sql = store.lease("h", {"T": Sql("TAGS = 'odd'")}, holder=new_holder())
        assert [each.body for each in by_sql] == [b"1", b"3"]
        assert store.purge("g", "T") == 2


def test_what_a_killed_client_held_comes_again_at_once(store_path):
    with rmqcore.open_shared(store_path) as store:
        for number in range(3):
            store.put("T", b"%d" % number)
        with program("lease", store_path) as process:
            assert told(process, 2) == "['0', '1']"
            assert [each.body for each in leased(store)] == [b"2"]
            process.kill()
            (first,) = leased(store, max_messages=1, timeout_ms=TIMEOUT_MS)
            assert (first.body, first.reconsume_times) == (b"0", 1)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_client_keeps_what_it_held_when_the_owner_ends(store_path, how):
    with program("lease", store_path) as owner, rmqcore.open_shared(store_path) as store:
        for number in range(4):
            store.put("T", b"%d" % number)
        held = leased(store, max_messages=2)
        assert told(owner, 1) == "['2']"
        if how == "killed":
            owner.kill()
        else:
            assert owner.end() == 0
        assert [each.body for each in leased(store)] == [b"2", b"3"]
        assert store.acknowledge("g", [each.place for each in held]) == 2


def test_a_client_that_outlived_an_owner_is_freed_by_the_next(store_path):
    with (
        program("lease", store_path) as owner,
        program("lease", store_path) as process,
        rmqcore.open_shared(store_path) as store,
    ):
        store.put("T", b"0")
        assert told(process, 1) == "['0']"
        owner.kill()
        assert leased(store) == []
        assert told(process, 1) == "[]"
        process.kill()
        assert [each.body for each in leased(store, timeout_ms=TIMEOUT_MS)] == [b"0"]


def die_when_leased():
    """Make this process, the owner, die in place of handing out what it has leased."""
    answer_of = owner_module.answer_of

    def answer_or_die(value):
        if isinstance(value, list) and value and isinstance(value[0], ReceivedMessage):
            die()
        return answer_of(value)

    owner_module.answer_of = answer_or_die


@pytest.mark.parametrize("awaited", [False, pytest.param(True, marks=pytest.mark.storm)])
def test_what_an_owner_leased_and_did_not_hand_out_is_handed_out_by_the_next(store_path, awaited):
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        for number in range(4):
            store.put("T", b"%d" % number)
        store.lease("g", {"T": "*"}, holder=new_holder(), max_messages=1)
    with (
        dying_owner(store_path, die_when_leased),
        program("lease", store_path),
        rmqcore.open_shared(store_path) as store,
    ):
        settings = {"holder": new_holder(), "lease_ms": 600_000, "max_reconsume_times": 1}
        if awaited:
            waiting = store.lease_async("g", {"T": "*"}, max_messages=3, **settings)
            got = asyncio.run(waiting)
        else:
            got = store.lease("g", {"T": "*"}, max_messages=3, **settings)
        # the first had come before; what nobody has got does not count as a try
        assert [(each.body, each.reconsume_times) for each in got] == [
            (b"0", 1),
            (b"1", 0),
            (b"2", 0),
        ]
        assert [each.body for each in leased(store)] == [b"3"]
        assert store.acknowledge("g", [each.place for each in got]) == 3


def test_what_a_call_was_handed_out_is_known_from_a_journal_written_anew(store_path):
    with rmqcore.open_store(store_path) as store:
        for number in range(3):
            store.put("T", b"%d" % number)
        settings = {"holder": "somebody", "max_messages": 2}
        store.parts.consuming.lease_once("g", {"T": "*"}, call="one", **settings)
        store.parts.consuming.lease_once("g", {"T": "*"}, call="two", **settings)
    with rmqcore.open_store(store_path) as store:
        again = store.parts.consuming.lease_once("g", {"T": "*"}, call="one", **settings)
        assert [(each.body, each.reconsume_times) for each in again] == [(b"0", 0), (b"1", 0)]
        assert store.parts.consuming.lease_once("g", {"T": "*"}, call="three", **settings) == []


def test_a_lease_ends_by_the_clock_of_the_owners_world(store_path, monkeypatch):
    stands_still(monkeypatch)
    time = HeldTime()
    owner = open_handle(
        store_path,
        config=None,
        profile=None,
        create=True,
        progress=None,
        owner_timeout_ms=TIMEOUT_MS,
        settings=SETTINGS,
        world=World(time.clock_ms),
    )
    with owner, rmqcore.open_shared(store_path) as client:
        client.put("T", b"0")
        for tries in range(2):
            (message,) = client.lease("g", {"T": "*"}, lease_ms=60_000)
            assert message.reconsume_times == tries
            assert client.lease("g", {"T": "*"}) == []
            time.sleep(61)


def test_a_client_that_closes_after_an_interrupted_call_leaves_no_lease(store_path):
    with rmqcore.open_shared(store_path) as owner:
        client = rmqcore.open_shared(store_path)
        client.put("T", b"x")
        assert client.lease("g", {"T": "*"}, lease_ms=3_600_000)
        # as a signal handler does that raises in the middle of a frame
        client._channel.lose()
        client.close()
        until(lambda: owner.lease("g", {"T": "*"}), "what the client had comes again")
