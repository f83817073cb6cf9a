"""kombu's exchanges and their bindings, as entries of two tables that all processes share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.utils.json import dumps, loads

if TYPE_CHECKING:
    from rmqcore.store.protocol import MessageStore

#: the tables: properties by exchange, bindings
_EXCHANGES: Final = "kombu-exchanges"
_BINDINGS: Final = "kombu-bindings"

#: Stands between the parts of a binding's key, and is in none of them.
_SEPARATOR: Final = "\0"


class _Range(TypedDict):
    """A range of keys of a table."""

    first: bytes
    last: bytes


def _binding_key(exchange: str, queue: str, routing_key: str) -> bytes:
    """The key of a binding."""
    return _SEPARATOR.join((exchange, queue, routing_key)).encode()


class _Binding(NamedTuple):
    """What a binding's value says.

    Attributes:
        routing_key: that it was bound with.
        pattern: what a message's routing key has to match, of a topic exchange.
        queue: that it leads to.
        expires: the queue may be one that nobody uses any more.
    """

    routing_key: str
    pattern: str | None
    queue: str
    expires: bool = False


@lru_cache(maxsize=4096)
def _binding_of(value: bytes) -> _Binding:
    return _Binding(*loads(value))


def _bindings_from(exchange: str) -> _Range:
    """The range of the bindings of an exchange."""
    return {"first": f"{exchange}\0".encode(), "last": f"{exchange}\1".encode()}


class SharedExchanges(virtual.Channel):  # type: ignore[misc]
    """The half of a channel that declares exchanges and binds queues to them."""

    store: MessageStore

    def expires_after_ms(self, queue: str) -> int:
        """Milliseconds after which a queue that nobody uses is deleted; 0 for never."""
        raise NotImplementedError

    def unused(self, queues: Sequence[str]) -> list[str]:
        """Those of queues that nobody has used for as long as they were declared to live."""
        raise NotImplementedError

    def exchange_declare(
        self, exchange: str | None = None, type: str | None = "direct", **kwargs: Any
    ) -> None:
        """Declare an exchange, for all processes.

        Args:
            exchange: its name; None for AMQP's default one of that type.
            type: ``direct``, ``topic`` or ``fanout``; None for the first.
            kwargs: more of kombu's, passed on.

        Raises:
            ChannelError: another type.
        """
        kind = type or "direct"
        if kind not in self.exchange_types:
            raise ChannelError(f"exchange type {kind!r}: direct, topic and fanout are there")
        name = exchange or f"amq.{kind}"
        self._learn(name)
        super().exchange_declare(exchange=name, type=kind, **kwargs)
        if name not in self.state.exchanges:
            # another process has deleted it while it was compared
            super().exchange_declare(exchange=name, type=kind, **kwargs)
        declared = dumps(self.state.exchanges[name]).encode()
        self.store.kv_swap(_EXCHANGES, name.encode(), None, declared)

    def exchange_delete(self, exchange: str, **_: object) -> None:
        """Delete an exchange and its bindings."""
        self.store.kv_take(_BINDINGS, **_bindings_from(exchange))
        self.store.kv_put(_EXCHANGES, exchange.encode(), None)
        self.state.exchanges.pop(exchange, None)

    def _learn(self, exchange: str) -> None:
        """Know of an exchange what other processes have made of it: they may delete it, too."""
        (value,) = self.store.kv_get(_EXCHANGES, [exchange.encode()])
        if value is None:
            self.state.exchanges.pop(exchange, None)
        else:
            self.state.exchanges[exchange] = loads(value)

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        """The exchange type instance of an exchange.

        Args:
            exchange: its name; one that nobody has declared has the default type.
            default: type of one that was not declared.
        """
        self._learn(exchange)
        return super().typeof(exchange, default)

    def get_exchanges(self) -> list[str]:
        """The names of all exchanges."""
        return [key.decode() for key, _ in self.store.kv_list(_EXCHANGES)]

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """(routing key, pattern, queue) of each binding of an exchange, to queues that live."""
        found = self.store.kv_list(_BINDINGS, **_bindings_from(exchange))
        bindings = [_binding_of(value) for _, value in found]
        expiring = {each.queue for each in bindings if each.expires}
        unused = self.unused(sorted(expiring)) if expiring else ()
        return [
            (each.routing_key, each.pattern, each.queue)
            for each in bindings
            if each.queue not in unused
        ]

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **_: object,
    ) -> None:
        """Bind a queue to an exchange, for all processes.

        Args:
            queue: its name; a binding of one that expires goes with it.
            exchange: its name; None for AMQP's default one.
            routing_key: what a message's has to be, or with ``topic`` to match; ``fanout`` has
                none.
            arguments: kombu's, passed on.

        Raises:
            ChannelError: a NUL character is in one of the three.
        """
        exchange = exchange or "amq.direct"
        if any(_SEPARATOR in name for name in (exchange, queue, routing_key)):
            raise ChannelError(f"{(exchange, queue, routing_key)!r}: no name has a NUL character")
        bound = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)
        key, value = _binding_key(exchange, queue, routing_key), dumps(bound).encode()
        if self.expires_after_ms(queue):
            self.store.kv_put(_BINDINGS, key, dumps([*bound, True]).encode())
        else:
            self.store.kv_swap(_BINDINGS, key, None, value)

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", **_: object
    ) -> None:
        """Take a binding away.

        Args:
            queue: of the binding; one that is not there is nothing to do.
            exchange: None for AMQP's default one.
            routing_key: as it was bound.
        """
        key = _binding_key(exchange or "amq.direct", queue, routing_key)
        self.store.kv_put(_BINDINGS, key, None)

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        """(queue, exchange, routing key) of every binding."""
        for key, _ in self.store.kv_list(_BINDINGS):
            exchange, queue, routing_key = key.decode().split(_SEPARATOR)
            yield queue, exchange, routing_key

    def delete_bindings(self, queue: str) -> None:
        """Delete all bindings of a queue."""
        for key, _ in self._bindings_of(queue):
            self.store.kv_put(_BINDINGS, key, None)

    def _bindings_of(self, queue: str) -> list[tuple[bytes, bytes]]:
        middle = f"{_SEPARATOR}{queue}{_SEPARATOR}".encode()
        return [entry for entry in self.store.kv_list(_BINDINGS) if middle in entry[0]]
