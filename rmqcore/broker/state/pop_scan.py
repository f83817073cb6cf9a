"""In which order a pop looks at queues: as it comes, or by the priority of their messages.

A topic with ``message.type=PRIORITY`` keeps the messages of a priority in the queue of that number.

Source: RocketMQ broker/processor/PopMessageProcessor.java, common/SubscriptionGroupAttributes.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.broker.state.topics import queue_ids
from rmqcore.chance import randrange
from rmqcore.files.config_tables import TopicConfig

PRIORITY_FACTOR: Final = "priority.factor"
_PERCENT: Final = 100
#: A pop begins at a number drawn from this many, more than any topic has queues.
_QUEUES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class QueueScan:
    """The order of one pop.

    Attributes:
        retries_first: whether what comes again is looked at first.
        first: number of the queue to begin with, of those of any topic.
        downwards: whether it goes on with the next lower number, else with the next higher one.
    """

    retries_first: bool
    first: int
    downwards: bool

    @classmethod
    def of(
        cls, topic: TopicConfig, group: Mapping[str, Any], config: BrokerConfig, *, ordered: bool
    ) -> QueueScan:
        """Draw the order of a pop.

        Args:
            topic: what is popped.
            group: settings of who pops it; ``priority.factor`` percent of its pops go by priority.
            config: the broker's settings.
            ordered: whether it is a pop in order, which knows no priority; retries are its last.
        """
        chance, first = randrange(_PERCENT), 1 + randrange(_QUEUES)
        by_priority = topic.attributes.get("message.type") == "PRIORITY" and not ordered
        if by_priority and chance < priority_factor(group):
            percent, first = config.pop_from_retry_probability_for_priority, 0
        else:
            percent = config.pop_from_retry_probability
        return cls(chance < percent and not ordered, first, config.priority_order_asc)

    def queues(self, count: int) -> list[int]:
        """The numbers of so many queues; with ``first`` 0 from the highest or lowest number on."""
        numbers = queue_ids(count)
        if self.downwards:
            return [(self.first - 1 - n) % len(numbers) for n in numbers]
        return [(self.first + n) % len(numbers) for n in numbers]


def priority_factor(group: Mapping[str, Any]) -> int:
    """The percentage of a group's pops that go by priority; 100 unless it says otherwise."""
    attributes = group.get("attributes")
    text = attributes.get(PRIORITY_FACTOR) if isinstance(attributes, Mapping) else None
    return int(text) if isinstance(text, str) and is_percentage(text) else _PERCENT


def is_percentage(text: str) -> bool:
    """Tell whether a text is a whole number from 0 to 100."""
    return text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= _PERCENT
