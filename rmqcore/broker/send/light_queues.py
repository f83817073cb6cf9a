"""`LightQueues`: how many light queues messages may name; each is a queue with its files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rmqcore.broker.state.budgets import BudgetExceededError
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.files.consume_queue import LIGHT_QUEUE_PREFIX
from rmqcore.message import LIGHT_QUEUES, Message
from rmqcore.store.protocol import MessageStore
from rmqcore.world import World

#: They are counted anew no sooner than after this when there was no room.
_FULL_S: Final = 1.0


class LightQueues:
    """The light queues that there are, and those that messages have named since.

    Args:
        store: that has them.
        config: the broker's settings as they are now.
        world: its clock.
    """

    def __init__(
        self, store: MessageStore, config: Callable[[], BrokerConfig], world: World
    ) -> None:
        self._store, self._config, self._monotonic_s = store, config, world.monotonic_s
        self._known: set[str] | None = None
        self._counted_s = 0.0

    def expect_room(self, message: Message) -> None:
        """Refuse a message for the light queues that it names first, where there are too many.

        Raises:
            BudgetExceededError: it is so.

        Source: DefaultMessageStore, checkLmqMessage.
        """
        text = (message.properties or {}).get(LIGHT_QUEUES, "")
        if not text or not self._store.config.numbers_light_queues:
            return
        named = set(text.split(","))
        known = self._counted() if self._known is None else self._known
        most = self._config().max_lmq_consume_queue_num
        if not named <= known and len(known | named) > most:
            if self._monotonic_s() >= self._counted_s + _FULL_S:
                known = self._counted()
            if not named <= known and len(known | named) > most:
                raise BudgetExceededError("light queues", most)
        known |= named

    def _counted(self) -> set[str]:
        self._counted_s = self._monotonic_s()
        self._known = {
            topic for topic, _ in self._store.queues() if topic.startswith(LIGHT_QUEUE_PREFIX)
        }
        return self._known
