"""Many waits for slaves on one loop, and a socket that is registered once."""

import asyncio
import contextlib
import gc
import socket
import threading
import time
import weakref

import pytest

from rmqcore.ha import HAConfig
from rmqcore.ha.group_transfer import GroupTransferService
from rmqcore.ha.sockets import Receiver
from rmqcore.status import PutMessageStatus

pytestmark = pytest.mark.engine

LATE = PutMessageStatus.FLUSH_SLAVE_TIMEOUT
TIMEOUT_S = 0.2


def waits_for_one_slave():
    config = HAConfig(slave_timeout=int(1000 * TIMEOUT_S))
    service = GroupTransferService(config, end=lambda: 0, on_waiting=lambda: None)
    service.acknowledged("slave", 0)
    return service


def test_each_wait_ends_in_its_own_time():
    async def wait(service, end):
        began = time.monotonic()
        status = await service.begin_async(end)
        return status, time.monotonic() - began

    async def scenario():
        service = waits_for_one_slave()
        first = asyncio.create_task(wait(service, 10))
        await asyncio.sleep(TIMEOUT_S / 2)
        others = [asyncio.create_task(wait(service, end)) for end in (5, 20, 30)]
        await asyncio.sleep(0)
        others[1].cancel()
        service.acknowledged("slave", 5)
        statuses = await asyncio.gather(first, others[0], others[2])
        again = await wait(service, 40)
        return [*statuses, again]

    found = asyncio.run(scenario())
    assert [status for status, _ in found] == [LATE, PutMessageStatus.PUT_OK, LATE, LATE]
    for status, seconds in found:
        assert status is not LATE or seconds >= TIMEOUT_S - 0.01
        assert seconds < 5


def test_a_loop_that_ended_with_a_wait_holds_nobody_up_and_is_let_go():
    service, loops = waits_for_one_slave(), []

    async def begin(end=5):
        service.begin_async(end)
        loops.append(weakref.ref(asyncio.get_running_loop()))

    for _ in range(3):
        thread = threading.Thread(target=lambda: asyncio.run(begin()))
        thread.start()
        thread.join()
    wait = service.begin(6)
    service.acknowledged("slave", 10)
    assert wait.status() is PutMessageStatus.PUT_OK
    asyncio.run(begin(50))
    gc.collect()
    assert [loop() is None for loop in loops[:3]] == [True] * 3


def test_a_loop_that_was_closed_with_a_wait_holds_nobody_up_on_its_own_thread():
    service = waits_for_one_slave()

    async def begin():
        left = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        return left

    async def wait():
        return await service.begin_async(5)

    loop = asyncio.new_event_loop()
    left = loop.run_until_complete(begin())
    loop.close()
    other = service.begin(6)
    service.acknowledged("slave", 10)
    assert other.status() is PutMessageStatus.PUT_OK
    # nobody can end it any more, and that is not told at its collection
    left._log_destroy_pending = False


def test_a_wait_that_a_signal_ended_leaves_the_others_their_time(monkeypatch):
    async def scenario():
        service, loop = waits_for_one_slave(), asyncio.get_running_loop()
        call_at = loop.call_at

        def interrupted(*_):
            monkeypatch.setattr(loop, "call_at", call_at)
            raise KeyboardInterrupt

        monkeypatch.setattr(loop, "call_at", interrupted)
        with pytest.raises(KeyboardInterrupt):
            service.begin_async(5)
        return await asyncio.wait_for(service.begin_async(6), 30)

    assert asyncio.run(scenario()) is LATE


@contextlib.contextmanager
def receiving():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        receiver = Receiver(ours)
        try:
            yield receiver, theirs
        finally:
            receiver.close()


def test_a_receiver_does_not_turn_while_nobody_receives(monkeypatch):
    turns = []
    ready = Receiver._ready
    monkeypatch.setattr(Receiver, "_ready", lambda receiver: turns.append(1) or ready(receiver))

    async def scenario():
        buffer = memoryview(bytearray(1000))
        with receiving() as (receiver, peer):
            waiting = asyncio.create_task(receiver.into(buffer))
            await asyncio.sleep(0.01)
            peer.send(b"x" * 10)
            assert await waiting == 10
            before = len(turns)
            peer.send(b"y" * 20)
            await asyncio.sleep(0.1)
            assert len(turns) - before <= 1
            assert await receiver.into(buffer) == 20
            assert bytes(buffer[:20]) == b"y" * 20

    asyncio.run(scenario())


def test_a_receiver_gives_all_that_comes_and_the_end():
    async def scenario():
        buffer, came = memoryview(bytearray(1000)), b""
        with receiving() as (receiver, peer):
            sent = bytes(range(256)) * 40
            threading.Thread(target=lambda: (peer.sendall(sent), peer.close())).start()
            while size := await asyncio.wait_for(receiver.into(buffer), 5):
                came += bytes(buffer[:size])
        assert came == sent

    asyncio.run(scenario())


def test_a_wait_that_was_cancelled_takes_nothing():
    async def scenario():
        buffer = memoryview(bytearray(1000))
        with receiving() as (receiver, peer):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(receiver.into(buffer), 0.02)
            peer.send(b"abc")
            await asyncio.sleep(0.02)
            assert await asyncio.wait_for(receiver.into(buffer), 5) == 3

    asyncio.run(scenario())
