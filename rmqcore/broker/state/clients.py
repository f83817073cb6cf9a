"""The connected clients: producers and consumers by group, as their heart-beats say.

Source: RocketMQ broker/client/ConsumerManager.java and ProducerManager.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from rmqcore.broker.state.budgets import (
    GROUPS_OF_CLIENT,
    MEMBERS_MAX,
    MEMBERS_SIZE_MAX,
    RESERVED_GROUPS,
    RESERVED_SIZE,
    SIZE_OF_CLIENT,
    BudgetExceededError,
    check_name,
)
from rmqcore.broker.state.subscription import Subscription
from rmqcore.remoting import Account, Connection, LanguageCode
from rmqcore.remoting.permissions import may_end_transaction

#: A client that sends no heart-beat for this long is forgotten, and its connection closed.
EXPIRED_AFTER_S: Final = 120.0


@dataclass(slots=True)
class Client:
    """One client on one connection."""

    connection: Connection
    client_id: str
    language: LanguageCode
    version: int
    #: of the last heart-beat, by the monotonic clock.
    seen_at_s: float
    #: the same by the wall clock, milliseconds.
    seen_ms: int
    #: whose heart-beat it was; None where everybody is served.
    account: Account | None = None

    def to_java(self) -> dict[str, object]:
        """The fields of RocketMQ's ``Connection``."""
        return {
            "clientAddr": self.connection.remote_address,
            "clientId": self.client_id,
            "language": self.language.name,
            "version": self.version,
        }


@dataclass(slots=True)
class ConsumerGroup:
    """The consumers of one group that are connected. Source: ConsumerGroupInfo."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    clients: dict[Connection, Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)

    @property
    def broadcasting(self) -> bool:
        """Tell whether each client gets every message."""
        return self.message_model == "BROADCASTING"

    @property
    def client_ids(self) -> list[str]:
        """The ids of the clients, each once, in order."""
        return sorted({client.client_id for client in self.clients.values()})

    def subscribe(self, wanted: Iterable[Subscription]) -> bool:
        """Take what a heart-beat says of the topics; True when other topics than before."""
        by_topic = {each.topic: each for each in wanted}
        changed = by_topic.keys() != self.subscriptions.keys()
        for topic, new in by_topic.items():
            old = self.subscriptions.get(topic)
            if old is None or new.version > old.version:
                self.subscriptions[topic] = new
        for topic in self.subscriptions.keys() - by_topic.keys():
            del self.subscriptions[topic]
        return changed


class Members:
    """Which groups the client of each connection is in, and what all of it weighs.

    Args:
        kind: of the groups, for the words of a refusal.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._sizes: dict[Connection, dict[str, int]] = {}
        self._count = self._size = 0

    def add(self, connection: Connection, group: str, size: int = 0) -> None:
        """Note that a client is in a group.

        Args:
            connection: the client's.
            group: by name; at most `NAME_SIZE_MAX` characters.
            size: bytes of what it subscribes there.

        Raises:
            RequestRefusedError: the name is too long; answers with code 1.
            BudgetExceededError: the client, or all of them, would keep too much.
        """
        check_name("a group's name", group)
        size += len(group)
        sizes = self._sizes.get(connection, {})
        more, bytes_more = group not in sizes, size - sizes.get(group, 0)
        if more and len(sizes) >= GROUPS_OF_CLIENT:
            raise BudgetExceededError(f"groups of {self._kind} in one client", GROUPS_OF_CLIENT)
        own_size = sum(sizes.values()) + bytes_more if bytes_more > 0 else 0
        if own_size > SIZE_OF_CLIENT:
            raise BudgetExceededError("bytes of what one client subscribes", SIZE_OF_CLIENT)
        if more and self._count >= MEMBERS_MAX and len(sizes) >= RESERVED_GROUPS:
            raise BudgetExceededError(f"{self._kind} in groups", MEMBERS_MAX)
        if own_size > RESERVED_SIZE and self._size + bytes_more > MEMBERS_SIZE_MAX:
            raise BudgetExceededError("bytes of what clients subscribe", MEMBERS_SIZE_MAX)
        self._sizes.setdefault(connection, {})[group] = size
        self._count += more
        self._size += bytes_more

    def remove(self, connection: Connection, group: str) -> None:
        """Note that a client has left a group.

        Args:
            connection: of the client.
            group: which; one that the client is not in is passed over.
        """
        sizes = self._sizes.get(connection, {})
        if group in sizes:
            self._size -= sizes.pop(group)
            self._count -= 1
        if not sizes:
            self._sizes.pop(connection, None)

    def groups(self, connection: Connection) -> list[str]:
        """The groups of a client."""
        return list(self._sizes.get(connection, ()))

    def __len__(self) -> int:
        return self._count


