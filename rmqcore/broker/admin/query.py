"""Looking messages up: by key, by unique key, by where they lie.

Source: RocketMQ broker/processor/QueryMessageProcessor.java.
"""

from __future__ import annotations

import asyncio
from typing import Final

from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.errors import CorruptStoreError, StoreClosedError, StoreError
from rmqcore.files.service_topics import HALF_TOPIC
from rmqcore.message import MessageExt
from rmqcore.remoting import (
    Account,
    Connection,
    RemotingCommand,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    failure,
    needs,
    success,
)
from rmqcore.remoting.codec import DEFAULT_LIMITS
from rmqcore.remoting.permissions import account_of, may_end_transaction
from rmqcore.remoting.serves import serves
from rmqcore.store.protocol import MessageStore

#: A query gets no more messages than this: Java's defaultQueryMaxNum and maxMsgsNumBatch.
_UNIQUE_QUERY_MAX: Final = 32
_QUERY_MAX: Final = 64
#: An answer has room for this many bytes of records beside its header; the oldest are left out.
_ANSWER_SIZE_MAX: Final = DEFAULT_LIMITS.frame_size - (1 << 20)
#: A connection keeps by this name the lock of its lookups.
_TURN: Final = "query turn"


class QueryMessages:
    """Looks messages up by key, by unique key and by physical offset."""

    def __init__(self, state: BrokerState) -> None:
        self._store: MessageStore = state.store
        #: held while a key is looked up: who chooses keys chooses how long that takes
        self._looking = asyncio.Lock()

    @serves(RequestCode.QUERY_MESSAGE, needs=needs.read_topic)
    async def query(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """The newest messages of a topic that carry a key: 64 at most, and what a frame holds.

        They are looked up off the event loop, one key after the other, of each connection in turn.
        Source: IndexService, queryOffset.

        Args:
            connection: of the client; one that has closed meanwhile looks nothing up.
            request: header of 12: ``topic``, ``key``, ``maxNum``, and two times.

        Raises:
            RequestRefusedError: a field is none, a record with the key is damaged, or there
                is no index.
        """
        topic, key = request.text("topic"), request.text("key")
        count = max(1, min(_QUERY_MAX, request.number("maxNum")))
        if request.boolean("_UNIQUE_KEY_QUERY"):
            count = _UNIQUE_QUERY_MAX
        begin_ms = max(0, request.number("beginTimestamp"))
        end_ms = request.number("endTimestamp")

        def look() -> tuple[list[memoryview], int, int]:
            found = self._store.query_message(
                topic, key, max_messages=count, begin_ms=begin_ms, end_ms=end_ms
            ).messages
            newest = found[-1] if found else None
            records = _newest([message.record for message in found])
            if newest is None:
                return records, 0, 0
            return records, newest.store_timestamp_ms, newest.phy_offset

        turn: asyncio.Lock = connection.attributes.setdefault(_TURN, asyncio.Lock())
        try:
            async with turn, self._looking:
                if connection.closed:
                    return failure(ResponseCode.SYSTEM_ERROR, "the client has gone meanwhile")
                records, stored_ms, phy_offset = await asyncio.to_thread(look)
        except CorruptStoreError as error:
            remark = "a record with this key is damaged; `rmqcore verify` says which"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark) from error
        except StoreClosedError as error:
            remark = "no key is looked up: the broker is about to stop"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark) from error
        except StoreError as error:
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        fields = {
            "indexLastUpdateTimestamp": str(stored_ms),
            "indexLastUpdatePhyoffset": str(phy_offset),
        }
        if not records:
            remark = "can not find message, maybe time range not correct"
            return RemotingCommand(ResponseCode.QUERY_NOT_FOUND, fields, b"", remark)
        return RemotingCommand(ResponseCode.SUCCESS, fields, parts=records)

    @serves(RequestCode.VIEW_MESSAGE_BY_ID, needs=needs.view_message)
    def view(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """The message whose record begins at a physical offset.

        Args:
            connection: whose account decides whether it sees the message of an open transaction.
            request: header ``offset``: the physical offset.

        Returns:
            the record as it lies in the log; code 1 when none begins there.
        """
        offset = request.number("offset")
        try:
            found = self._store.message_at(offset) if offset >= 0 else None
        except CorruptStoreError:
            found = None
        if found is None:
            remark = f"can not find message by the offset, {offset}"
            return failure(ResponseCode.SYSTEM_ERROR, remark)
        if found.topic == HALF_TOPIC and not _may_see(account_of(connection), found):
            remark = "no permission: the transaction of this message is not decided"
            return failure(ResponseCode.NO_PERMISSION, remark)
        answer = success()
        answer.parts = [found.record]
        return answer


def _may_see(account: Account | None, half: MessageExt) -> bool:
    """Tell whether an account may see a half message: who may end its transaction."""
    group, topic = (half.properties.get(name, "") for name in ("PGROUP", "REAL_TOPIC"))
    return may_end_transaction(account, group, topic)


def _newest(records: list[memoryview]) -> list[memoryview]:
    """The last ones that an answer has room for."""
    size = 0
    for number, record in enumerate(reversed(records)):
        size += len(record)
        if size > _ANSWER_SIZE_MAX and number:
            return records[-number:]
    return records
