"""The client for programs without an event loop: the same names, without ``await``.

Each object runs the client's own in a thread; any number of threads may call it. A callback
(`check_transaction`, a transaction) is called in that thread, and cannot wait for its own client:
what it calls of that raises `ClientMisusedError`. After `os.fork` the child opens its own.

    with Producer("127.0.0.1:9876", group="orders") as producer:
        producer.send("Orders", b"one")

    with Consumer("127.0.0.1:9876", "billing", {"Orders": "*"}) as consumer:
        for message in consumer:
            consumer.ack(message)
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from rmqcore.client import admin, consumer, producer
from rmqcore.client.errors import ClientClosedError, ClientForkedError, ClientMisusedError
from rmqcore.client.results import MessageQueue, SendResult, SendStatus, TransactionState
from rmqcore.message import ReceivedMessage, Sql
from rmqcore.remoting.loop import new_event_loop

_Client = TypeVar("_Client", bound="_Opened")
_Any = TypeVar("_Any")
_P = ParamSpec("_P")
_T = TypeVar("_T")

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0


class _Opened(Protocol):
    """What all clients have in common."""

    async def start(self) -> None:
        """Open it."""

    async def close(self) -> None:
        """Close it."""


class _Loop(threading.Thread):
    """An event loop in a thread of its own."""

    def __init__(self, client: str) -> None:
        """Prepare it.

        Args:
            client: what runs there, for errors.
        """
        super().__init__(name="rmqcore-client", daemon=True)
        self.loop = new_event_loop()
        self._client = client
        self._pid = os.getpid()
        self._ended = False
        self._waited: set[concurrent.futures.Future[Any]] = set()

    def run(self) -> None:
        """Run until `stop`; who still waits then, waits no more."""
        asyncio.set_event_loop(self.loop)
        _RUNNING.add(self)
        try:
            self.loop.run_forever()
            self._ended = True
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self._ended = True
            for future in list(self._waited):
                future.cancel()
            self.loop.close()
            _RUNNING.discard(self)

    @property
    def is_parents(self) -> bool:
        """Tell whether it runs in the process that this one was forked from."""
        return self._pid != os.getpid()

    def check(self) -> None:
        """Refuse a call that nobody would answer.

        Raises:
            ClientForkedError: the thread is in another process.
            ClientMisusedError: it is this thread.
            ClientClosedError: it has ended.
        """
        if self.is_parents:
            raise ClientForkedError(self._client, self._pid)
        if threading.get_ident() == self.ident:
            reason = "its own thread cannot wait for it: a callback calls another client, or none"
            raise ClientMisusedError(self._client, reason)
        if self._ended or sys.is_finalizing():
            raise ClientClosedError(self._client)

    def call(
        self, method: Callable[[], Coroutine[Any, Any, _T]], timeout_s: float | None = None
    ) -> _T:
        """Run a coroutine there and wait for it; an exception here, also Ctrl-C, cancels it.

        Raises:
            ClientForkedError, ClientMisusedError, ClientClosedError: see `check`.
        """
        self.check()
        work = method()
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()
            raise ClientClosedError(self._client) from None
        self._waited.add(future)
        try:
            if self._ended:
                future.cancel()
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise ClientClosedError(self._client) from None
        except BaseException:
            future.cancel()
            raise
        finally:
            self._waited.discard(future)

    def soon(self, method: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a coroutine there that nobody waits for; nothing where it has ended."""
        work = method()
        try:
            asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()

    def stop(self) -> None:
        """End the loop and the thread."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        self.join(_STOP_TIMEOUT_S)


#: The event loops whose thread is at work; a forked child keeps its copies of them, so that none
#: is finalized there.
_RUNNING: set[_Loop] = set()


class _Blocking(Generic[_Client]):
    """What the blocking faces have in common: a client, and a thread while it is open."""

    def __init__(self, make: Callable[[], _Client]) -> None:
        self._make = make
        self._client: _Client | None = None
        self._loop: _Loop | None = None
        #: by process id
        self._locks: dict[int, threading.RLock] = {}
        # raises now what is wrong with the arguments
        make()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Open it; ``with`` does so.

        Raises:
            ClientForkedError: the parent of this process has opened it.
            ClientClosedError: it was closed meanwhile, by a signal handler.
            RemotingError: see the client's own.
        """
        with self._alone():
            if self._loop is not None:
                self._loop.check()
                return
            loop = self._loop = _Loop(self._name)
            loop.start()
            try:
                self._client = loop.call(self._opened, _START_TIMEOUT_S)
            except BaseException:
                self._loop = None
                loop.stop()
                raise

    def close(self) -> None:
        """Close it and end its thread; ``with`` does so. In a forked child it does nothing.

        Raises:
            ClientMisusedError: a callback of its own calls.
        """
        with self._alone():
            loop, client = self._loop, self._client
            if loop is None or loop.is_parents or sys.is_finalizing():
                return
            loop.check()
            self._loop = self._client = None
        try:
            if client is not None:
                loop.call(client.close, _STOP_TIMEOUT_S)
        finally:
            loop.stop()

    @property
    def _name(self) -> str:
        return type(self).__name__.lower()

    def _alone(self) -> threading.RLock:
        """The lock of opening and closing; a child's own, as a thread of the parent may have it."""
        return self._locks.setdefault(os.getpid(), threading.RLock())

    async def _opened(self) -> _Client:
        client = self._make()
        await client.start()
        return client

    def _run(self, method: Callable[..., Coroutine[Any, Any, _T]], *args: Any, **more: Any) -> _T:
        loop, client = self._loop, self._client
        if loop is None or client is None:
            raise ClientClosedError(self._name)
        return loop.call(lambda: method(client, *args, **more))


