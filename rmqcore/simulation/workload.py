"""What clients do in a run: they send what the plan says, and consume."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from rmqcore.client import Admin, Consumer, Producer, SendResult, SendStatus, TransactionState
from rmqcore.client.instance import ClientInstance
from rmqcore.errors import RmqCoreError
from rmqcore.remoting import RequestCode, RequestRefusedError
from rmqcore.simulation.cluster import SimulatedCluster
from rmqcore.simulation.history import (
    Deletion,
    Delivery,
    History,
    Outcome,
    Place,
    Put,
    Reset,
    body_of,
    number_of,
)
from rmqcore.simulation.plan import ConsumerPlan, Does, Operation, Plan, Way
from rmqcore.simulation.pop_consumer import PopConsumer

#: A consumer that could not begin, or was refused something, tries again after this pause.
_AGAIN_S: Final = 1.0
#: The outcome of a transaction whose producer says nothing at first, and answers when it is asked.
_SAID_LATER: Final = 2
_PERCENT: Final = 100


class Workload:
    """The clients' side of a run.

    Attributes:
        history: what they did and saw.
        on_ok: called with what a broker has said of a message that it has confirmed.
        draining: whether consumers take everything, as fast as they can.
    """

    def __init__(self, cluster: SimulatedCluster, plan: Plan) -> None:
        self.history = History()
        self.on_ok: Callable[[SendResult], None] = _pass_over
        self.draining = False
        self._cluster = cluster
        self._plan = plan
        self._rng = random.Random(f"{plan.seed}/workload")  # noqa: S311 - repeatable
        self._producers: dict[str, Producer] = {}
        self._running: Counter[str] = Counter()
        self._begin_s = 0.0
        self._transactions = {
            operation.number: operation
            for operation in plan.operations
            if operation.does is Does.TRANSACTION
        }

    def begin(self) -> None:
        """Let every client begin."""
        self._begin_s = self._cluster.loop.time()
        for consuming in self._plan.consumers:
            self.history.deliveries.setdefault(consuming.group, [])
        for name in self._plan.clients:
            self._begin(name)

    def _begin(self, name: str) -> None:
        """Let a client do what is still to come of the plan."""
        client, now_s = self._cluster.clients[name], self._cluster.loop.time()
        client.spawn(
            self._produce(
                name,
                [
                    operation
                    for operation in self._plan.operations
                    if operation.client == name and self._begin_s + operation.at_s >= now_s
                ],
            )
        )
        for consuming in self._plan.consumers:
            if consuming.client == name:
                client.spawn(self._consume(consuming))

    def crash(self, name: str) -> None:
        """Let a client's process die; nobody knows what comes of what it is about.

        Args:
            name: of a client whose process runs.
        """
        self._cluster.clients[name].end()
        self._producers.pop(name, None)
        self._running.pop(name, None)

    def come_back(self, name: str) -> None:
        """Begin a client's process again, which knows nothing of the one before.

        Args:
            name: of a client that has crashed.
        """
        self._cluster.clients[name].begin()
        self._begin(name)

    @property
    def running(self) -> int:
        """How many operations have not ended."""
        return self._running.total()

    # ---- producing

    async def _produce(self, name: str, operations: Sequence[Operation]) -> None:
        loop = self._cluster.loop
        producer = Producer(
            self._cluster.namesrv_addr, group=f"producers-{name}", check_transaction=self._check
        )
        await producer.start()
        self._producers[name] = producer
        for operation in operations:
            await loop.pause(max(0.0, self._begin_s + operation.at_s - loop.time()))
            loop.create_task(self._do(producer, operation))

    async def send_now(self, client: str, operation: Operation) -> Outcome:
        """Let a client send a message now; returns what the client then knows of it.

        Args:
            client: a producer, by name.
            operation: what it sends.
        """
        producer = self._producers.get(client)
        if producer is None:
            # it has only just begun again
            return Outcome.UNKNOWN
        await self._do(producer, operation)
        return self.history.puts[operation.number].outcome

    async def make_topics(self) -> None:
        """Let every master make every topic."""
        async with Admin(self._cluster.namesrv_addr) as admin:
            for topic in self._plan.topics:
                await admin.create_topic(topic, queues=4)

    async def delete(self, deletion: Deletion, address: str) -> None:
        """Ask a master once to delete a topic; in the deletion is noted when it has said so.

        Args:
            deletion: of the plan.
            address: ``host:port`` of the master.
        """
        fields = {"topic": deletion.topic}
        if await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, fields):
            deletion.ended_s = self._cluster.loop.time()

    async def reset(self, reset: Reset, address: str) -> None:
        """Ask a master once to let a group read a topic from its beginning; it notes the answer.

        Args:
            reset: of the plan.
            address: ``host:port`` of the master.
        """
        fields = {
            "group": reset.group,
            "topic": reset.topic,
            "timestamp": "0",
            "isForce": "true",
            "queueId": "-1",
        }
        if await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields):
            reset.ended_s = self._cluster.loop.time()

    async def _ask(self, address: str, code: RequestCode, fields: dict[str, str]) -> bool:
        """Ask a broker once; whether it has said that it is done. If not, nobody knows."""
        instance = ClientInstance("admin", self._cluster.namesrv_addr)
        await instance.start()
        try:
            await instance.ask(address, code, fields)
        except RmqCoreError:
            return False
        finally:
            await instance.close()
        return True

    async def _do(self, producer: Producer, operation: Operation) -> None:
        now_s = self._cluster.loop.time()
        count = operation.count if operation.does is Does.BATCH else 1
        numbers = range(operation.number, operation.number + count)
        puts = [Put(operation, number, now_s) for number in numbers]
        self.history.puts |= {put.number: put for put in puts}
        self._running[operation.client] += 1
        outcome, result = Outcome.UNKNOWN, None
        try:
            result = await self._send(producer, operation, numbers)
            outcome = Outcome.OK if result.status is SendStatus.SEND_OK else Outcome.STORED
            if outcome is Outcome.OK:
                self.on_ok(result)
        except RequestRefusedError:
            outcome = Outcome.REFUSED
        except RmqCoreError:
            pass
        finally:
            self._running[operation.client] -= 1
        for at, put in enumerate(puts):
            put.outcome, put.ended_s = outcome, self._cluster.loop.time()
            if result is not None and operation.does in (Does.SEND, Does.BATCH):
                put.place = Place(
                    result.broker_name, result.topic, result.queue_id, result.queue_offset + at
                )

    async def _send(self, producer: Producer, operation: Operation, numbers: range) -> SendResult:
        topic, size, count = operation.topic, operation.size, operation.count
        body = body_of(operation.number, size)
        does = operation.does
        if does is Does.BATCH:
            return await producer.send_batch(topic, [body_of(number, 20) for number in numbers])
        if does is Does.TRANSACTION:
            return await producer.send_in_transaction(
                topic, body, lambda _: _end_of(operation, count < _SAID_LATER)
            )
        where: dict[str, Any] = {"keys": str(operation.number)}
        if does is Does.DELAY:
            where["delay_level"] = count
        elif does is Does.TIMER:
            where["deliver_at_ms"] = self._cluster.loop.wall_ms() + 1000 * count
        elif operation.queue_id >= 0:
            where["queue_id"] = operation.queue_id
        return await producer.send(topic, body, **where)

    def _check(self, message: Any) -> TransactionState:
        return _end_of(self._transactions[number_of(message.body)], True)

    # ---- consuming

    async def _consume(self, consuming: ConsumerPlan) -> None:
        loop = self._cluster.loop
        if consuming.way in (Way.POP, Way.POP_IN_ORDER):
            await self._pop(consuming)
        while True:
            try:
                async with Consumer(
                    self._cluster.namesrv_addr,
                    consuming.group,
                    dict.fromkeys(consuming.topics, "*"),
                    start="first",
                    orderly=consuming.way is Way.ORDERLY,
                ) as consumer:
                    await self._receive(consumer, consuming)
            except RmqCoreError:
                await loop.pause(_AGAIN_S)

    async def _receive(self, consumer: Consumer, consuming: ConsumerPlan) -> None:
        loop = self._cluster.loop
        leaves_s = self._begin_s + consuming.leaves_s
        if not consuming.leaves_s or leaves_s < loop.time():
            leaves_s = float("inf")
        while loop.time() < leaves_s:
            message = await consumer.receive(min(60.0, leaves_s - loop.time()))
            if message is None:
                continue
            delivery = self._note(consuming.group, message)
            if consuming.work_s and not self.draining:
                await loop.pause(self._rng.random() ** 4 * consuming.work_s)
            if not self.draining and self._rng.random() * _PERCENT < consuming.refuses:
                await consumer.nack(message, delay_level=1)
            else:
                await consumer.ack(message)
                delivery.done_s = loop.time()

    async def _pop(self, consuming: ConsumerPlan) -> None:
        loop, group = self._cluster.loop, consuming.group
        async with PopConsumer(
            loop,
            self._cluster.namesrv_addr,
            group,
            consuming.topics,
            in_order=consuming.way is Way.POP_IN_ORDER,
        ) as consumer:
            async for topic, address, popped in consumer.messages():
                message, handle, tries = popped
                place = Place(
                    handle.broker_name,
                    handle.topic_of(group, topic),
                    handle.queue_id,
                    handle.queue_offset,
                )
                body = message.decompressed_body()
                delivery = self._noted(group, topic, place, body, again=tries > 0)
                if consuming.work_s and not self.draining:
                    await loop.pause(self._rng.random() ** 4 * consuming.work_s)
                # what it refuses comes again when it is not acknowledged in time
                if self.draining or self._rng.random() * _PERCENT >= consuming.refuses:
                    done = await consumer.acknowledge(topic, address, popped)
                    self.history.popped += done
                    delivery.done_s = loop.time() if done else float("inf")

    def _note(self, group: str, message: Any) -> Delivery:
        place = Place(
            message.broker_name, message.stored.topic, message.queue_id, message.queue_offset
        )
        again = message.reconsume_times > 0
        return self._noted(group, message.topic, place, message.body, again=again)

    def _noted(self, group: str, topic: str, place: Place, body: bytes, *, again: bool) -> Delivery:
        at_s = self._cluster.loop.time()
        try:
            number = number_of(body)
            known = self.history.puts[number].operation.topic == topic
        except (ValueError, KeyError):
            number, known = -1, False
        delivery = Delivery(number, place, at_s, again)
        if known:
            self.history.deliveries[group].append(delivery)
        else:
            self.history.strange.append(f"{group} was given {body[:40]!r} at {place}")
        return delivery


def _pass_over(_: SendResult) -> None:
    """Nobody wants to know."""


def _end_of(operation: Operation, known: bool) -> TransactionState:
    if not known:
        return TransactionState.UNKNOWN
    return TransactionState.ROLLBACK if operation.count % 2 else TransactionState.COMMIT
