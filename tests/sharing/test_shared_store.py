"""Several processes use one store: one owns it, the others ask it, and it may end at any time."""

import asyncio
import errno
import os
import queue
import signal
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from held_time import HeldTime
from patience import TIMEOUT_S, until, until_async
from sharing.processes import TIMEOUT_MS, owner_of, program, while_asked

import rmqcore
from rmqcore import (
    CorruptRecordError,
    DiskFullError,
    GetMessageStatus,
    Message,
    MessageIllegalError,
    MessageStore,
    OwnerTimeoutError,
    StoreClosedError,
    StoreLockedError,
    StoreNotFoundError,
)
from rmqcore.doctor import verify
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.sharing import listeners, owner_watch, shared_handle
from rmqcore.store.sharing import owner as owner_module
from rmqcore.store.sharing.owner import StoreServer
from rmqcore.store.sharing.pending_call import PendingCall
from rmqcore.store.sharing.place import MeetingPlace
from rmqcore.store.sharing.unique_keys import UniqueKeys
from rmqcore.store.sharing.values import unpack

pytestmark = pytest.mark.process


@pytest.fixture
def owner(tmp_path):
    """Another process that owns a store."""
    with owner_of(tmp_path / "store") as process:
        yield process


@pytest.fixture
def store(store_path):
    """A client; who owns the store is another handle of this process."""
    with rmqcore.open_shared(store_path), rmqcore.open_shared(store_path) as opened:
        yield opened


@pytest.fixture
def client(owner, tmp_path):
    """A client of the other process."""
    with rmqcore.open_shared(tmp_path / "store") as opened:
        yield opened


def bodies(store, topic="T", queue_id=0):
    return [message.body for message in store.messages(topic, queue_id)]


def test_who_comes_first_owns_the_store(store_path):
    with rmqcore.open_shared(store_path) as store:
        assert store.owner == os.getpid()
        assert store.put("T", b"one").queue_offset == 0
        assert isinstance(store, MessageStore)
    with rmqcore.open_store(store_path) as store:
        assert bodies(store) == [b"one"]


def test_two_handles_of_one_process_share_the_store(store_path):
    with rmqcore.open_shared(store_path) as first, rmqcore.open_shared(store_path) as second:
        second.put("T", b"one")
        assert bodies(first) == bodies(second) == [b"one"]


def test_a_client_puts_and_sees_what_was_put(store):
    receipt = store.put("T", b"one", tags="a", keys="k", properties={"p": "v"})
    assert (receipt.status.name, receipt.queue_offset) == ("PUT_OK", 0)
    assert receipt.durability == "page_cache"
    found = store.get_message("T", 0, 0)
    assert found.status is GetMessageStatus.FOUND
    (message,) = found.messages
    assert message.message_id == receipt.message_id
    assert (message.body, message.tags, message.properties["p"]) == (b"one", "a", "v")
    assert [each.body for each in store.query_message("T", "k")] == [b"one"]
    assert store.message_at(receipt.phy_offset).body == b"one"
    assert store.queue_offset_by_time("T", 0, message.store_timestamp_ms) == 0
    assert (store.queues(), store.max_queue_offset("T", 0)) == ([("T", 0)], 1)
    assert store.max_phy_offset == receipt.phy_offset + receipt.store_size


def test_a_batch_is_one_request_with_one_receipt(store):
    receipt = store.put_messages(Message("T", b"%d" % number, queue_id=3) for number in range(50))
    assert (receipt.message_count, receipt.queue_offset) == (50, 0)
    assert bodies(store, "T", 3) == [b"%d" % number for number in range(50)]
    assert len(set(receipt.message_id.split(","))) == 50


def test_the_whole_log_comes_in_its_order(store):
    for number in range(1300):
        store.put("T", b"%d" % number, queue_id=number % 3)
    assert [each.body for each in store.messages()] == [b"%d" % number for number in range(1300)]
    middle = list(store.messages())[600].phy_offset
    assert [each.body for each in store.messages(start=middle)][:2] == [b"600", b"601"]


def test_errors_have_the_types_of_the_store(store):
    with pytest.raises(MessageIllegalError, match="delay"):
        store.put("T", b"one", delay_level=3)
    with pytest.raises(MessageIllegalError):
        store.put("T" * 300, b"one")
    with pytest.raises(TypeError):
        store.put("T", b"one", no_such_setting=1)
    assert store.queues() == []


