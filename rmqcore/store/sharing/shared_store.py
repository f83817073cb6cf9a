"""`SharedMessageStore`: a store that this process owns, or that it asks the owner for."""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import os
import socket
import sys
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from rmqcore.arguments import text
from rmqcore.config import FlushDiskType, StoreConfig, load_config
from rmqcore.errors import RmqCoreError, StoreClosedError, StoreError
from rmqcore.files.config_tables import ConsumerOffsetTable, TopicConfigTable
from rmqcore.files.store_dir import StoreDir, make_directory
from rmqcore.message import MessageExt, PutMessageResult
from rmqcore.native.format._wire_message import WireMessage
from rmqcore.recovery.report import RecoveryProgress
from rmqcore.remoting import RemotingCommand
from rmqcore.services.arrival import ArrivalListener
from rmqcore.services.event_loop import running_loop
from rmqcore.status import Durability
from rmqcore.store.closed_by_with import ClosedByWith
from rmqcore.store.consume.holders import new_holder
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.parts.iteration import OnDamage, checked_bounds, topic_messages
from rmqcore.store.protocol import MessageStore
from rmqcore.store.readable_store import broker_conf
from rmqcore.store.sharing.calls import CALLS, HELLO, VERSION, result_of
from rmqcore.store.sharing.channel import Channel, ChannelLostError
from rmqcore.store.sharing.coroutines import ask
from rmqcore.store.sharing.listeners import Listeners
from rmqcore.store.sharing.owner import StoreServer
from rmqcore.store.sharing.owner_watch import watch_owner
from rmqcore.store.sharing.pending_call import PendingCall
from rmqcore.store.sharing.place import MeetingPlace
from rmqcore.store.sharing.shared_tables import SharedTable
from rmqcore.store.sharing.unique_keys import UniqueKeys
from rmqcore.world import monotonic_s, sleep

if TYPE_CHECKING:
    from rmqcore.status import DurabilityName
    from rmqcore.store.opening import ConfigSource
    from rmqcore.store.parts.put_columns_result import PutColumnsResult
    from rmqcore.store.sharing.listeners import Handle

_log = logging.getLogger("rmqcore")

#: pauses between two looks for an owner, while one is about to begin or to end
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.02
#: how long a process that was killed may still be seen to have the store
_DYING_S: Final = 1.0

#: every handle of this process
_HANDLES: Final[weakref.WeakSet[SharedMessageStore]] = weakref.WeakSet()
#: held while files and locks are opened or closed, so that no fork comes in between
_OPENING: Final = threading.RLock()
#: what belongs to the parent of a forked child: it must not be finalized here
_PARENTS: Final[list[object]] = []


Progress = Callable[[RecoveryProgress], None]


class SharedStore(MessageStore, Protocol):
    """What `open_shared` gives: a `MessageStore`, and who owns it."""

    @property
    def owner(self) -> int:
        """Process id of the owner; this process's own when it is the owner."""
        ...


