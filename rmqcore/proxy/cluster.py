"""`Cluster`: the brokers behind the proxy, as the service sees them.

Two are there: `LocalBroker`, a broker in this process, and `RemoteCluster`, any brokers of RocketMQ
that name servers know. Both speak requests and answers of the remoting protocol.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rmqcore.java.json import parse_java_json
from rmqcore.proxy.callers import Caller
from rmqcore.proxy.calls import Call
from rmqcore.proxy.codes import Code, RefusedError
from rmqcore.proxy.messages import MessageType
from rmqcore.remoting import Permission, RemotingCommand
from rmqcore.remoting.codes import PERM_INHERIT, PERM_READ, PERM_WRITE
from rmqcore.remoting.needs import Need, any_is, of_use

#: A new topic gets as many queues as this one has; where it is missing, no topic is made on first
#: use.
TEMPLATE_TOPIC: Final = "TBW102"
#: A new topic gets at most this many queues, as RocketMQ's clients ask for.
NEW_TOPIC_QUEUES: Final = 4
_MESSAGE_TYPE: Final = "message.type"
#: A route that says that one broker has more queues than this is refused as damaged.
_QUEUES_MAX: Final = 65_536
RETRY_TIMES: Final = 16
_DIGITS: Final = re.compile("[0-9]{1,18}")
_RUNTIME: Final = re.compile(
    r"\[ ([0-9,]{1,9}) days, ([0-9]{1,2}) hours, ([0-9]{1,2}) minutes, ([0-9]{1,2}) seconds \]"
)


@dataclass(frozen=True, slots=True)
class BrokerQueues:
    """The queues of a topic that one broker has.

    Attributes:
        broker_name: its name.
        read_count, write_count: how many may be read, and written to.
        perm: of RocketMQ.
    """

    broker_name: str
    read_count: int
    write_count: int
    perm: int

    @property
    def readable(self) -> int:
        """How many queues can be read now."""
        return self.read_count if self.perm & PERM_READ else 0

    @property
    def writable(self) -> int:
        """How many queues can be written to now."""
        return self.write_count if self.perm & PERM_WRITE else 0


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic.

    Attributes:
        name: of the topic.
        message_type: what it takes, the attribute `message.type`; empty where nothing is said.
        brokers: where its queues are, by name.
        to_write: every queue that can be written to, as (broker name, queue id), in order.
    """

    name: str
    message_type: str
    brokers: tuple[BrokerQueues, ...]
    to_write: tuple[tuple[str, int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        places = tuple(
            (broker.broker_name, queue_id)
            for broker in sorted(self.brokers, key=lambda each: each.broker_name)
            for queue_id in range(broker.writable)
        )
        object.__setattr__(self, "to_write", places)

    @property
    def to_read(self) -> list[str]:
        """The names of the brokers that it can be read from."""
        return sorted(each.broker_name for each in self.brokers if each.readable)

    def accepts_type(self, kind: MessageType) -> bool:
        """Tell whether it takes messages of a type."""
        return kind in self.accepts

    @property
    def accepts(self) -> Sequence[MessageType]:
        """The types of messages that it takes."""
        if self.message_type in ("", "UNSPECIFIED", "MIXED"):
            return _MIXED
        return (MessageType[self.message_type],)


_MIXED: Final = (
    MessageType.NORMAL,
    MessageType.FIFO,
    MessageType.DELAY,
    MessageType.TRANSACTION,
    MessageType.PRIORITY,
)


@dataclass(frozen=True, slots=True)
class GroupView:
    """A consumer group.

    Attributes:
        ordered: messages of a queue come one after the other.
        attempt_max: how often a message comes before it is a dead letter.
    """

    ordered: bool = False
    attempt_max: int = RETRY_TIMES + 1


class Cluster(Protocol):
    """The brokers that the service asks."""

    def ask(
        self,
        broker_name: str,
        request: RemotingCommand,
        caller: Caller | None,
        *,
        call: Call | None = None,
        timeout_ms: float = 3000,
        since: int = 0,
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Ask a broker.

        Args:
            broker_name: which.
            request: it gets the signature that it needs here.
            caller: in whose name; None in the proxy's own.
            call: who waits for the answer; with it, and so long, the broker may let it wait.
            timeout_ms: for the answer of a broker elsewhere.
            since: of which release it has to be, an ordinal of MQVersion: an older one would pass
                over something of the request.

        Raises:
            RefusedError: there is no such broker, it does not answer, or it is too old. So does
                what is awaited.
        """

    def clock_ms(self, broker_name: str) -> int | None:
        """Unix time in milliseconds by the clock of a broker; None where it has to be asked."""

    async def ask_clock_ms(self, broker_name: str) -> int:
        """As `clock_ms`, asked of the broker; of one that tells no time this process's clock tells.

        Raises:
            RefusedError: there is no such broker, or it does not answer.
        """

    def known_topic(self, name: str) -> TopicView | None:
        """A topic that was looked up a moment ago; None: see `topic`."""

    async def topic(self, name: str) -> TopicView | None:
        """A topic; None when there is none."""

    def known_group(self, name: str, broker_name: str) -> GroupView | None:
        """A consumer group that was looked up a moment ago; None: see `group`.

        Args:
            name: of the group.
            broker_name: as it was looked up.
        """

    async def topic_on(self, name: str, broker_name: str) -> TopicView | None:
        """As `topic`, where a client reads from a broker, and may know better that it has queues.

        Args:
            name: of the topic.
            broker_name: as the client names it; empty for any.

        Raises:
            RefusedError: the broker is away.
        """

    async def topic_to_be(self, name: str) -> TopicView | None:
        """What a topic would be that its first use makes; None where brokers make none so."""

    async def group(self, name: str, caller: Caller, broker_names: Sequence[str]) -> GroupView:
        """A consumer group, made when it is missing and the brokers make groups.

        Args:
            name: of the group.
            caller: who asks, and has to be allowed to consume in it.
            broker_names: that its messages come from, of which any tells: brokers of other
                clusters may know a group of the same name; none for whichever there are.

        Raises:
            RefusedError: there is none, or the caller may not.
        """

    async def make_topic(
        self, name: str, kind: MessageType | None, caller: Caller
    ) -> TopicView | None:
        """Make a topic; None where brokers make no topics on first use.

        Args:
            name: of the topic.
            kind: what a producer sends; None for a consumer, whose topic takes any.
            caller: who uses it first, and has to be allowed to.

        Raises:
            RefusedError: the caller may not use the topic.
        """

    async def register_producers(self, groups: Sequence[str]) -> None:
        """Let brokers know of which producer groups clients are here, to be asked for transactions.

        To be repeated every `HEART_BEAT_S`.

        Args:
            groups: by name, all of them: others are here no longer. A broker may know of as many
                only as one client may be in, the first ones.
        """

    def on_question(self, asked: Callable[[str, RemotingCommand], None]) -> None:
        """Have a function called with a broker's name and request, when one asks (39)."""


HEART_BEAT_S: Final = 10.0


def check_may_use(name: str, kind: MessageType | None, caller: Caller) -> None:
    """Refuse to make a topic for who may not use it.

    Args:
        name: of the topic.
        kind: of the message that is sent first; None for a consumer.
        caller: with its account; without one it may.

    Raises:
        RefusedError: it is so.
    """
    account = caller.account
    if account is None or account.admin:
        return
    for need in of_use(name, Permission.SUB if kind is None else Permission.PUB):
        if not need.is_met_by(account, any_is):
            raise RefusedError(Code.FORBIDDEN, f"no permission: {need} is needed")


def check_may_consume(group: str, caller: Caller) -> None:
    """Refuse to make a group, or to tell of it, for who may not consume in it.

    Args:
        group: by name.
        caller: with its account; without one it may.

    Raises:
        RefusedError: it is so.
    """
    account, need = caller.account, Need(Permission.SUB, group=group)
    if account is not None and not account.admin and not need.is_met_by(account):
        raise RefusedError(Code.FORBIDDEN, f"no permission: {need} is needed")


def json_object(body: bytes) -> Mapping[str, Any]:
    """The JSON object in a body.

    Raises:
        RefusedError: it is none.
    """
    try:
        value = parse_java_json(bytes(body).decode())
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RefusedError(Code.INTERNAL_SERVER_ERROR, "a server's answer is no JSON object")
    return value


def queues_of(broker_name: str, config: Mapping[str, Any]) -> BrokerQueues:
    """The queues of a topic, of the answer to 351.

    Args:
        broker_name: of the broker that has answered.
        config: fields of a ``TopicConfig``; a count that is none is 0.
    """
    return BrokerQueues(
        broker_name,
        _count_of(config.get("readQueueNums")),
        _count_of(config.get("writeQueueNums")),
        _count_of(config.get("perm")),
    )


def _count_of(value: object) -> int:
    """A number of queues that is none to be afraid of."""
    return value if type(value) is int and 0 <= value <= _QUEUES_MAX else 0


def message_type_of(config: Mapping[str, Any]) -> str:
    """The attribute of a topic that says which messages it takes; empty without."""
    attributes = config.get("attributes")
    value = attributes.get(_MESSAGE_TYPE, "") if isinstance(attributes, dict) else ""
    known = value in MessageType.__members__ or value in ("MIXED", "UNSPECIFIED")
    return value if known else ""


def clock_of(runtime_info: Mapping[str, Any]) -> int | None:
    """Unix time in milliseconds, up to a second before it is, of the answer to 28; None without.

    Source: RocketMQ store/StoreStatsService.java, getFormatRuntime.
    """
    table = runtime_info.get("table")
    said = table if isinstance(table, dict) else {}
    began = _DIGITS.fullmatch(str(said.get("bootTimestamp")))
    passed = _RUNTIME.fullmatch(str(said.get("runtime")))
    if began is None or passed is None:
        return None
    days, hours, minutes, seconds = (int(each.replace(",", "") or 0) for each in passed.groups())
    return int(began[0]) + ((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000


def group_view(config: Mapping[str, Any]) -> GroupView:
    """A group, of the answer to 352."""
    most = config.get("retryMaxTimes", RETRY_TIMES)
    return GroupView(
        config.get("consumeMessageOrderly") is True,
        (most if type(most) is int and most >= 0 else RETRY_TIMES) + 1,
    )


def made_after(template: TopicView | None, name: str) -> TopicView | None:
    """What a topic would be that its first use makes; None where none is made so.

    Args:
        template: the topic whose queues a new one gets.
        name: of the new one.
    """
    brokers = tuple(
        BrokerQueues(
            each.broker_name,
            min(NEW_TOPIC_QUEUES, each.write_count),
            min(NEW_TOPIC_QUEUES, each.write_count),
            each.perm & ~PERM_INHERIT,
        )
        for each in (template.brokers if template is not None else ())
        if each.perm & PERM_INHERIT
    )
    return TopicView(name, "", brokers) if brokers else None


def new_topic_fields(name: str, kind: MessageType | None, queue_count: int) -> dict[str, str]:
    """The header of 17 that makes a topic.

    Args:
        name: of the topic.
        kind: the only kind of messages that the topic takes; None for every kind.
        queue_count: queues to read, and as many to write.
    """
    fields = {
        "topic": name,
        "defaultTopic": TEMPLATE_TOPIC,
        "readQueueNums": str(queue_count),
        "writeQueueNums": str(queue_count),
        "perm": str(PERM_READ | PERM_WRITE),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    if kind is not None:
        fields["attributes"] = f"+{_MESSAGE_TYPE}={kind.name}"
    return fields