def test_tables_are_the_owners(store):
    store.put("T", b"one")
    store.consumer_offsets.commit("T", "G", 0, 1)
    assert store.consumer_offsets.get("T", "G", 0) == 1
    assert list(store.topics) == []


def test_the_owner_ends_and_a_client_takes_over(owner, client):
    assert client.owner == owner.pid
    client.put("T", b"one")
    assert owner.end() == 0
    client.put("T", b"two")
    assert client.owner == os.getpid()
    assert bodies(client) == [b"one", b"two"]


def test_the_owner_is_killed_and_a_client_takes_over(owner, client):
    client.put("T", b"one")
    owner.kill()
    client.put("T", b"two")
    assert client.owner == os.getpid()
    assert bodies(client) == [b"one", b"two"]


def test_a_client_takes_over_without_a_call_from_an_owner_that_takes_long_to_close(
    tmp_path, monkeypatch
):
    told, tell = os.pipe()
    hangs, timed_out = MeetingPlace.hangs, []

    def close_when_told():
        close = DefaultMessageStore.close

        def close_late(store):
            os.read(told, 1)
            close(store)

        DefaultMessageStore.close = close_late

    def counted(place, *args):
        timed_out.append(args)
        return hangs(place, *args)

    monkeypatch.setattr(owner_watch, "LOOK_AGAIN_S", 0.001)
    monkeypatch.setattr(MeetingPlace, "hangs", counted)
    with (
        owner_of(tmp_path / "store", close_when_told) as owner,
        rmqcore.open_shared(tmp_path / "store") as store,
    ):
        # only now: an owner that is held up for longer is not taken for one that hangs
        store._timeout_s = 0.1
        ending = threading.Thread(target=owner.end)
        ending.start()
        until(lambda: len(timed_out) > 1, "a client that could not take over in its time")
        os.write(tell, b"!")
        ending.join()
        until(lambda: store._store, "the next owner")
    for fd in (told, tell):
        os.close(fd)


@pytest.mark.measure
def test_a_take_over_after_a_kill_takes_milliseconds(owner, client, figure):
    client.put("T", b"one")
    owner.kill()
    began = time.perf_counter()
    client.put("T", b"two")
    figure("take-over", (time.perf_counter() - began) * 1000, "ms", at_most=10_000)


def wait_for_owner(store, seconds):
    """Let a client wait so long for an answer from now on."""
    store._timeout_s = store.reach_owner()._timeout_s = seconds


def test_an_owner_that_is_stopped_is_named(tmp_path):
    with (
        program("hold", tmp_path / "store") as owner,
        rmqcore.open_shared(tmp_path / "store") as store,
    ):
        assert int(owner.ready) == owner.pid
        os.kill(owner.pid, signal.SIGSTOP)
        os.waitpid(owner.pid, os.WUNTRACED)
        wait_for_owner(store, 0.3)
        try:
            with pytest.raises(OwnerTimeoutError, match=f"process {owner.pid} .*programs.py"):
                store.put("T", b"one")
            with pytest.raises(OwnerTimeoutError, match=f"process {owner.pid} "):
                rmqcore.open_shared(tmp_path / "store", owner_timeout_ms=100)
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        wait_for_owner(store, TIMEOUT_S)
        store.put("T", b"two")
        assert bodies(store)[-1] == b"two"


def test_an_owner_that_does_not_share_is_named(tmp_path):
    path = tmp_path / "store"
    with program("hold_alone", path) as alone:
        with pytest.raises(StoreLockedError, match=f"process {alone.pid} .*open_shared"):
            rmqcore.open_shared(path, owner_timeout_ms=200)
        assert alone.end() == 0
    with rmqcore.open_shared(path) as store:
        assert store.owner == os.getpid()


def test_the_socket_has_the_permissions_of_the_directory(store_path):
    for mode in (0o700, 0o770, 0o755):
        store_path.mkdir(exist_ok=True)
        store_path.chmod(mode)
        with rmqcore.open_shared(store_path):
            found = stat.S_IMODE((store_path / "rmqcore.sock").stat().st_mode)
        assert found == mode & 0o666