class SharedMessageStore(ClosedByWith):
    """A handle on a store that several processes share; made by `rmqcore.open_shared`.

    In the owner its calls are those of the `DefaultMessageStore`, at no cost. In a client each call
    is one request. When the owner ends, the next call, or at the latest this handle's own thread,
    finds the new owner, or becomes it.

    Threads: any. After a fork the child's handle is a client of the parent's.
    """

    _closed = True

    def __init__(
        self, path: Path, config: StoreConfig, progress: Progress | None, owner_timeout_ms: float
    ) -> None:
        self.path = path
        self._asked = config
        self._progress = progress
        self._asks_for_disk = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._timeout_s = owner_timeout_ms / 1000
        self._place = MeetingPlace(path)
        self._settling = threading.RLock()
        self._store: DefaultMessageStore | None = None
        self._server: StoreServer | None = None
        self._channel: Channel | None = None
        self._keys = UniqueKeys()
        self._client = new_holder()
        self._closed = False
        self._listeners = Listeners(cast("Handle", self))
        self._topics = SharedTable("topics", self._call)
        self._consumer_offsets = SharedTable("consumer_offsets", self._call)
        self.settled()
        _HANDLES.add(self)

    # ---- who owns the store

    @property
    def owner(self) -> int:
        """Process id of the owner; this process's own when it is the owner."""
        found = self.settled()
        return found.owner if isinstance(found, Channel) else os.getpid()

    def settled(self) -> DefaultMessageStore | Channel:
        """The store, when this process owns it; else a channel to the owner.

        Raises:
            StoreClosedError: the handle was closed.
            OwnerTimeoutError: the owner does not answer.
        """
        return self._found() or self._settle()

    def _found(self) -> DefaultMessageStore | Channel | None:
        store, channel = self._store, self._channel
        if store is not None:
            return store
        return None if channel is None or channel.lost else channel

    def _settle(self) -> DefaultMessageStore | Channel:
        with self._settling:
            deadline, pause = monotonic_s() + self._timeout_s, _FIRST_PAUSE_S
            while True:
                if self._closed:
                    raise StoreClosedError(f"{self.path}: the store has been closed")
                if not (self._found() or self._connect()):
                    self._own()
                found = self._found()
                if found is not None:
                    return found
                if monotonic_s() > deadline:
                    raise self._place.hangs(self._timeout_s)
                sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _connect(self) -> bool:
        channel = self._new_channel()
        if channel is None:
            return False
        try:
            self._channel = channel
            watch = threading.Thread(
                target=watch_owner,
                args=(weakref.ref(self), channel),
                name="WatchOwner",
                daemon=True,
            )
            watch.start()
        except BaseException:
            # nobody may be watching
            channel.close()
            raise
        return True

    def _new_channel(self) -> Channel | None:
        """A connection with the owner, who knows whose it is; None when there is none."""
        connected = self._place.connect(self._timeout_s)
        if connected is None:
            return None
        channel = Channel(connected, self._place, self._timeout_s)
        fields = {"version": str(VERSION), "client": self._client}
        try:
            result_of(channel.call(RemotingCommand(HELLO, fields)))
        except ChannelLostError:
            channel.end()
            return None
        except BaseException:
            channel.end()
            raise
        return channel

    def _own(self) -> None:
        """Open the store, if nobody else may."""
        with _OPENING:
            listening = server = store = None
            # in here from the lock on: what an interrupt leaves open would keep all others out
            try:
                if not self._place.try_lock():
                    return
                self._await_the_dead()
                listening = self._place.listen()
                server = StoreServer(listening, self.path)
                server.start()
                store = DefaultMessageStore(self.path, self._asked, progress=self._progress)
                store.warn_without_slaves()
                server.serve(store)
                self._store, self._server, self._channel = store, server, None
            except BaseException:
                if self._store is None:
                    self._give_up_owning(listening, server, store)
                raise
            self.__dict__.update({name: getattr(store, name) for name in _DIRECT})

    def _give_up_owning(
        self,
        listening: socket.socket | None,
        server: StoreServer | None,
        store: DefaultMessageStore | None,
    ) -> None:
        """Let go of what was opened, so that this process or another may own the store."""
        try:
            self._place.forget_socket()
            if server is not None:
                server.stop()
            if listening is not None:
                listening.close()
            if store is not None:
                store.close()
        finally:
            self._place.unlock()

    def _await_the_dead(self) -> None:
        """Give a former owner, who has been killed, the time to lose its lock on the files."""
        directory = StoreDir(self.path, self._asked.store_path_commit_log)
        deadline = monotonic_s() + min(_DYING_S, self._timeout_s)
        while directory.is_locked() and monotonic_s() < deadline:
            sleep(_FIRST_PAUSE_S)

    # ---- calls

    def _call(self, method: str, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Make a call, of whoever owns the store, until it is answered."""
        call = PendingCall(self.path, method, args, settings)
        while True:
            found = self.settled()
            if not isinstance(found, Channel):
                return call.here(found)
            request = call.request(self._keys, waits_for_disk=self._asks_for_disk)
            try:
                answer = self._aside(request) if found.interrupted else found.call(request)
            except ChannelLostError as lost:
                call.lost(lost)
            except BaseException:
                self._take_back(found, request)
                raise
            else:
                return result_of(answer)

    def _take_back(self, channel: Channel, request: RemotingCommand) -> None:
        """Let come again what a lease was given that nobody waits for, and that lost its channel.

        Where the channel is there still, it has told the owner.
        """
        call = request.ext_fields.get("call")
        if call is None or not channel.lost:
            return
        args = call, request.ext_fields.get("holder", self._client)

        def take_back() -> None:
            with suppress(RmqCoreError, OSError):
                self._call("take_back_lease", args, {})

        threading.Thread(target=take_back, name="TakeBackLease", daemon=True).start()

    def _aside(self, request: RemotingCommand) -> RemotingCommand:
        """Make a call over a connection of its own, which ends with it."""
        channel = self._new_channel()
        if channel is None:
            raise ChannelLostError(sent=False)
        try:
            return channel.call(request)
        finally:
            channel.end()

    async def _call_async(
        self, method: str, args: tuple[Any, ...], settings: dict[str, Any]
    ) -> Any:
        """As `_call`, without blocking the event loop."""
        call = PendingCall(self.path, method, args, settings)
        while True:
            found = self._found()
            if found is None:
                found = await running_loop().run_in_executor(None, self._settle)
            if not isinstance(found, Channel):
                return await call.here_async(found)
            request = call.request(self._keys, waits_for_disk=self._asks_for_disk)
            try:
                answer = await ask(found, request, self._timeout_s)
            except ChannelLostError as lost:
                call.lost(lost)
            except BaseException:
                self._take_back(found, request)
                raise
            else:
                return result_of(answer)

    # ---- what is not one request

    def put_columns(
        self,
        table: object,
        *,
        topic: str | None = None,
        queue_count: int = 1,
        copy: bool = False,
        durability: Durability | DurabilityName | None = None,
    ) -> PutColumnsResult:
        """See `MessageStore.put_columns`: the records are made here, the owner appends them."""
        from rmqcore.store.sharing.column_calls import put_table  # noqa: PLC0415 - for tables only

        if durability is None and self._asks_for_disk:
            durability = Durability.DISK
        put = functools.partial(self._call, "put_records")
        return put_table(put, self.config, (table, topic, queue_count), copy, durability)

    async def put_columns_async(
        self,
        table: object,
        *,
        topic: str | None = None,
        queue_count: int = 1,
        copy: bool = False,
        durability: Durability | DurabilityName | None = None,
    ) -> PutColumnsResult:
        """As `put_columns`, without blocking the event loop."""
        call = functools.partial(
            self.put_columns,
            table,
            topic=topic,
            queue_count=queue_count,
            copy=copy,
            durability=durability,
        )
        return await running_loop().run_in_executor(None, call)

    def append_now(self, message: WireMessage) -> PutMessageResult | None:
        """See `MessageStore.append_now`: a client always has to wait for the owner."""
        return None

    def not_waited_for(self, receipt: PutMessageResult) -> PutMessageResult:
        """See `MessageStore.not_waited_for`: the owner has seen to that."""
        return receipt

    async def follow(
        self, topic: str, queue_id: int, start: int | None = None
    ) -> AsyncIterator[MessageExt]:
        """See `MessageStore.follow`."""
        queue = (topic, queue_id)
        offset = await self._call_async("min_queue_offset", queue, {}) if start is None else start
        while True:
            await self._call_async("wait", (*queue, offset), {})
            result = await self._call_async("get_message", (*queue, offset), {})
            for message in result.messages:
                yield message
            offset = result.next_queue_offset

    def on_arrival(self, listener: ArrivalListener) -> Callable[[], None]:
        """See `MessageStore.on_arrival`; after a take-over every queue is told once."""
        return self._listeners.add(listener)

    def messages(
        self,
        topic: str | None = None,
        queue_id: int | None = None,
        *,
        start: int | None = None,
        stop: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[MessageExt]:
        """See `MessageStore.messages`."""
        checked_bounds(queue_id, start, stop)
        if topic is None:
            return self._log_messages(start, stop, on_damage)
        queues = cast("MessageStore", self)
        return topic_messages(queues, text("topic", topic), queue_id, start, stop, on_damage)

    def broker_conf(self) -> str:
        """The ``broker.conf`` lines with which RocketMQ opens this store."""
        return broker_conf(self.config, self.path)

    def _log_messages(
        self, start: int | None, stop: int | None, on_damage: OnDamage | None
    ) -> Iterator[MessageExt]:
        offset = start
        while True:
            page, offset = self._call("log_page", (offset, stop), {})
            for each in page:
                if isinstance(each, MessageExt):
                    yield each
                elif on_damage is None:
                    raise each
                else:
                    on_damage(each)
            if offset is None:
                return

    @property
    def config(self) -> StoreConfig:
        """The settings of the store, as the owner has opened it."""
        return cast("StoreConfig", self._call("config", (), {}))

    @property
    def topics(self) -> TopicConfigTable:
        """The topics' configuration."""
        return cast("TopicConfigTable", self._topics)

    @property
    def consumer_offsets(self) -> ConsumerOffsetTable:
        """What groups have consumed."""
        return cast("ConsumerOffsetTable", self._consumer_offsets)

    @property
    def min_phy_offset(self) -> int:
        """Physical offset of the first byte of the log."""
        return cast("int", self._call("min_phy_offset", (), {}))

    @property
    def max_phy_offset(self) -> int:
        """Physical offset behind the last byte of the log."""
        return cast("int", self._call("max_phy_offset", (), {}))

    @property
    def waits(self) -> bool:
        """Tell whether a put is acknowledged when disk or slaves have it, and not before."""
        return cast("bool", self._call("waits", (), {}))

    # ---- closing and forking

    def close(self) -> None:
        """Let the store go; the owner writes everything through to the disk. Idempotent.

        What an interrupt leaves open, a further call closes: each step may be done again.
        """
        with self._settling, _OPENING:
            self._closed = True
            self._undirect()
            if self._channel is not None:
                self._channel.close()
                self._channel = None
            if self._server is not None:
                self._place.forget_socket()
                self._server.stop()
            if self._store is not None:
                try:
                    self._store.close()
                finally:
                    # with an error of the disk it has let its files go, too
                    if not self._store.has_files:
                        self._place.unlock()
                        self._store = self._server = None
            _HANDLES.discard(self)

    def _undirect(self) -> None:
        for name in _DIRECT:
            self.__dict__.pop(name, None)

    def after_fork_in_child(self) -> None:
        """Make this handle, of which the parent has the other end, a client's with no owner yet."""
        self._settling = threading.RLock()
        if self._channel is not None:
            self._channel.forget()
        if self._server is not None:
            self._server.forget()
            _PARENTS.append((self._server, self._store))
        self._place.unlock()
        self._channel = self._server = self._store = None
        self._undirect()
        self._keys = UniqueKeys()
        self._client = new_holder()
        self._listeners = Listeners(cast("Handle", self))

    def __del__(self) -> None:
        is_open = not self._closed and (self._store or self._channel) is not None
        if not is_open or sys.is_finalizing():
            return
        try:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1)
        finally:
            # not here: this may be in the middle of any other call
            threading.Thread(target=_close, args=(self,), name="CloseStore").start()

    def __repr__(self) -> str:
        role = "closed" if self._closed else "owned" if self._store is not None else "shared"
        return f"SharedMessageStore({str(self.path)!r}, {role})"


