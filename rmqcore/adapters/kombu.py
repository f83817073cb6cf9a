"""kombu's transport ``rmqcore:///path``: a store's directory as the broker of kombu and Celery.

Importing this module registers it; where rmqcore is installed, `kombu_rmqcore` does. A queue is a
topic, a priority one of its queue ids, and all consumers are one group, so that a message goes to
one of them; see docs/adapters/celery.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.utils.compat import detect_environment
from kombu.utils.json import dumps, loads

from rmqcore.adapters.addresses import address_of, path_of
from rmqcore.adapters.kombu_event_loop import LoopDelivery
from rmqcore.adapters.kombu_qos import GROUP, QoS
from rmqcore.adapters.kombu_queues import SharedQueues, queue_topic
from rmqcore.adapters.opened import DELETE_CONSUMED_EVERY_S, OpenedStore, lease_of
from rmqcore.errors import ConfigError, StoreClosedError, StoreError
from rmqcore.message import EXPIRES_MS
from rmqcore.store.consume.lease_request import LEASE_MS_MAX
from rmqcore.store.consume.undoing import undone_if_interrupted
from rmqcore.version import __version__

if TYPE_CHECKING:
    from rmqcore.message import Lease, ReceivedMessage

#: One `drain_events` delivers at most this many messages.
_BATCH: Final = 32
#: Beside a channel whose window is full, `drain_events` waits no longer than this for another one.
_FULL_WAIT_S: Final = 0.05
_NEVER: Final = 1 << 30
#: A longer time is no lease: some 34 years.
_VISIBILITY_MOST_S: Final = LEASE_MS_MAX // 1000


class _Consumer(NamedTuple):
    """A consumer of a channel.

    Attributes:
        topic: of its queue.
        no_ack: what it is given counts as acknowledged.
        take: called with each message.
    """

    topic: str
    no_ack: bool
    take: Callable[[dict[str, Any]], object]


class Channel(SharedQueues):
    """A channel: publishes into a store and consumes from it.

    What is declared is shared by all processes that use the store, and outlives them.
    """

    QoS = QoS
    supports_fanout = True
    from_transport_options = (
        *virtual.Channel.from_transport_options,
        "visibility_timeout",
        "max_reconsume_times",
    )
    #: seconds after which a message that nobody acknowledged is delivered again
    visibility_timeout: float = 3600
    #: deliveries after which a message goes to the dead-letter topic; None: it never does
    max_reconsume_times: int | None = None

    connection: Transport

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        #: by tag, the oldest first
        self._given: dict[str, _Consumer] = {}

    # ---- publishing

    def _put(self, queue: str, message: dict[str, Any], **_: object) -> None:
        priority = self._get_message_priority(message)
        properties = {}
        lives_ms = self._lives_ms(queue, message)
        if lives_ms is not None:
            properties[EXPIRES_MS] = str(self.store.world.clock_ms() + lives_ms)
        body = dumps(message).encode()
        self.store.put(queue_topic(queue), body, queue_id=priority, properties=properties)

    def _put_fanout(
        self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: object
    ) -> None:
        for queue in dict.fromkeys(queue for _, _, queue in self.get_table(exchange)):
            self._put(queue, message, **kwargs)

    def _lives_ms(self, queue: str, message: dict[str, Any]) -> int | None:
        """How long a message lives in a queue; None for ever."""
        own = message["properties"].get("expiration")
        times = [self._declared(queue).get("x-message-ttl"), own]
        try:
            return min((int(time) for time in times if time is not None), default=None)
        except ValueError:
            raise ChannelError(f"expiration={own!r}: milliseconds are expected") from None

    # ---- receiving

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        """Consume from a queue.

        Args:
            queue: its name; one that was not declared has no messages.
            no_ack: what is delivered counts as acknowledged.
            callback: called with each `kombu` message.
            consumer_tag: by which the consumer is ended again.
            kwargs: more of kombu's, passed on.
        """
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        take = self.connection._callbacks[queue]
        self._given[consumer_tag] = _Consumer(queue_topic(queue), no_ack, take)
        # the next delivery says so of one that expires
        self._kept_until.pop(queue, None)
        self.connection.look_at_once()

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """Set how many messages may be delivered and not yet acknowledged.

        Args:
            prefetch_size: without effect.
            prefetch_count: messages; 0 for no limit.
            apply_global: without effect.
        """
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.connection.look_at_once()

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer.

        Args:
            consumer_tag: of a consumer; one that is not there is nothing to do.
        """
        self._given.pop(consumer_tag, None)
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._consuming.leave(queue)

    @undone_if_interrupted
    def basic_get(self, queue: str, no_ack: bool = False, **_: object) -> Any:
        """One message of a queue; None when there is none.

        Args:
            queue: its name; one that was not declared has no messages.
            no_ack: what is returned counts as acknowledged.

        Returns:
            a `kombu` message.

        Raises:
            StoreError: the store is closed, or takes nothing.
            OSError: the system refused.
        """
        self.keep_queues([queue], 0)
        for raw in self._received_one(queue, 0, no_ack=no_ack):
            message = self.Message(raw, channel=self)
            if not no_ack:
                self.qos.append(message, message.delivery_tag)
            return message
        return None

    @undone_if_interrupted
    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        for raw in self._received_one(queue, timeout or 0, no_ack=False):
            return raw
        raise Empty

    @undone_if_interrupted
    def _received_one(self, queue: str, timeout_s: float, *, no_ack: bool) -> list[dict[str, Any]]:
        """One message of a queue, or none; what the store does not let go of goes back."""
        leased = self.lease([queue], 1, timeout_s)
        try:
            return list(self.received(leased, no_ack=no_ack))
        except BaseException:
            self.give_back([lease_of(message) for message in leased])
            raise

    @undone_if_interrupted
    def lease(
        self, queues: Iterable[str], max_messages: int, timeout_s: float = 0
    ) -> list[ReceivedMessage]:
        """Lease messages of queues, those of higher priority first.

        Args:
            queues: their names.
            max_messages: how many at most.
            timeout_s: how long to wait for the first.
        """
        times = self.max_reconsume_times
        return self._opened.lease(
            GROUP,
            {queue_topic(queue): "*" for queue in queues},
            max_messages=max_messages,
            lease_ms=int(self.visibility_timeout * 1000),
            timeout_ms=timeout_s * 1000,
            max_reconsume_times=_NEVER if times is None else times,
            by_priority=True,
            drop_expired=True,
        )

    def received(
        self, leased: Sequence[ReceivedMessage], *, no_ack: bool
    ) -> Iterator[dict[str, Any]]:
        """Messages as kombu has them; one that is none goes to the dead-letter topic.

        Args:
            leased: messages of the queues' topics, each with a lease of the group.
            no_ack: acknowledge each as it is handed on.

        Yields:
            a message as kombu's virtual transports have it: ``body``, ``headers``, ``properties``.
        """
        for message in leased:
            lease = lease_of(message)
            raw = self._decoded(message)
            if raw is None:
                self.store.give_back(GROUP, [lease], max_reconsume_times=0)
                continue
            # numbers begin anew in a queue that was deleted and declared again
            place = lease.topic, lease.queue_id, lease.queue_offset, lease.phy_offset, lease.attempt
            tag = ":".join(map(str, place))
            properties = raw["properties"]
            properties["delivery_tag"] = tag
            properties["delivery_info"]["redelivered"] = message.reconsume_times > 0
            if no_ack:
                self.store.acknowledge(GROUP, [lease])
            else:
                self.qos.leases[tag] = lease
            yield raw

    def _decoded(self, message: ReceivedMessage) -> dict[str, Any] | None:
        """What was published; None when the body is nothing that a channel has put."""
        try:
            raw = loads(bytes(message.body))
            properties = raw["properties"]
            properties["delivery_info"]["exchange"]
            body = raw.get("body") or ""
            self.decode_body(body, properties.get("body_encoding"))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return raw if isinstance(body, str) else None

    def window(self) -> int:
        """How many messages may be delivered to the channel's consumers now."""
        if not self._consumers:
            return 0
        window = self.qos.can_consume_max_estimate()
        return _BATCH if window is None else min(window, _BATCH)

    def consumes(self, topic: str) -> bool:
        """Whether there is a consumer of a topic's messages. Threads: any."""
        return any(each.topic == topic for each in list(self._given.values()))

    def deliver_ready(self) -> bool:
        """Deliver what is there, as far as the window goes; False when there was nothing."""
        window = self.window()
        return window > 0 and self.deliver(self.lease(self._active_queues, window))

    def deliver(self, leased: list[ReceivedMessage]) -> bool:
        """Hand leased messages to the consumers; what they do not take any more goes back."""
        done = 0
        try:
            for message in leased:
                consumer = self._consumer_of(lease_of(message).topic)
                if consumer is None:
                    break
                received = list(self.received([message], no_ack=consumer.no_ack))
                done += 1
                for raw in received:
                    consumer.take(raw)
        finally:
            if done < len(leased):
                # a store that a consumer has closed has let go of them
                with suppress(StoreClosedError):
                    self.give_back([lease_of(message) for message in leased[done:]])
        return done > 0

    def _consumer_of(self, topic: str) -> _Consumer | None:
        """The channel's newest consumer of a queue, as kombu has it: an older one may be dead."""
        newest_first = reversed(self._given.values())
        return next((each for each in newest_first if each.topic == topic), None)

    def acknowledge(self, leases: list[Lease]) -> None:
        """Be done with leased messages."""
        self._opened.settle(lambda: self.store.acknowledge(GROUP, leases))

    def give_back(self, leases: list[Lease]) -> None:
        """Let leased messages come again at once, in their places."""
        if leases:
            self._opened.settle(
                lambda: self.store.give_back(GROUP, leases, delay_ms=0, max_reconsume_times=_NEVER)
            )

    @property
    def queues(self) -> list[str]:
        """The queues that are consumed."""
        return list(self._active_queues)


