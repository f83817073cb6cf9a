"""A message that a consumer gives back: is it the one that it has got, and is it kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqcore.native.format._numbers import SysFlag
from rmqcore.remoting import RequestRefusedError, ResponseCode
from rmqcore.status import PutMessageStatus

if TYPE_CHECKING:
    from rmqcore.message import MessageExt

#: of an id that a broker gives: the host of the store, and the place in its log
_PLACE_DIGITS: Final = 16
_ID_SIZES: Final = (32, 56)
#: With the last two it is stored, and on too few slaves: a consumer that is refused sends it
#: itself, and each time that it fails there would be twice as many.
_KEPT: Final = (
    PutMessageStatus.PUT_OK,
    PutMessageStatus.SLAVE_NOT_AVAILABLE,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
)


def check_origin(stored: MessageExt, message_id: str) -> None:
    """Refuse to give back another message than the consumer has: a log may have lost its end.

    A record that holds a batch is none: its consumer has taken it apart, and gives back one of it.

    Args:
        stored: what lies at the place that was told.
        message_id: what the consumer knows it by; empty: it does not say.

    Raises:
        RequestRefusedError: it is another one; RocketMQ's client then sends the message itself.

    Differs: RocketMQ believes the place.
    """
    if stored.sys_flag & SysFlag.INNER_BATCH:
        remark = f"the record at {stored.phy_offset} holds a batch: send the message itself"
        raise RequestRefusedError(ResponseCode.MESSAGE_ILLEGAL, remark)
    if not message_id:
        return
    # the broker may have another address now than when the message was stored
    place = f"{stored.phy_offset:0{_PLACE_DIGITS}X}"
    is_place = len(message_id) in _ID_SIZES and message_id[-_PLACE_DIGITS:].upper() == place
    known = stored.unique_key, stored.properties.get("ORIGIN_MESSAGE_ID")
    if message_id not in known and not is_place:
        remark = f"the message at {stored.phy_offset} is not {message_id}"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)


def is_kept(status: PutMessageStatus) -> bool:
    """Tell whether what was stored for a message comes again, so that its consumer may forget it.

    Differs: RocketMQ waits neither for the disk nor for slaves.
    """
    return status in _KEPT
