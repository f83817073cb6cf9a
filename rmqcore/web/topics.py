"""Topics: the list of them, and one with its queues, groups and configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rmqcore.errors import CorruptStoreError
from rmqcore.files.service_topics import is_service_topic
from rmqcore.message import DEAD_LETTER_PREFIX, RETRY_PREFIX
from rmqcore.web.lags import longest_ms, progress
from rmqcore.web.overview import messages_by_time
from rmqcore.web.paging import Paged, paged
from rmqcore.web.source import Source, bounds

#: The page of a topic shows this many queues, the next page the others.
QUEUES_SHOWN: Final = 64
_DRAWN: Final = 8
_OTHERS: Final = frozenset(
    {"TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT", "RMQ_SYS_TRACE_TOPIC"}
)
KINDS: Final = ("normal", "retry", "dead", "system")
_PERMISSIONS: Final = {0: "none", 2: "write", 4: "read", 6: "read and write"}


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic in the list.

    Attributes:
        name: its name.
        kind: one of `KINDS`.
        configured: whether the table of topics has it.
        queues: how many there are in the store.
        messages: in all of them.
        permission: in words; empty where it is not configured.
    """

    name: str
    kind: str
    configured: bool
    queues: int
    messages: int
    permission: str


def kind_of(topic: str) -> str:
    """What a topic is for, one of `KINDS`."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DEAD_LETTER_PREFIX):
        return "dead"
    return "system" if is_service_topic(topic) or topic in _OTHERS else "normal"


def topics(source: Source, find: str, kind: str, page: int) -> dict[str, Any]:
    """The facts of the list.

    Args:
        source: where they are.
        find: only names with this in them, whatever the case.
        kind: only these; empty for all.
        page: which, from 1 on.
    """
    queues, wanted = source.queues(), find.lower()
    names = sorted(
        name
        for name in {*queues, *(each.topic_name for each in source.topics)}
        if wanted in name.lower() and kind in ("", kind_of(name))
    )
    found: Paged[str] = paged(names, page)
    return {"rows": [_row(source, name, queues) for name in found.items], "paged": found}


def _row(source: Source, name: str, queues: dict[str, list[int]]) -> TopicRow:
    config, numbers = source.topics.get(name), queues.get(name, [])
    ends = [bounds(source.store, name, number) for number in numbers]
    return TopicRow(
        name,
        kind_of(name),
        config is not None,
        len(numbers),
        sum(high - low for low, high in ends),
        "" if config is None else permission_text(config.perm),
    )


def permission_text(bits: int) -> str:
    """What RocketMQ's permission bits of a topic allow."""
    return _PERMISSIONS.get(bits & 6, "") or "none"


def topic(source: Source, name: str, page: int) -> dict[str, Any] | None:
    """The facts of one topic; None when there is none of this name.

    Args:
        source: of the store.
        name: of the topic.
        page: of its queues, from 1 on.

    Returns:
        what the template names.
    """
    config, numbers = source.topics.get(name), source.queues().get(name, [])
    if config is None and not numbers:
        return None
    found: Paged[int] = paged(numbers, page, QUEUES_SHOWN)
    rows = [_queue(source, name, number) for number in found.items]
    subscribed = []
    if source.managers is not None:
        subscribed = source.managers.consumers.subscribed_to(name)
    groups = sorted({group for of, group in source.offsets.pairs() if of == name} | {*subscribed})
    shown: Paged[str] = paged(groups, 1, QUEUES_SHOWN)
    first, last, drawn = messages_by_time(source.store, [(name, n) for n in numbers[:_DRAWN]])
    return {
        "name": name,
        "kind": kind_of(name),
        "config": None if config is None else config.to_java(),
        "permission": None if config is None else permission_text(config.perm),
        "queues": rows,
        "paged": found,
        "messages": sum(row["messages"] for row in rows),
        "groups": [_group(source, name, group, group in subscribed) for group in shown.items],
        "group_count": len(groups),
        "first_ms": first,
        "last_ms": last,
        "drawn": drawn,
        "rate": None if source.managers is None else source.managers.rates.put_tps(name),
    }


def _queue(source: Source, topic_name: str, number: int) -> dict[str, Any]:
    store = source.store
    low, high = bounds(store, topic_name, number)
    times: list[int | None] = [None, None]
    for at, offset in enumerate((low, high - 1)):
        if high > low:
            try:
                found = store.get_message(topic_name, number, offset, max_messages=1).messages
            except CorruptStoreError:
                continue
            times[at] = found[0].store_timestamp_ms if found else None
    return {
        "number": number,
        "low": low,
        "high": high,
        "messages": high - low,
        "first_ms": times[0],
        "last_ms": times[1],
    }


def _group(source: Source, topic_name: str, group: str, online: bool) -> dict[str, Any]:
    rows = progress(source, topic_name, group)
    return {
        "name": group,
        "online": online,
        "behind": sum(row.behind for row in rows),
        "waits_ms": longest_ms(source, rows),
    }