def open_handle(
    path: str | os.PathLike[str],
    *,
    config: ConfigSource,
    profile: str | None,
    create: bool,
    progress: Progress | None,
    owner_timeout_ms: float,
    settings: Mapping[str, Any],
) -> SharedStore:
    """See `rmqcore.open_shared`."""
    _refuse_greenlets(path)
    loaded = load_config(config, profile=profile, **settings)
    loaded.check_for_writing()
    whole = Path(path).absolute()
    if create:
        make_directory(whole)
    else:
        StoreDir(whole, loaded.store_path_commit_log).require()
    return cast("SharedStore", SharedMessageStore(whole, loaded, progress, owner_timeout_ms))


def _refuse_greenlets(path: str | os.PathLike[str]) -> None:
    """Refuse where a library has put its greenlets in the place of threads.

    Of these one runs at a time: an owner that waits for the system answers nobody.
    """
    maker = type(threading.Lock()).__module__.partition(".")[0]
    if maker != "_thread":
        raise StoreError(
            f"{os.fspath(path)}: {maker} has replaced the threads that serve a shared store; let "
            "the workers be threads or processes, and do not patch the standard library"
        )


# ---- the methods that are one request each


def _forwarded(name: str, method: str) -> Callable[..., Any]:
    """The method of a handle that makes one call, with the protocol's words and arguments."""

    @functools.wraps(getattr(MessageStore, name))
    def forwarded(self: SharedMessageStore, *args: Any, **settings: Any) -> Any:
        return self._call(method, args, settings)

    return forwarded


