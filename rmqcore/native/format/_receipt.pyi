from collections.abc import Iterable
from typing import Any, final

from rmqcore.status import Durability, PutMessageStatus

@final
class PutMessageResult:
    """The receipt of a put.

    Attributes:
        status: `PutMessageStatus`.
        phy_offset: byte position of the (first) record in the commit log; -1 when none was stored.
        queue_offset: number of the (first) message in its queue; -1 when none was stored.
        store_size: bytes stored.
        store_timestamp_ms: the time in the record.
        message_count: records stored.
        durability: `Durability` that was reached when the put returned.
        reason: why it failed; empty when it did not.

    Source: RocketMQ store/PutMessageResult.java and AppendMessageResult.java.
    """

    def __init__(
        self,
        status: PutMessageStatus,
        *,
        phy_offset: int = -1,
        queue_offset: int = -1,
        store_size: int = 0,
        store_timestamp_ms: int = 0,
        message_count: int = 0,
        durability: Durability | None = None,
        reason: str = "",
        store_host: bytes | None = None,
        phy_offsets: Iterable[int] | None = None,
    ) -> None: ...
    @property
    def status(self) -> PutMessageStatus: ...
    @property
    def durability(self) -> Durability | None: ...
    @property
    def phy_offset(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def store_size(self) -> int: ...
    @property
    def store_timestamp_ms(self) -> int: ...
    @property
    def message_count(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def ok(self) -> bool:
        """True when the message is stored as durably as was asked for."""
    @property
    def message_id(self) -> str | None:
        """The offset id; of a batch all of them, joined by commas; None when nothing was stored."""
    def with_flush(
        self, status: PutMessageStatus, durability: Durability | None, reason: str = ""
    ) -> PutMessageResult:
        """A copy of this receipt after its flush has ended.

        Args:
            status: how the wait for disk or slaves has ended.
            durability: what was reached.
            reason: why it is not what was asked for; empty when it is.
        """
    def to_dict(self) -> dict[str, Any]:
        """Every attribute by its name."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
