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
from rmqcore.scan.cluster.access import Access
from rmqcore.scan.cluster.link import BrokerLink
from rmqcore.scan.cluster.ranges import QueueRange
from rmqcore.scan.cluster.topology import TOOLS_GROUP, pull_fields, queue_fields, sent_back
from rmqcore.world import sleep

#: This many pulls wait for their answers at a time.
_IN_FLIGHT: Final = 16
#: messages that a pull asks for, at first and at most; Apache's brokers answer with 32 at most
_COUNT_FIRST: Final = 32
_COUNT_MAX: Final = 1024
#: An answer should have this many bytes of records; the next pull asks for more or fewer messages.
_ANSWER_SIZE: Final = 60 << 10
#: Where an answer once had less than was asked for, more is tried again after this many whole
#: answers at the latest.
_WHOLE_ANSWERS_MAX: Final = 4096
#: how often something that may pass by itself is tried again, and how long to wait before: at first
#: and at most; together a minute nearly, in which a broker of Apache's has started again
_TRIES: Final = 15
_PAUSE_S: Final = 0.2
_PAUSE_MAX_S: Final = 5.0
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
    """A pull whose answer is not handed out yet.

    Attributes:
        first, stop: the queue offsets.
        opaque: of the request on its way; -1 when none is.
        pulled: the answer.
        sent_to: where the broker sends the group before it has anything else; -1: nowhere.
    """

    first: int
    stop: int
    opaque: int = -1
    pulled: Pulled | None = None
    sent_to: int = -1


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
        self._count = _Count()
        #: in the order of the queue
        self._asked: deque[_Asked] = deque()
        self._tries = 0
        self._group = group

    def run(self) -> Iterator[Pulled]:
        """What each answer has, in the order of the queue.

        Raises:
            RequestRefusedError: the broker will not.
            RemotingError: it does not answer, also when asked again and over another connection.
        """
        while self._at < self._range.stop or self._asked:
            try:
                with BrokerLink(self._address(), self._access) as link:
                    yield from self._run(link)
            except RemotingError as error:
                self._try_again(error)
                for asked in self._asked:
                    asked.opaque = -1

    def _address(self) -> str:
        """The master first, then its slaves, in turns."""
        addresses = self._range.addresses
        return addresses[self._tries % len(addresses)]

    def _try_again(self, error: RemotingError) -> None:
        self._tries += 1
        refused = isinstance(error, RequestRefusedError) and error.code not in _PASSING
        if self._tries >= _TRIES or refused or isinstance(error, FrameError):
            raise error
        sleep(min(_PAUSE_S * 2 ** (self._tries - 1), _PAUSE_MAX_S))

    def _run(self, link: BrokerLink) -> Iterator[Pulled]:
        while self._at < self._range.stop or self._asked:
            self._send(link)
            answer = link.receive(RequestCode.PULL_MESSAGE)
            for number, asked in enumerate(self._asked):
                if asked.opaque == answer.opaque:
                    asked.opaque = -1
                    self._accept(number, asked, answer, link.address)
                    break
            while self._asked and (pulled := self._asked[0].pulled) is not None:
                self._asked.popleft()
                yield pulled

    def _send(self, link: BrokerLink) -> None:
        """Ask for as many pulls as may be in flight; for one until an answer was seen."""
        most = _IN_FLIGHT if self._count.is_known else 1
        while self._at < self._range.stop and len(self._asked) < most:
            stop = min(self._at + self._count.next, self._range.stop)
            self._asked.append(_Asked(self._at, stop))
            self._at = stop
        waiting = [asked for asked in self._asked if asked.opaque < 0 and asked.pulled is None]
        commands = [self._command(asked) for asked in waiting]
        if commands:
            link.send(commands)
        for asked, command in zip(waiting, commands, strict=True):
            asked.opaque = command.opaque

    def _command(self, asked: _Asked) -> RemotingCommand:
        first, count = asked.first, asked.stop - asked.first
        if asked.sent_to >= 0:
            first, count = asked.sent_to, 1
        place = pull_fields(self._group, first, count)
        fields = queue_fields(self._range.queue) | place
        return RemotingCommand(RequestCode.PULL_MESSAGE, fields)

    def _accept(self, number: int, asked: _Asked, answer: RemotingCommand, address: str) -> None:
        """Note what an answer has; what it lacks is asked for again at once."""
        code, first, stop = answer.code, asked.first, asked.stop
        if asked.sent_to >= 0:
            # the group has been there: now it gets what it asks for
            asked.sent_to = -1
            return
        if code == ResponseCode.PULL_OFFSET_MOVED:
            following = answer.number("nextBeginOffset", first)
            asked.sent_to = sent_back(first, answer)
            if asked.sent_to >= 0:
                self._tries += 1
                if self._tries >= _TRIES:
                    raise refusal(answer, address)
                return
            # of a queue that ends before nothing is there of what was asked for
            following = stop if following <= first else following
        elif code == ResponseCode.SUCCESS or code in _PASSING:
            following = answer.number("nextBeginOffset", first)
        else:
            raise refusal(answer, address)
        if following <= first:
            self._try_again(refusal(answer, address))
            return
        self._tries = 0
        records = answer.body if code == ResponseCode.SUCCESS else b""
        if records:
            self._count.learn(stop - first, following - first, len(records))
        asked.stop = following
        asked.pulled = Pulled(first, following, records)
        if following < stop:
            self._asked.insert(number + 1, _Asked(following, stop))
        elif following > stop:
            self._skip(number + 1, following)

    def _skip(self, number: int, following: int) -> None:
        """The queue goes on behind what was asked for, as after a batch with several offsets."""
        self._at = max(self._at, following)
        for asked in list(self._asked)[number:]:
            if asked.first < following < asked.stop:
                asked.first, asked.opaque, asked.pulled = following, -1, None
            elif asked.first < following:
                asked.opaque, asked.pulled = -1, Pulled(asked.first, asked.first, b"")


class _Count:
    """How many messages a pull asks for.

    As many as a broker is seen to answer with, and whose records are copied behind each other there
    in one piece; now and then more are tried.
    """

    def __init__(self) -> None:
        self.is_known = False
        self._most = _COUNT_FIRST
        self._size = 1
        self._whole = 0
        self._whole_answers = 1

    @property
    def next(self) -> int:
        """For the next pull."""
        return max(1, min(self._most, _ANSWER_SIZE // self._size))

    def learn(self, asked: int, came: int, size: int) -> None:
        """Note what an answer had."""
        self.is_known = True
        self._size = max(1, size // came)
        if came < asked:
            self._most, self._whole = max(1, came), 0
            self._whole_answers = min(8 * self._whole_answers, _WHOLE_ANSWERS_MAX)
            return
        self._whole += asked >= self._most
        if self._whole >= self._whole_answers:
            self._most, self._whole = min(2 * self._most, _COUNT_MAX), 0
