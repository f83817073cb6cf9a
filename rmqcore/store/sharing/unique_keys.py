"""Unique keys for what a client puts, so that a put can be found again when its answer was lost."""

from __future__ import annotations

import itertools
from enum import Enum
from typing import Any, Final

from rmqcore._codec import decode_batch
from rmqcore.arguments import body_view, properties_of
from rmqcore.chance import token_hex
from rmqcore.message import Message, MessageExt
from rmqcore.store.parts.batches import as_message, encoded_batch, listed
from rmqcore.store.sharing.put_again import PUT_ID, UNIQUE_KEY

_BUFFERS: Final = (bytes, bytearray, memoryview)
_PREFIX_SIZE: Final = 11


class Keyed(Enum):
    """Which messages of a put get a key."""

    ALL = "all"
    #: of a batch: it is found by its first message
    FIRST = "first"
    #: the put cannot be found again
    NONE = "none"


class UniqueKeys:
    """Gives each message a UNIQ_KEY of its own; to one that has a key, an id of its own beside."""

    def __init__(self) -> None:
        self._prefix = token_hex(_PREFIX_SIZE).upper()
        self._numbers = itertools.count()

    def put(
        self, args: tuple[Any, ...], settings: dict[str, Any], keyed: Keyed = Keyed.ALL
    ) -> tuple[tuple[Any, ...], Any]:
        """The arguments of `put`, with a key.

        Args:
            args: of the call, by place: topic and body.
            settings: those by name.
            keyed: whether it gets one.

        Returns:
            both, with the key among the properties, and the body's bytes.

        Raises:
            MessageIllegalError: the body, or the properties, are none.
        """
        topic, body = args
        if keyed is not Keyed.NONE:
            properties = self._with_key(settings.get("properties"))
            settings = {**settings, "properties": properties}
        return (topic, _bytes_of(body)), settings

    def put_message(
        self, args: tuple[Any, ...], settings: dict[str, Any], keyed: Keyed = Keyed.ALL
    ) -> tuple[tuple[Any, ...], Any]:
        """The arguments of `put_message`, with a key.

        Args:
            args: of the call by place: the message first, which is not changed.
            settings: those by name.
            keyed: whether it gets one.

        Returns:
            both, with a copy of the message that has a key.
        """
        message, *others = args
        return (self._keyed(message, keyed is not Keyed.NONE), *others), settings

    def put_messages(
        self, args: tuple[Any, ...], settings: dict[str, Any], keyed: Keyed = Keyed.ALL
    ) -> tuple[tuple[Any, ...], Any]:
        """The arguments of `put_messages`, each message with a key, as an encoded batch.

        Args:
            args: of the call by place: first a list of messages, or an encoded batch.
            settings: those by name.
            keyed: which of them get one.

        Returns:
            both, with the batch encoded; one that is encoded and has no topic stays as it is.

        Raises:
            MessageIllegalError: they cannot be put as one batch.
        """
        messages = args[0]
        topic, queue_id = settings.get("topic"), settings.get("queue_id", 0)
        if isinstance(messages, _BUFFERS):
            if topic is None or keyed is Keyed.NONE:
                return args, settings
            messages = decode_batch(bytes(messages), topic=topic)
        batch = [
            self._keyed(each, keyed is Keyed.ALL or (keyed is Keyed.FIRST and not number))
            for number, each in enumerate(listed(messages))
        ]
        body, topic, queue_id = encoded_batch(batch, topic, queue_id)
        return (body, *args[1:]), {**settings, "topic": topic, "queue_id": queue_id}

    def _keyed(self, message: Any, gets_key: bool) -> Any:
        if isinstance(message, MessageExt):
            message = as_message(message)
        if not isinstance(message, Message):
            return message
        fields = {**message.to_dict(), "body": _bytes_of(message.body)}
        if gets_key:
            fields["properties"] = self._with_key(message.properties)
        return Message(**fields)

    def new(self) -> str:
        """A key that nothing else has."""
        return f"{self._prefix}{next(self._numbers) & 0xFFFF_FFFF_FF:010X}"

    def _with_key(self, given: object) -> dict[str, str]:
        """Properties, however they were given, with a key.

        Raises:
            ArgumentError: they are none.
        """
        key = self.new()
        properties = {} if given is None else properties_of(given)
        return {**properties, (PUT_ID if UNIQUE_KEY in properties else UNIQUE_KEY): key}


def _bytes_of(body: Any) -> Any:
    """A body as its bytes: on its way to the owner another buffer may look like a list."""
    return body if isinstance(body, bytes) else body_view(body)
