"""Lets POPs and notifications wait that found nothing, and answers them later.

Source: RocketMQ broker/longpolling/PopLongPollingService.java.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rmqcore.broker.pop.answers import empty_answer
from rmqcore.broker.pop.waiting import WaitingPop
from rmqcore.broker.state.topics import queue_ids
from rmqcore.errors import StoreError
from rmqcore.remoting import RequestRefusedError, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmqcore.broker.pop.order import PopOrder
    from rmqcore.broker.pop.request import PopRequest
    from rmqcore.broker.pop.waiting import WaitingPops
    from rmqcore.broker.state.broker_state import BrokerState
    from rmqcore.remoting import Connection, RemotingCommand

logger = logging.getLogger(__name__)


class AnsweredLater:
    """Lets requests wait, in order also until what was handed out comes again.

    Args:
        state: the broker's.
        waiting: where they wait.
        order: what is handed out in order.
    """

    def __init__(self, state: BrokerState, waiting: WaitingPops, order: PopOrder) -> None:
        self._store, self._topics, self._offsets = state.store, state.topics, state.offsets
        self._clock_ms, self._monotonic_s = state.world.clock_ms, state.world.monotonic_s
        self._waiting, self._order = waiting, order

    def queues(self, wanted: PopRequest) -> list[int]:
        """The queues that a request asks for."""
        if wanted.queue_id >= 0:
            return [wanted.queue_id]
        return list(queue_ids(self._topics.expect(wanted.topic).read_queue_nums))

    def due_ms(self, wanted: PopRequest, queue_id: int) -> int:
        """Until when a queue waits for what was handed out in order.

        Args:
            wanted: a request in order.
            queue_id: one of `queues`.

        Returns:
            Unix time in milliseconds.
        """
        key = (wanted.topic, wanted.group, queue_id)
        if self._offsets.resets.get((wanted.group, wanted.topic, queue_id)) is not None:
            self._order.forget(key)
        most = self._store.max_queue_offset(wanted.topic, queue_id)
        return self._order.due_ms(key, wanted.attempt_id, most)

    def add(
        self,
        connection: Connection,
        request: RemotingCommand,
        wanted: PopRequest,
        look: Callable[[bool], RemotingCommand | None],
        *,
        takes: bool = True,
    ) -> bool:
        """Let a request wait.

        Args:
            connection: is answered later.
            request: the request.
            wanted: what it asks for.
            look: called on the event loop with whether something has come; returns the answer, or
                None when it lets the request wait again.
            takes: see `WaitingPop`.

        Returns:
            False: it may not, as too many wait.
        """
        # what somebody sends along is not kept for as long as it waits
        request.body, request.ext_fields = b"", {}
        key, again_s = (wanted.topic, wanted.group, wanted.queue_id), None
        if wanted.ordered:
            now_ms = self._clock_ms()
            times = [self.due_ms(wanted, queue_id) - now_ms for queue_id in self.queues(wanted)]
            again_s = min((time / 1000 for time in times if time > 0), default=None)

        def wake(arrived: bool) -> None:
            _answer(connection, request, look, arrived)

        held = WaitingPop(connection, key, wake, wanted.text_size, takes)
        return self._waiting.add(held, wanted.left_s(self._monotonic_s()), again_s)


def _answer(
    connection: Connection,
    request: RemotingCommand,
    look: Callable[[bool], RemotingCommand | None],
    arrived: bool,
) -> None:
    """Answer a request that has waited, unless it waits on; it fails by itself."""
    if connection.closed:
        return
    try:
        answer = look(arrived)
    except RequestRefusedError as error:
        answer = empty_answer(error.code, error.remark)
    except StoreError as error:
        logger.warning("a request that waits cannot be answered: %s", error)
        answer = empty_answer(ResponseCode.SYSTEM_ERROR, "the store does not take it now")
    except Exception:
        logger.exception("a request that waits cannot be answered")
        remark = "the request failed; the log says why"
        answer = empty_answer(ResponseCode.SYSTEM_ERROR, remark)
    if answer is not None:
        connection.answer(request, answer)
