"""`SharedStoreHandle`: who owns a shared store, and how a call reaches the owner."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from rmqcore.config import FlushDiskType, StoreConfig
from rmqcore.errors import MessageIllegalError, RmqCoreError, StoreClosedError
from rmqcore.files.store_dir import StoreDir
from rmqcore.recovery.report import RecoveryProgress
from rmqcore.remoting import RemotingCommand
from rmqcore.services.event_loop import running_loop
from rmqcore.store.closed_by_with import ClosedByWith
from rmqcore.store.consume.holders import new_holder
from rmqcore.store.consume.undoing import Undoing, hands_out, hands_out_nothing
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.sharing.calls import result_of
from rmqcore.store.sharing.channel import ChannelLostError, OwnerChannel
from rmqcore.store.sharing.coroutines import ask
from rmqcore.store.sharing.listeners import Listeners
from rmqcore.store.sharing.owner import StoreServer
from rmqcore.store.sharing.owner_watch import watch_owner
from rmqcore.store.sharing.pending_call import PendingCall
from rmqcore.store.sharing.place import MeetingPlace
from rmqcore.store.sharing.shared_tables import SharedConsumerOffsets, SharedTopics
from rmqcore.store.sharing.unique_keys import UniqueKeys
from rmqcore.world import World

if TYPE_CHECKING:
    from rmqcore.store.sharing.listeners import SharedHandle

_log = logging.getLogger("rmqcore")

#: The first pause between two looks for an owner that is about to begin or to end; each is twice
#: the one before, up to `_LONGEST_PAUSE_S`.
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.02
#: For this long a process that was killed may still seem to have the store open.
_DYING_S: Final = 1.0

#: every handle of this process
_HANDLES: Final[weakref.WeakSet[SharedStoreHandle]] = weakref.WeakSet()
#: every connection of this process with an owner
_CHANNELS: Final[weakref.WeakSet[OwnerChannel]] = weakref.WeakSet()
#: held while files and locks are opened or closed, so that no fork comes in between
_OPENING: Final = threading.RLock()
#: Objects of the parent of a forked child, kept so that they are not finalized in the child.
_PARENTS: Final[list[object]] = []


Progress = Callable[[RecoveryProgress], None]
P = ParamSpec("P")
R = TypeVar("R")


class SharedStoreHandle(ClosedByWith):
    """A handle on a store that several processes share: finds the owner, or becomes it.

    When the owner ends, the next call, or at the latest this handle's own thread, finds the new
    owner, or becomes it.

    Threads: any. After a fork the child's handle is a client of the parent's.
    """

    #: what `__del__` looks at, of one that was never made
    _store: DefaultMessageStore | None = None
    _channel: OwnerChannel | None = None

    def __init__(
        self,
        path: Path,
        config: StoreConfig,
        progress: Progress | None,
        owner_timeout_ms: float,
        world: World,
    ) -> None:
        self.path = path
        self.world = world
        self._asked = config
        self._progress = progress
        self._asks_for_disk = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._timeout_s = owner_timeout_ms / 1000
        self._place = MeetingPlace(path)
        self._owner_lock = threading.RLock()
        self._store = None
        self._server: StoreServer | None = None
        self._channel = None
        self._keys = UniqueKeys()
        self._client = new_holder()
        self._closed = False
        self._interrupted = Undoing(self._undo_lease)
        self._listeners = Listeners(cast("SharedHandle", self))
        self._topics = SharedTopics(self._call)
        self._consumer_offsets = SharedConsumerOffsets(self._call)
        # before it has anything that a child forked by another thread would keep
        _HANDLES.add(self)
        self.reach_owner()

    # ---- who owns the store

    @property
    def owner(self) -> int:
        """Process id of the owner; this process's own when it is the owner."""
        found = self.reach_owner()
        return found.owner if isinstance(found, OwnerChannel) else os.getpid()

    def reach_owner(self) -> DefaultMessageStore | OwnerChannel:
        """The store, when this process owns it; else a channel to the owner.

        Raises:
            StoreClosedError: the handle was closed.
            OwnerTimeoutError: the owner does not answer.
        """
        return self._found() or self._connect_or_own()

    def _found(self) -> DefaultMessageStore | OwnerChannel | None:
        store, channel = self._store, self._channel
        if store is not None:
            return store
        return None if channel is None or channel.lost else channel

    def _connect_or_own(self) -> DefaultMessageStore | OwnerChannel:
        with self._owner_lock:
            deadline, pause = self.world.monotonic_s() + self._timeout_s, _FIRST_PAUSE_S
            while True:
                if self._closed:
                    raise StoreClosedError(f"{self.path}: the store has been closed")
                if not (self._found() or self._connect()):
                    self._own()
                found = self._found()
                if found is not None:
                    return found
                if self.world.monotonic_s() > deadline:
                    raise self._place.hangs(self._timeout_s)
                self.world.sleep(pause)
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
            # nobody may be watching; no goodbye: what is leased here stays so
            channel.lose()
            raise
        return True

    def _new_channel(self) -> OwnerChannel | None:
        """A connection with the owner, who knows whose it is; None when there is none."""
        connected = self._place.connect(self._timeout_s)
        if connected is None:
            return None
        channel = OwnerChannel(connected, self._place, self._timeout_s, self.world)
        _CHANNELS.add(channel)
        try:
            channel.say_hello(self._client)
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
            # everything behind the lock is inside: what an interrupt leaves open would keep all
            # others out
            try:
                if not self._place.try_lock():
                    return
                self._await_the_dead()
                listening = self._place.listen()
                server = StoreServer(listening, self.path)
                server.start()
                store = DefaultMessageStore(
                    self.path, self._asked, progress=self._progress, world=self.world
                )
                store.warn_without_slaves()
                server.serve(store)
                self._store, self._server, self._channel = store, server, None
            except BaseException:
                if self._store is None:
                    self._give_up_owning(listening, server, store)
                raise
            self._bind(store)

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
        deadline = self.world.monotonic_s() + min(_DYING_S, self._timeout_s)
        while directory.is_locked() and self.world.monotonic_s() < deadline:
            self.world.sleep(_FIRST_PAUSE_S)

    def _bind(self, store: DefaultMessageStore) -> None:
        """Let an owner's native calls be this handle's own, so that they cost it nothing more."""
        vars(self).update(
            put=store.put, get_message=store.get_message, query_message=store.query_message
        )

    def _unbind(self) -> None:
        for name in ("put", "get_message", "query_message"):
            vars(self).pop(name, None)

    # ---- calls

    def call_by_name(self, method: str, *args: Any) -> Any:
        """Make a call out of `CALLS` that is no method of `MessageStore`.

        Args:
            method: its name.
            *args: its arguments.
        """
        return self._call(method, args, {})

    def _call(self, method: str, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Make a call, of whoever owns the store, until it is answered."""
        call = PendingCall(self.path, method, args, settings, self.world)
        while True:
            found = self.reach_owner()
            try:
                if not isinstance(found, OwnerChannel):
                    return call.here(found)
                request = call.request(self._keys, waits_for_disk=self._asks_for_disk)
                return self._result(found, request)
            except ChannelLostError as lost:
                call.lost(lost)
            except MessageIllegalError:
                if not call.leave_keys_out(self._keys):
                    raise

    def _result(self, channel: OwnerChannel, request: RemotingCommand) -> Any:
        """What the owner answers; a lease that an interrupt keeps from the caller comes again."""
        is_lease = "call" in request.ext_fields
        if is_lease:
            self._interrupted.undo_all()
            hands_out(request, self._interrupted, self._interrupted.undo_all)
        try:
            answer = self._aside(request) if channel.interrupted else channel.call(request)
            result = result_of(answer)
        except (RmqCoreError, OSError):
            if is_lease and not channel.lost:
                hands_out_nothing()
            raise
        if is_lease and not result:
            hands_out_nothing()
        return result

    def _undo_lease(self, request: RemotingCommand) -> None:
        """Let come again what a lease was given that nobody takes; a second time does nothing."""
        call = request.ext_fields.get("call")
        if call is None:
            return
        args = call, request.ext_fields.get("holder", self._client)

        def undo() -> None:
            with suppress(RmqCoreError, OSError):
                self._call("take_back_lease", args, {})

        threading.Thread(target=undo, name="TakeBackLease", daemon=True).start()

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
        call = PendingCall(self.path, method, args, settings, self.world)
        while True:
            found = self._found()
            if found is None:
                found = await running_loop().run_in_executor(None, self._connect_or_own)
            try:
                if not isinstance(found, OwnerChannel):
                    return await call.here_async(found)
                request = call.request(self._keys, waits_for_disk=self._asks_for_disk)
                return result_of(await self._answer_async(found, request))
            except ChannelLostError as lost:
                call.lost(lost)
            except MessageIllegalError:
                if not call.leave_keys_out(self._keys):
                    raise

    async def _answer_async(
        self, channel: OwnerChannel, request: RemotingCommand
    ) -> RemotingCommand:
        """The owner's answer, without blocking the event loop; of a lease see `_result`."""
        try:
            return await ask(channel, request, self._timeout_s)
        except ChannelLostError:
            raise
        except BaseException:
            # else the channel has told the owner
            if channel.lost:
                self._undo_lease(request)
            raise

    # ---- closing and forking

    def close(self) -> None:
        """Let the store go; the owner writes everything through to the disk. Idempotent.

        What an interrupt leaves open, a further call closes: each step may be done again.
        """
        with self._owner_lock, _OPENING:
            self._closed = True
            self._unbind()
            channel = self._channel
            if self._server is not None:
                self._place.forget_socket()
                self._server.stop()
            if self._store is not None:
                try:
                    self._store.close()
                finally:
                    # a store that failed to close with an error of the disk has let its files go,
                    # too
                    if not self._store.has_files:
                        self._place.unlock()
                        self._store = self._server = None
        # without the locks: an owner that hangs is waited for
        if channel is not None:
            if not channel.close():
                self._say_goodbye()
            self._channel = None
        _HANDLES.discard(self)

    def _say_goodbye(self) -> None:
        """Tell the owner over another connection: an interrupted call has ended the one before.

        Else what was leased here would not come again while this process lives.
        """
        with suppress(RmqCoreError, OSError):
            channel = self._new_channel()
            if channel is not None:
                channel.close()
                channel.end()

    def after_fork_in_child(self) -> None:
        """Make this handle, of which the parent has the other end, a client's with no owner yet."""
        server, store = self._server, self._store
        self._owner_lock = threading.RLock()
        self._place.unlock()
        self._channel = self._server = self._store = None
        self._unbind()
        self._keys = UniqueKeys()
        self._client = new_holder()
        self._interrupted = Undoing(self._undo_lease)
        self._listeners = Listeners(cast("SharedHandle", self))
        if server is not None:
            _PARENTS.append((server, store))
            server.forget()

    def __del__(self) -> None:
        # one whose close was interrupted, too
        if (self._store or self._channel) is None or sys.is_finalizing():
            return
        try:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1)
        finally:
            # in another thread: a finalizer may run in the middle of any other call
            threading.Thread(target=_close, args=(self,), name="CloseStore").start()

    def __repr__(self) -> str:
        role = "closed" if self._closed else "owned" if self._store is not None else "shared"
        return f"SharedMessageStore({str(self.path)!r}, {role})"


def _close_handles() -> None:
    for handle in list(_HANDLES):
        _close(handle)


def _close(handle: SharedStoreHandle) -> None:
    try:
        handle.close()
    except (OSError, RmqCoreError):
        # the others are to be closed, too
        _log.exception("%s: could not be closed in order", handle.path)


def _forget_parents() -> None:
    try:
        for handle in list(_HANDLES):
            handle.after_fork_in_child()
        for channel in list(_CHANNELS):
            channel.forget()
    finally:
        _OPENING.release()


atexit.register(_close_handles)
os.register_at_fork(
    before=_OPENING.acquire, after_in_parent=_OPENING.release, after_in_child=_forget_parents
)
