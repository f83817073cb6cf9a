"""A small asyncio client of MetaQ's text protocol: one connection, one request at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass

from rmqcore.errors import StoreError
from rmqcore.metaq._message_set import checksum
from rmqcore.metaq.message import HEADER_SIZE, Message, decode_messages, encode_data
from rmqcore.metaq.protocol import (
    MAX_LINE_SIZE,
    RANDOM_PARTITION,
    Get,
    Offset,
    Put,
    ResultCode,
    format_get,
    format_offset,
    format_put,
)

_FETCH_SIZE = 1 << 20
_MAX_FETCH_SIZE = 1 << 28


class ResultError(StoreError):
    """The broker answered with something other than success.

    Attributes:
        code: its result code.
        text: its explanation, an offset with code 301.
    """

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"{code}: {text}")


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message was stored. Source: MetaQ SendResult.java."""

    message_id: int
    partition: int
    offset: int


class MetaClient:
    """A connection to one broker.

    Use it as ``async with MetaClient("127.0.0.1", 8123) as client``.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._opaques = itertools.count(1)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._one_at_a_time = asyncio.Lock()
        #: the last request until its answer is read, whoever has been cancelled meanwhile
        self._exchange: asyncio.Task[tuple[list[bytes], bytes]] | None = None

    async def __aenter__(self) -> MetaClient:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=MAX_LINE_SIZE)
        self._streams = reader, writer
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._streams is not None:
            writer = self._streams[1]
            self._streams = None
            writer.write(b"quit\r\n")
            writer.close()
            await writer.wait_closed()

    async def put(
        self,
        topic: str,
        payload: bytes,
        *,
        attribute: str | None = None,
        partition: int = RANDOM_PARTITION,
    ) -> SendResult:
        """Store one message.

        Args:
            topic: name of the topic.
            payload: the message's bytes.
            attribute: text that goes with it; None for none.
            partition: number of the partition; RANDOM_PARTITION leaves it to the broker.

        Raises:
            ResultError: the broker refused it.
        """
        data, flag = encode_data(payload, attribute)
        command = Put(topic, partition, len(data), flag, checksum(data), None, next(self._opaques))
        text = await self._text(format_put(command) + data, command.opaque)
        message_id, stored_in, offset = (int(word) for word in text.split())
        return SendResult(message_id, stored_in, offset)

    async def get(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        group: str = "rmqcore",
        max_size: int = _FETCH_SIZE,
    ) -> bytes:
        """Fetch records; the last may be cut off.

        Args:
            topic: name of the topic.
            partition: number of the partition in its topic.
            offset: position of the first byte wanted.
            group: the consumer's group, which the broker counts by.
            max_size: most bytes of the answer.

        Raises:
            ResultError: 404 at the end of the log, 301 when the offset does not exist.
        """
        command = Get(topic, group, partition, offset, max_size, next(self._opaques))
        return await self._request(format_get(command), command.opaque)

    async def messages(
        self, topic: str, partition: int, offset: int = 0, *, group: str = "rmqcore"
    ) -> AsyncIterator[Message]:
        """Yield every message from an offset to the end of the log, following 301 answers.

        Args:
            topic: name of the topic.
            partition: number of the partition in its topic.
            offset: position of the first message's first byte.
            group: the consumer's group, which the broker counts by.

        Raises:
            ResultError: the broker refuses.
        """
        size = _FETCH_SIZE
        while True:
            try:
                buffer = await self.get(topic, partition, offset, group=group, max_size=size)
            except ResultError as error:
                if error.code == ResultCode.MOVED and int(error.text) > offset:
                    offset = int(error.text)
                    continue
                if error.code == ResultCode.NOT_FOUND:
                    return
                raise
            before = offset
            for message in decode_messages(
                topic, buffer, partition=partition, base_offset=offset, path=self._host
            ):
                yield message
                offset = message.offset + message.stored_size
            if offset == before:
                needed = HEADER_SIZE + int.from_bytes(buffer[:4], "big")
                if not size < needed <= _MAX_FETCH_SIZE:
                    raise ResultError(ResultCode.NOT_FOUND, f"half a message at {offset}")
                size = needed

    async def offset(self, topic: str, partition: int, offset: int, *, group: str = "g") -> int:
        """Ask for the offset of a message that is nearest to a position.

        Args:
            topic: name of the topic.
            partition: number of the partition in its topic.
            offset: the position, in bytes.
            group: the consumer's group.

        Raises:
            ResultError: the broker refuses.
        """
        command = Offset(topic, group, partition, offset, next(self._opaques))
        return int(await self._text(format_offset(command), command.opaque))

    async def stats(self, item: str = "") -> str:
        """Ask for statistics."""
        opaque = next(self._opaques)
        return await self._text(f"stats {item} {opaque}\r\n".encode(), opaque)

    async def version(self) -> str:
        """Ask for the broker's version."""
        opaque = next(self._opaques)
        return await self._text(f"version {opaque}\r\n".encode(), opaque)

    async def _text(self, request: bytes, opaque: int) -> str:
        return (await self._request(request, opaque)).decode()

    async def _request(self, request: bytes, opaque: int) -> bytes:
        if self._streams is None:
            raise ResultError(ResultCode.SERVICE_UNAVAILABLE, "not connected")
        streams = self._streams
        async with self._one_at_a_time:
            if self._exchange is not None:
                await asyncio.wait([self._exchange])
            exchange = asyncio.get_running_loop().create_task(_exchanged(*streams, request))
            # reads the exception, for which nobody may wait any more
            exchange.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._exchange = exchange
            words, content = await asyncio.shield(exchange)
        code = ResultCode.SUCCESS if words[0] == b"value" else int(words[1])
        if int(words[-1]) != opaque:
            raise ResultError(ResultCode.INTERNAL_SERVER_ERROR, f"answer {words[-1]!r} to {opaque}")
        if code != ResultCode.SUCCESS:
            raise ResultError(code, content.decode())
        return content


async def _exchanged(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[list[bytes], bytes]:
    """Send a request; the words of its answer's line, and what follows."""
    writer.write(request)
    await writer.drain()
    words = (await reader.readuntil(b"\r\n")).split()
    return words, await reader.readexactly(int(words[-2]))
