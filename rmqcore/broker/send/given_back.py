"""Whether a message that a consumer gives back is the one that it has got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqcore.remoting import RequestRefusedError, ResponseCode

if TYPE_CHECKING:
    from rmqcore.message import MessageExt

#: of an id that a broker gives: the host of the store, and the place in its log
_PLACE_DIGITS: Final = 16
_ID_SIZES: Final = (32, 56)


def check_origin(stored: MessageExt, message_id: str) -> None:
    """Refuse to give back another message than the consumer has: a log may have lost its end.

    A record that holds a batch has none of the ids of its messages, and is given back by any.

    Args:
        stored: what lies at the place that was told.
        message_id: what the consumer knows it by; empty: it does not say.

    Raises:
        RequestRefusedError: it is another one; RocketMQ's client then sends the message itself.

    Differs: RocketMQ believes the place.
    """
    if not message_id or "INNER_NUM" in stored.properties:
        return
    # the broker may have another address now than when the message was stored
    place = f"{stored.phy_offset:0{_PLACE_DIGITS}X}"
    is_place = len(message_id) in _ID_SIZES and message_id[-_PLACE_DIGITS:].upper() == place
    known = stored.unique_key, stored.properties.get("ORIGIN_MESSAGE_ID")
    if message_id not in known and not is_place:
        remark = f"the message at {stored.phy_offset} is not {message_id}"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
