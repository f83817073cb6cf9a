"""Groups: how far they are, who consumes in them, and what is handed out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rmqcore.broker.parts import BrokerParts
from rmqcore.broker.state.clients import Client, ConsumerGroup
from rmqcore.message import DEAD_LETTER_PREFIX, QueueLag
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.web.lags import AllLags, QueuePosition, longest_ms, progress, waits_ms
from rmqcore.web.paging import Paged, paged
from rmqcore.web.source import Source

_QUEUES_SHOWN: Final = 200
_POPS_SHOWN: Final = 50
_SETTINGS: Final = {
    "consumeEnable": "May consume",
    "consumeBroadcastEnable": "May broadcast",
    "consumeMessageOrderly": "In order",
    "retryMaxTimes": "Tries",
    "retryQueueNums": "Retry queues",
}


def groups(source: Source, lags: AllLags, find: str, page: int, *, by_lag: bool) -> dict[str, Any]:
    """The facts of the list.

    Args:
        source: where they are.
        lags: of all of them.
        find: only names with this in them, whatever the case.
        page: which, from 1 on.
        by_lag: the furthest behind first, else by name.
    """
    known, wanted = lags.get(), find.lower()
    online = {} if source.managers is None else dict(source.managers.consumers.groups)
    names = sorted(
        name for name in {*source.groups.names(), *known, *online} if wanted in name.lower()
    )
    if by_lag:
        names.sort(key=lambda name: -(known[name].behind if name in known else 0))
    found: Paged[str] = paged(names, page)
    consumed, rows = _consumed(source, found.items), []
    for name in found.items:
        lag, group = known.get(name), online.get(name)
        progresses = (row for topic in consumed[name] for row in progress(source, topic, name))
        rows.append(
            {
                "name": name,
                "topics": lag.topics if lag else 0,
                "behind": lag.behind if lag else None,
                "waits_ms": longest_ms(source, progresses) if lag and lag.behind else None,
                "clients": None if source.managers is None else len(group.clients) if group else 0,
                "model": group.message_model.lower() if group else "",
            }
        )
    return {"rows": rows, "paged": found}


def _consumed(source: Source, groups: Iterable[str]) -> dict[str, list[str]]:
    """By group, the topics of which it has committed offsets."""
    found: dict[str, list[str]] = {name: [] for name in groups}
    for topic, name in source.offsets.pairs():
        if name in found:
            found[name].append(topic)
    return found


def group(source: Source, name: str, page: int) -> dict[str, Any] | None:
    """The facts of one group; None when nothing is known of it.

    Args:
        source: of the store.
        name: of the group.
        page: of its queues, from 1 on.

    Returns:
        what the template ``group`` names.
    """
    topics = sorted(_consumed(source, [name])[name])
    config, managers = source.groups.get(name), source.managers
    online = None if managers is None else managers.consumers.find(name)
    if config is None and not topics and online is None:
        return None
    rows = [row for topic in topics for row in progress(source, topic, name)]
    found: Paged[QueuePosition] = paged(rows, page, _QUEUES_SHOWN)
    dead = DEAD_LETTER_PREFIX + name
    return {
        "name": name,
        "settings": None if config is None else _settings(config),
        "rows": [(row, waits_ms(source, row)) for row in found.items],
        "paged": found,
        "behind": sum(row.behind for row in rows),
        "longest_ms": longest_ms(source, found.items),
        "online": online,
        "clients": _clients(online),
        "subscriptions": [] if online is None else sorted(dict(online.subscriptions).items()),
        "holders": {} if managers is None else _holders(managers, name),
        "popped": [] if managers is None else _popped(managers, name),
        "leases": _leases(source, name, topics),
        "dead": dead if dead in source.queues() else "",
    }


def _settings(config: Mapping[str, object]) -> list[tuple[str, str]]:
    """What a group is configured to do; releases before 5 have fewer fields."""
    shown = ((words, config.get(name)) for name, words in _SETTINGS.items())
    said = {"True": "yes", "False": "no"}
    return [
        (words, said.get(str(value), str(value))) for words, value in shown if value is not None
    ]


def _clients(online: ConsumerGroup | None) -> list[Client]:
    clients = [] if online is None else list(online.clients.values())
    return sorted(clients, key=lambda each: each.client_id)


def _holders(managers: BrokerParts, group: str) -> dict[tuple[str, int], tuple[str, str]]:
    """By queue, the client that has it, and how that is known."""
    found: dict[tuple[str, int], tuple[str, str]] = {}
    online = managers.consumers.find(group)
    clients = {} if online is None else dict(online.clients)
    for queue, connection in managers.waiting_pulls.waiting():
        client = clients.get(connection)
        if client is not None:
            found[queue] = client.client_id, "waits for its next message"
    for queue, client_id in managers.locks.holders(group).items():
        found[queue] = client_id, "has locked it, to consume in order"
    return found


def _popped(managers: BrokerParts, group: str) -> list[dict[str, Any]]:
    """What was handed out to a group by POP and is not acknowledged, the first due first."""
    found = sorted(managers.checkpoints.open_of(group), key=lambda each: each.due_ms)
    return [
        {
            "topic": each.topic,
            "queue": each.queue_id,
            "count": len(each.open_offsets),
            "first": min(each.open_offsets, default=each.start_offset),
            "popped_ms": each.pop_time_ms,
            "due_ms": each.due_ms,
        }
        for each in found[:_POPS_SHOWN]
    ]


def _leases(source: Source, group: str, topics: list[str]) -> list[QueueLag]:
    """What is leased of a store that is open for writing, as adapters and `Consumer` do."""
    store = source.store
    if not isinstance(store, DefaultMessageStore) or not store.parts.consuming.has_leases:
        return []
    return [row for row in store.lag(group, topics) if row.leased]
