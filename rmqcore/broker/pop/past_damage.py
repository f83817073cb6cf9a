"""What a pop finds of a queue, past records that are damaged: they keep no pop waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rmqcore.broker.pull.fetch import Found, PullRange, in_front_of_damage
from rmqcore.broker.state.passed_over import PassedOver
from rmqcore.errors import CorruptStoreError
from rmqcore.files.queue_damage import log_has_it
from rmqcore.message import MessageExt
from rmqcore.store.protocol import MessageStore

#: The name under which they are counted.
POP: Final = "pop"
#: A read passes over so many at most.
_AT_ONCE: Final = 100


def read_past_damage(
    get: Callable[[PullRange], Found | None],
    wanted: PullRange,
    store: MessageStore,
    passed_over: PassedOver,
) -> tuple[int, Found | None, list[MessageExt]]:
    """Messages of a range in front of what is damaged, or behind it where it is the first.

    Args:
        get: says what there is of a range, as `rmqcore.broker.pull.fetch.fetch`; None where the
            disk would have to be read, and must not be.
        wanted: the range.
        store: where it is.
        passed_over: is told of each damaged record.

    Returns:
        (offset of the first message that was looked at, what was found, its messages). None was
        found where `get` says so, and behind many damaged records: others wait for the loop.

    Raises:
        CorruptStoreError: at the first message it is the queue's file that is damaged, or retention
            has removed it meanwhile.
    """

    def look(wanted: PullRange) -> tuple[Found | None, list[MessageExt]]:
        found = get(wanted)
        return found, [] if found is None else found.messages

    first = wanted.queue_offset
    for _ in range(_AT_ONCE):
        try:
            found, messages = in_front_of_damage(look, wanted)
        except CorruptStoreError as error:
            try:
                offset = _first_damaged(store, wanted, error)
            except CorruptStoreError:
                if wanted.queue_offset == first:
                    raise
                break
            place = f"offset {offset} of queue {wanted.queue_id} of {wanted.topic}"
            passed_over.add(POP, place, error)
            # more of them may follow
            wanted = wanted._replace(queue_offset=offset + 1, message_count=1)
        else:
            return wanted.queue_offset, found, messages
    return wanted.queue_offset, None, []


def _first_damaged(store: MessageStore, wanted: PullRange, met: CorruptStoreError) -> int:
    """The offset of the damaged record that a get of one message of a range has met.

    Raises:
        CorruptStoreError: it is no record that is damaged, or it is gone.
    """
    offset = wanted.queue_offset
    while True:
        try:
            found = store.get_message(wanted.topic, wanted.queue_id, offset, max_messages=1)
            # decoded only here
            if found.messages:
                offset += 1
                continue
        except CorruptStoreError as error:
            if log_has_it(store, error):
                raise
            return offset
        raise met
