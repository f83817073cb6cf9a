"""The owner's side: a thread with an event loop that serves the store to other processes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from rmqcore.errors import RmqCoreError, StoreError
from rmqcore.native.base._descriptor import Descriptor
from rmqcore.remoting import (
    Connection,
    ConnectionSettings,
    RemotingCommand,
    RemotingServer,
    RequestCode,
    ServerSettings,
    new_event_loop,
    success,
)
from rmqcore.store.consume.holders import is_elsewhere, is_gone, process_of
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.sharing.arrivals import PendingArrivals
from rmqcore.store.sharing.calls import (
    ARRIVALS,
    CALLS,
    CANCEL,
    GOODBYE,
    HELLO,
    PROPERTIES,
    STORE_CALL,
    VERSION,
    Runs,
    answer_of,
    coroutine_of,
    method_of,
)
from rmqcore.store.sharing.channel import LIMITS
from rmqcore.store.sharing.daemon_threads import DaemonThreads
from rmqcore.store.sharing.pieces import PIECE_SIZE, body_size, pieces_of
from rmqcore.store.sharing.put_again import find_put
from rmqcore.store.sharing.values import unpack

_log = logging.getLogger("rmqcore")

_STOP_S: Final = 5.0
#: With these durabilities a put has to wait.
_WAITED_FOR: Final = ("disk", "replicated")
#: The attribute of a connection that says whose it is.
_CLIENT: Final = "client"
#: Processes that have leases and no connection are looked for this often: they may have ended.
_ENDED_POLL_S: Final = 0.5
#: A process whose end the system cannot tell has ended when it had no connection for this long.
_MISSED_S: Final = 10.0


class StoreServer:
    """Serves one store over a socket; requests that come before `serve` wait for it.

    Args:
        listening: the socket.
        path: the store's directory.
    """

    def __init__(self, listening: socket.socket, path: Path) -> None:
        self.path = path
        self._listening = listening
        #: what takes the place of sockets in a forked child, which may open no further file
        self._nothing = Descriptor(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        self._loop = new_event_loop()
        self._loop.set_default_executor(DaemonThreads())
        self._thread = threading.Thread(target=self._run, name="ShareStore", daemon=True)
        self._store: DefaultMessageStore | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        #: tasks of puts: one that is tried again must not overtake the first try
        self._puts: set[asyncio.Future[Any]] = set()
        #: tasks that would wait for long, by connection and number of the request
        self._waiting_calls: dict[tuple[Connection, int], asyncio.Future[Any]] = {}
        #: what threads work on, by the name of the call
        self._named: dict[str, asyncio.Future[RemotingCommand]] = {}
        #: by client: the holders in whose names it has leased messages
        self._holders: dict[str, set[str]] = {}
        #: clients that have closed their handles, as long as one of their connections is open
        self._leaving: set[str] = set()
        #: by process of which the system tells nothing: since when it has had no connection
        self._missed: dict[str, float] = {}
        self._server: RemotingServer | None = None
        self._looking: asyncio.Task[None] | None = None
        self._stopping = False
        self._ending: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to accept connections."""
        self._thread.start()

    def serve(self, store: DefaultMessageStore) -> None:
        """Answer requests out of this store from now on."""
        self._store = store
        self._loop.call_soon_threadsafe(self._begin)

    def stop(self) -> None:
        """Answer what was taken, and end; what an interrupt has ended, a further call ends."""
        if self._thread.is_alive():
            # the loop may just have been closed
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._begin_stop)
            self._thread.join()

    def forget(self) -> None:
        """Let the parent alone have its connections: in a forked child this thread is not there.

        The child's copies would keep them open when the parent has ended.
        """
        server = self._server
        connections = () if server is None else server.connections
        for fd in (self._listening.fileno(), *(each.fileno() for each in connections)):
            if fd >= 0:
                os.dup2(self._nothing.fileno(), fd, inheritable=False)

    # ---- the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _serve(self) -> None:
        await self._start()
        # it may have been told to stop before it had started
        await self._stopped

    async def _start(self) -> None:
        connection = ConnectionSettings(
            frames=LIMITS, idle_timeout_s=0, request_max=1 << 20, worked_size_max=sys.maxsize
        )
        self._server = RemotingServer(
            listening=self._listening,
            # its clients are processes of the store's user, whose requests may be as large as that
            settings=ServerSettings(connection=connection, kept_total_max=sys.maxsize),
            on_close=self._closed,
        )
        self._server.register(STORE_CALL, self._answer)
        self._server.register(HELLO, self._hello)
        self._server.register(CANCEL, self._cancel)
        self._server.register(GOODBYE, self._goodbye)
        self._server.register(RequestCode.HEART_BEAT, lambda *_: success())
        await self._server.start()

    def _begin(self) -> None:
        self._ready.set_result(None)
        self._look()

    def _look(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = self._loop.create_task(self._look_for_ended())

    async def _look_for_ended(self) -> None:
        """Free what processes have leased that end, or have ended, without a connection."""
        store = self._store
        while store is not None and not self._stopping:
            try:
                connected = self._connected()
                for client in self._holders.keys() - connected:
                    if self._has_ended(client):
                        del self._holders[client]
                known = [self._holders.get(client, ()) for client in connected]
                if not store.parts.consuming.release_ended(set().union(*known), self._has_ended):
                    return
            except (RmqCoreError, OSError) as error:
                _log.warning("%s: leases cannot be freed now: %s", self.path, error)
            await asyncio.sleep(_ENDED_POLL_S)

    def _has_ended(self, holder: str) -> bool:
        """Tell whether the process of a holder, or of a client, has ended.

        One of which the system tells nothing has when it is without a connection for long, as a
        process that lives makes a new one at once.
        """
        if not is_elsewhere(holder):
            return is_gone(holder)
        process = process_of(holder)
        if process in map(process_of, self._connected()):
            self._missed.pop(process, None)
            return False
        now_s = self._loop.time()
        return now_s - self._missed.setdefault(process, now_s) >= _MISSED_S

    def _begin_stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._ending = self._loop.create_task(self._stop())

    async def _stop(self) -> None:
        try:
            if self._looking is not None:
                self._looking.cancel()
            for task in self._waiting_calls.values():
                task.cancel()
            if self._server is not None:
                # who asked a store that could not be opened is to ask the next owner, at once
                await self._server.stop(0 if self._store is None else _STOP_S)
            if self._store is not None:
                self._store.parts.consuming.keep_leases(set().union(*self._holders.values()))
        finally:
            self._stopped.set_result(None)

    # ---- requests

    def _hello(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        if request.number("version") != VERSION:
            return answer_of(
                StoreError(
                    f"{self.path}: its owner, process {os.getpid()}, shares it by version "
                    f"{VERSION}, this process by {request.text('version')}; use one rmqcore in both"
                )
            )
        client = connection.attributes[_CLIENT] = request.text("client")
        self._holders.setdefault(client, set())
        self._missed.pop(process_of(client), None)
        return answer_of(None)

    def _goodbye(self, connection: Connection, _: RemotingCommand) -> None:
        self._leaving.add(connection.attributes[_CLIENT])

    def _cancel(self, connection: Connection, request: RemotingCommand) -> None:
        task = self._waiting_calls.get((connection, request.number("opaque")))
        if task is not None and not task.done():
            task.cancel()
        elif self._store is not None and "call" in request.ext_fields:
            holder = request.text("holder", connection.attributes.get(_CLIENT))
            self._store.parts.consuming.undo_lease(request.text("call"), holder)

    def _answer(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """Answer a call at once where that is short, else as fast as the client reads."""
        answer = self._call(connection, request)
        if isinstance(answer, RemotingCommand) and body_size(answer) <= PIECE_SIZE:
            return answer
        return _answer_in_pieces(connection, request, answer)

    def _call(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        if self._store is None:
            return self._call_when_ready(connection, request)
        try:
            answer = self._work(self._store, connection, request)
        except Exception as error:  # noqa: BLE001 - it is the caller's to see
            return answer_of(error)
        return answer

    def _closed(self, connection: Connection) -> None:
        """Forget what a client waited for; when it has ended, what it had leased comes again.

        One whose call was interrupted in the middle of a frame lives, and makes a new connection.
        """
        for (waiting, _), task in self._waiting_calls.items():
            if waiting is connection:
                task.cancel()
        arrivals = connection.attributes.pop(ARRIVALS, None)
        if arrivals is not None:
            arrivals.forget()
        client = connection.attributes.pop(_CLIENT, None)
        if client is None:
            return
        if client in self._leaving or is_gone(client):
            self._free(client)
        else:
            self._look()

    def _connected(self) -> set[str]:
        """The clients that have a connection."""
        connections = () if self._server is None else self._server.connections
        return {each.attributes[_CLIENT] for each in connections if _CLIENT in each.attributes}

    def _free(self, client: str) -> None:
        """Let come again what a client has leased that has no connection any more."""
        if self._store is None or self._stopping or client in self._connected():
            return
        self._leaving.discard(client)
        for holder in self._holders.pop(client, ()):
            if not any(holder in others for others in self._holders.values()):
                try:
                    self._store.release_leases(holder)
                except (RmqCoreError, OSError) as error:
                    _log.warning("%s: leases cannot be freed now: %s", self.path, error)
                    self._look()

    async def _call_when_ready(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        await asyncio.shield(self._ready)
        answer = self._call(connection, request)
        return answer if isinstance(answer, RemotingCommand) else await answer

    def _work(
        self, store: DefaultMessageStore, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        method = request.text("method")
        args, settings = unpack(request.body)
        if method in PROPERTIES:
            return answer_of(getattr(store, method))
        if method == ARRIVALS:
            known = connection.attributes
            if ARRIVALS not in known:
                known[ARRIVALS] = PendingArrivals(store, self._loop)
            return self._answer_waiting(known[ARRIVALS].collect(), connection, request)
        call = CALLS.get(method)
        if call is None:
            raise StoreError(f"{method} is no call of a shared store")
        if call.runs is Runs.PUT:
            return self._put(store, request, args, settings)
        function = method_of(store, method)
        if method == "lease":
            client = connection.attributes[_CLIENT]
            holder = settings["holder"] = settings.get("holder") or client
            self._holders[client].add(holder)
        if call.runs is Runs.NOW:
            value = function(*args, **settings)
            return answer_of(list(value) if method.endswith("__iter__") else value)
        if call.runs is Runs.WAITS:
            waiting = coroutine_of(store, method)(*args, **settings)
            return self._answer_waiting(waiting, connection, request)
        if call.runs is Runs.TABLE:
            with store.parts.key_values.table_at_hand(
                args[0] if args else settings.get("table")
            ) as at_hand:
                if at_hand:
                    return answer_of(function(*args, **settings))
        work = partial(_answered, partial(function, *args, **settings))
        # its connection may have been lost: a call that is made again meanwhile is the same call
        name = request.text("name")
        working = self._named.get(name)
        if working is None:
            working = self._named[name] = self._loop.run_in_executor(None, work)
            working.add_done_callback(lambda _: self._named.pop(name, None))
        return asyncio.shield(working)

    def _put(
        self,
        store: DefaultMessageStore,
        request: RemotingCommand,
        args: list[Any],
        settings: dict[str, Any],
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        method = request.text("method")
        durability = settings.get("durability")
        waits = store.waits if durability is None else durability in _WAITED_FOR
        if "again" in request.ext_fields:
            since_ms = request.number("again")
            return _answer_later(self._put_again(store, method, args, settings, since_ms))
        if not waits:
            return answer_of(getattr(store, method)(*args, **settings))
        putting = self._loop.create_task(coroutine_of(store, method)(*args, **settings))
        self._puts.add(putting)
        putting.add_done_callback(self._puts.discard)
        return _answer_later(putting)

    async def _put_again(
        self,
        store: DefaultMessageStore,
        method: str,
        args: list[Any],
        settings: dict[str, Any],
        since_ms: int,
    ) -> Any:
        if self._puts:
            await asyncio.wait(self._puts)
        receipt = await self._loop.run_in_executor(
            None, find_put, store, method, args, settings, since_ms
        )
        if receipt is None:
            receipt = await coroutine_of(store, method)(*args, **settings)
        return receipt

    def _answer_waiting(
        self, working: Coroutine[Any, Any, Any], connection: Connection, request: RemotingCommand
    ) -> Awaitable[RemotingCommand]:
        """As `_answer_later`, of what may wait for as long as it takes."""
        # registered at once: its cancellation may have been read together with it
        key = connection, request.opaque
        self._waiting_calls[key] = task = self._loop.create_task(working)
        task.add_done_callback(lambda _: self._waiting_calls.pop(key, None))
        return _answer_later(task)


async def _answer_in_pieces(
    connection: Connection,
    request: RemotingCommand,
    answer: RemotingCommand | Awaitable[RemotingCommand],
) -> None:
    whole = answer if isinstance(answer, RemotingCommand) else await answer
    await connection.answer_in_turn(request, pieces_of(whole))


def _answered(function: Callable[[], Any]) -> RemotingCommand:
    """What a function says, as an answer that is made in this thread."""
    try:
        return answer_of(function())
    except Exception as error:  # noqa: BLE001 - it is the caller's to see
        return answer_of(error)


async def _answer_later(working: Awaitable[Any]) -> RemotingCommand:
    try:
        return answer_of(await working)
    except Exception as error:  # noqa: BLE001 - it is the caller's to see
        return answer_of(error)
