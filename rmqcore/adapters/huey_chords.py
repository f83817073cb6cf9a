"""A chord of huey's whose members may run twice: each counts once, and its callback is not lost."""

from __future__ import annotations

from typing import Any, Final

from rmqcore.store.protocol import MessageStore

#: Whose callback has been enqueued is known for a week: members that come again are passed over.
_KNOWN_MS: Final = 7 * 86_400_000
_ENQUEUED: Final = b"enqueued"


def end_member(huey: Any, store: MessageStore, claims: str, config: Any, value: object) -> None:
    """Note that a member of a chord has ended; behind the last one enqueue the callback.

    huey counts members: one that is executed again, as its consumer was killed before it took it
    off the queue, would count twice, and the callback come without what others return, or never.

    Args:
        huey: that executes it.
        store: of the huey.
        claims: the table in which the member stands that enqueues the callback.
        config: the member's place in its chord, as huey has it.
        value: what it returns.
    """
    chord = f"chord:{config.cid}"
    if store.kv_get(claims, [chord.encode()]) == [_ENQUEUED]:
        return
    keys = [f"{chord}:{index}" for index in range(config.size)]
    # not as a result, which may have a time to live: other members may take longer
    huey.put(keys[config.idx], value)
    if len(huey.storage.peek_many(keys)) < config.size:
        return
    member = b"%d" % config.idx
    mine = store.kv_swap(claims, chord.encode(), None, member, ttl_ms=_KNOWN_MS)
    if not mine and store.kv_get(claims, [chord.encode()]) != [member]:
        return
    callback = config.callback
    callback.extend_data(([huey.get(key, peek=True) for key in keys],))
    huey.enqueue(callback)
    store.kv_put(claims, chord.encode(), _ENQUEUED, ttl_ms=_KNOWN_MS)
    for key in keys:
        huey.delete(key)
