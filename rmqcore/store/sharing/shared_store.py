"""`SharedMessageStore`: every call of a store, made in the owner or asked of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast

from rmqcore.arguments import text, texts_of
from rmqcore.config import StoreConfig
from rmqcore.files.config_tables import TopicConfigTable
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.message import ColumnSettings, MessageExt, PutMessageResult, QueryMessageResult
from rmqcore.native.format._wire_message import WireMessage
from rmqcore.services.arrival import ArrivalListener
from rmqcore.services.event_loop import running_loop
from rmqcore.status import Durability
from rmqcore.store.column_reads import ColumnReads
from rmqcore.store.consume.undoing import undone_if_interrupted
from rmqcore.store.parts.iteration import OnDamage, checked_bounds, topic_messages
from rmqcore.store.protocol import MessageStore
from rmqcore.store.readable_store import broker_conf
from rmqcore.store.sharing.calls import CALLS, given
from rmqcore.store.sharing.shared_handle import SharedStoreHandle

if TYPE_CHECKING:
    import polars

    from rmqcore.scan.dataset import StoreDataset
    from rmqcore.scan.log_walk import Damage
    from rmqcore.scan.selection import Selection
    from rmqcore.store.parts.put_columns_result import PutColumnsResult

P = ParamSpec("P")
R = TypeVar("R")


class SharedStore(MessageStore, Protocol):
    """What `open_shared` gives: a `MessageStore`, and who owns it."""

    @property
    def owner(self) -> int:
        """Process id of the owner; this process's own when it is the owner."""
        ...

    def arrow_dataset(
        self,
        columns: Iterable[str] | None = None,
        *,
        plain_bodies: bool = False,
        archive: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        on_damage: Callable[[Damage], None] | None = None,
        **selection: Unpack[Selection],
    ) -> StoreDataset:
        """See `ColumnReads.arrow_dataset`; the files are read, whoever owns the store."""
        ...

    def scan_polars(
        self,
        columns: Iterable[str] | None = None,
        *,
        plain_bodies: bool = False,
        archive: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        on_damage: Callable[[Damage], None] | None = None,
        **selection: Unpack[Selection],
    ) -> polars.LazyFrame:
        """See `ColumnReads.scan_polars`; the files are read, whoever owns the store."""
        ...


