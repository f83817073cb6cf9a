"""What has to hold behind a simulated run is asked of what can be told apart only."""

import pytest

from rmqcore.simulation.history import (
    Deletion,
    Delivery,
    History,
    Outcome,
    Place,
    Put,
    Reset,
    Trouble,
)
from rmqcore.simulation.invariants import _done_for_good, _in_order
from rmqcore.simulation.plan import ConsumerPlan, Does, Group, Operation, Plan, Way
from rmqcore.simulation.promotion import has_what_was_lost

pytestmark = pytest.mark.logic


def plan_of(way):
    """One group, which consumes in this way."""
    return Plan(
        seed="small",
        for_s=5.0,
        names=1,
        groups=(Group("broker0", 0, settings={}),),
        clients=("client0",),
        topics=("T0",),
        operations=(),
        consumers=(ConsumerPlan("client0", "group", way, ("T0",)),),
        faults=(),
    )


@pytest.mark.parametrize(
    ("deleted_s", "weak", "broken"),
    [((1.0, 3.0), set(), 0), ((1.0,), set(), 1), ((1.0,), {"broker0"}, 0)],
)
def test_an_order_of_before_a_deletion_is_not_compared_with_what_came_behind_it(
    deleted_s, weak, broken
):
    """A delayed message came to offset 1 of two topics of one name."""
    places = [Place("broker0", "T0", 0, offset) for offset in range(2)]
    plan = plan_of(Way.ORDERLY)
    history = History(
        deliveries={
            "group": [Delivery(7, places[0], 2.0, False), Delivery(8, places[1], 2.0, False)]
        },
        deletions=[Deletion("broker0", "T0", at_s, at_s) for at_s in deleted_s],
    )
    contents = {places[0]: 9, places[1]: 8}
    assert len(list(_in_order(plan, history, contents, weak, {}))) == broken


@pytest.mark.parametrize(
    ("put_s", "reset_s", "got_s", "unread"),
    [
        (1.0, (2.0, 2.1), 3.0, 0),
        (1.0, (2.0, 2.1), 1.5, 1),
        (1.0, (2.0, float("inf")), 1.5, 0),
        (2.05, (2.0, 2.1), 1.5, 0),
    ],
    ids=["again", "not-again", "nobody-knows", "put-later"],
)
def test_who_was_set_back_has_to_get_again_what_was_there_then(put_s, reset_s, got_s, unread):
    place = Place("broker0", "T0", 0, 0)
    operation = Operation(put_s, "client0", Does.SEND, 7, "T0", 0, 100)
    history = History(
        puts={7: Put(operation, 7, put_s, put_s, Outcome.OK, place)},
        deliveries={"group": [Delivery(7, place, got_s, False)]},
        resets=[Reset("group", "broker0", "T0", *reset_s)],
    )
    assert len(list(history.unread_since())) == unread


@pytest.mark.parametrize(
    ("way", "done_s", "again_s", "deleted", "broken"),
    [
        (Way.PUSH, 10.0, 285.0, False, 1),
        (Way.PUSH, float("inf"), 285.0, False, 0),
        (Way.PUSH, 10.0, 65.0, False, 0),
        (Way.PUSH, 210.0, 265.0, False, 0),
        (Way.PUSH, 10.0, 285.0, True, 0),
        (Way.ORDERLY, 10.0, 380.0, False, 0),
        (Way.ORDERLY, 10.0, 385.0, False, 1),
    ],
    ids=["calm", "never-done", "too-soon", "trouble", "deleted", "locked", "calm-in-order"],
)
def test_what_a_group_is_done_with_does_not_come_again_behind_a_calm_time(
    way, done_s, again_s, deleted, broken
):
    place = Place("broker0", "T0", 0, 0)
    operation = Operation(1.0, "client0", Does.SEND, 7, "T0", 0, 100)
    history = History(
        puts={7: Put(operation, 7, 1.0, 1.0, Outcome.OK, place)},
        deliveries={
            "group": [Delivery(7, place, 9.0, False, done_s), Delivery(7, place, again_s, False)]
        },
        deletions=[Deletion("broker0", "T0", 5.0, 6.0)] if deleted else [],
        troubles=[Trouble(20.0, 60.0), Trouble(50.0, 205.0), Trouble(220.0, 221.0)],
    )
    assert len(list(_done_for_good(plan_of(way), history, {place: 7}))) == broken


@pytest.mark.parametrize(("way", "broken"), [(Way.POP_IN_ORDER, 0), (Way.POP, 1)])
def test_what_is_given_back_brings_what_lies_behind_it_again_where_a_group_pops_in_order(
    way, broken
):
    places = [Place("broker0", "T0", 0, offset) for offset in range(2)]
    deliveries = [
        Delivery(7, places[0], 1.0, False, float("inf")),
        Delivery(8, places[1], 1.0, False, 2.0),
        Delivery(7, places[0], 200.0, True, float("inf")),
        Delivery(8, places[1], 230.0, True, 231.0),
    ]
    puts = {
        number: Put(Operation(1.0, "client0", Does.SEND, number, "T0", 0, 100), number, 1.0, 1.0)
        for number in (7, 8)
    }
    history = History(puts=puts, deliveries={"group": deliveries})
    contents = {place: number for number, place in enumerate(places, 7)}
    assert len(list(_done_for_good(plan_of(way), history, contents))) == broken


@pytest.mark.parametrize(
    ("master", "left", "slave", "has_it"),
    [
        ([b"aabb"], [b"aa\0\0"], [b"aabb"], True),
        ([b"aabb"], [b"aa\0\0"], [b"aab\0"], True),
        ([b"aabb"], [b"aa\0b"], [b"aa\0\0"], False),
        ([b"aabb"], [b"aabb"], [b"aabb"], False),
        ([b"aabb", b"cc\0\0"], [b"aabb"], [b"aabb", b"c\0\0\0"], True),
        ([b"aabb", b"cc\0\0"], [b"aabb"], [b"aabb"], False),
        # what an opening had cleared, and a cut has brought back
        ([b"aa\0\0"], [b"aabb"], [b"aa\0\0"], False),
        ([], [], [], False),
    ],
)
def test_a_slave_is_excused_that_has_the_first_byte_that_its_master_has_lost(
    tmp_path, master, left, slave, has_it
):
    stores = []
    for name, files in {"before": master, "left": left, "slave": slave}.items():
        store = tmp_path / name
        for number, content in enumerate(files):
            (store / "commitlog").mkdir(parents=True, exist_ok=True)
            (store / "commitlog" / f"{4 * number:020d}").write_bytes(content)
        stores.append(store)
    before, after, copy = stores
    assert has_what_was_lost(copy, before, after) is has_it
