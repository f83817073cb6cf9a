"""`PutColumnsResult`: what became of a table that was put."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rmqcore.status import Durability, PutMessageStatus


class QueueSpan(NamedTuple):
    """Which messages of a queue a put has stored.

    Attributes:
        first: queue offset of the first one.
        last: of the last one; others' messages may lie between them.
        message_count: how many they are.
    """

    first: int
    last: int
    message_count: int

    def followed_by(self, more: QueueSpan) -> QueueSpan:
        """Both together, where ``more`` was stored behind these."""
        return QueueSpan(self.first, more.last, self.message_count + more.message_count)


@dataclass(frozen=True, slots=True)
class PutColumnsResult:
    """What became of a table.

    Attributes:
        status: `PutMessageStatus`; with any but PUT_OK rows behind ``row_count`` are not stored, or
            not as durably as was asked for.
        row_count: rows that are stored, counted from the table's first.
        phy_offset: byte position of the first record; -1 when none was stored.
        last_phy_offset: of the last one; others' records may lie between them.
        store_size: bytes stored.
        durability: reached by all of them when the put returned; None when none was stored.
        queue_offsets: by (topic, queue id), which messages of the queue they are.
        reason: why it failed; empty when it did not.
    """

    status: PutMessageStatus = PutMessageStatus.PUT_OK
    row_count: int = 0
    phy_offset: int = -1
    last_phy_offset: int = -1
    store_size: int = 0
    durability: Durability | None = None
    queue_offsets: Mapping[tuple[str, int], QueueSpan] = field(default_factory=dict)
    reason: str = ""

    @property
    def ok(self) -> bool:
        """True when every row is stored as durably as was asked for."""
        return self.status is PutMessageStatus.PUT_OK

    def followed_by(self, more: PutColumnsResult) -> PutColumnsResult:
        """Both together, where ``more`` are the rows behind these."""
        if more.row_count == 0:
            return replace(self, status=more.status, reason=more.reason)
        spans = dict(self.queue_offsets)
        for queue, span in more.queue_offsets.items():
            spans[queue] = spans[queue].followed_by(span) if queue in spans else span
        return replace(
            more,
            row_count=self.row_count + more.row_count,
            phy_offset=self.phy_offset if self.row_count else more.phy_offset,
            store_size=self.store_size + more.store_size,
            queue_offsets=spans,
        )
