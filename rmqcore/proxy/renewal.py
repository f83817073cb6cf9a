"""`Renewals`: what push consumers work on is kept for them, however long that takes.

A push consumer asks for it with `auto_renew` and goes on with the handle that it was given. Which
handle counts now is known here, also to a client that settles a message once more, because the
broker could not. When the client has gone, its messages are given back to others.

Source: RocketMQ proxy/service/receipt/DefaultReceiptHandleManager.java, RenewStrategyPolicy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from rmqcore.proxy.callers import Caller, ClientKey
from rmqcore.proxy.cluster import Cluster
from rmqcore.proxy.codes import Code, RefusedError, expect_success
from rmqcore.proxy.receipts import ReceiptHandle
from rmqcore.remoting import RemotingCommand, RequestCode, ResponseCode
from rmqcore.world import World

logger = logging.getLogger(__name__)

#: Handles are looked at this often, and renewed when they end within `_SOON_MS`.
EVERY_S: Final = 5.0
_SOON_MS: Final = 30_000
#: A message is renewed for a client no longer than this.
_KEPT_S: Final = 3 * 3600.0
_MAX: Final = 100_000
_GIVEN_BACK_MS: Final = 1_000
#: After so many tries in a row that came to nothing its time is over, and it is not kept on.
_TRIES_MAX: Final = 12
#: After so many messages others have their turn: a broker in this process answers at once.
_AT_ONCE: Final = 16


@dataclass(slots=True)
class _Kept:
    """A message that is kept for a client."""

    caller: Caller
    group: str
    topic: str
    handle: ReceiptHandle
    since_s: float
    #: renewals in a row that the broker has refused, or not answered
    failed: int = 0
    #: the client has begun to settle it: it is not renewed any more, and known until its time ends
    settling: bool = False
    #: nothing is left to be done for it
    settled: bool = False
    #: locked while the broker is asked, so that no handle is acknowledged while it is renewed
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Renewals:
    """The handles that are renewed.

    Args:
        cluster: the brokers.
        world: its clocks.
    """

    #: for how long a message is kept at a time
    INVISIBLE_MS: ClassVar[int] = 60_000

    def __init__(self, cluster: Cluster, world: World) -> None:
        self._cluster = cluster
        self._world = world
        #: by client, then by group and given handle
        self._kept: dict[ClientKey, dict[tuple[str, str], _Kept]] = {}
        self._count = 0
        #: the clients that have so many
        self._with_so_many: dict[int, dict[ClientKey, None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: names of brokers that are being asked
        self._asked: set[str] = set()

    def __len__(self) -> int:
        return self._count

    def work_on(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something in the background, to its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, timeout_s: float) -> None:
        """Let what goes on in the background come to its end; cancel what takes too long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()

    def add(
        self, caller: Caller, group: str, topic: str, given: str, handle: ReceiptHandle
    ) -> None:
        """Keep a message for a client, as long as that is there and there is room.

        Args:
            caller: whose client has it.
            group: of the client.
            topic: that it was sent to.
            given: the handle as the client was given it.
            handle: the same, read.
        """
        if not self._has_room(len(self._kept.get(caller.client, ()))):
            return
        mine = self._kept.setdefault(caller.client, {})
        before = len(mine)
        mine[group, given] = _Kept(caller, group, topic, handle, self._world.monotonic_s())
        self._recount(caller.client, before)

    def _has_room(self, count: int) -> bool:
        """Make room when all places are taken: whose are the most loses the one kept longest.

        Args:
            count: how many places the client has that wants one more.
        """
        if self._count < _MAX:
            return True
        most = max(self._with_so_many)
        if most <= count:
            return False
        client = next(iter(self._with_so_many[most]))
        self._forget(client, next(iter(self._kept[client])))
        return True

    def is_kept(self, caller: Caller, group: str, given: str) -> bool:
        """Tell whether a message is kept for a client, so that its handle may have changed.

        Args:
            caller: who has it.
            group: of the client.
            given: the handle as the client was given it.
        """
        mine = self._kept.get(caller.client)
        return mine is not None and (group, given) in mine

    @asynccontextmanager
    async def settled(self, caller: Caller, group: str, given: str) -> AsyncIterator[ReceiptHandle]:
        """The handle that counts now for one that was given, while a broker is asked to settle it.

        The message is not renewed any more. What the broker could not do the client may ask for
        again, with the handle that it was given.

        Args:
            caller: who has it.
            group: of the client.
            given: the handle as the client was given it.

        Raises:
            RefusedError: the text is no handle, or its time is over.
        """
        kept = self._kept.get(caller.client, {}).get((group, given))
        if kept is not None:
            first, kept.settling = not kept.settling, True
            async with kept.changing:
                if self._kept.get(caller.client, {}).get((group, given)) is kept:
                    try:
                        if not first:
                            await self._expect_open(kept.handle)
                        yield kept.handle
                        kept.settled = True
                    except RefusedError as error:
                        kept.settled = error.code is Code.INVALID_RECEIPT_HANDLE
                        raise
                    finally:
                        if kept.settled:
                            self._forget(caller.client, (group, given))
                    return
        # settled by another call meanwhile, given back, or never kept
        yield await self._expect_open(ReceiptHandle.parse(given))

    async def _expect_open(self, handle: ReceiptHandle) -> ReceiptHandle:
        now_ms = self._cluster.clock_ms(handle.broker_name)
        if now_ms is None:
            now_ms = await self._cluster.ask_clock_ms(handle.broker_name)
        return handle.expect_open(now_ms)

    async def change(
        self,
        caller: Caller,
        group: str,
        topic: str,
        handle: ReceiptHandle,
        invisible_ms: int,
        *,
        suspend: bool = False,
    ) -> ReceiptHandle:
        """Hand a message out again at another time (200053); returns the handle that counts then.

        Args:
            caller: who has it.
            group: of the client.
            topic: that it was sent to.
            handle: that counts now.
            invisible_ms: milliseconds from now on.
            suspend: the try does not count; only for brokers that know it.

        Raises:
            RefusedError: the broker does not.
        """
        fields = handle.fields(group, topic)
        fields["invisibleTime"] = str(invisible_ms)
        if suspend:
            fields["suspend"] = "true"
        command = RemotingCommand(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        asked = self._cluster.ask(handle.broker_name, command, caller)
        answer = asked if isinstance(asked, RemotingCommand) else await asked
        if answer.code == ResponseCode.MESSAGE_ILLEGAL:
            raise RefusedError(Code.INVALID_RECEIPT_HANDLE, answer.remark or "")
        expect_success(answer)
        return handle.changed(
            answer.number("popTime", handle.pop_time_ms),
            answer.number("invisibleTime", invisible_ms),
            answer.number("reviveQid", handle.revive_queue),
        )

    async def run(self) -> None:
        """Renew what ends soon, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.work_on(self.renew())

    async def renew(self) -> None:
        """Renew what ends soon, once: all brokers at once, each one message after another.

        One that is still being asked is passed over: one that does not answer keeps no other
        waiting.
        """
        due: dict[str, list[tuple[ClientKey, tuple[str, str], _Kept]]] = {}
        late_s = self._world.monotonic_s() - _KEPT_S
        for client, mine in list(self._kept.items()):
            for key, kept in list(mine.items()):
                now_ms = self._cluster.clock_ms(kept.handle.broker_name)
                left_ms = 1 if now_ms is None else kept.handle.due_ms - now_ms
                if kept.since_s < late_s or (kept.settling and left_ms <= 0):
                    self._forget(client, key)
                elif not kept.settling and not _SOON_MS < left_ms <= self.INVISIBLE_MS + _SOON_MS:
                    # soon, or by a clock that was put back since: brokers do not wait for that
                    due.setdefault(kept.handle.broker_name, []).append((client, key, kept))
        idle = due.keys() - self._asked
        self._asked |= idle
        await asyncio.gather(*(self._renew_of_broker(name, due[name]) for name in idle))

    async def _renew_of_broker(
        self, broker_name: str, due: list[tuple[ClientKey, tuple[str, str], _Kept]]
    ) -> None:
        try:
            for number, (client, key, kept) in enumerate(due, 1):
                await self._renew(client, key, kept)
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            self._asked.discard(broker_name)

    async def _renew(self, client: ClientKey, key: tuple[str, str], kept: _Kept) -> None:
        async with kept.changing:
            if kept.settling or self._kept.get(client, {}).get(key) is not kept:
                # settled, or given back, while others were renewed
                return
            try:
                kept.handle = await self.change(
                    kept.caller, kept.group, kept.topic, kept.handle, self.INVISIBLE_MS
                )
                kept.failed = 0
            except RefusedError as error:
                logger.info("group %s: a message is not kept on: %s", kept.group, error)
                kept.failed += 1
                if error.code is Code.INVALID_RECEIPT_HANDLE or kept.failed == _TRIES_MAX:
                    self._forget(client, key)

    def _forget(self, client: ClientKey, key: tuple[str, str]) -> None:
        mine = self._kept.get(client, {})
        before = len(mine)
        mine.pop(key, None)
        if not mine:
            self._kept.pop(client, None)
        self._recount(client, before)

    def _recount(self, client: ClientKey, before: int) -> None:
        """Note that a client has as many messages as it has now, instead of so many."""
        now = len(self._kept.get(client, ()))
        self._count += now - before
        if before and before != now:
            del self._with_so_many[before][client]
            if not self._with_so_many[before]:
                del self._with_so_many[before]
        if now:
            self._with_so_many.setdefault(now, {})[client] = None

    async def give_back(self, client: ClientKey) -> None:
        """Let others have what a client has left behind."""
        left = self._kept.pop(client, {})
        self._recount(client, len(left))
        for number, kept in enumerate(left.values()):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            try:
                async with kept.changing:
                    if kept.settled:
                        continue
                    caller, handle = kept.caller, kept.handle
                    await self.change(caller, kept.group, kept.topic, handle, _GIVEN_BACK_MS)
            except RefusedError as error:
                logger.info("group %s: a message comes again later: %s", kept.group, error)
