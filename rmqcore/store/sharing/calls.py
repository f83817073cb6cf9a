"""What a client may ask of the owner: the one table, and the requests made of it.

A request has the private code `STORE_CALL`; its header field ``method`` names a row of `CALLS`, its
body holds the arguments (`values`), and ``again``, when it is there, says since when (Unix time in
ms) an owner that has ended may have stored the same put. ``name`` tells apart calls that threads
work on: one that comes again, over a new connection, waits for the first. The answer's body holds
the result, or with a code other than 0 the error. `HELLO` opens a connection: it names client and
version.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, Final, cast

from rmqcore.arguments import text
from rmqcore.message import GetMessageResult
from rmqcore.remoting import RemotingCommand, ResponseCode
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.sharing.log_pages import log_page
from rmqcore.store.sharing.staged_files_in import append_listed
from rmqcore.store.sharing.values import pack, unpack
from rmqcore.store.staged_appends import finish_staged

#: Request codes of this room. RocketMQ has none above 5,000, and a code has 16 bits.
STORE_CALL: Final = 9100
HELLO: Final = 9101
#: The version of these calls; an owner refuses a client that has another one.
VERSION: Final = 5


class Runs(Enum):
    """Where the owner works on a call."""

    #: the owner makes the call on its event loop: it takes microseconds
    NOW = "now"
    #: the owner makes the call in a thread: it may take long
    THREAD = "thread"
    #: the owner awaits the call on its event loop
    WAITS = "waits"
    #: as NOW; when it waits for the disk, as WAITS
    PUT = "put"
    #: as NOW where its table is at hand, else as THREAD
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class CallKind:
    """One row.

    Attributes:
        runs: where.
        repeatable: whether it may be made again, when nobody knows if it was done.
        part: of the owner's store, whose method ``NAME_once`` is told a name of the call, by which
            the next owner knows what of it was done; empty where calls have no name.
        coroutine: what the owner awaits for a call that waits; empty for the call's own name.
        function: what the owner calls, with the store; None for the store's method.
    """

    runs: Runs = Runs.NOW
    repeatable: bool = True
    part: str = ""
    coroutine: str = ""
    function: Callable[..., Any] | None = None

    @property
    def named(self) -> bool:
        """Whether calls have names."""
        return bool(self.part)

    @property
    def in_thread(self) -> bool:
        """Whether the owner may work on it in a thread, beside other calls."""
        return self.runs in (Runs.THREAD, Runs.TABLE)


_NOW: Final = CallKind()
_THREAD: Final = CallKind(Runs.THREAD)


def _undo_lease(store: DefaultMessageStore, call: str, holder: str) -> None:
    store.parts.consuming.undo_lease(call, holder)


def _followed(
    store: DefaultMessageStore, *queue: Any
) -> Coroutine[Any, Any, tuple[GetMessageResult, int]]:
    return store.parts.consuming.followed(*queue)


#: How each method of `MessageStore` is called at the owner; behind a dot, methods of its tables.
CALLS: Final[dict[str, CallKind]] = {
    "put": CallKind(Runs.PUT, coroutine="put_async"),
    "put_message": CallKind(Runs.PUT, coroutine="put_message_async"),
    "put_messages": CallKind(Runs.PUT, coroutine="put_messages_async"),
    "put_records": CallKind(Runs.THREAD, repeatable=False),
    "append_later": CallKind(Runs.WAITS, repeatable=False),
    "confirmed": CallKind(Runs.WAITS),
    "get_message": _NOW,
    "query_message": _THREAD,
    "query_many": _THREAD,
    "queue_offset_by_time": _THREAD,
    "message_at": _NOW,
    "message_by_id": _NOW,
    "read_units": _NOW,
    "queues": _NOW,
    "min_queue_offset": _NOW,
    "max_queue_offset": _NOW,
    "change_settings": _NOW,
    "delete_topic": _THREAD,
    "delay_offsets": _NOW,
    "why_not_writable": _NOW,
    "stats": _NOW,
    "delete_expired_files": _THREAD,
    "flush": _THREAD,
    "kv_get": CallKind(Runs.TABLE),
    "kv_put": CallKind(Runs.THREAD, part="key_values"),
    "kv_swap": CallKind(Runs.THREAD, part="key_values"),
    "kv_list": CallKind(Runs.TABLE),
    "kv_take": CallKind(Runs.THREAD, part="key_values"),
    "kv_count": CallKind(Runs.TABLE),
    "wait": CallKind(Runs.WAITS, coroutine="wait_async"),
    "followed": CallKind(Runs.WAITS, function=_followed),
    "lease": CallKind(Runs.WAITS, part="consuming", coroutine="lease_async"),
    "take_back_lease": CallKind(function=_undo_lease),
    "acknowledge": _NOW,
    "change_lease": _NOW,
    "give_back": _THREAD,
    "release_leases": _NOW,
    "lag": _NOW,
    "ready": _NOW,
    "purge": _THREAD,
    "delete_consumed_files": _THREAD,
    "log_page": CallKind(Runs.THREAD, function=log_page),
    "append_staged": CallKind(Runs.THREAD, function=append_listed),
    "finish_staged": CallKind(Runs.THREAD, function=finish_staged),
    "topics.get": _NOW,
    "topics.put": _NOW,
    "topics.remove": _NOW,
    "topics.persist": _THREAD,
    "topics.__iter__": _NOW,
    "topics.__len__": _NOW,
    "consumer_offsets.get": _NOW,
    "consumer_offsets.commit": _NOW,
    "consumer_offsets.queues": _NOW,
    "consumer_offsets.pairs": _NOW,
    "consumer_offsets.remove": _NOW,
    "consumer_offsets.persist": _THREAD,
}
#: A connection's own question: which queues have got messages since it asked before.
ARRIVALS: Final = "arrivals"
#: Ends another request, whose caller has stopped waiting; the header field ``opaque`` is that
#: request's number.
CANCEL: Final = 9102
#: A client closes its handle. A connection that ends without this may have been lost, and the
#: client may come again.
GOODBYE: Final = 9103
#: Header fields of a lease and of its cancellation: by these the owner finds what to undo when
#: nobody gets the answer.
LEASES: Final = ("call", "holder")
#: Properties of a store that clients ask for by name.
PROPERTIES: Final = ("config", "min_phy_offset", "max_phy_offset", "waits")


@cache
def _defaults(method: Callable[..., Any]) -> dict[str, object]:
    return {each.name: each.default for each in inspect.signature(method).parameters.values()}


def given(method: Callable[..., Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name that are not a method's defaults: only these are sent.

    Args:
        method: a method of `MessageStore`, whose signature has the defaults.
        settings: arguments by name.
    """
    defaults = _defaults(method)
    return {
        name: value
        for name, value in settings.items()
        if name not in defaults
        or type(value) is not type(defaults[name])
        or value != defaults[name]
    }


