"""What tasks leave for the owner of the log: files of encoded batches, in the order of their rows.

A file is a series of frames: a head (`_HEAD`, little-endian), the topic, and a batch body as
docs/format/batch-body.md has it. It is complete and on disk before its task reports it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rmqcore._codec import encode_batch, encode_record
from rmqcore.errors import MessageIllegalError, StoreError
from rmqcore.files.service_topics import is_service_topic
from rmqcore.files.store_dir import make_directory
from rmqcore.message import Message
from rmqcore.native.format._numbers import BATCH_ITEM_SIZE_MIN, PROPERTIES_SIZE_MAX
from rmqcore.services.delay_schedule import DELAY_REQUESTS
from rmqcore.world import sync_directory, sync_fd

# topic bytes, queue id, system flag, Unix ms of birth, times consumed, messages, body bytes
_HEAD = struct.Struct("<HiiqiIQ")
_FRAME_SIZE = 128 << 10
#: property of a record: its numbers in the light queues that it names
_NUMBERS = "INNER_MULTI_QUEUE_OFFSET"
#: bytes of a record beyond its entry in a batch, at most: IPv6 hosts, a long topic; and a blank
_RECORD_OVERHEAD_MAX = 1024


@dataclass(frozen=True, slots=True)
class Frame:
    """Messages of one queue that are appended together.

    Attributes:
        born_timestamp_ms: Unix time, 0 for the time of storing.
        message_count: messages in ``body``.
        body: a batch body.
    """

    topic: str
    queue_id: int
    sys_flag: int
    born_timestamp_ms: int
    reconsume_times: int
    message_count: int
    body: bytes


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A complete file of frames.

    Attributes:
        path: of the file.
        size: its bytes.
        message_count: messages in it.
        only_copied: why its rows are refused unless they are a copy of a store's; None for rows
            that anybody may append.
    """

    path: str
    size: int
    message_count: int
    only_copied: str | None = None

    def frames(self) -> Iterator[Frame]:
        """Its frames, in order.

        Raises:
            StoreError: the file is not what its task left.
        """
        try:
            data = Path(self.path).open("rb")  # noqa: SIM115 - closed below
        except FileNotFoundError:
            raise StoreError(f"{self.path}: the staged rows are gone") from None
        with data:
            if os.fstat(data.fileno()).st_size != self.size:
                raise StoreError(f"{self.path}: the staged rows are not complete")
            while head := data.read(_HEAD.size):
                topic_size, queue_id, sys_flag, born, consumed, count, size = _HEAD.unpack(head)
                topic = data.read(topic_size).decode()
                yield Frame(topic, queue_id, sys_flag, born, consumed, count, data.read(size))


class StageWriter:
    """Writes one file of frames; rows of a queue keep their order.

    Args:
        path: of the file; its directory is made when missing.
        message_size_max: bytes of the largest message.
        file_size: bytes of a log file.

    Attributes:
        only_copied: as of `StagedFile`, of the rows so far.
    """

    def __init__(self, path: Path, message_size_max: int, file_size: int) -> None:
        make_directory(path.parent)
        self.path = path
        self.message_count = 0
        self.only_copied: str | None = None
        self._message_size_max = min(message_size_max, file_size - _RECORD_OVERHEAD_MAX)
        # properties may add as much again, and the records are longer than the batch's entries
        self._frame_size = min(_FRAME_SIZE, message_size_max // 4, file_size // 8)
        self._file = path.open("wb")
        self._queues: dict[tuple[str, int], _Queue] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if error is not None:
            self.path.unlink(missing_ok=True)

    def put(self, message: Message) -> None:
        """Add one message.

        Raises:
            MessageIllegalError: a limit of the format.
        """
        if message.properties and _NUMBERS in message.properties:
            # another store's numbers in light queues
            message.properties = {k: v for k, v in message.properties.items() if k != _NUMBERS}
        key = (message.topic, message.queue_id)
        queue = self._queues.get(key)
        if queue is None:
            # topic and queue have to be good before anything is appended to the log
            named = Message(message.topic, b"", queue_id=message.queue_id)
            encode_record(named, queue_offset=0, phy_offset=0, store_timestamp_ms=0)
            queue = self._queues[key] = _Queue()
        self.only_copied = self.only_copied or _only_copied(message)
        envelope = (message.sys_flag, message.born_timestamp_ms, message.reconsume_times)
        size = BATCH_ITEM_SIZE_MIN + len(message.body)
        if size + PROPERTIES_SIZE_MAX > self._message_size_max:
            self._check_size(message)
        if queue.messages and (queue.envelope != envelope or queue.size + size > self._frame_size):
            self._write(key, queue)
        queue.envelope = envelope
        queue.size += size
        queue.messages.append(message)
        self.message_count += 1

    def finish(self) -> StagedFile:
        """Write the rest and make the file survive a power cut."""
        for key, queue in self._queues.items():
            if queue.messages:
                self._write(key, queue)
        self._file.flush()
        sync_fd(self._file.fileno())
        sync_directory(self.path.parent)
        return StagedFile(str(self.path), self._file.tell(), self.message_count, self.only_copied)

    def _check_size(self, message: Message) -> None:
        size = len(encode_batch([message]))
        if size > self._message_size_max:
            raise MessageIllegalError(
                f"a message of topic {message.topic!r} has {size} bytes, the store takes "
                f"{self._message_size_max}"
            )

    def _write(self, key: tuple[str, int], queue: _Queue) -> None:
        body = encode_batch(queue.messages)
        topic = key[0].encode()
        head = _HEAD.pack(len(topic), key[1], *queue.envelope, len(queue.messages), len(body))
        self._file.writelines((head, topic, body))
        queue.messages = []
        queue.size = 0


def _only_copied(message: Message) -> str | None:
    """Why a message is refused unless it is a copy of a store's: it is not there to be read yet."""
    if is_service_topic(message.topic):
        return f"topic {message.topic} is a broker's own, which delivers what is in it"
    properties = message.properties or {}
    for name in DELAY_REQUESTS:
        if name in properties:
            return f"its property {name}={properties[name]} asks for a delay, and nothing delays it"
    return None


class _Queue:
    """The messages of one queue that are not written yet."""

    __slots__ = ("envelope", "messages", "size")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.size = 0
        self.envelope: tuple[int, int, int] = (0, 0, 0)