_Channel = Channel


class Transport(virtual.Transport):  # type: ignore[misc]
    """The transport ``rmqcore:///path``.

    ``transport_options``: ``visibility_timeout`` (seconds, 3600), ``max_reconsume_times`` (no end),
    ``store`` (see `open_shared`), ``polling_interval``, ``delete_consumed_every`` (seconds, 60).
    """

    Channel = Channel
    #: kombu leaves addresses as they are; else it would make a host of what is none
    can_parse_url = True
    polling_interval = 1.0
    driver_type = "rmqcore"
    driver_name = "rmqcore"
    implements: ClassVar = virtual.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
    )
    connection_errors = (*virtual.Transport.connection_errors, StoreError, OSError)
    channel_errors = virtual.Transport.channel_errors

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._opened: OpenedStore | None = None
        self._look_at_once = threading.Event()
        self._loop_delivery: LoopDelivery | None = None

    def driver_version(self) -> str:
        """The version of rmqcore."""
        return __version__

    @property
    def opened(self) -> OpenedStore:
        """The store, opened at the first use; other connections of this process share it.

        Raises:
            ConfigError: the address names no directory, greenlets have replaced threads, or an
                option is one with which nothing could be received.
        """
        if self._opened is None:
            environment = detect_environment()
            if environment != "default":
                # no error of the connection: kombu would try that again and again
                rule = "prefork, threads or solo: its greenlets replace the threads of a store"
                raise ConfigError("pool", environment, rule)
            _check_options(self.client.transport_options)
            settings = self.client.transport_options.get("store") or {}
            self._opened = OpenedStore(path_of(self._address()), settings)
        return self._opened

    def _address(self) -> str:
        """The address that the connection was made with; ``virtual_host`` may be the path."""
        given = str(self.client.hostname or "")
        return given if "://" in given else f"rmqcore:///{self.client.virtual_host.lstrip('/')}"

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """The address as banners and errors show it: with the whole path.

        Args:
            uri: as it was given; returned when it is no address of a directory.
            include_password: without effect: there is none.
            mask: without effect.
        """
        try:
            return address_of(path_of(self._address()))
        except ConfigError:
            return uri

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """Nothing: an address has a path only."""
        return {}

    def close_connection(self, connection: Any) -> None:
        """Close all channels, and the store when nothing else of this process uses it."""
        self._end_loop_delivery()
        try:
            super().close_connection(connection)
        finally:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()

    def look_at_once(self) -> None:
        """Wake who delivers, as more may be: a `drain_events`, or an event loop. Threads: any."""
        self._look_at_once.set()
        delivery = self._loop_delivery
        if delivery is not None:
            delivery.wake()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver what is there; without anything wait for it.

        Args:
            connection: kombu's; it is this transport's own.
            timeout: seconds; None without end.

        Raises:
            TimeoutError: nothing came within ``timeout`` seconds.
        """
        monotonic_s = self.opened.store.world.monotonic_s
        deadline = None if timeout is None else monotonic_s() + timeout
        self._delete_consumed()
        while True:
            self._look_at_once.clear()
            consuming = [channel for channel in self.channels if channel.queues]
            delivered, left = self._deliver_ready(consuming)
            if delivered:
                return
            if deadline is not None:
                left = min(left, deadline - monotonic_s())
                if left <= 0:
                    raise TimeoutError
            if self._wait(consuming, left):
                return

    def _deliver_ready(self, consuming: list[_Channel]) -> tuple[list[_Channel], float]:
        """Deliver what is there; to whom, and the seconds after which to look again."""
        left = self.polling_interval
        for channel in consuming:
            left = channel.keep_queues(channel.queues, left)
        return [channel for channel in consuming if channel.deliver_ready()], left

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let an event loop deliver what is there, and what comes, until the connection is closed.

        Args:
            connection: kombu's; it is this transport's own.
            loop: kombu's ``Hub``.
        """
        self._end_loop_delivery()
        self._loop_delivery = LoopDelivery(
            loop, self.opened.store, self._deliver_in_loop, self._consumes
        )

    def _deliver_in_loop(self) -> float:
        self._delete_consumed()
        consuming = [channel for channel in self.channels if channel.queues]
        delivered, left = self._deliver_ready(consuming)
        # a window that is full now is opened by an acknowledgement, which wakes the loop
        return 0.0 if any(channel.window() for channel in delivered) else left

    def _consumes(self, topic: str) -> bool:
        return any(channel.consumes(topic) for channel in list(self.channels))

    def _end_loop_delivery(self) -> None:
        delivery, self._loop_delivery = self._loop_delivery, None
        if delivery is not None:
            delivery.end()

    def _delete_consumed(self) -> None:
        """Give back log files that nobody needs, if it is time to."""
        options = self.client.transport_options
        every_s = options.get("delete_consumed_every", DELETE_CONSUMED_EVERY_S)
        if self.channels:
            self.opened.delete_consumed(every_s, self._delete_expired)

    def _delete_expired(self) -> None:
        """Delete queues that nobody has used for long, but none of those that are consumed here."""
        # whoever was long busy has not said that it is there; where there is no room to say so none
        # is deleted, and what was consumed goes all the same
        with suppress(StoreError, OSError):
            for channel in self.channels:
                channel.keep_queues(channel.queues, 0)
            self.channels[0].delete_expired()

    def held_size(self) -> int:
        """Bytes of the store's log files."""
        return self.opened.held_size()

    def _wait(self, consuming: list[_Channel], timeout_s: float) -> bool:
        """Wait for a message or for an acknowledgement; True when messages were delivered."""
        ready = [channel for channel in consuming if channel.window()]
        if len(ready) < len(consuming) or not ready:
            # an acknowledgement, in another thread, opens the window
            self._look_at_once.wait(min(timeout_s, _FULL_WAIT_S) if ready else timeout_s)
            return False
        owner = {queue_topic(queue): channel for channel in ready for queue in channel.queues}
        queues = [queue for channel in ready for queue in channel.queues]
        delivered = False
        for message in ready[0].lease(queues, 1, timeout_s):
            delivered |= owner[lease_of(message).topic].deliver([message])
        return delivered


def _check_options(options: Mapping[str, Any]) -> None:
    seconds = options.get("visibility_timeout", Channel.visibility_timeout)
    if not isinstance(seconds, int | float) or not 0.001 <= seconds <= _VISIBILITY_MOST_S:
        rule = f"seconds, a number from 0.001 to {_VISIBILITY_MOST_S}"
        raise ConfigError("visibility_timeout", seconds, rule)
    times = options.get("max_reconsume_times")
    if times is not None and (not isinstance(times, int) or not 0 <= times <= _NEVER):
        raise ConfigError("max_reconsume_times", times, "a whole number, or None for no limit")


TRANSPORT_ALIASES["rmqcore"] = "rmqcore.adapters.kombu:Transport"