def _one_call(
    method: Callable[Concatenate[MessageStore, P], R],
) -> Callable[Concatenate[Any, P], R]:
    """A method that is the owner's own in its process, and one request to the owner elsewhere."""
    name, signature = method.__name__, inspect.signature(method)
    kinds = {each.name: each.kind for each in list(signature.parameters.values())[1:]}
    by_place = {name for name, kind in kinds.items() if kind is Parameter.POSITIONAL_OR_KEYWORD}
    by_name = kinds.keys() - by_place
    takes_others = Parameter.VAR_KEYWORD in kinds.values()

    def placed(
        self: object, args: tuple[Any, ...], settings: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # arguments in the usual way: to bind them takes as long as to pack them
        plain = by_place.isdisjoint(settings) if takes_others else by_name.issuperset(settings)
        if plain and len(args) == len(by_place):
            return args, given(method, settings)
        bound = signature.bind(self, *args, **settings)
        return bound.args[1:], given(method, bound.kwargs)

    def call(self: SharedMessageStore, *args: Any, **settings: Any) -> Any:
        if (store := self._store) is not None:
            return getattr(store, name)(*args, **settings)
        return self._call(name, *placed(self, args, settings))

    async def call_async(self: SharedMessageStore, *args: Any, **settings: Any) -> Any:
        if (store := self._store) is not None:
            return await getattr(store, name)(*args, **settings)
        asked = name if name in CALLS else name.removesuffix("_async")
        return await self._call_async(asked, *placed(self, args, settings))

    documented: Any = functools.wraps(method)(
        call_async if inspect.iscoroutinefunction(method) else call
    )
    made: Callable[Concatenate[Any, P], R] = documented
    return made


class SharedMessageStore(SharedStoreHandle, ColumnReads):
    """A store that several processes share; made by `rmqcore.open_shared`.

    In the owner a call is one of its `DefaultMessageStore`, in a client it is one request.

    Threads: any. After a fork the child's handle is a client of the parent's.
    """

    @property
    def _counted(self) -> MessageStore:
        return cast("MessageStore", self)

    # ---- calls that are one request each

    put = _one_call(MessageStore.put)
    put_message = _one_call(MessageStore.put_message)
    put_messages = _one_call(MessageStore.put_messages)
    put_async = _one_call(MessageStore.put_async)
    put_message_async = _one_call(MessageStore.put_message_async)
    put_messages_async = _one_call(MessageStore.put_messages_async)
    append_later = _one_call(MessageStore.append_later)
    confirmed = _one_call(MessageStore.confirmed)
    get_message = _one_call(MessageStore.get_message)
    query_message = _one_call(MessageStore.query_message)

    def query_many(
        self,
        topic: str,
        keys: Iterable[str],
        *,
        max_messages: int = 64,
        begin_ms: int = 0,
        end_ms: int | None = None,
    ) -> list[QueryMessageResult]:
        """See `MessageStore.query_many`."""
        wanted = texts_of("keys", keys)
        return self._query_many(
            topic, wanted, max_messages=max_messages, begin_ms=begin_ms, end_ms=end_ms
        )

    _query_many = _one_call(MessageStore.query_many)

    queue_offset_by_time = _one_call(MessageStore.queue_offset_by_time)
    message_at = _one_call(MessageStore.message_at)
    message_by_id = _one_call(MessageStore.message_by_id)
    read_units = _one_call(MessageStore.read_units)
    queues = _one_call(MessageStore.queues)
    min_queue_offset = _one_call(MessageStore.min_queue_offset)
    max_queue_offset = _one_call(MessageStore.max_queue_offset)
    kv_get = _one_call(MessageStore.kv_get)
    kv_put = _one_call(MessageStore.kv_put)
    kv_swap = _one_call(MessageStore.kv_swap)
    kv_list = _one_call(MessageStore.kv_list)
    kv_take = _one_call(MessageStore.kv_take)
    kv_count = _one_call(MessageStore.kv_count)
    wait = _one_call(MessageStore.wait)
    wait_async = _one_call(MessageStore.wait_async)
    lease = undone_if_interrupted(_one_call(MessageStore.lease))
    lease_async = _one_call(MessageStore.lease_async)
    acknowledge = _one_call(MessageStore.acknowledge)
    change_lease = _one_call(MessageStore.change_lease)
    give_back = _one_call(MessageStore.give_back)
    release_leases = _one_call(MessageStore.release_leases)
    lag = _one_call(MessageStore.lag)
    ready = _one_call(MessageStore.ready)
    purge = _one_call(MessageStore.purge)

    def change_settings(self, **settings: Any) -> None:
        """See `MessageStore.change_settings`."""
        if (store := self._store) is not None:
            store.change_settings(**settings)
        else:
            self._call("change_settings", (), settings)

    delete_topic = _one_call(MessageStore.delete_topic)
    delay_offsets = _one_call(MessageStore.delay_offsets)
    why_not_writable = _one_call(MessageStore.why_not_writable)
    stats = _one_call(MessageStore.stats)
    delete_expired_files = _one_call(MessageStore.delete_expired_files)
    delete_consumed_files = _one_call(MessageStore.delete_consumed_files)
    flush = _one_call(MessageStore.flush)

    # ---- calls that are more than one request, or none

    def put_columns(self, table: object, **settings: Unpack[ColumnSettings]) -> PutColumnsResult:
        """See `MessageStore.put_columns`: the records are made here, the owner appends them."""
        if (store := self._store) is not None:
            return store.put_columns(table, **settings)
        from rmqcore.store.sharing.column_calls import put_table  # noqa: PLC0415 - for tables only

        if settings.get("durability") is None and self._asks_for_disk:
            settings["durability"] = Durability.DISK
        put = functools.partial(self._call, "put_records")
        return put_table(put, self.config, table, settings)

    async def put_columns_async(
        self, table: object, **settings: Unpack[ColumnSettings]
    ) -> PutColumnsResult:
        """As `put_columns`, without blocking the event loop."""
        call = functools.partial(self.put_columns, table, **settings)
        return await running_loop().run_in_executor(None, call)

    def append_now(self, message: WireMessage) -> PutMessageResult | None:
        """See `MessageStore.append_now`: a client always has to wait for the owner."""
        return None if (store := self._store) is None else store.append_now(message)

    def not_waited_for(self, receipt: PutMessageResult) -> PutMessageResult:
        """See `MessageStore.not_waited_for`: for a client the owner has seen to that."""
        return receipt if (store := self._store) is None else store.not_waited_for(receipt)

    def follow(
        self, topic: str, queue_id: int, start: int | None = None
    ) -> AsyncIterator[MessageExt]:
        """See `MessageStore.follow`."""
        if (store := self._store) is not None:
            return store.follow(topic, queue_id, start)
        return self._followed(topic, queue_id, start)

    async def _followed(
        self, topic: str, queue_id: int, start: int | None
    ) -> AsyncIterator[MessageExt]:
        offset, begun = start, None
        while True:
            place = topic, queue_id, offset, begun
            result, begun = await self._call_async("followed", place, {})
            for message in result.messages:
                if message.phy_offset >= begun:
                    yield message
            offset = result.next_queue_offset

    def on_arrival(self, listener: ArrivalListener) -> Callable[[], None]:
        """See `MessageStore.on_arrival`.

        A client is told of every queue once at first, and again after a take-over.
        """
        return self._listeners.add(listener)

    def messages(
        self,
        topic: str | None = None,
        queue_id: int | None = None,
        *,
        start: int | None = None,
        stop: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[MessageExt]:
        """See `MessageStore.messages`."""
        if (store := self._store) is not None:
            return store.messages(topic, queue_id, start=start, stop=stop, on_damage=on_damage)
        checked_bounds(queue_id, start, stop)
        if topic is None:
            return self._log_messages(start, stop, on_damage)
        queues = cast("MessageStore", self)
        return topic_messages(queues, text("topic", topic), queue_id, start, stop, on_damage)

    def broker_conf(self) -> str:
        """The ``broker.conf`` lines with which RocketMQ opens this store."""
        return broker_conf(self.config, self.path)

    def _log_messages(
        self, start: int | None, stop: int | None, on_damage: OnDamage | None
    ) -> Iterator[MessageExt]:
        offset = start
        while True:
            page, offset = self._call("log_page", (offset, stop), {})
            for each in page:
                if isinstance(each, MessageExt):
                    yield each
                elif on_damage is None:
                    raise each
                else:
                    on_damage(each)
            if offset is None:
                return

    @property
    def config(self) -> StoreConfig:
        """The settings of the store, as the owner has opened it."""
        return cast("StoreConfig", self._call("config", (), {}))

    @property
    def topics(self) -> TopicConfigTable:
        """The topics' configuration."""
        return cast("TopicConfigTable", self._topics)

    @property
    def consumer_offsets(self) -> ConsumerOffsetTable:
        """What groups have consumed."""
        return cast("ConsumerOffsetTable", self._consumer_offsets)

    @property
    def min_phy_offset(self) -> int:
        """Physical offset of the first byte of the log."""
        return cast("int", self._call("min_phy_offset", (), {}))

    @property
    def max_phy_offset(self) -> int:
        """Physical offset behind the last byte of the log."""
        return cast("int", self._call("max_phy_offset", (), {}))

    @property
    def waits(self) -> bool:
        """Tell whether a put is acknowledged when disk or slaves have it, and not before."""
        return cast("bool", self._call("waits", (), {}))
