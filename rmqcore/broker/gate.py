"""What asks whether a request may pass: what each needs, and of whose topic a message is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rmqcore.broker.requests import NEEDS
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.queued import is_queued
from rmqcore.errors import CorruptStoreError
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.files.service_topics import HALF_TOPIC
from rmqcore.files.timer_check import TIMER_TOPIC
from rmqcore.message import RETRY_PREFIX, MessageExt
from rmqcore.remoting import AccessGate, Account
from rmqcore.store.protocol import MessageStore


def broker_gate(accounts: Mapping[str, Account] | None, state: BrokerState) -> AccessGate | None:
    """The gate of a broker; None where everybody is served.

    Args:
        accounts: by access key; None serves everybody.
        state: of the broker, whose topics, messages and clock count.
    """
    if accounts is None:
        return None
    known = state.store.topics
    return AccessGate(
        accounts,
        NEEDS,
        topic_lookup(state.store),
        lambda topic: known.get(topic) is not None,
        world=state.world,
    )


def topic_lookup(store: MessageStore) -> Callable[[int], str | None]:
    """Tell the topic of the message at a physical offset, as its producer named it.

    Its queue has to have it there: a body may hold what looks like a record, whose size takes in
    the messages of others behind it.
    """

    def topic_at(phy_offset: int) -> str | None:
        try:
            found = store.message_at(phy_offset) if phy_offset >= 0 else None
            if found is None or not is_queued(store, found):
                return None
        except CorruptStoreError:
            return None
        waits = found.topic in (SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC)
        return found.properties.get("REAL_TOPIC", found.topic) if waits else _told_apart(found)

    return topic_at


def _told_apart(found: MessageExt) -> str:
    """The topic of a message; of one that POP hands out again with group and topic told apart.

    The same retry topic may be that of another group, too, by its whole name.
    """
    name = found.topic.removeprefix(RETRY_PREFIX)
    group = found.properties.get("ORIGIN_GROUP", "")
    if name == found.topic or not group or not name.startswith(f"{group}_"):
        return found.topic
    return f"{RETRY_PREFIX}{group}+{name.removeprefix(f'{group}_')}"
