"""Answers and requests of any size between an owner and its clients, and what ends a wait."""

import mmap
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from patience import TIMEOUT_S, until
from sharing.processes import owner_of

import rmqcore
from rmqcore import MessageIllegalError, OwnerTimeoutError
from rmqcore.remoting import RemotingCommand
from rmqcore.remoting.codec import encode_command
from rmqcore.store.consume.holders import new_holder
from rmqcore.store.sharing.calls import request_of
from rmqcore.store.sharing.channel import LIMITS, OwnerChannel, Waiter
from rmqcore.store.sharing.pieces import MORE, PIECE_SIZE, joined, pieces_of
from rmqcore.store.sharing.place import MeetingPlace, readable

pytestmark = pytest.mark.engine

#: the largest that a store takes as it comes; 17 are more than a connection lets pile up
SIZE = 4 << 20
COUNT = 17


@pytest.fixture
def store(store_path):
    """A client; who owns the store is another handle of this process."""
    with rmqcore.open_shared(store_path), rmqcore.open_shared(store_path) as opened:
        yield opened


@pytest.fixture
def filled(store):
    """A client of a store that has more than one answer of a connection holds."""
    for _ in range(COUNT):
        store.put("T", bytes(SIZE), keys="k")
    return store


def test_a_client_is_handed_out_as_many_bytes_as_it_asks_for(filled):
    leased = filled.lease("g", {"T": "*"}, max_messages=COUNT, timeout_ms=0)
    assert [len(each.body) for each in leased] == [SIZE] * COUNT


def test_a_client_gets_and_queries_as_many_bytes_as_the_owner_would(filled):
    assert len(filled.get_message("T", 0, 0, max_messages=COUNT).messages) == COUNT
    assert len(filled.query_message("T", "k", max_messages=COUNT).messages) == COUNT


def test_a_client_lists_and_takes_a_table_of_any_size(store):
    for number in range(COUNT):
        store.kv_put("t", b"%d" % number, bytes(SIZE - 1000))
    keys = sorted(b"%d" % number for number in range(COUNT))
    assert [key for key, _ in store.kv_list("t")] == keys
    assert all(len(value) == SIZE - 1000 for value in store.kv_get("t", keys))
    assert [key for key, _ in store.kv_take("t")] == keys


def test_the_longest_value_is_set_and_taken_by_a_client_as_by_the_owner(store_path):
    with rmqcore.open_shared(store_path) as owner, rmqcore.open_shared(store_path) as client:
        longest = owner.config.effective_max_message_size - len(b"key") - 12
        for one in (owner, client):
            one.kv_put("t", b"key", bytes(longest))
            assert one.kv_swap("t", b"key", bytes(longest), b"x" * longest)
            with pytest.raises(MessageIllegalError):
                one.kv_put("t", b"key", bytes(longest + 1))
            assert one.kv_take("t") == [(b"key", b"x" * longest)]


def test_long_answers_to_many_threads_do_not_pile_up(filled):
    def get(_):
        return len(filled.get_message("T", 0, 0, max_messages=6).messages)

    connected = filled.reach_owner()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(get, range(16))) == [6] * 16
    assert filled.reach_owner() is connected


def test_a_long_request_goes_out_though_nobody_takes_the_answers_before_it(filled):
    channel = filled.reach_owner()
    for _ in range(2):
        # as of a thread that was interrupted: nobody reads what comes
        request = request_of("get_message", ("T", 0, 0), {"max_messages": COUNT})
        channel.send(request, Waiter(lambda: None, reads=True))
    assert filled.put("T", bytes(SIZE)).ok
    assert filled.reach_owner() is channel


def test_a_request_that_no_frame_holds_is_an_error_of_its_caller_alone(store):
    connected = store.reach_owner()
    with (
        mmap.mmap(-1, LIMITS.frame_size) as room,
        memoryview(room) as body,
        pytest.raises(MessageIllegalError),
    ):
        store.put("T", body)
    assert store.put("T", b"x").ok
    assert store.reach_owner() is connected


@pytest.mark.process
def test_an_owner_that_is_killed_in_a_long_answer_has_handed_out_nothing(store_path):
    with owner_of(store_path) as owner, rmqcore.open_shared(store_path) as client:
        for _ in range(COUNT):
            client.put("T", bytes(SIZE))
        channel = client.reach_owner()
        with ThreadPoolExecutor(1) as thread, channel._reading.within():
            # nobody reads: the owner stops in the middle of its answer
            terms = {"holder": new_holder(), "max_messages": COUNT, "lease_ms": 600_000}
            leased = thread.submit(client.lease, "g", {"T": "*"}, **terms)
            until(lambda: readable(channel._socket, 0.0), "the begin of the answer")
            owner.kill()
        found = leased.result(TIMEOUT_S)
        assert [len(each.body) for each in found] == [SIZE] * COUNT
        assert {each.reconsume_times for each in found} == {0}


@pytest.mark.logic
@pytest.mark.parametrize("sizes", [(), (PIECE_SIZE,), (1, PIECE_SIZE), (3 * PIECE_SIZE, 0, 7)])
def test_the_pieces_of_an_answer_are_the_answer(sizes):
    parts = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    pieces = list(pieces_of(RemotingCommand(0, {}, b"head", parts=parts)))
    bodies = [b"".join((each.body, *each.parts)) for each in pieces]
    assert all(len(each) <= PIECE_SIZE for each in bodies)
    assert [MORE in each.ext_fields for each in pieces] == [True] * (len(pieces) - 1) + [False]
    last = RemotingCommand(0, {}, bodies[-1])
    assert joined(bodies[:-1], last).body == b"head" + b"".join(parts)


def test_an_owner_that_sends_an_answer_is_there(tmp_path):
    ours, owners = socket.socketpair()
    ours.setblocking(False)
    channel = OwnerChannel(ours, MeetingPlace(tmp_path), TIMEOUT_S)
    waiter, look = Waiter(lambda: None, reads=True), threading.Lock()
    channel.send(RemotingCommand(0), waiter)
    asked = channel.ask_whether_there(waiter, None)
    piece = RemotingCommand(0, {MORE: "1"}, b"piece", opaque=waiter.opaque, flag=1)
    owners.sendall(b"".join(encode_command(piece)[0]))
    assert channel._wait(waiter, look, 0.0) is None
    assert channel.ask_whether_there(waiter, asked) is asked
    with pytest.raises(OwnerTimeoutError):
        channel.ask_whether_there(waiter, asked)
    owners.close()
    channel.end()