class Consumers:
    """The consumer groups with at least one client.

    Args:
        on_change: called with a group whose clients or topics have changed.
    """

    def __init__(self, on_change: Callable[[ConsumerGroup], None]) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.members = Members("consumers")
        self._on_change = on_change

    def find(self, group: str) -> ConsumerGroup | None:
        """The clients of a group, None when none is connected."""
        return self.groups.get(group)

    def subscribed_to(self, topic: str) -> list[str]:
        """The groups whose clients want a topic."""
        return sorted(name for name, group in self.groups.items() if topic in group.subscriptions)

    def register(
        self,
        name: str,
        client: Client,
        *,
        consume_type: str,
        message_model: str,
        consume_from_where: str,
        subscriptions: Iterable[Subscription],
        notify: bool,
    ) -> None:
        """Take one group of a heart-beat in.

        Args:
            name: of the group.
            client: who beats.
            consume_type: ``CONSUME_PASSIVELY``, ``CONSUME_ACTIVELY`` or ``CONSUME_POP``.
            message_model: ``CLUSTERING`` or ``BROADCASTING``.
            consume_from_where: where a group begins that has read nothing, by RocketMQ's name.
            subscriptions: of all topics; those that are missing are over.
            notify: tell all of the group's clients when clients or topics have changed.

        Raises:
            RequestRefusedError: see `Members.add`.
        """
        wanted = list(subscriptions)
        self.members.add(client.connection, name, sum(each.size for each in wanted))
        group = self.groups.get(name)
        if group is None:
            group = ConsumerGroup(name, consume_type, message_model, consume_from_where)
            self.groups[name] = group
        group.consume_type, group.message_model = consume_type, message_model
        group.consume_from_where = consume_from_where
        changed = client.connection not in group.clients
        group.clients[client.connection] = client
        changed = group.subscribe(wanted) or changed
        if changed and notify:
            self._on_change(group)

    def unregister(self, name: str, connection: Connection, *, notify: bool) -> None:
        """Let one client of a group go.

        Args:
            name: of the group; one that is not there is passed over.
            connection: of the client.
            notify: tell the group's other clients.
        """
        self.members.remove(connection, name)
        group = self.groups.get(name)
        if group is None or group.clients.pop(connection, None) is None:
            return
        if not group.clients:
            del self.groups[name]
        elif notify:
            self._on_change(group)

    def forget(self, connection: Connection) -> None:
        """Let all go that was registered over a connection."""
        for name in self.members.groups(connection):
            self.unregister(name, connection, notify=True)


class Producers:
    """The producer groups with at least one client."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[Connection, Client]] = {}
        self.members = Members("producers")
        #: by connection, the client that its last heart-beat named; by client id, all with that id
        self._clients: dict[Connection, Client] = {}
        self._by_id: dict[str, dict[Connection, Client]] = {}
        self._turn = 0

    def register(self, group: str, client: Client) -> None:
        """Take one group of a heart-beat in.

        Args:
            group: by name; at most `NAME_SIZE_MAX` characters, it need not exist.
            client: who beats.

        Raises:
            RequestRefusedError: see `Members.add`.
        """
        self.members.add(client.connection, group, len(client.client_id))
        self.groups.setdefault(group, {})[client.connection] = client
        self._forget_id(client.connection)
        self._clients[client.connection] = client
        self._by_id.setdefault(client.client_id, {})[client.connection] = client

    def is_of_another(self, client: Client) -> bool:
        """Tell whether another account's client, which is connected, has the same id.

        Replies go by the id alone, so whoever could take it would be given them.
        """
        holders = self._by_id.get(client.client_id, {})
        return any(
            not connection.closed and holder.account != client.account
            for connection, holder in holders.items()
        )

    def unregister(self, group: str, connection: Connection) -> None:
        """Let one client of a group go.

        Args:
            group: by name; one that is not there is passed over.
            connection: of the client.
        """
        self.members.remove(connection, group)
        clients = self.groups.get(group, {})
        clients.pop(connection, None)
        if not clients:
            self.groups.pop(group, None)
        if not self.members.groups(connection):
            self._forget_id(connection)

    def _forget_id(self, connection: Connection) -> None:
        client = self._clients.pop(connection, None)
        if client is None:
            return
        named = self._by_id[client.client_id]
        del named[connection]
        if not named:
            del self._by_id[client.client_id]

    def forget(self, connection: Connection) -> None:
        """Let all go that was registered over a connection."""
        for group in self.members.groups(connection):
            self.unregister(group, connection)

    def any_of(self, group: str, topic: str) -> Connection | None:
        """A connection of a group, one after the other, that may be told a message of a topic.

        None when none is there. With accounts it is one whose account may end the transaction.

        Args:
            group: by name; an unknown one has no connection.
            topic: of the message.
        """
        clients = [
            connection
            for connection, client in self.groups.get(group, {}).items()
            if not connection.closed and may_end_transaction(client.account, group, topic)
        ]
        if not clients:
            return None
        self._turn += 1
        return clients[self._turn % len(clients)]

    def by_client_id(self, client_id: str) -> Connection | None:
        """The connection of one client, None when it is not there."""
        for connection in self._by_id.get(client_id, ()):
            if not connection.closed:
                return connection
        return None


def expired(consumers: Consumers, producers: Producers, now_s: float) -> set[Connection]:
    """The connections whose clients have sent no heart-beat for too long.

    Args:
        consumers: of the broker.
        producers: of the broker.
        now_s: by the monotonic clock.
    """
    limit = now_s - EXPIRED_AFTER_S
    groups = [*(group.clients for group in consumers.groups.values()), *producers.groups.values()]
    return {
        connection
        for clients in groups
        for connection, client in clients.items()
        if client.seen_at_s < limit
    }