def test_a_socket_that_the_system_refuses_is_named(store_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("socket.socket.connect", refuse)
    with pytest.raises(PermissionError, match=r"store/rmqcore\.sock"):
        rmqcore.open_shared(store_path)


def test_a_long_path_is_no_obstacle(tmp_path):
    path = tmp_path / ("d" * 100) / ("e" * 100)
    with rmqcore.open_shared(path) as first, rmqcore.open_shared(path) as second:
        second.put("T", b"one")
        assert bodies(first) == [b"one"]


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    owner = owner_of(tmp_path / "store")
    with rmqcore.open_shared("store") as store:
        monkeypatch.chdir("/")
        owner.kill()
        store.put("T", b"one")
    assert (tmp_path / "store" / "commitlog").is_dir()


def test_a_removed_store_leaves_the_one_at_its_path_alone(tmp_path):
    path = tmp_path / "store"
    store = rmqcore.open_shared(path)
    store.put("T", b"one")
    store.flush()
    path.rename(tmp_path / "removed")
    with rmqcore.open_shared(path) as other:
        with pytest.raises(StoreNotFoundError, match="removed while it was open"):
            store.close()
        other.put("T", b"two")
        with rmqcore.open_shared(path) as client:
            assert bodies(client) == [b"two"]


def test_a_closed_handle_says_so(store):
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        store.put("T", b"one")


def test_coroutines_put_without_a_thread_each(store):
    async def put_many():
        putting = (store.put_async("T", b"%d" % number, queue_id=1) for number in range(300))
        receipts = await asyncio.gather(*putting)
        one = await store.put_message_async(Message("T", b"one", queue_id=2))
        batch = await store.put_messages_async([Message("T", b"two", queue_id=2)] * 3)
        return receipts, one, batch

    receipts, one, batch = asyncio.run(put_many())
    assert sorted(each.queue_offset for each in receipts) == list(range(300))
    assert (one.queue_offset, batch.queue_offset, batch.message_count) == (0, 1, 3)
    assert bodies(store, "T", 2) == [b"one", b"two", b"two", b"two"]


def test_a_coroutine_goes_on_with_the_next_owner(owner, client):
    async def put_on():
        before = await client.put_async("T", b"one")
        owner.kill()
        after = await asyncio.gather(*(client.put_async("T", b"two") for _ in range(20)))
        return [before, *after]

    receipts = asyncio.run(put_on())
    assert sorted(each.queue_offset for each in receipts) == list(range(21))
    assert bodies(client) == [b"one"] + [b"two"] * 20


def test_threads_put_side_by_side(store):
    def put():
        for _ in range(50):
            store.put("T", b"x")

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.max_queue_offset("T", 0) == 400


def test_arrivals_are_told_to_clients_and_by_the_next_owner(owner, client):
    told = queue.Queue()
    forget = client.on_arrival(lambda queues: [told.put(each) for each in queues])
    client.put("T", b"one", queue_id=7)
    assert told.get(timeout=TIMEOUT_S) == ("T", 7)
    owner.kill()
    client.put("U", b"two", queue_id=1)
    while told.get(timeout=TIMEOUT_S) != ("U", 1):
        pass
    forget()


def test_what_arrives_while_a_listener_is_about_to_be_known_is_told(store, monkeypatch):
    arrived, goes_on, request_of = queue.Queue(), threading.Event(), listeners.request_of

    def slowly(*arguments):
        assert goes_on.wait(TIMEOUT_S)
        return request_of(*arguments)

    monkeypatch.setattr(listeners, "request_of", slowly)
    store.on_arrival(arrived.put)
    store.put("T", b"x")
    # dispatched before anybody listens
    assert store.max_queue_offset("T", 0) == 1
    goes_on.set()
    assert arrived.get(timeout=TIMEOUT_S) == [("T", 0)]


def test_what_arrives_with_an_answer_that_is_given_up_is_told(store, monkeypatch):
    arrived, given_up, result_of = queue.Queue(), [], listeners.result_of

    def give_up_first(answer):
        if not given_up:
            given_up.append(answer)
            raise OwnerTimeoutError("store", 1, None, None)
        return result_of(answer)

    monkeypatch.setattr(listeners, "LOOK_AGAIN_S", 0.001)
    monkeypatch.setattr(listeners, "result_of", give_up_first)
    store.on_arrival(arrived.put)
    store.put("T", b"x")
    assert arrived.get(timeout=TIMEOUT_S) == [("T", 0)]


def test_arrivals_are_told_again_when_the_store_can_be_opened(tmp_path, monkeypatch):
    arrived, refused, store_class = queue.Queue(), [], shared_handle.DefaultMessageStore

    def refuse_twice(*args, **settings):
        if len(refused) < 2:
            refused.append(args)
            raise OSError(errno.EMFILE, "too many open files")
        return store_class(*args, **settings)

    for module in (owner_watch, listeners):
        monkeypatch.setattr(module, "LOOK_AGAIN_S", 0.001)
    with owner_of(tmp_path / "store") as owner, rmqcore.open_shared(tmp_path / "store") as store:
        store.on_arrival(arrived.put)
        monkeypatch.setattr(shared_handle, "DefaultMessageStore", refuse_twice)
        owner.kill()
        until(lambda: store._store, "the next owner")
        store.put("T", b"x")
        while ("T", 0) not in arrived.get(timeout=TIMEOUT_S):
            pass


def test_tables_of_keys_and_values_are_the_owners(store):
    store.kv_put("table", b"k", b"v")
    assert store.kv_get("table", [b"k", b"other"]) == [b"v", None]
    assert store.kv_swap("table", b"k", b"v", b"w")
    assert store.kv_list("table") == [(b"k", b"w")]
    assert store.kv_take("table") == [(b"k", b"w")]
    assert store.kv_count("table") == 0


def test_a_client_waits_and_is_woken(store):
    assert not store.wait("T", 0, 0, timeout_ms=1)
    with while_asked(store, lambda: store.put("T", b"one")):
        assert store.wait("T", 0, 0, timeout_ms=TIMEOUT_MS)


def test_a_wait_goes_on_with_the_next_owner(owner, client):
    began = time.monotonic()
    with while_asked(client, owner.kill):
        assert not client.wait("T", 0, 0, 300)
    assert time.monotonic() - began >= 0.29
    assert client.owner == os.getpid()


def test_a_second_owner_is_asked_for_the_time_that_is_left(tmp_path):
    held, left = HeldTime(), []
    call = PendingCall(tmp_path, "wait", ("T", 0, 0, 60_000), {}, held.world)
    for _ in range(2):
        request = call.request(UniqueKeys(), waits_for_disk=False)
        args, settings = unpack(request.body + b"".join(request.parts))
        assert args == ["T", 0, 0]
        left.append(settings["timeout_ms"])
        held.sleep(20)
    assert left == [60_000, 40_000]


def test_a_thousand_coroutines_wait_and_some_are_cancelled(store):
    async def wait():
        waiting = [asyncio.create_task(store.wait_async("T", 0, n % 2)) for n in range(1000)]
        asked = store.reach_owner()._waiting
        await until_async(lambda: len(asked) == 1000, "a thousand calls under way")
        for task in waiting[::10]:
            task.cancel()
        await store.put_async("T", b"one")
        await store.put_async("T", b"two")
        return await asyncio.gather(*waiting, return_exceptions=True)

    done = asyncio.run(wait())
    assert [each is True for each in done] == [number % 10 > 0 for number in range(1000)]
    assert all(isinstance(each, asyncio.CancelledError) for each in done[::10])


def test_a_client_follows_a_queue(store):
    async def read():
        found = []
        async for message in store.follow("T", 0):
            found.append(message.body)
            if len(found) == 3:
                break
            await store.put_async("T", b"%d" % len(found))
        return found

    store.put("T", b"0")
    assert asyncio.run(read()) == [b"0", b"1", b"2"]


def test_a_client_follows_a_queue_beyond_a_deletion_of_its_topic(store):
    async def read():
        followed, found = store.follow("T", 0), []
        for body in (b"a", b"b"):
            for _ in range(2):
                store.put("T", body)
            for _ in range(2):
                message = await asyncio.wait_for(anext(followed), TIMEOUT_S)
                found.append(message.body)
            store.delete_topic("T")
        return found

    assert asyncio.run(read()) == [b"a", b"a", b"b", b"b"]


def test_clients_lease_acknowledge_and_give_back(store):
    for number in range(4):
        store.put("T", b"%d" % number)
    first, second = store.lease("G", {"T": "*"}, max_messages=2)
    assert (first.body, second.body, first.reconsume_times) == (b"0", b"1", 0)
    assert store.acknowledge("G", [first.place]) == 1
    assert store.give_back("G", [second.place], delay_ms=0) == 1
    again = store.lease("G", {"T": "*"}, max_messages=1)
    assert [(each.body, each.reconsume_times) for each in again] == [(b"1", 1)]
    assert store.change_lease("G", [again[0].place], 60_000) == 1
    (lag,) = store.lag("G", ["T"])
    assert (lag.topic, lag.committed_offset, lag.ready, lag.leased) == ("T", 1, 2, 1)
    assert store.purge("G", "T") == 2


def test_what_a_client_has_leased_comes_again_when_it_ends(store_path):
    with rmqcore.open_shared(store_path) as owner:
        owner.put("T", b"one")
        with rmqcore.open_shared(store_path) as client:
            assert [each.body for each in client.lease("G", {"T": "*"})] == [b"one"]
            assert owner.lease("G", {"T": "*"}) == []
        assert [m.body for m in owner.lease("G", {"T": "*"}, timeout_ms=TIMEOUT_MS)] == [b"one"]


def test_a_lease_that_is_cancelled_takes_nothing(store):
    async def cancel():
        waiting = asyncio.create_task(store.lease_async("G", {"T": "*"}, timeout_ms=None))
        await until_async(lambda: store.reach_owner()._waiting, "a call under way")
        waiting.cancel()
        await asyncio.wait([waiting])
        await store.put_async("T", b"one")

    asyncio.run(cancel())
    assert [each.body for each in store.lease("G", {"T": "*"})] == [b"one"]


def test_a_signal_handler_may_call_while_its_thread_waits(owner, client):
    def put(*_):
        client.put("T", b"one")

    before = signal.signal(signal.SIGALRM, put)
    try:
        thread = threading.get_ident()
        with while_asked(client, lambda: signal.pthread_kill(thread, signal.SIGALRM)):
            assert client.wait("T", 0, 0, timeout_ms=TIMEOUT_MS)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert bodies(client) == [b"one"]


def test_a_storm_of_signals_harms_no_call(store):
    inside, outside, depth, more = [], [], 0, True

    def put(*_):
        nonlocal depth
        depth += 1
        # it is interrupted, too, but on a slow machine not by ever more inside one another
        signal.setitimer(signal.ITIMER_REAL, 0.004 if more and depth < 4 else 0)
        inside.append(store.put("U", b"x").queue_offset)
        depth -= 1
        signal.setitimer(signal.ITIMER_REAL, 0.004 if more else 0)

    before = signal.signal(signal.SIGALRM, put)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        while len(outside) < 100 or len(inside) < 20:
            outside.append(store.put("T", b"x").queue_offset)
    finally:
        more = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert outside == list(range(len(outside)))
    assert sorted(inside) == list(range(len(inside)))


def test_a_damaged_store_is_an_error_and_nobody_owns_it(store_path):
    with rmqcore.open_shared(store_path) as store:
        for _ in range(50):
            store.put("T", b"x" * 100)
    with (store_path / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(2000)
        log.write(b"\xff" * 300)
    (store_path / "abort").touch()
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="good records follow"):
            rmqcore.open_shared(store_path)
    assert not (store_path / "rmqcore.sock").exists()


def test_who_asks_an_owner_that_cannot_open_the_store_asks_the_next_one(store_path, monkeypatch):
    waiting, first, store_class = threading.Event(), [], shared_handle.DefaultMessageStore
    call_when_ready = StoreServer._call_when_ready

    def waits(server, connection, request):
        waiting.set()
        return call_when_ready(server, connection, request)

    def open_when_asked(*args, **settings):
        if first:
            return store_class(*args, **settings)
        first.append(args)
        assert waiting.wait(TIMEOUT_S)
        raise DiskFullError(store_path, "no room")

    monkeypatch.setattr(owner_module, "_STOP_S", 1000 * TIMEOUT_S)
    monkeypatch.setattr(StoreServer, "_call_when_ready", waits)
    monkeypatch.setattr(shared_handle, "DefaultMessageStore", open_when_asked)
    with ThreadPoolExecutor() as threads:
        opening = threads.submit(rmqcore.open_shared, store_path)
        until(lambda: first, "the one that becomes the owner")
        other = threads.submit(rmqcore.open_shared, store_path)
        put = threads.submit(lambda: other.result().put("T", b"x"))
        assert isinstance(opening.exception(TIMEOUT_S), DiskFullError)
        assert put.result(TIMEOUT_S).queue_offset == 0
        other.result().close()


def test_the_doctor_knows_the_socket(store):
    assert verify(store.path).findings == []
    (store.path / "nobody.sock").touch()
    (finding,) = verify(store.path).findings
    assert "belongs to nobody" in finding.what
