"""Unique keys for what a client puts, so that a put can be found again when its answer was lost."""

from __future__ import annotations

import itertools
from typing import Any, Final

from rmqcore._codec import decode_batch
from rmqcore.arguments import properties_of
from rmqcore.chance import token_hex
from rmqcore.message import Message, MessageExt
from rmqcore.store.parts.batches import as_message, encoded_batch, listed
from rmqcore.store.sharing.put_again import PUT_ID, UNIQUE_KEY

_BUFFERS: Final = (bytes, bytearray, memoryview)
_PREFIX_SIZE: Final = 11


class UniqueKeys:
    """Gives each message a UNIQ_KEY of its own; to one that has a key, an id of its own beside."""

    def __init__(self) -> None:
        self._prefix = token_hex(_PREFIX_SIZE).upper()
        self._numbers = itertools.count()

    def put(self, args: tuple[Any, ...], settings: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        """The arguments of `put`, with a key.

        Args:
            args: of the call, by place.
            settings: those by name.

        Returns:
            both, with the key among the properties.
        """
        return args, {**settings, "properties": self._with_key(settings.get("properties"))}

    def put_message(
        self, args: tuple[Any, ...], settings: dict[str, Any]
    ) -> tuple[tuple[Any, ...], Any]:
        """The arguments of `put_message`, with a key.

        Args:
            args: of the call by place: the message first, which is not changed.
            settings: those by name.

        Returns:
            both, with a copy of the message that has a key.
        """
        message, *others = args
        return (self._keyed(message), *others), settings

    def put_messages(
        self, args: tuple[Any, ...], settings: dict[str, Any]
    ) -> tuple[tuple[Any, ...], Any]:
        """The arguments of `put_messages`, each message with a key, as an encoded batch.

        Args:
            args: of the call by place: first a list of messages, or an encoded batch.
            settings: those by name.

        Returns:
            both, with the batch encoded; one that is encoded and has no topic stays as it is.

        Raises:
            MessageIllegalError: they cannot be put as one batch.
        """
        messages = args[0]
        topic, queue_id = settings.get("topic"), settings.get("queue_id", 0)
        if isinstance(messages, _BUFFERS):
            if topic is None:
                return args, settings
            messages = decode_batch(bytes(messages), topic=topic)
        keyed = [self._keyed(each) for each in listed(messages)]
        body, topic, queue_id = encoded_batch(keyed, topic, queue_id)
        return (body, *args[1:]), {**settings, "topic": topic, "queue_id": queue_id}

    def _keyed(self, message: Any) -> Any:
        if isinstance(message, MessageExt):
            message = as_message(message)
        if not isinstance(message, Message):
            return message
        fields = message.to_dict()
        return Message(**{**fields, "properties": self._with_key(message.properties)})

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
