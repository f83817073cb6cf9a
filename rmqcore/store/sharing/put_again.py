"""A put whose answer was lost with the owner: was it stored? Found by its unique key."""

from __future__ import annotations

from typing import Any, Final

from rmqcore._codec import decode_batch
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.message import Message, MessageExt, PutMessageResult
from rmqcore.status import Durability, PutMessageStatus
from rmqcore.store.message_store import DefaultMessageStore

UNIQUE_KEY: Final = "UNIQ_KEY"
#: A property that tells two puts with the same unique key apart, where the key is the caller's
#: own.
PUT_ID: Final = "RMQCORE_PUT_ID"
#: A record may have a store time this much before its call: the clock may have stepped back.
_CLOCK_STEP_MS: Final = 10_000


def find_put(
    store: DefaultMessageStore,
    method: str,
    args: list[Any],
    settings: dict[str, Any],
    since_ms: int,
) -> PutMessageResult | None:
    """The receipt of a put that an owner that has ended may have stored; None when it has not.

    Args:
        store: as it was recovered.
        method: name of the call.
        args: its arguments; each message in them has a unique key.
        settings: its arguments by name.
        since_ms: Unix time at which it was called first.
    """
    wanted = _messages(method, args, settings)
    first = _find(store, wanted[0], since_ms - _CLOCK_STEP_MS)
    if first is None:
        return None
    found = [first]
    # a batch is stored back to back, all or nothing
    while len(found) < len(wanted):
        behind = store.message_at(found[-1].phy_offset + found[-1].store_size)
        if behind is None:
            return None
        found.append(behind)
    durability = Durability.PAGE_CACHE
    if store.waits or settings.get("durability") == Durability.DISK:
        store.flush()
        durability = Durability.DISK
    return PutMessageResult(
        PutMessageStatus.PUT_OK,
        phy_offset=first.phy_offset,
        queue_offset=first.queue_offset,
        store_size=sum(each.store_size for each in found),
        store_timestamp_ms=first.store_timestamp_ms,
        message_count=len(found),
        durability=durability,
        store_host=bytes.fromhex(first.message_id)[:-8],
        phy_offsets=[each.phy_offset for each in found] if len(found) > 1 else None,
    )


def _messages(method: str, args: list[Any], settings: dict[str, Any]) -> list[Message]:
    if method == "put":
        named = {name: value for name, value in settings.items() if name != "durability"}
        return [Message(*args, **named)]
    if method == "put_message":
        return [args[0]]
    messages = decode_batch(args[0], topic=settings["topic"])
    for each in messages:
        each.queue_id = settings["queue_id"]
    return messages


def _find(store: DefaultMessageStore, wanted: Message, since_ms: int) -> MessageExt | None:
    """The first message of the wanted put; a delayed one may be parked still."""
    properties = wanted.properties or {}
    key = properties[UNIQUE_KEY]
    name = PUT_ID if PUT_ID in properties else UNIQUE_KEY
    hits: list[MessageExt] = []
    for topic in (wanted.topic, SCHEDULE_TOPIC):
        if store.config.message_index_enable:
            hits += _by_key(store, topic, key, since_ms)
        else:
            hits += _in_queues(store, topic, since_ms)
    same = [each for each in hits if each.properties.get(name) == properties[name]]
    return min(same, key=lambda each: each.phy_offset, default=None)


def _by_key(store: DefaultMessageStore, topic: str, key: str, since_ms: int) -> list[MessageExt]:
    """What was stored in a topic with a key since a time, however much of it has come since."""
    result = store.query_message(topic, key, begin_ms=since_ms)
    found = list(result)
    while result.next_page is not None:
        result = store.query_message(topic, key, begin_ms=since_ms, page=result.next_page)
        found += result
    return found


def _in_queues(store: DefaultMessageStore, topic: str, since_ms: int) -> list[MessageExt]:
    """What was stored in a topic since a time, for a store without an index."""
    found: list[MessageExt] = []
    for name, queue_id in store.queues():
        if name == topic:
            start = store.queue_offset_by_time(topic, queue_id, since_ms)
            found += store.messages(topic, queue_id, start=start)
    return found
