"""`PendingCall`: a call until it is answered, by one owner or by the next."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rmqcore.errors import MessageIllegalError, OwnerLostError
from rmqcore.remoting import RemotingCommand
from rmqcore.status import Durability
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.sharing.calls import (
    CALLS,
    PROPERTIES,
    CallKind,
    Runs,
    coroutine_of,
    method_of,
    request_of,
)
from rmqcore.store.sharing.channel import ChannelLostError
from rmqcore.store.sharing.put_again import find_put
from rmqcore.store.sharing.unique_keys import Keyed, UniqueKeys
from rmqcore.world import World

#: How a question that is not in `CALLS` is asked: a property, or what has arrived.
_QUESTION: Final = CallKind()
#: How messages get keys, as long as there is room for them. Without one a put cannot be found
#: again.
_BATCH: Final = "put_messages"
_WAYS: Final = [Keyed.ALL, Keyed.NONE]
_WAYS_OF_A_BATCH: Final = [Keyed.ALL, Keyed.FIRST, Keyed.NONE]
#: `wait` has this many arguments before its time-out.
_WAIT_ARGUMENTS: Final = 3


class PendingCall:
    """One call of a method.

    Args:
        path: the store's directory.
        method: its name.
        args: its arguments.
        settings: its arguments by name.
        world: its clocks.
    """

    def __init__(
        self,
        path: Path,
        method: str,
        args: tuple[Any, ...],
        settings: dict[str, Any],
        world: World,
    ) -> None:
        self._path = path
        self.method = method
        self._row = CALLS.get(method, _QUESTION)
        # an iterator gives its elements once, and the next owner may have to be asked
        self._args = tuple(map(_kept, args))
        self._settings = {name: _kept(value) for name, value in settings.items()}
        self._world = world
        self._began: float | None = None
        self._began_ms = 0
        self._again_ms: int | None = None
        self._name = ""
        #: a put as it was called, and the ways that are left to give it keys
        self._unkeyed = self._args, self._settings
        self._ways: list[Keyed] = []
        self._keyed = Keyed.NONE

    def request(self, keys: UniqueKeys, *, waits_for_disk: bool) -> RemotingCommand:
        """What to send to the owner.

        Args:
            keys: what a put needs to be found again.
            waits_for_disk: whether this process's puts wait for the disk, if they do not say.
        """
        if self._began is None:
            self._began, self._began_ms = self._world.monotonic_s(), self._world.clock_ms()
            if self._row.runs is Runs.PUT:
                if waits_for_disk and self._settings.get("durability") is None:
                    self._settings = {**self._settings, "durability": Durability.DISK}
                self._unkeyed = self._args, self._settings
                self._ways = _WAYS_OF_A_BATCH if self.method == _BATCH else _WAYS
                self._give_keys(keys)
            elif self._row.runs is Runs.WAITS:
                self._name_timeout()
            if self._row.in_thread or self._row.named:
                self._name = keys.new()
            if self._row.named:
                self._settings = {**self._settings, "call": self._name}
        return request_of(self.method, self._args, self._left(), self._again_ms, self._name)

    def leave_keys_out(self, keys: UniqueKeys) -> bool:
        """Give a put that was refused fewer keys: there may have been no room for them.

        Args:
            keys: see `request`.

        Returns:
            False when it had none, so that it is refused for good.

        Raises:
            MessageIllegalError: it can be put in no way.
        """
        if self._keyed is Keyed.NONE:
            return False
        # what was refused was stored by no former owner either
        self._again_ms = None
        self._give_keys(keys)
        return True

    def _give_keys(self, keys: UniqueKeys) -> None:
        """Give a put keys in the next way that there is.

        Raises:
            MessageIllegalError: it cannot be put without them either.
        """
        give = getattr(keys, self.method)
        while True:
            self._keyed, *self._ways = self._ways
            try:
                self._args, self._settings = give(*self._unkeyed, self._keyed)
            except MessageIllegalError:
                if self._keyed is Keyed.NONE:
                    raise
            else:
                return

    def lost(self, lost: ChannelLostError) -> None:
        """Take note that an owner has ended before it has answered.

        Raises:
            OwnerLostError: the call must not be made a second time.
        """
        if not lost.sent:
            return
        unfindable = self._row.runs is Runs.PUT and self._keyed is Keyed.NONE
        if unfindable or not self._row.repeatable:
            raise OwnerLostError(self._path, self.method) from None
        if self._row.runs is Runs.PUT:
            self._again_ms = self._began_ms

    def here(self, store: DefaultMessageStore) -> Any:
        """Make the call in this process, which owns the store now."""
        found = self._find(store)
        if found is not None:
            return found
        if self.method in PROPERTIES:
            return getattr(store, self.method)
        return method_of(store, self.method)(*self._args, **self._left())

    async def here_async(self, store: DefaultMessageStore) -> Any:
        """As `here`, without blocking the event loop."""
        if self._again_ms is not None:
            found = await asyncio.get_running_loop().run_in_executor(None, self._find, store)
            if found is not None:
                return found
        answer = coroutine_of(store, self.method)(*self._args, **self._left())
        return await answer if inspect.isawaitable(answer) else answer

    def _find(self, store: DefaultMessageStore) -> Any:
        """The receipt of a put that a former owner has stored; None when there is none."""
        if self._again_ms is None:
            return None
        return find_put(store, self.method, list(self._args), self._settings, self._again_ms)

    def _name_timeout(self) -> None:
        if self.method == "wait" and len(self._args) > _WAIT_ARGUMENTS:
            *args, timeout_ms = self._args
            self._args, self._settings = tuple(args), {**self._settings, "timeout_ms": timeout_ms}

    def _left(self) -> dict[str, Any]:
        """The arguments by name, with what is left of the time-out."""
        timeout_ms = self._settings.get("timeout_ms")
        if self._began is None or not isinstance(timeout_ms, int | float):
            return self._settings
        gone_ms = (self._world.monotonic_s() - self._began) * 1000
        return {**self._settings, "timeout_ms": max(0, timeout_ms - gone_ms)}


def _kept(value: Any) -> Any:
    return list(value) if isinstance(value, Iterator) else value
