"""The client for programs without an event loop: the same names, without ``await``.

Each object runs the client's own in a thread; any number of threads may call it. What a callback
gets (`check_transaction`, a transaction) is called in that thread.

    with Producer("127.0.0.1:9876", group="orders") as producer:
        producer.send("Orders", b"one")

    with Consumer("127.0.0.1:9876", "billing", {"Orders": "*"}) as consumer:
        for message in consumer:
            consumer.ack(message)
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from rmqcore.client import admin, consumer, producer
from rmqcore.client.errors import ClientClosedError
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

    def __init__(self) -> None:
        super().__init__(name="rmqcore-client", daemon=True)
        self.loop = new_event_loop()

    def run(self) -> None:
        """Run until `stop`."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def call(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """Run a coroutine there and wait for it; an exception here, also Ctrl-C, cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.join(_STOP_TIMEOUT_S)


class _Blocking(Generic[_Client]):
    """What the blocking faces have in common: a client, and a thread while it is open."""

    def __init__(self, make: Callable[[], _Client]) -> None:
        self._make = make
        self._client: _Client | None = None
        self._loop: _Loop | None = None
        self._lock = threading.Lock()
        # a wrong argument is said here already
        make()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Open it; ``with`` does so."""
        with self._lock:
            if self._loop is not None:
                return
            loop = _Loop()
            loop.start()
            try:
                self._client = loop.call(self._opened(), _START_TIMEOUT_S)
            except BaseException:
                loop.stop()
                raise
            self._loop = loop

    def close(self) -> None:
        """Close it and end its thread; ``with`` does so."""
        with self._lock:
            loop, client, self._loop, self._client = self._loop, self._client, None, None
        if loop is None or client is None:
            return
        try:
            loop.call(client.close(), _STOP_TIMEOUT_S)
        finally:
            loop.stop()

    async def _opened(self) -> _Client:
        client = self._make()
        await client.start()
        return client

    def _run(self, method: Callable[..., Coroutine[Any, Any, _T]], *args: Any, **more: Any) -> _T:
        loop, client = self._loop, self._client
        if loop is None or client is None:
            raise ClientClosedError(type(self).__name__.lower())
        return loop.call(method(client, *args, **more))


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
    send_in_transaction = _waiting(producer.Producer.send_in_transaction)
    request = _waiting(producer.Producer.request)
    reply = _waiting(producer.Producer.reply)


class Consumer(_Blocking[consumer.Consumer]):
    """As `rmqcore.client.Consumer`; ``with`` opens it, ``for`` gets the messages."""

    @_like(consumer.Consumer)
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(lambda: consumer.Consumer(*args, **more))

    receive = _waiting(consumer.Consumer.receive)
    ack = _waiting(consumer.Consumer.ack)
    nack = _waiting(consumer.Consumer.nack)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while (message := self.receive()) is not None:
            yield message


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