def method_of(store: DefaultMessageStore, method: str) -> Callable[..., Any]:
    """What the owner calls for a method of `CALLS`.

    Args:
        store: the owner's.
        method: a key of `CALLS`.

    Raises:
        KeyError: it is none.
    """
    row = CALLS[method]
    if row.function is not None:
        return partial(row.function, store)
    found: Any = store
    if row.named:
        found, method = getattr(store.parts, row.part), f"{method}_once"
    for name in method.split("."):
        found = getattr(found, name)
    return cast("Callable[..., Any]", found)


def coroutine_of(store: DefaultMessageStore, method: str) -> Callable[..., Any]:
    """What the owner awaits for a method of `CALLS`; the method itself where it is none.

    Args:
        store: the owner's.
        method: a key of `CALLS`.

    Raises:
        KeyError: that is no key of `CALLS`.
    """
    row = CALLS[method]
    if not row.coroutine:
        return method_of(store, method)
    found: Any = store
    if row.named:
        found = getattr(store.parts, row.part)
    name = f"{row.coroutine}_once" if row.named else row.coroutine
    return cast("Callable[..., Any]", getattr(found, name))


def request_of(
    method: str,
    args: tuple[Any, ...],
    settings: dict[str, Any],
    again_ms: int | None = None,
    name: str = "",
) -> RemotingCommand:
    """The request for a call.

    Args:
        method: a key of `CALLS`.
        args: its arguments by place; `values` says which types can be sent.
        settings: those by name.
        again_ms: Unix milliseconds since which an owner that has ended may have stored it; None for
            not.
        name: by which a call that threads work on is known when it comes again; empty for none.

    Raises:
        ArgumentError: an argument is nothing that a store takes.
    """
    fields = {"method": method}
    if again_ms is not None:
        fields["again"] = str(again_ms)
    if name:
        fields["name"] = name
    if method == "lease":
        named = {name: text(name, settings[name]) for name in LEASES if name in settings}
        fields.update({name: value for name, value in named.items() if value})
    head, *parts = pack([list(args), settings])
    return RemotingCommand(STORE_CALL, fields, bytes(head), parts=parts)


def answer_of(value: object) -> RemotingCommand:
    """The answer with a result, or with an error."""
    head, *parts = pack(value)
    failed = isinstance(value, BaseException)
    code = ResponseCode.SYSTEM_ERROR if failed else ResponseCode.SUCCESS
    return RemotingCommand(code, {}, bytes(head), parts=parts)


def result_of(answer: RemotingCommand) -> Any:
    """What an answer says; raises the error that it holds."""
    value = unpack(answer.body)
    if isinstance(value, BaseException):
        raise value
    return value
