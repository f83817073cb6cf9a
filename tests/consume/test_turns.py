"""Queues that take turns: none waits for the others to be empty, whoever else leases meanwhile."""

import pytest

import rmqcore

pytestmark = pytest.mark.engine


@pytest.fixture
def store(store_path):
    with rmqcore.open_store(store_path, mapped_file_size_commit_log=1 << 20) as opened:
        yield opened


def leased(store, topics, **terms):
    found = store.lease("g", dict.fromkeys(topics, "*"), max_messages=1, **terms)
    return [message.topic for message in found]


@pytest.mark.parametrize("by_priority", [False, True])
@pytest.mark.parametrize("others", [1, 2, 3])
def test_queues_take_turns_whatever_others_of_the_group_lease_in_between(
    store, others, by_priority
):
    for topic in "TU":
        for _ in range(4):
            store.put(topic, b"x")
    found = []
    for _ in range(4):
        found += leased(store, "TU", by_priority=by_priority)
        for _ in range(others):
            assert leased(store, "V") == []
    assert found == ["T", "U", "T", "U"]


def test_queues_take_turns_while_queues_come_into_being(store):
    for topic in "TU":
        for _ in range(4):
            store.put(topic, b"x")
    found = []
    for number in range(4):
        store.put(f"new-{number}", b"x")
        found += leased(store, "TU")
    assert found == ["T", "U", "T", "U"]


def test_a_queue_that_is_given_back_to_again_and_again_lets_others_have_their_turn(store):
    for topic in "TU":
        store.put(topic, b"x")
    found = []
    for _ in range(2):
        for message in store.lease("g", {"T": "*", "U": "*"}, max_messages=1):
            found.append(message.topic)
            store.give_back("g", [message.place], delay_ms=0)
    assert found == ["T", "U"]


def test_queues_of_lower_priority_take_turns_beside_those_of_higher(store):
    for topic in "TU":
        for _ in range(2):
            store.put(topic, b"x")
    found = []
    for _ in range(2):
        store.put("T", b"x", queue_id=9)
        found += [leased(store, "TU", by_priority=True) for _ in range(2)]
    assert found == [["T"], ["T"], ["T"], ["U"]]
