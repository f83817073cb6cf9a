"""Putting dead letters again, to the group that gave them up."""

from __future__ import annotations

from rmqcore.broker.pop.receipts import retry_topic_of
from rmqcore.errors import ArgumentError, PutMessageError
from rmqcore.message import DEAD_LETTER_PREFIX, RETRY_PREFIX, MessageExt
from rmqcore.store.consume.retry import sent_again
from rmqcore.web.source import BrokerSource


def put_again(source: BrokerSource, phy_offset: int) -> str:
    """Put one dead letter into the retry topic of its group, so that no other group gets it.

    The dead letter stays where it is; its tries are counted anew.

    Args:
        source: a broker.
        phy_offset: where the letter's record begins.

    Returns:
        the message id of the copy.

    Raises:
        ArgumentError: no dead letter is there, or its group is not known any more.
        PutMessageError: it cannot be stored.
    """
    store = source.store
    letter = store.message_at(phy_offset)
    if letter is None or not letter.topic.startswith(DEAD_LETTER_PREFIX):
        raise ArgumentError("at", phy_offset, "the physical offset of a dead letter")
    group = letter.topic.removeprefix(DEAD_LETTER_PREFIX)
    topics = (_popped_again_from(source, group, letter), RETRY_PREFIX + group)
    known = next((topic for topic in topics if topic and source.topics.get(topic)), None)
    if known is None:
        rule = f"a letter of a group that has a retry topic; start a consumer of {group} first"
        raise ArgumentError("at", phy_offset, rule)
    copy = sent_again(letter, known, queue_id=0, delay_level=0, reconsume_times=0, wait=True)
    receipt = store.put_message(copy)
    if not receipt.ok:
        raise PutMessageError(receipt.status, receipt.reason)
    return str(receipt.message_id)


def _popped_again_from(source: BrokerSource, group: str, letter: MessageExt) -> str | None:
    """The retry topic of a letter's topic, where its group pops that; None where it does not.

    A topic of that name may be there and be another group's: that of all that the group
    ``group_topic`` pulls.
    """
    origin = letter.properties.get("RETRY_TOPIC", "")
    if not origin:
        return None
    topic = retry_topic_of(group, origin)
    pops = letter.properties.get("ORIGIN_GROUP") == group or source.offsets.queues(topic, group)
    return topic if pops else None
