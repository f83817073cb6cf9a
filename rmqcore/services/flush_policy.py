"""When a put returns, and how its bytes get to the disk: decided once, from the settings."""

from __future__ import annotations

from dataclasses import dataclass

from rmqcore.config import FlushDiskType, StoreConfig
from rmqcore.errors import ConfigError
from rmqcore.files.commit_log_writer import CommitLogWriter
from rmqcore.native.base._mapped import STORE_PAGE_SIZE
from rmqcore.status import Durability


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """What ``flush_disk_type`` and the transient pool mean, in one place.

    Attributes:
        waits_for_disk: a put returns when it is on the disk, and readers see only what is there.
        through_pool: records lie in a buffer of the transient pool until a commit moves them into
            their file.
        put_reaches: durability of a put that waits for nothing.
        large_folios: how the file that is written lies in memory, see `MappedFile.begin_writes`.
        warm_up_sync_size: bytes after which a warm-up forces what it touched; 0 never.
        timeout_ms: how long a put waits for the disk.
    """

    waits_for_disk: bool
    through_pool: bool
    put_reaches: Durability
    large_folios: bool
    warm_up_sync_size: int
    timeout_ms: int

    @classmethod
    def of(cls, config: StoreConfig) -> FlushPolicy:
        """The policy that the settings ask for."""
        waits = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        pool = config.transient_store_pool_effective
        warm_up_pages = config.flush_least_pages_when_warm_mapped_file
        return cls(
            waits_for_disk=waits,
            through_pool=pool,
            put_reaches=Durability.MEMORY if pool else Durability.PAGE_CACHE,
            # a folio is written as a whole: for a single record when each put waits, for many
            # records when none does
            large_folios=not waits,
            warm_up_sync_size=warm_up_pages * STORE_PAGE_SIZE if waits else 0,
            timeout_ms=config.sync_flush_timeout_ms,
        )

    def put_waits(self, durability: Durability | str | None, wait_store_msg_ok: bool) -> bool:
        """Whether a put waits for the disk.

        Args:
            durability: what the caller asks for; None leaves it to the settings and the message.
            wait_store_msg_ok: what the message says.

        Raises:
            ConfigError: ``durability`` is none that can be asked for.
        """
        if durability is None:
            return self.waits_for_disk and wait_store_msg_ok
        if durability not in (Durability.DISK, Durability.PAGE_CACHE, Durability.MEMORY):
            raise ConfigError(
                "durability", durability, '"disk", "page_cache", "replicated" or None'
            )
        return durability == Durability.DISK

    def confirm_offset(self, log: CommitLogWriter) -> int:
        """The end of what may be dispatched, and so be read."""
        return log.flushed_offset if self.waits_for_disk else log.commit()
