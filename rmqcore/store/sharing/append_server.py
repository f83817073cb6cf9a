"""`AppendServer`: takes staged records for a store whose owner shares nothing else of it.

A broker has one: programs on its machine that its own user, or root, runs, such as a job of Spark,
leave files of records there, and the broker appends them between its clients' messages.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from rmqcore.errors import StoreError
from rmqcore.remoting import (
    Connection,
    ConnectionSettings,
    RemotingCommand,
    RemotingServer,
    RequestCode,
    ServerSettings,
    success,
)
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.sharing.calls import HELLO, STORE_CALL, VERSION, answer_of, method_of
from rmqcore.store.sharing.place import AppendsPlace
from rmqcore.store.sharing.staged_files_in import queues_of
from rmqcore.store.sharing.values import unpack

#: What it takes, beside the question for the store's settings.
_CALLS: Final = ("append_staged", "finish_staged")

#: Connections of others than the directory's owner and root: so many, each for so long, seconds.
_STRANGERS_MAX: Final = 8
_STRANGER_S: Final = 5.0

#: Awaited with the (topic, queue id) pairs that are about to get records.
Prepare = Callable[[Iterable[tuple[str, int]]], Awaitable[None]]


class AppendServer:
    """Serves one open store; used from the event loop that started it.

    Args:
        store: the records go into it.
        prepare: makes sure that what is appended will be found.
    """

    def __init__(self, store: DefaultMessageStore, prepare: Prepare) -> None:
        self._store = store
        self._prepare = prepare
        self._place = AppendsPlace(store.path.absolute())
        self._one_by_one = asyncio.Lock()
        self._server: RemotingServer | None = None
        self._strangers: set[Connection] = set()

    async def start(self) -> None:
        """Listen for programs on this machine.

        Raises:
            OSError: the system refused.
        """
        settings = ServerSettings(connection=ConnectionSettings(idle_timeout_s=0))
        self._server = RemotingServer(
            listening=self._place.listen(),
            settings=settings,
            on_open=self._opened,
            on_close=self._strangers.discard,
        )
        self._server.register(HELLO, self._hello)
        self._server.register(STORE_CALL, self._answer)
        self._server.register(RequestCode.HEART_BEAT, lambda *_: success())
        await self._server.start()

    async def stop(self) -> None:
        """Take nothing more; what is being appended goes on until the store is closed."""
        server, self._server = self._server, None
        if server is not None:
            with suppress(OSError):
                self._place.forget_socket()
            await server.stop()

    def _hello(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        try:
            self._check_peer(connection)
        except (StoreError, OSError) as error:
            return answer_of(error)
        if request.number("version") == VERSION:
            return answer_of(None)
        return answer_of(
            StoreError(
                f"{self._store.path}: its owner, process {os.getpid()}, takes staged records by "
                f"version {VERSION}, this process has {request.text('version')}; use one rmqcore"
            )
        )

    def _opened(self, connection: Connection) -> None:
        """Let whoever could not write the store's files stay for his refusal, a few at a time.

        The system lists the name to everybody: all could take the places that connections have.
        """
        with suppress(StoreError, OSError):
            self._check_peer(connection)
            return
        if len(self._strangers) >= _STRANGERS_MAX:
            connection.abort()
        else:
            self._strangers.add(connection)
            asyncio.get_running_loop().call_later(_STRANGER_S, connection.abort)

    def _check_peer(self, connection: Connection) -> None:
        """Raise where whoever asks could not write the store's files."""
        with socket.socket(fileno=os.dup(connection.fileno())) as connected:
            if not self._place.may_append(connected):
                raise StoreError(
                    f"{self._store.path}: its owner, process {os.getpid()}, takes staged records "
                    "from processes of its directory's owner, and of root, alone"
                )

    async def _answer(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        try:
            self._check_peer(connection)
            return answer_of(await self._call(request.text("method"), request.body))
        except Exception as error:  # noqa: BLE001 - it is the caller's to see
            return answer_of(error)

    async def _call(self, method: str, body: bytes) -> Any:
        if method == "config":
            return self._store.config
        if method not in _CALLS:
            raise StoreError(f"{self._store.path}: {method} is no call that its owner takes")
        args, settings = unpack(body)
        async with self._one_by_one:
            await self._prepare(await asyncio.to_thread(queues_of, self._store, method, args))
            return await asyncio.to_thread(method_of(self._store, method), *args, **settings)
