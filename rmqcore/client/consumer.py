"""`Consumer`: the messages of some topics, shared by the consumers of a group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Self

from rmqcore.arguments import text, whole_number
from rmqcore.client.admin_questions import AdminQuestions, SingleMessage
from rmqcore.client.assigned import AssignedQueue, QueueGeneration
from rmqcore.client.assignment import Assignment, Start
from rmqcore.client.errors import ClientClosedError
from rmqcore.client.group_requests import GroupRequests
from rmqcore.client.instance import DEFAULT_TIMEOUT_MS, ClientInstance
from rmqcore.client.names import GROUP_MAX, TOPIC_MAX, check_name, check_time
from rmqcore.client.results import MessageQueue
from rmqcore.client.subscription import Subscription
from rmqcore.client.tracing import process_spans
from rmqcore.errors import ArgumentError
from rmqcore.message import RETRY_PREFIX, ReceivedMessage
from rmqcore.remoting import AclSigner
from rmqcore.world import REAL, World

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

logger = logging.getLogger(__name__)

Mode = Literal["clustering", "broadcasting"]
#: Where a queue is consumed in order, a message that failed is handed out again after this pause.
_ORDERLY_PAUSE_S = 1.0
_RECONSUME_MAX = 16
#: The delay of each level of ``messageDelayLevel`` in seconds, that of level 1 first.
_LEVELS_S = (1, 5, 10, 30, *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)))
_LEVELS_S += (20 * 60, 30 * 60, 3600, 7200)


class Consumer:
    """Hands out messages, one by one; each has to be settled by `ack` or `nack`.

    What was handed out and not settled when the consumer ends comes again, to this group's other
    consumers or to the next one. So a message may come more than once.

    Used from one event loop, by any number of tasks.

    Source: DefaultMQPushConsumer.

    Attributes:
        group: the consumers that share the messages and their progress.
    """

    def __init__(
        self,
        namesrv_addr: str | Sequence[str],
        group: str,
        subscriptions: Mapping[str, str],
        *,
        start: Start = "last",
        mode: Mode = "clustering",
        orderly: bool = False,
        prefetch: int = 256,
        unacked_max: int = 2000,
        reconsume_max: int = _RECONSUME_MAX,
        timeout_ms: float = DEFAULT_TIMEOUT_MS,
        acl: AclSigner | None = None,
        tls: ssl.SSLContext | None = None,
        tracer_provider: TracerProvider | None = None,
        world: World = REAL,
    ) -> None:
        """Prepare a consumer; ``async with`` opens it.

        Args:
            namesrv_addr: name servers: `host:port`, with ``;`` between several.
            group: name of the group.
            subscriptions: topic -> ``*``, tags such as ``a || b``, or `Sql`.
            start: where a group begins that has consumed nothing of a queue: with its ``first``
                message, behind the ``last``, or at a Unix time in milliseconds.
            mode: ``clustering`` shares the messages between the group's consumers;
                ``broadcasting`` gives each consumer all of them, and keeps no progress.
            orderly: hand out the next message of a queue only when the one before is settled.
            prefetch: messages of one queue that wait here to be handed out.
            unacked_max: messages of one queue that may be handed out and not settled.
            reconsume_max: how often a message comes again before it becomes a dead letter.
            timeout_ms: of each request; of what gives a message back, 10 s at least.
            acl: signs the requests.
            tls: trust for TLS; None connects without.
            tracer_provider: OpenTelemetry's, for a span a message from being handed out to being
                settled; None for what `tracing.instrument` says, without which there are none.
            world: the clock of what it says of itself; time-outs are the event loop's.

        Raises:
            ArgumentError: an address is not host:port, or another argument not what it should be.
        """
        _check(group, subscriptions, start, mode)
        self.group = group
        self._broadcasting = mode == "broadcasting"
        self._orderly = orderly
        self._spans = process_spans(tracer_provider, group, mode)
        self._reconsume_max = whole_number("reconsume_max", reconsume_max, 0)
        self._instance = ClientInstance(
            "consumer",
            namesrv_addr,
            acl=acl,
            tls=tls,
            timeout_ms=timeout_ms,
            beat=self._beat,
            world=world,
        )
        self._requests = GroupRequests(self._instance, group)
        self._assignment = Assignment(
            self._instance,
            self._requests,
            self._wanted(subscriptions, world.clock_ms()),
            group=group,
            start=start,
            broadcasting=self._broadcasting,
            orderly=orderly,
            prefetch=whole_number("prefetch", prefetch, 1),
            unacked_max=whole_number("unacked_max", unacked_max, 1),
            on_messages=self._offer,
        )
        self._asked = AdminQuestions(
            self._instance, self._assignment, orderly=orderly, offer=self._offer
        )
        self._instance.troubles.on_refusal = self._wake
        self._ready: deque[AssignedQueue] = deque()
        self._arrived = asyncio.Event()
        self._open = False
        self._later: set[asyncio.TimerHandle] = set()

    def _wanted(self, subscriptions: Mapping[str, str], version: int) -> dict[str, Subscription]:
        """What is pulled, by topic; the group's retry topic, too, but where no progress is kept."""
        wanted = dict(subscriptions)
        if not self._broadcasting:
            wanted[RETRY_PREFIX + self.group] = "*"
        return {topic: Subscription.of(topic, each, version) for topic, each in wanted.items()}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the group and take a share of the queues; ``async with`` does it.

        Raises:
            RequestRefusedError: a broker cannot use an expression, or the group may not have it.
            RemotingError: no name server answers.
        """
        if self._open:
            self._instance.check()
            return
        self._arrived = asyncio.Event()
        await self._instance.start({**self._assignment.processors, **self._asked.processors})
        try:
            await self._assignment.start()
        except BaseException:
            await self.close()
            raise
        self._open = True

    async def close(self) -> None:
        """Commit what was settled, leave the group, and end ``async for``; in a child nothing.

        Raises:
            ClientMisusedError: it belongs to another event loop.
        """
        if self._instance.is_here():
            self._open = False
            self._arrived.set()
            for timer in self._later:
                timer.cancel()
            await self._assignment.stop()
            if self._spans is not None:
                self._spans.close()
        await self._instance.close({"consumerGroup": self.group})

    @property
    def client_id(self) -> str:
        """The name under which brokers know this consumer."""
        return self._instance.client_id

    @property
    def assigned(self) -> list[AssignedQueue]:
        """The queues that this consumer has now."""
        return list(self._assignment.queues.values())

    async def queue_ends(self) -> dict[MessageQueue, int]:
        """Where the queues that this consumer has end now, those of its retry topic left out.

        Raises:
            ClientClosedError: the consumer is not open.
            RemotingError: a broker does not say.
        """
        self._expect_open()
        queues = [
            queue for queue in self._assignment.queues if not queue.topic.startswith(RETRY_PREFIX)
        ]
        ends = await asyncio.gather(*map(self._requests.max_offset, queues))
        return dict(zip(queues, ends, strict=True))

    async def has_reached(self, offsets: Mapping[MessageQueue, int]) -> bool:
        """Whether all that lies in front of these offsets was handed out, or is not wanted.

        A queue that has gone to another consumer of the group is left to that one.
        """
        assigned = self._assignment.queues
        return all(
            assigned[queue].next_offset >= offset and not assigned[queue].has_messages
            for queue, offset in offsets.items()
            if queue in assigned
        )

    # ---- handing out ------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        message = await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout_s: float | None = None) -> ReceivedMessage | None:
        """Return the next message.

        Args:
            timeout_s: how long to wait for one; None waits until the consumer is closed.

        Returns:
            the message; None when there was none in time, or the consumer was closed meanwhile.

        Raises:
            RequestRefusedError: there is none, and a broker refuses to hand out some; it is asked
                again meanwhile, so who goes on gets them when it no longer does.
            ClientClosedError: the consumer is not open.
            ArgumentError: the time is no number, or below 0.
        """
        self._expect_open()
        if timeout_s is not None:
            check_time("timeout_s", timeout_s)
        at_once = self._next()
        if at_once is not None:
            return at_once
        told = self._instance.troubles.told
        try:
            async with asyncio.timeout(timeout_s):
                while self._open:
                    message = self._next()
                    if message is not None:
                        return message
                    self._instance.troubles.raise_refusal(told)
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return None
        return None

    def _wake(self) -> None:
        self._arrived.set()

    def _expect_open(self) -> None:
        if not self._open:
            raise ClientClosedError("consumer")
        self._instance.check()

    def _next(self) -> ReceivedMessage | None:
        while self._ready:
            assigned = self._ready.popleft()
            if not assigned.has_messages:
                continue
            message = assigned.hand_out()
            if self._orderly:
                assigned.in_hand = message
            elif assigned.has_messages:
                self._ready.append(assigned)
            if self._spans is not None:
                self._spans.begin(message, self.client_id)
            return message
        return None

    def processing(
        self, message: ReceivedMessage
    ) -> contextlib.AbstractContextManager[None, bool | None]:
        """Let spans that are made meanwhile be children of the message's own.

        What is raised meanwhile is recorded there. Where nothing is traced, it does nothing.
        """
        return contextlib.nullcontext() if self._spans is None else self._spans.current(message)

    def _offer(self, assigned: AssignedQueue) -> None:
        """Let a queue's messages be handed out, if it has any."""
        if assigned.has_messages and assigned not in self._ready:
            self._ready.append(assigned)
            self._arrived.set()

    async def take_back(self, message: ReceivedMessage) -> None:
        """Hand a message out once more, as the next of its queue: it has come to nobody.

        Args:
            message: that this consumer has handed out.
        """
        if self._spans is not None:
            self._spans.end(message, is_given_back=True)
        assigned, generation = _place(message)
        await self._left(assigned, message, assigned.take_back(message, generation))

    # ---- settling ---------------------------------------------------------------------------

    async def ack(self, message: ReceivedMessage) -> None:
        """A message is done with: the group gets it no more.

        One whose queue has gone to another consumer meanwhile comes again there.

        Args:
            message: what this consumer has handed out.

        Raises:
            ClientClosedError: the consumer is not open; the message comes again.
        """
        self._expect_open()
        await self._settle(message)
        if self._spans is not None:
            self._spans.end(message)

    async def _settle(self, message: ReceivedMessage) -> None:
        assigned, generation = _place(message)
        await self._left(assigned, message, assigned.settle(message, generation))

    async def _left(self, assigned: AssignedQueue, message: ReceivedMessage, had: bool) -> None:
        """A message is in nobody's hand any more; of a queue that it `had`, or has no more."""
        if had:
            self._offer(assigned)
        elif assigned.dropped and assigned.in_hand is message:
            assigned.in_hand = None
            await self._requests.unlock([assigned.queue])

    async def nack(self, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        """Let a message come again later.

        Clustering: through the broker's retry topic; in order: to this consumer, after a second
        (or the level's time), before all others of its queue; broadcasting: it does not.

        Args:
            message: what this consumer has handed out.
            delay_level: the number of a level of ``messageDelayLevel``; 0 lets each try wait longer
                than the one before; -1 makes it a dead letter at once.

        Raises:
            RequestRefusedError: the broker cannot keep it.
            RemotingError: no answer; the message is not settled, and may come again nevertheless.
        """
        self._expect_open()
        await self._give_back(message, whole_number("delay_level", delay_level, -1))
        if self._spans is not None:
            self._spans.end(message, is_given_back=True)

    async def _give_back(self, message: ReceivedMessage, delay_level: int) -> None:
        assigned, generation = _place(message)
        if isinstance(assigned, SingleMessage):
            assigned.give_back()
            return
        if self._broadcasting:
            logger.info("%r: given back, which broadcasting passes over", message)
            await self._settle(message)
            return
        once_more = message.reconsume_times < self._reconsume_max
        if self._orderly and delay_level >= 0 and once_more:
            self._again(assigned, message, generation, delay_level)
            return
        origin = message.properties.get("ORIGIN_MESSAGE_ID", message.offset_message_id)
        await self._requests.send_back(
            message.broker_name,
            message.phy_offset,
            delay_level if once_more else -1,
            self._reconsume_max,
            (origin, message.topic),
        )
        await self._settle(message)

    def _again(
        self, assigned: AssignedQueue, message: ReceivedMessage, generation: int, level: int
    ) -> None:
        """Hand a message out again after a while, and no other of its queue before."""
        if assigned.dropped or assigned.in_hand is not message:
            return

        def now() -> None:
            self._later.discard(timer)
            assigned.paused = False
            self._offer(assigned)

        message.reconsume_times += 1
        assigned.in_hand = None
        assigned.put_back(message)
        assigned.paused = True
        pause_s = _LEVELS_S[min(level, len(_LEVELS_S)) - 1] if level else _ORDERLY_PAUSE_S
        timer = asyncio.get_running_loop().call_later(pause_s, now)
        self._later.add(timer)

    # ---- heart-beats ------------------------------------------------------------------------

    def _beat(self) -> Mapping[str, object]:
        return {
            "consumerDataSet": [self._assignment.to_java()],
            "heartbeatFingerprint": 0,
            "producerDataSet": [],
            "withoutSub": False,
        }


def _place(message: ReceivedMessage) -> QueueGeneration:
    place = getattr(message, "place", None)
    if not isinstance(place, QueueGeneration):
        raise ArgumentError("message", message, "a message that a consumer has handed out")
    return place


def _check(group: object, subscriptions: object, start: object, mode: object) -> None:
    check_name("group", group, GROUP_MAX)
    if not isinstance(subscriptions, Mapping) or not subscriptions:
        raise ArgumentError("subscriptions", subscriptions, "{topic: expression}")
    for topic, expression in subscriptions.items():
        check_name("topic", topic, TOPIC_MAX)
        if expression is not None:
            text(f"subscriptions[{topic!r}]", expression)
    if start not in ("first", "last") and (type(start) is not int or start < 0):
        raise ArgumentError("start", start, "'first', 'last' or a Unix time in milliseconds")
    if mode not in ("clustering", "broadcasting"):
        raise ArgumentError("mode", mode, "'clustering' or 'broadcasting'")
