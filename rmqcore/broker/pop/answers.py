"""What answers to POPs and peeks have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqcore.remoting import RemotingCommand

if TYPE_CHECKING:
    from rmqcore.broker.state.settings import BrokerConfig

FOUND: Final = "FOUND"
NOTHING_FOUND: Final = "NO_MESSAGE_IN_QUEUE"


def empty_answer(code: int, remark: str) -> RemotingCommand:
    """An answer without messages; clients want the numbers all the same.

    Args:
        code: of the answer.
        remark: why.
    """
    fields = dict.fromkeys(("popTime", "invisibleTime", "reviveQid", "restNum"), "0")
    return RemotingCommand(code, fields, b"", remark)


def bytes_max(config: BrokerConfig) -> int:
    """Bytes of records behind which an answer takes no further one."""
    return max(1, config.max_transfer_bytes_on_message_in_memory)