def _forwarded_async(name: str, method: str) -> Callable[..., Any]:
    """As `_forwarded`, for a coroutine function of the protocol."""

    @functools.wraps(getattr(MessageStore, name))
    async def forwarded(self: SharedMessageStore, *args: Any, **settings: Any) -> Any:
        return await self._call_async(method, args, settings)

    return forwarded


#: methods of the owner's store that a handle has as its own while it owns it
_DIRECT: Final = tuple(
    name
    for name, value in vars(MessageStore).items()
    if not name.startswith("_") and callable(value) and name not in ("close", "on_arrival")
)
for _method, _row in CALLS.items():
    for _name in {_method, _row.coroutine or _method} & vars(MessageStore).keys():
        _coroutine = inspect.iscoroutinefunction(getattr(MessageStore, _name))
        _forward = _forwarded_async if _coroutine else _forwarded
        setattr(SharedMessageStore, _name, _forward(_name, _method))


def _close_handles() -> None:
    for handle in list(_HANDLES):
        _close(handle)


def _close(handle: SharedMessageStore) -> None:
    try:
        handle.close()
    except OSError:
        _log.exception("%s: could not be closed in order", handle.path)


def _forget_parents() -> None:
    try:
        for handle in list(_HANDLES):
            handle.after_fork_in_child()
    finally:
        _OPENING.release()


atexit.register(_close_handles)
os.register_at_fork(
    before=_OPENING.acquire, after_in_parent=_OPENING.release, after_in_child=_forget_parents
)
