"""How much a broker keeps of what clients name, and the answer to who wants more.

`docs/broker.md` lists the budgets. What an administrator makes has a bound of its own, since
without accounts everybody is one.
"""

from __future__ import annotations

from typing import Final

from rmqcore.remoting import RequestRefusedError, ResponseCode

#: A client belongs to no more groups of consumers, and of producers, than this.
GROUPS_OF_CLIENT: Final = 1024
#: The names and subscriptions of one client's groups have no more bytes than this.
SIZE_OF_CLIENT: Final = 1 << 20
#: All clients together belong to no more groups, with no more bytes, than this.
MEMBERS_MAX: Final = 100_000
MEMBERS_SIZE_MAX: Final = 64 << 20
#: No more queues are locked than this: by one client, by all.
LOCKS_OF_CLIENT: Final = 16_384
LOCKS_MAX: Final = 65_536
#: A client always gets this many groups, bytes and locks, whatever others have taken.
RESERVED_GROUPS: Final = 8
RESERVED_SIZE: Final = 4096
RESERVED_LOCKS: Final = 64
#: A broker with this many groups or topics creates no further one by its first use.
GROUPS_CREATED_MAX: Final = 10_000
TOPICS_CREATED_MAX: Final = 20_000
#: A broker with this many creates none for an administrator either.
GROUPS_MAX: Final = 100_000
TOPICS_MAX: Final = 100_000
#: When so many pops of a queue are not acknowledged, of all groups, nothing more is handed out to a
#: group that has so many itself: each takes some 760 bytes.
CHECKPOINTS_MAX: Final = 500_000
RESERVED_CHECKPOINTS: Final = 64
#: A group with more bytes of settings is refused.
GROUP_SIZE_MAX: Final = 16 << 10
#: A group gets no offset in a further queue when the broker keeps this many.
OFFSETS_MAX: Final = 500_000
#: A request to change settings with a longer text is refused.
SETTINGS_SIZE_MAX: Final = 64 << 10
#: An administrator sets modes, or forbids topics, for no more pairs of a topic and a group.
PAIRS_MAX: Final = 100_000
#: A longer name of a client, a group of producers, a group that locks or an attempt is refused.
NAME_SIZE_MAX: Final = 255


class BudgetExceededError(RequestRefusedError):
    """More than is kept was asked for; answers with code 1."""

    def __init__(self, what: str, most: int) -> None:
        """Say what there is too much of, and how much there may be."""
        super().__init__(ResponseCode.SYSTEM_ERROR, f"too many {what}: {most} at most")


def check_name(kind: str, name: str) -> None:
    """Refuse a name that is longer than any client's.

    Args:
        kind: what it names, for the refusal: ``a group's name``.
        name: at most `NAME_SIZE_MAX` characters.

    Raises:
        RequestRefusedError: it is; answers with code 1.
    """
    if len(name) > NAME_SIZE_MAX:
        remark = f"{kind} of {len(name)} characters: {NAME_SIZE_MAX} at most"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
