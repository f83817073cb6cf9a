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
from typing import TYPE_CHECKING, Any, ClassVar, Final

from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.compat import detect_environment
from kombu.utils.json import dumps, loads

from rmqcore.adapters.addresses import address_of, path_of
from rmqcore.adapters.kombu_bindings import SharedExchanges
from rmqcore.adapters.kombu_qos import GROUP, QoS
from rmqcore.adapters.names import topic_of
from rmqcore.adapters.opened import DELETE_CONSUMED_EVERY_S, OpenedStore, lease_of
from rmqcore.errors import ConfigError, StoreError
from rmqcore.message import EXPIRES_MS
from rmqcore.store.consume.holders import Holder, is_gone
from rmqcore.version import __version__
from rmqcore.world import monotonic_s, sleep, wall_clock_ms

if TYPE_CHECKING:
    from rmqcore.message import Lease, ReceivedMessage

#: the tables: arguments by queue, queues that may expire
QUEUES: Final = "kombu-queues"
EXPIRING: Final = "kombu-expiring"

#: One `drain_events` delivers at most this many messages.
_BATCH: Final = 32
#: Beside a channel whose window is full, `drain_events` waits no longer than this for another one.
_FULL_WAIT_S: Final = 0.05
#: Consumers of a queue that expires renew it this many times within its time.
_KEPT_TIMES: Final = 3
_NEVER: Final = 1 << 30
#: This, and who does it, stands in the place of a queue's arguments while its messages are deleted.
#: Of one who has died another takes it over; after `_DELETING_MS` of anybody, of whom it cannot be
#: told.
_DELETING: Final = b"\0"
_DELETER: Final = Holder()
_DELETING_MS: Final = 10_000
_DELETING_PAUSE_S: Final = 0.01


