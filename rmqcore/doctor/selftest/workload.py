"""Messages that say which they are, put into a small store, and the check that none is missing.

Every file of the store is a few pages long, so that a few dozen messages roll each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rmqcore import Durability, MessageStore, PutMessageResult, open_store
from rmqcore.message import MessageExt

PAGE = 4096
#: Each writer of a store numbers its messages from another multiple of this on.
NUMBERS_A_WRITER = 1_000_000
#: sizes of the store's files, and how records are protected
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 10 * PAGE,
    "mapped_file_size_consume_queue": 12_280,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    # without a CRC of the whole record, one that never reached the disk as a whole may be taken for
    # a message: RocketMQ's format protects its body and lengths only
    "enabled_append_prop_crc": True,
    "force_verify_prop_crc": True,
}
_ASYNC = {
    "flush_disk_type": "ASYNC_FLUSH",
    "flush_interval_commit_log_ms": 5,
    "flush_commit_log_least_pages": 1,
}
#: how a writer waits for the disk, by name
MODES: dict[str, dict[str, Any]] = {
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "async": _ASYNC,
    "pool": _ASYNC
    | {
        "transient_store_pool_enable": True,
        "transient_store_pool_size": 3,
        "commit_interval_commit_log_ms": 5,
    },
}


class BrokenPromiseError(Exception):
    """A store gives another answer than it must."""


def open_for(path: Path, mode: str, **settings: Any) -> MessageStore:
    """Open a store for a writer of one of the `MODES`.

    Args:
        path: of the store; made when it is missing.
        mode: a key of `MODES`.
        settings: more, by our names; they win.

    Raises:
        CorruptStoreError: the log is damaged.
    """
    return open_store(
        path, **{"flush_interval_consume_queue_ms": 5} | SIZES | MODES[mode] | settings
    )


def body_of(number: int) -> bytes:
    """The body of message ``number``; one in nine is long."""
    times = 1 + number % 23
    return b"%d " % number * (16 * times if number % 9 == 0 else times)


def put(
    store: MessageStore, number: int, *, durability: Durability | None = None
) -> PutMessageResult:
    """Put message ``number``; topic, queue and keys follow from it. Returns its receipt.

    Args:
        store: open for writing.
        number: from 0 on; each writer counts from another multiple of `NUMBERS_A_WRITER`.
        durability: what the receipt waits for; None leaves it to the store.
    """
    return store.put(
        f"T{number % 2}",
        body_of(number),
        queue_id=number // 2 % 2,
        tags=f"tag{number % 3}",
        keys=(f"k{number}", f"m{number % 7}"),
        durability=durability,
    )


def number_of(message: MessageExt) -> int:
    """Which message this is.

    Raises:
        BrokenPromiseError: it is not what was put.
    """
    body = bytes(message.body)
    head = body.partition(b" ")[0]
    number = int(head) if head.isdigit() else -1
    if (
        number < 0
        or body != body_of(number)
        or message.topic != f"T{number % 2}"
        or message.queue_id != number // 2 % 2
        or message.tags != f"tag{number % 3}"
    ):
        raise BrokenPromiseError(f"a wrong message at {message.phy_offset}: {body[:60]!r}")
    return number


def check_store(store: MessageStore, acknowledged: Collection[int]) -> dict[int, int]:
    """Compare what a store answers with what was put.

    Args:
        store: an open store; each of its writers put its messages in the order of their numbers.
        acknowledged: numbers that must be there.

    Returns:
        the physical offset of each number that it has, in the order of the log.

    Raises:
        BrokenPromiseError: a message is missing or wrong, they are in another order, or queues or
            keys do not agree with the log.
    """
    found: dict[int, int] = {}
    last: dict[int, int] = {}
    queues: dict[tuple[str, int], list[int]] = defaultdict(list)
    for message in store.messages():
        number = number_of(message)
        writer = number // NUMBERS_A_WRITER
        if number <= last.get(writer, -1):
            raise BrokenPromiseError("messages twice, or in another order")
        last[writer] = number
        found[number] = message.phy_offset
        queues[message.topic, message.queue_id].append(message.phy_offset)
    missing = sorted(set(acknowledged) - found.keys())
    if missing:
        raise BrokenPromiseError(f"{len(missing)} acknowledged messages lost, first {missing[0]}")
    for (topic, queue_id), offsets in queues.items():
        result = store.get_message(topic, queue_id, 0, max_messages=len(offsets) + 1)
        if [message.phy_offset for message in result.messages] != offsets:
            raise BrokenPromiseError(f"queue {topic}/{queue_id} differs from the log")
    numbers = list(found)
    for number in numbers[-1:] + numbers[len(numbers) // 2 : len(numbers) // 2 + 1]:
        hits = store.query_message(f"T{number % 2}", f"k{number}", max_messages=32).messages
        if [number_of(message) for message in hits] != [number]:
            raise BrokenPromiseError(f"key k{number} does not lead to its message")
    return found