def _waiting(
    method: Callable[Concatenate[_Any, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Any, _P], _T]:
    """The blocking form of a client's method."""

    def blocking(self: Any, *args: Any, **more: Any) -> Any:
        return self._run(method, *args, **more)

    documented: Any = functools.wraps(method)(blocking)
    waiting: Callable[Concatenate[Any, _P], _T] = documented
    return waiting


def _like(
    kind: Callable[_P, _Any],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]:
    """Let a constructor take the arguments of another class's."""

    def decorated(init: Callable[..., None]) -> Callable[Concatenate[Any, _P], None]:
        documented: Any = functools.wraps(kind.__init__)(init)
        taken: Callable[Concatenate[Any, _P], None] = documented
        return taken

    return decorated


class Producer(_Blocking[producer.Producer]):
    """As `rmqcore.client.Producer`; ``with`` opens it."""

    @_like(producer.Producer)
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(lambda: producer.Producer(*args, **more))

    send = _waiting(producer.Producer.send)
    send_oneway = _waiting(producer.Producer.send_oneway)
    send_batch = _waiting(producer.Producer.send_batch)
    send_columns = _waiting(producer.Producer.send_columns)
    send_in_transaction = _waiting(producer.Producer.send_in_transaction)
    request = _waiting(producer.Producer.request)
    reply = _waiting(producer.Producer.reply)


class _Receiving:
    """One message on its way from the event loop's thread to the one that waits for it.

    Attributes:
        message: what came; only the loop's thread sets it.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self.message: ReceivedMessage | None = None
        self._timeout_s = timeout_s
        self._consumer: consumer.Consumer | None = None
        self._nobody_waits = False

    async def receive(self, consumer: consumer.Consumer) -> None:
        """Wait for a message of a consumer."""
        self._consumer = consumer
        self.message = await consumer.receive(self._timeout_s)
        if self._nobody_waits:
            await self._take_back()

    def give_up(self, loop: _Loop | None) -> None:
        """Nobody waits any more: let what came, or comes still, be the next one's."""
        self._nobody_waits = True
        if loop is not None and not loop.is_parents:
            # behind what `_Loop.call` has cancelled
            loop.soon(self._take_back)

    async def _take_back(self) -> None:
        message, self.message = self.message, None
        if message is not None and self._consumer is not None:
            await self._consumer.take_back(message)


class Consumer(_Blocking[consumer.Consumer]):
    """As `rmqcore.client.Consumer`; ``with`` opens it, ``for`` gets the messages."""

    @_like(consumer.Consumer)
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(lambda: consumer.Consumer(*args, **more))

    def receive(self, timeout_s: float | None = None) -> ReceivedMessage | None:
        """As `rmqcore.client.Consumer.receive`.

        Interrupted by an exception of a signal handler, such as Ctrl-C, it hands out nothing: a
        message that it was given comes with the next call.
        """
        receiving = _Receiving(timeout_s)
        try:
            self._run(receiving.receive)
        except BaseException:
            receiving.give_up(self._loop)
            raise
        # no call behind it, in which an interrupt could come
        return receiving.message

    ack = _waiting(consumer.Consumer.ack)
    nack = _waiting(consumer.Consumer.nack)
    queue_ends = _waiting(consumer.Consumer.queue_ends)
    has_reached = _waiting(consumer.Consumer.has_reached)

    def processing(
        self, message: ReceivedMessage
    ) -> contextlib.AbstractContextManager[None, bool | None]:
        """As `rmqcore.client.Consumer.processing`, in the thread that calls."""
        if self._client is None:
            raise ClientClosedError(self._name)
        return self._client.processing(message)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while True:
            receiving = _Receiving(None)
            try:
                self._run(receiving.receive)
            except BaseException:
                receiving.give_up(self._loop)
                raise
            # no call in front of the message's end, in which an interrupt could come
            if receiving.message is None:
                return
            yield receiving.message


class Admin(_Blocking[admin.Admin]):
    """As `rmqcore.client.Admin`; ``with`` opens it."""

    @_like(admin.Admin)
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(lambda: admin.Admin(*args, **more))

    clusters = _waiting(admin.Admin.clusters)
    broker_config = _waiting(admin.Admin.broker_config)
    update_broker_config = _waiting(admin.Admin.update_broker_config)
    runtime_info = _waiting(admin.Admin.runtime_info)
    ha_status = _waiting(admin.Admin.ha_status)
    set_write_permission = _waiting(admin.Admin.set_write_permission)
    topics = _waiting(admin.Admin.topics)
    route = _waiting(admin.Admin.route)
    topic_stats = _waiting(admin.Admin.topic_stats)
    create_topic = _waiting(admin.Admin.create_topic)
    delete_topic = _waiting(admin.Admin.delete_topic)
    topic_groups = _waiting(admin.Admin.topic_groups)
    groups = _waiting(admin.Admin.groups)
    create_group = _waiting(admin.Admin.create_group)
    delete_group = _waiting(admin.Admin.delete_group)
    set_read_permission = _waiting(admin.Admin.set_read_permission)
    consumer_progress = _waiting(admin.Admin.consumer_progress)
    consumers = _waiting(admin.Admin.consumers)
    producers = _waiting(admin.Admin.producers)
    reset_offsets = _waiting(admin.Admin.reset_offsets)
    message_by_id = _waiting(admin.Admin.message_by_id)
    messages_by_key = _waiting(admin.Admin.messages_by_key)


__all__ = [
    "Admin",
    "Consumer",
    "MessageQueue",
    "Producer",
    "ReceivedMessage",
    "SendResult",
    "SendStatus",
    "Sql",
    "TransactionState",
]
