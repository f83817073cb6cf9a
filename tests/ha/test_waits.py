"""Many waits for slaves on one loop, and a socket that is registered once."""

import asyncio
import contextlib
import gc
import socket
import threading
import weakref

import pytest
from interrupts import Interrupt
from patience import TIMEOUT_S, until_async

from rmqcore.ha import HAConfig
from rmqcore.ha.group_transfer import GroupTransferService
from rmqcore.ha.sockets import Receiver
from rmqcore.status import PutMessageStatus

pytestmark = pytest.mark.engine

LATE = PutMessageStatus.FLUSH_SLAVE_TIMEOUT
WAIT_S = 0.2


def waits_for_one_slave():
    config = HAConfig(slave_timeout=int(1000 * WAIT_S))
    service = GroupTransferService(config, end=lambda: 0, on_waiting=lambda: None)
    service.acknowledged("slave", 0)
    return service


async def turns_of_the_loop():
    """Let whatever a socket or a task has ready come to its end."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_each_wait_ends_in_its_own_time():
    async def wait(service, end):
        loop = asyncio.get_running_loop()
        began = loop.time()
        status = await service.begin_async(end)
        return status, loop.time() - began

    async def scenario():
        loop = asyncio.get_running_loop()
        # a clock that is moved by hand to where the next timer is due
        now = loop.time()
        loop.time = lambda: now
        service = waits_for_one_slave()
        first = asyncio.create_task(wait(service, 10))
        await asyncio.sleep(0)
        now += WAIT_S / 2
        others = [asyncio.create_task(wait(service, end)) for end in (5, 20, 30)]
        await asyncio.sleep(0)
        others[1].cancel()
        service.acknowledged("slave", 5)
        waiting = asyncio.gather(first, others[0], others[2])
        for _ in range(2):
            await turns_of_the_loop()
            assert not waiting.done()
            now += WAIT_S / 2 + 1e-6
        await turns_of_the_loop()
        assert waiting.done()
        again = asyncio.create_task(wait(service, 40))
        await asyncio.sleep(0)
        now += WAIT_S
        return [*await waiting, await again]

    found = asyncio.run(scenario())
    assert [status for status, _ in found] == [LATE, PutMessageStatus.PUT_OK, LATE, LATE]
    for status, seconds in found:
        assert seconds == pytest.approx(WAIT_S if status is LATE else 0, abs=1e-4)


def test_a_signal_handler_that_puts_while_its_thread_begins_to_wait_waits_too():
    service, ends = waits_for_one_slave(), []

    def begin_everywhere():
        number, at = 0, "first"
        while at:
            number += 1
            interrupt = Interrupt(number, lambda: ends.append(service.begin(20)))
            ends.append(interrupt.during(lambda: service.begin(10)))
            at = interrupt.at

    # a thread of its own, as it would wait for itself for ever
    thread = threading.Thread(target=begin_everywhere, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    service.acknowledged("slave", 20)
    assert {wait.status() for wait in ends} == {PutMessageStatus.PUT_OK}


def test_a_put_that_needs_two_slaves_waits_for_the_slower_one():
    async def scenario():
        config = HAConfig(in_sync_replicas=3)
        service = GroupTransferService(config, end=lambda: 0, on_waiting=lambda: None)
        for slave in ("fast", "slow"):
            service.acknowledged(slave, 0)
        put = asyncio.ensure_future(service.begin_async(10))
        for slave, offset, replicated in (("fast", 10, 0), ("slow", 9, 9), ("fast", 20, 9)):
            service.acknowledged(slave, offset)
            await turns_of_the_loop()
            assert not put.done()
            assert service.replicated_offset == replicated
        service.acknowledged("slow", 10)
        assert await put is PutMessageStatus.PUT_OK

    asyncio.run(scenario())


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
        await asyncio.sleep(0)
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
        return await asyncio.wait_for(service.begin_async(6), TIMEOUT_S)

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


async def begun(receiver, buffer):
    """A task that waits for what comes."""
    waiting = asyncio.create_task(receiver.into(buffer))
    await until_async(lambda: receiver._registered, "it waits for the socket")
    return waiting


def test_a_receiver_does_not_turn_while_nobody_receives(monkeypatch):
    turns = []
    ready = Receiver._ready
    monkeypatch.setattr(Receiver, "_ready", lambda receiver: turns.append(1) or ready(receiver))

    async def scenario():
        buffer = memoryview(bytearray(1000))
        with receiving() as (receiver, peer):
            waiting = await begun(receiver, buffer)
            peer.send(b"x" * 10)
            assert await waiting == 10
            before = len(turns)
            peer.send(b"y" * 20)
            await turns_of_the_loop()
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
            while size := await asyncio.wait_for(receiver.into(buffer), TIMEOUT_S):
                came += bytes(buffer[:size])
        assert came == sent

    asyncio.run(scenario())


def test_a_wait_that_was_cancelled_takes_nothing():
    async def scenario():
        buffer = memoryview(bytearray(1000))
        with receiving() as (receiver, peer):
            waiting = await begun(receiver, buffer)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            peer.send(b"abc")
            await turns_of_the_loop()
            assert await asyncio.wait_for(receiver.into(buffer), TIMEOUT_S) == 3

    asyncio.run(scenario())


def test_a_thread_whose_slaves_do_not_answer_is_told_that_it_is_late():
    service = GroupTransferService(
        HAConfig(slave_timeout=1), end=lambda: 0, on_waiting=lambda: None
    )
    service.acknowledged("slave", 0)
    wait = service.begin(10)
    assert wait.status() is LATE
    service.acknowledged("slave", 10)
    assert wait.status() is PutMessageStatus.PUT_OK
