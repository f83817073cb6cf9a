"""How much a broker keeps of what clients name, and the answer to who wants more.

`docs/broker.md` lists the budgets. What an administrator makes has a bound of its own, since
without accounts everybody is one.
"""

from __future__ import annotations

from typing import Final

from rmqcore.remoting import RequestRefusedError, ResponseCode

#: groups of consumers, and of producers, that the client of one connection belongs to
GROUPS_OF_CLIENT: Final = 1024
#: bytes of their names and of what they subscribe
SIZE_OF_CLIENT: Final = 1 << 20
#: the same of all connections together
MEMBERS_MAX: Final = 100_000
MEMBERS_SIZE_MAX: Final = 64 << 20
#: queues that the client of one connection locks, and all of them
LOCKS_OF_CLIENT: Final = 16_384
LOCKS_MAX: Final = 65_536
#: groups, bytes and locks that each client has although others have taken all that there are
USUAL_GROUPS: Final = 8
USUAL_SIZE: Final = 4096
USUAL_LOCKS: Final = 64
#: with so many of them in the broker, none is created by its first use any more
GROUPS_CREATED_MAX: Final = 10_000
TOPICS_CREATED_MAX: Final = 20_000
#: with so many, none at all
GROUPS_MAX: Final = 100_000
TOPICS_MAX: Final = 100_000
#: bytes of the settings of one group
GROUP_SIZE_MAX: Final = 16 << 10
#: offsets of groups in queues
OFFSETS_MAX: Final = 500_000
#: bytes of a text of settings
SETTINGS_SIZE_MAX: Final = 64 << 10
#: pairs of a topic and a group for which an administrator has said something
PAIRS_MAX: Final = 100_000
#: characters of a name that is no topic's and no group's of consumers
NAME_SIZE_MAX: Final = 255


class BudgetExceededError(RequestRefusedError):
    """More than is kept was asked for; answers with code 1."""

    def __init__(self, what: str, most: int) -> None:
        """Say what there is too much of, and how much there may be."""
        super().__init__(ResponseCode.SYSTEM_ERROR, f"too many {what}: {most} at most")


def check_name(kind: str, name: str) -> None:
    """Refuse a name that is longer than any client's.

    Raises:
        RequestRefusedError: it is; answers with code 1.
    """
    if len(name) > NAME_SIZE_MAX:
        remark = f"{kind} of {len(name)} characters: {NAME_SIZE_MAX} at most"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
