"""Puts on trial: what a store would refuse of messages, before the first one is put."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from rmqcore.native.base._mapped import MappedRegion
from rmqcore.native.log._tail import LogTail
from rmqcore.services.delay_schedule import as_put
from rmqcore.store.parts.files import tell_queue_types

if TYPE_CHECKING:
    from rmqcore.message import Message
    from rmqcore.store.message_store import DefaultMessageStore

#: A record has fewer bytes than this beside its body: properties of 32,767 at most, and its topic.
_BESIDE_BODY: Final = 1 << 17


class TrialPuts:
    """Refuses what a store would, and stores nothing.

    It is the end of a log with the settings and topics of the store, in memory, where each record
    is written over the last.

    Args:
        store: open for writing.
    """

    def __init__(self, store: DefaultMessageStore) -> None:
        self.config = store.config
        self._tail = LogTail(
            self.config.store_host,
            self.config.effective_max_message_size,
            append_crc=self.config.appends_prop_crc,
            multi_dispatch=self.config.numbers_light_queues,
        )
        tell_queue_types(self._tail, self.config, store.topics)
        # a log file's size is that of the memory of some machines
        size = self.config.effective_max_message_size + _BESIDE_BODY
        self._file = MappedRegion(None, min(size, self.config.mapped_file_size_commit_log))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tail.detach()

    def put_message(self, message: Message) -> None:
        """Put a message on trial.

        Raises:
            MessageIllegalError: the store does not take it.
        """
        self._tail.attach(self._file, 0, 0)
        self._tail.writable = True
        self._tail.put_message(as_put(message, self.config))
