"""`RangePull`: the records of a range of one queue, several pulls in flight.

A broker answers with so many messages a pull as it likes (Apache's with 32). The first answer
tells how many, and from then on the offsets of the pulls behind it are known before their turn
comes. Answers may come in another order; they are given in that of the queue.

Source: RocketMQ broker/processor/PullMessageProcessor.java, client PullAPIWrapper.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from rmqcore.client.instance import refusal
from rmqcore.remoting import (
    FrameError,
    RemotingCommand,
    RemotingError,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
)
from rmqcore.remoting.codes import PULL_SUBSCRIPTION
from rmqcore.scan.cluster.access import Access
from rmqcore.scan.cluster.link import Link
from rmqcore.scan.cluster.ranges import QueueRange
from rmqcore.scan.cluster.topology import queue_fields
from rmqcore.world import sleep

#: the group of RocketMQ's own tools, which every broker has
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
#: pulls that wait for their answers
_IN_FLIGHT: Final = 16
#: messages that a pull asks for; brokers answer with fewer
_COUNT_MAX: Final = 1024
#: how often something that may pass by itself is tried again, and how long to wait before
_TRIES: Final = 15
_PAUSE_S: Final = 0.2
_PASSING: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
        # a slave that has not got there yet
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
    }
)


class Pulled(NamedTuple):
    """Records of one answer.

    Attributes:
        first: the queue offset that was asked for.
        following: the one with which the queue goes on.
        records: whole records, one behind the other; empty where the broker has none of them.
    """

    first: int
    following: int
    records: bytes


@dataclass(slots=True)
class _Asked:
    """A pull whose answer is not handed out yet."""

    first: int
    stop: int
    opaque: int = -1
    answer: RemotingCommand | None = None


class RangePull:
    """Pulls one range.

    Args:
        access: how the broker is reached.
        range: what to pull.
        group: the consumer group that brokers check permissions for; no progress of it is kept.
    """

    def __init__(self, access: Access, range: QueueRange, group: str = TOOLS_GROUP) -> None:
        self._access = access
        self._range = range
        self._at = range.first
        self._step = 0
        self._asked: deque[_Asked] = deque()
        self._tries = 0
        self._fields = queue_fields(range.queue) | {
            "consumerGroup": group,
            "sysFlag": str(PULL_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }

    def run(self) -> Iterator[Pulled]:
        """What each answer has, in the order of the queue.

        Raises:
            RequestRefusedError: the broker will not.
            RemotingError: it does not answer, also when asked again and over another connection.
        """
        while self._at < self._range.stop or self._asked:
            try:
                with Link(self._address(), self._access) as link:
                    yield from self._run(link)
            except RemotingError as error:
                self._try_again(error)
                for asked in self._asked:
                    asked.opaque, asked.answer = -1, None

    def _address(self) -> str:
        """The master first, then its slaves, in turns."""
        addresses = self._range.addresses
        return addresses[self._tries % len(addresses)]

    def _try_again(self, error: RemotingError) -> None:
        self._tries += 1
        refused = isinstance(error, RequestRefusedError) and error.code not in _PASSING
        if self._tries >= _TRIES or refused or isinstance(error, FrameError):
            raise error
        sleep(_PAUSE_S)

    def _run(self, link: Link) -> Iterator[Pulled]:
        while self._at < self._range.stop or self._asked:
            self._send(link)
            answer = link.receive(RequestCode.PULL_MESSAGE)
            for asked in self._asked:
                if asked.opaque == answer.opaque:
                    asked.answer = answer
            while self._asked and self._asked[0].answer is not None:
                yield from self._taken(link, self._asked[0], self._asked[0].answer)

    def _send(self, link: Link) -> None:
        """Ask for as many pulls as may be in flight; only for one until an answer was seen."""
        step, most = (self._step, _IN_FLIGHT) if self._step else (_COUNT_MAX, 1)
        while self._at < self._range.stop and len(self._asked) < most:
            stop = min(self._at + step, self._range.stop)
            self._asked.append(_Asked(self._at, stop))
            self._at = stop
        waiting = [asked for asked in self._asked if asked.opaque < 0 and asked.answer is None]
        commands = [self._command(asked) for asked in waiting]
        if commands:
            link.send(commands)
        for asked, command in zip(waiting, commands, strict=True):
            asked.opaque = command.opaque

    def _command(self, asked: _Asked) -> RemotingCommand:
        count = min(_COUNT_MAX, asked.stop - asked.first)
        place = {"queueOffset": str(asked.first), "maxMsgNums": str(count)}
        return RemotingCommand(RequestCode.PULL_MESSAGE, self._fields | place)

    def _taken(self, link: Link, asked: _Asked, answer: RemotingCommand) -> Iterator[Pulled]:
        """What the answer to the first pull has; what it lacks is asked for again."""
        code, first = answer.code, asked.first
        asked.opaque, asked.answer = -1, None
        if code == ResponseCode.PULL_OFFSET_MOVED:
            following = answer.number("nextBeginOffset", first)
            # a queue that ends before: nothing of what was asked for is there
            following = asked.stop if following <= first else min(following, asked.stop)
        elif code == ResponseCode.SUCCESS:
            following = answer.number("nextBeginOffset")
        elif code in _PASSING:
            following = max(first, answer.number("nextBeginOffset", first))
        else:
            raise refusal(answer, link.address)
        if following <= first:
            self._try_again(refusal(answer, link.address))
            return
        self._tries = 0
        records = answer.body if code == ResponseCode.SUCCESS else b""
        if records and not self._step:
            self._step = following - first
        asked.first = following
        if following >= asked.stop:
            self._asked.popleft()
        yield Pulled(first, following, records)
