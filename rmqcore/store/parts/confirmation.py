"""`Confirmation`: what the receipt of a put waits for, and the waits: no one, the disk, slaves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from rmqcore.config import BrokerRole
from rmqcore.errors import ConfigError
from rmqcore.native.log._putter import DiskWait
from rmqcore.status import Durability, PutMessageStatus
from rmqcore.store.parts.slave_waits import NoSlaves

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmqcore.message import PutMessageResult
    from rmqcore.services.flush import GroupCommitService
    from rmqcore.status import DurabilityName
    from rmqcore.store.parts.level import Level
    from rmqcore.store.parts.settings import Settings
    from rmqcore.store.parts.slave_waits import SlaveWaits

_SLAVES_SAY: Final = {
    PutMessageStatus.SLAVE_NOT_AVAILABLE: (
        "stored here, but too few slaves are connected and near enough to wait for"
    ),
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: (
        "stored here, but too few slaves have acknowledged it in time"
    ),
}


class PutWait(NamedTuple):
    """What one receipt waits for: chosen once, before its message is appended.

    Attributes:
        disk: whether it waits for the disk.
        slaves: the slaves that it waits for, or None.
    """

    disk: bool
    slaves: SlaveWaits | None


class Confirmation(DiskWait):
    """What receipts wait for, and how they are answered then.

    Args:
        settings: of the store.
        group_commit: where threads and coroutines wait for the disk.
        took: called with how long each good wait for the disk took, milliseconds.
        level: is told of what waits for nothing.
        monotonic_s: tells how long a coroutine's wait took.
    """

    def __init__(
        self,
        settings: Settings,
        group_commit: GroupCommitService,
        took: Callable[[float], object],
        level: Level,
        monotonic_s: Callable[[], float],
    ) -> None:
        policy = settings.policy
        super().__init__(
            group_commit.group, took, disk=policy.waits_for_disk, timeout_ms=policy.timeout_ms
        )
        self._settings = settings
        self._group_commit = group_commit
        self._took = took
        self._level = level
        self._monotonic_s = monotonic_s
        self._is_sync_master = settings.config.broker_role is BrokerRole.SYNC_MASTER
        #: tells how far the slaves are, also where puts do not wait for them
        self._replicas: SlaveWaits | None = None

    # ---- what is waited for

    def wait_for_slaves(self, slaves: SlaveWaits | None) -> None:
        """Let puts wait for slaves from now on, when their durability is "replicated".

        That is what a put into a SYNC_MASTER asks for that says nothing else.

        Args:
            slaves: who tells how far the slaves are; None: puts wait for none any more.
        """
        self._replicas = slaves
        self.wait_for(slaves if self._is_sync_master else None)

    def warn_without_slaves(self) -> None:
        """Let the first put into a SYNC_MASTER warn, as long as nobody tells how far slaves are."""
        if self._is_sync_master and self._replicas is None:
            self.wait_for(NoSlaves(partial(self.wait_for_slaves, None)))

    @property
    def usual(self) -> PutWait:
        """What a put waits for that asks for nothing."""
        return PutWait(self.disk, self.slaves)

    def put_wait(
        self, durability: Durability | DurabilityName | None, *, wait_store_msg_ok: bool = True
    ) -> PutWait:
        """What a put waits for.

        Args:
            durability: what the caller asks for; None leaves it to the settings and the message.
            wait_store_msg_ok: what the message says.

        Raises:
            ConfigError: it cannot be had here.
        """
        if durability is not None and durability == Durability.REPLICATED:
            if self._replicas is None:
                raise ConfigError(
                    "durability", durability, "not without slaves: no HAService runs on this store"
                )
            return PutWait(self.disk, self._replicas)
        disk = self._settings.policy.put_waits(durability, wait_store_msg_ok)
        return PutWait(disk, self.slaves if durability is None and wait_store_msg_ok else None)

    # ---- the waits

    def confirmed(self, receipt: PutMessageResult, put_wait: PutWait) -> PutMessageResult:
        """The receipt of what was appended, when it is where it is waited for.

        Args:
            receipt: of a record that is in the log.
            put_wait: from `put_wait`.

        Returns:
            the receipt with its durability; its status says when a wait was too long.
        """
        begun = None
        if put_wait.slaves is not None:
            begun = put_wait.slaves.begin(receipt.phy_offset + receipt.store_size)
        receipt = self.on_disk(receipt) if put_wait.disk else self.not_waited_for(receipt)
        return receipt if begun is None else _after_slaves(receipt, begun.status())

    async def confirmed_async(
        self, receipt: PutMessageResult, put_wait: PutWait
    ) -> PutMessageResult:
        """As `confirmed`, without blocking the event loop.

        Arguments as those of `confirmed`.
        """
        begun = None
        if put_wait.slaves is not None:
            begun = put_wait.slaves.begin_async(receipt.phy_offset + receipt.store_size)
        receipt = (
            await self._on_disk_async(receipt) if put_wait.disk else self.not_waited_for(receipt)
        )
        return receipt if begun is None else _after_slaves(receipt, await begun)

    async def _on_disk_async(self, receipt: PutMessageResult) -> PutMessageResult:
        end, failure = receipt.phy_offset + receipt.store_size, ""
        began = self._monotonic_s()
        try:
            done = await self._group_commit.wait_async(end, int(self.timeout_ms))
        except OSError as error:
            done, failure = False, str(error)
        if not done:
            return self.not_on_disk(receipt, failure)
        self._took(1000 * (self._monotonic_s() - began))
        return receipt.with_flush(receipt.status, Durability.DISK)

    def not_waited_for(self, receipt: PutMessageResult) -> PutMessageResult:
        """The receipt of a put that waits for nothing; where others wait it is flushed soon."""
        self.left_unwaited(receipt.phy_offset + receipt.store_size)
        return receipt

    def left_unwaited(self, end: int) -> None:
        """Let reads see what was appended by a put that ends before it has waited, as interrupted.

        Args:
            end: behind it in the log; what others have put before it counts as well.
        """
        if self.disk:
            self._level.put_unwaited(end)
            self._group_commit.flush_soon()

    def flush_soon(self) -> None:
        """Flush what is appended for who may be cancelled before it waits, where others wait."""
        if self.disk:
            self._group_commit.flush_soon()


def _after_slaves(receipt: PutMessageResult, status: PutMessageStatus) -> PutMessageResult:
    """The receipt when slaves were waited for; what they say counts more than the disk."""
    if status is not PutMessageStatus.PUT_OK:
        return receipt.with_flush(status, receipt.durability, _SLAVES_SAY[status])
    if not receipt.ok:
        return receipt
    return receipt.with_flush(status, Durability.REPLICATED)