class Channel(SharedExchanges):
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
    #: deliveries after which a message goes to the dead-letter topic
    max_reconsume_times: int = _NEVER

    connection: Transport

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.store = connection.opened.store
        #: queues that are consumed without acknowledgements
        self._without_ack: set[str] = set()
        self._arguments: dict[str, dict[str, Any]] = {}
        self._kept_until: dict[str, float] = {}

    # ---- publishing

    def _put(self, queue: str, message: dict[str, Any], **_: object) -> None:
        priority = self._get_message_priority(message)
        properties = {}
        lives_ms = self._lives_ms(queue, message)
        if lives_ms is not None:
            properties[EXPIRES_MS] = str(wall_clock_ms() + lives_ms)
        body = dumps(message).encode()
        self.store.put(_topic(queue), body, queue_id=priority, properties=properties)

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
        (self._without_ack.add if no_ack else self._without_ack.discard)(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

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

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        for raw in self._received_one(queue, timeout or 0, no_ack=False):
            return raw
        raise Empty

    def _received_one(self, queue: str, timeout_s: float, *, no_ack: bool) -> list[dict[str, Any]]:
        """One message of a queue, or none; what the store does not let go of goes back."""
        leased = self.lease([queue], 1, timeout_s)
        try:
            return list(self.received(leased, no_ack=no_ack))
        except (StoreError, OSError):
            self.give_back([lease_of(message) for message in leased])
            raise

    def lease(
        self, queues: Iterable[str], max_messages: int, timeout_s: float = 0
    ) -> list[ReceivedMessage]:
        """Lease messages of queues, those of higher priority first.

        Args:
            queues: their names.
            max_messages: how many at most.
            timeout_s: how long to wait for the first.
        """
        return self.connection.opened.lease(
            GROUP,
            {_topic(queue): "*" for queue in queues},
            max_messages=max_messages,
            lease_ms=int(self.visibility_timeout * 1000),
            timeout_ms=timeout_s * 1000,
            max_reconsume_times=self.max_reconsume_times,
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
            tag = f"{lease.topic}:{lease.queue_id}:{lease.queue_offset}:{lease.attempt}"
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
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return raw if isinstance(body, str) else None

    def window(self) -> int:
        """How many messages may be delivered to the channel's consumers now."""
        if not self._consumers:
            return 0
        window = self.qos.can_consume_max_estimate()
        return _BATCH if window is None else min(window, _BATCH)

    def deliver_ready(self) -> bool:
        """Deliver what is there, as far as the window goes; False when there was nothing."""
        window = self.window()
        return window > 0 and self.deliver(self.lease(self._active_queues, window))

    def deliver(self, leased: list[ReceivedMessage]) -> bool:
        """Hand leased messages to the consumers; what they do not take any more goes back."""
        names = {_topic(queue): queue for queue in self._active_queues}
        done = 0
        try:
            for message in leased:
                queue = names.get(lease_of(message).topic)
                if queue is None or queue not in self.connection._callbacks:
                    break
                received = list(self.received([message], no_ack=queue in self._without_ack))
                done += 1
                for raw in received:
                    self.connection._deliver(raw, queue)
        finally:
            if done < len(leased):
                self.give_back([lease_of(message) for message in leased[done:]])
        return done > 0

    def acknowledge(self, leases: list[Lease]) -> None:
        """Be done with leased messages."""
        self.connection.opened.settle(lambda: self.store.acknowledge(GROUP, leases))

    def give_back(self, leases: list[Lease]) -> None:
        """Let leased messages come again at once, in their places."""
        if leases:
            self.connection.opened.settle(
                lambda: self.store.give_back(GROUP, leases, delay_ms=0, max_reconsume_times=_NEVER)
            )

    @property
    def queues(self) -> list[str]:
        """The queues that are consumed."""
        return list(self._active_queues)

    # ---- queues

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        """The arguments of a queue as AMQP names them: ``x-expires``, ``x-message-ttl``.

        Args:
            arguments: by name, of AMQP already.
            kwargs: kombu's: ``expires`` and ``message_ttl`` in seconds, ``max_priority`` and
                others.
        """
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    def _new_queue(
        self, queue: str, arguments: Mapping[str, Any] | None = None, **_: object
    ) -> None:
        known = ("x-expires", "x-message-ttl")
        kept = {name: int(arguments[name]) for name in known if arguments and name in arguments}
        self._arguments[queue] = kept
        key, value = queue.encode(), dumps(kept).encode()
        expires_ms = kept.get("x-expires", 0)
        if expires_ms:
            self.delete_expired()
        while True:
            (old,) = self.store.kv_get(QUEUES, [key])
            if old == value and not expires_ms:
                break
            if old is not None and _is_deleting(old):
                self._end_deletion(key, old)
            elif self.store.kv_swap(QUEUES, key, old, value, ttl_ms=expires_ms):
                break
        if expires_ms:
            self.store.kv_swap(EXPIRING, key, None, b"")

    def _declared(self, queue: str) -> dict[str, Any]:
        """The arguments that a queue was declared with, by whatever process."""
        known = self._arguments.get(queue)
        if known is None:
            (value,) = self.store.kv_get(QUEUES, [queue.encode()])
            if value is None or _is_deleting(value):
                return {}
            known = self._arguments[queue] = loads(value)
        return known

    def expires_after_ms(self, queue: str) -> int:
        """Milliseconds after which a queue that nobody uses is deleted; 0 for never."""
        return int(self._declared(queue).get("x-expires", 0))

    def keep_queues(self, queues: Iterable[str], longest_s: float) -> float:
        """Let queues that expire without consumers know that they have one.

        Args:
            queues: names; those that never expire are passed over.
            longest_s: seconds, returned when nothing has to be said before.

        Returns:
            the seconds after which that has to be said again, or ``longest_s``.
        """
        now = monotonic_s()
        for queue in queues:
            expires_ms = self.expires_after_ms(queue)
            if not expires_ms:
                continue
            left = self._kept_until.get(queue, 0) - now
            if left <= 0:
                self._keep(queue, expires_ms)
                left = expires_ms / 1000 / _KEPT_TIMES
                self._kept_until[queue] = now + left
            longest_s = min(longest_s, left)
        return longest_s

    def _keep(self, queue: str, expires_ms: int) -> None:
        arguments = dumps(self._declared(queue)).encode()
        self.store.kv_put(QUEUES, queue.encode(), arguments, ttl_ms=expires_ms)
        self.keep_bindings(queue, expires_ms)

    def delete_expired(self) -> None:
        """Delete queues that nobody has used for as long as they were declared to live."""
        names = [key for key, _ in self.store.kv_list(EXPIRING)]
        for name, value in zip(names, self.store.kv_get(QUEUES, names), strict=True):
            if value is None:
                self._mark_and_delete(name, None)

    def _mark_and_delete(self, name: bytes, old: bytes | None) -> bool:
        """Delete the messages of a queue if this is still what is known of it; whether it was."""
        mark = _mark()
        marked = self.store.kv_swap(QUEUES, name, old, mark, ttl_ms=_DELETING_MS)
        if marked:
            self._delete_messages(name, mark)
        return marked

    def _end_deletion(self, name: bytes, mark: bytes) -> None:
        """Wait a moment for a deletion to end, or end it for one who was killed meanwhile."""
        gone = is_gone(mark.removeprefix(_DELETING).decode("ascii", "replace"))
        if not (gone and self._mark_and_delete(name, mark)):
            sleep(_DELETING_PAUSE_S)

    def _delete_messages(self, name: bytes, mark: bytes) -> None:
        """Delete the messages of a queue that is marked so that nobody declares it meanwhile."""
        self.store.delete_topic(_topic(name.decode()))
        self.store.kv_put(EXPIRING, name, None)
        self.store.kv_swap(QUEUES, name, mark, None)

    def _has_queue(self, queue: str, **_: object) -> bool:
        (value,) = self.store.kv_get(QUEUES, [queue.encode()])
        return value is not None and not _is_deleting(value)

    def _size(self, queue: str) -> int:
        topic = _topic(queue)
        return sum(row.ready for row in self.store.lag(GROUP, [topic]) if row.topic == topic)

    def _purge(self, queue: str) -> int:
        return self.store.purge(GROUP, _topic(queue))

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: object
    ) -> None:
        """Delete a queue with its messages and its bindings.

        Args:
            queue: its name; one that is not there is nothing to do.
            if_unused: without effect.
            if_empty: do nothing when it has messages.
        """
        if if_empty and self._size(queue):
            return
        self.delete_bindings(queue)
        name = queue.encode()
        (declared,) = self.store.kv_get(QUEUES, [name])
        mark = _mark()
        self.store.kv_put(QUEUES, name, mark, ttl_ms=_DELETING_MS)
        self._arguments.pop(queue, None)
        try:
            self._delete_messages(name, mark)
        except (StoreError, OSError):
            # the queue is there still: who declares it is not to wait for its end
            with suppress(StoreError, OSError):
                known = None if _is_deleting(declared) else declared
                self.store.kv_swap(QUEUES, name, mark, known)
            raise

    # ---- exchanges and bindings


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
        asynchronous=False,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
    )
    connection_errors = (*virtual.Transport.connection_errors, StoreError, OSError)
    channel_errors = virtual.Transport.channel_errors

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._opened: OpenedStore | None = None
        self._window_opened = threading.Event()

    def driver_version(self) -> str:
        """The version of rmqcore."""
        return __version__

    @property
    def opened(self) -> OpenedStore:
        """The store, opened at the first use; other connections of this process share it.

        Raises:
            ConfigError: the address names no directory, or greenlets have replaced threads.
        """
        if self._opened is None:
            environment = detect_environment()
            if environment != "default":
                # no error of the connection: kombu would try that again and again
                rule = "prefork, threads or solo: its greenlets replace the threads of a store"
                raise ConfigError("pool", environment, rule)
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
        try:
            super().close_connection(connection)
        finally:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()

    def window_opened(self) -> None:
        """Wake a `drain_events` that waits for an acknowledgement."""
        self._window_opened.set()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver what is there; without anything wait for it.

        Args:
            connection: kombu's; it is this transport's own.
            timeout: seconds; None without end.

        Raises:
            TimeoutError: nothing came within ``timeout`` seconds.
        """
        deadline = None if timeout is None else monotonic_s() + timeout
        options = self.client.transport_options
        every_s = options.get("delete_consumed_every", DELETE_CONSUMED_EVERY_S)
        if self.channels:
            self.opened.delete_consumed(every_s, self._delete_expired)
        while True:
            self._window_opened.clear()
            consuming = [channel for channel in self.channels if channel.queues]
            left = self.polling_interval
            for channel in consuming:
                left = channel.keep_queues(channel.queues, left)
            delivered = [channel.deliver_ready() for channel in consuming]
            if True in delivered:
                return
            if deadline is not None:
                left = min(left, deadline - monotonic_s())
                if left <= 0:
                    raise TimeoutError
            if self._wait(consuming, left):
                return

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
            self._window_opened.wait(min(timeout_s, _FULL_WAIT_S) if ready else timeout_s)
            return False
        owner = {_topic(queue): channel for channel in ready for queue in channel.queues}
        queues = [queue for channel in ready for queue in channel.queues]
        delivered = False
        for message in ready[0].lease(queues, 1, timeout_s):
            delivered |= owner[lease_of(message).topic].deliver([message])
        return delivered


def _mark() -> bytes:
    """What says that this process deletes a queue's messages."""
    return _DELETING + _DELETER.name.encode()


def _is_deleting(value: bytes | None) -> bool:
    return value is not None and value.startswith(_DELETING)


def _topic(queue: str) -> str:
    return topic_of("kombu", queue)


TRANSPORT_ALIASES["rmqcore"] = "rmqcore.adapters.kombu:Transport"
