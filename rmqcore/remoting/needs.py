"""What each request needs: the rules that handlers are declared with, see `serves`.

A rule is called with a request and yields what its account has to have; `ADMIN` says that it has to
be an administrator's. The first line of a rule's docstring says in `docs/broker.md` who may send
the request.

Source: DefaultAuthorizationContextBuilder of 5.x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from rmqcore.remoting.accounts import Account, Permission
from rmqcore.remoting.codes import ResponseCode
from rmqcore.remoting.command import RemotingCommand
from rmqcore.remoting.errors import RequestRefusedError
from rmqcore.remoting.json_body import ACKS_MAX, objects_in, read_object

PUB, SUB = Permission.PUB, Permission.SUB

_RETRY_PREFIX = "%RETRY%"
_GROUP_PREFIXES = (_RETRY_PREFIX, "%DLQ%")
#: topics in which the broker keeps what was sent to others, and other programs their tables; a
#: default does not open them
_SYSTEM_PREFIXES = ("rmq_sys_", "schedule_topic_", "trans_check_max_time_", "offset_moved_", "%kv%")
#: where a broker keeps the replies that it passes on, behind the name of its cluster; programs have
#: topics of their own for replies, and write those in small letters
_REPLIES_SUFFIX = "_REPLY_TOPIC"
#: properties of a message whose transaction is open, and of one that goes to light queues, too
_HALF, _LIGHT = "TRAN_MSG", "INNER_MULTI_DISPATCH"
#: characters at the end of a retry topic's name in which a topic's is looked for: more than one has
_SEARCHED_MAX = 256

#: The topic of the message at a physical offset, as its producer named it; None: there is none.
#: Of what POP hands out again it is ``%RETRY%group+topic``.
TopicAt: TypeAlias = Callable[[int], str | None]
#: Whether there is a topic of a name.
IsTopic: TypeAlias = Callable[[str], bool]


def _none_is(_: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Need:
    """One permission that a request needs: for a group where one is named, else for a topic."""

    permission: Permission
    topic: str = ""
    group: str = ""

    def is_met_by(self, account: Account, _: IsTopic = _none_is) -> bool:
        """Tell whether an account has it."""
        if self.group:
            return bool(account.groups.get(self.group, account.default_group) & self.permission)
        granted = account.topics.get(self.topic)
        if granted is None:
            hidden = self.permission == SUB and _keeps_what_is_others(self.topic)
            granted = Permission.DENY if hidden else account.default_topic
        return bool(granted & self.permission)

    def __str__(self) -> str:
        kind, name = ("group", self.group) if self.group else ("topic", self.topic)
        return f"{self.permission.name} on the {kind} {name[:255]}"


@dataclass(frozen=True, slots=True)
class NotDenied:
    """That a retry topic is not the one of a topic which is denied, by name or by default.

    ``group_topic`` may be a group's name as well. A default denies it where there is that topic.

    Attributes:
        name: of the retry topic, without its prefix: a group, or one that pops and a topic.
    """

    name: str

    def is_met_by(self, account: Account, is_topic: IsTopic = _none_is) -> bool:
        """Tell whether it is so.

        Args:
            account: with its permissions by topic.
            is_topic: tells whether there is a topic of a name; without it there is none.
        """
        by_name = any(
            self.name.endswith("_" + topic)
            for topic, permission in account.topics.items()
            if not permission & SUB
        )
        return not by_name and all(
            Need(SUB, topic=topic).is_met_by(account)
            for topic in _behind_each(self.name[-_SEARCHED_MAX:], "_")
            if is_topic(topic)
        )

    def __str__(self) -> str:
        return f"SUB on the topic whose messages come again in {_RETRY_PREFIX}{self.name[:255]}"


@dataclass(frozen=True, slots=True)
class AnyNeed:
    """A permission for one group or another, or for one topic as well.

    Asked for before a body is looked into: who may do nothing of all that it could say costs
    nothing but its signature.
    """

    permission: Permission
    topics_too: bool = False

    def is_met_by(self, account: Account, _: IsTopic = _none_is) -> bool:
        """Tell whether an account has it."""
        granted = account.on_groups | (account.on_topics if self.topics_too else Permission.DENY)
        return bool(granted & self.permission)

    def __str__(self) -> str:
        if self.topics_too:
            return "a permission for a topic or a group"
        return f"{self.permission.name} on a group"


@dataclass(frozen=True, slots=True)
class OfMessage:
    """What a message's topic needs; a refusal does not say its name: who asks has not named it.

    Attributes:
        need: met by who has this.
    """

    need: Need | NotDenied

    def is_met_by(self, account: Account, is_topic: IsTopic = _none_is) -> bool:
        """Tell whether an account has it.

        Args:
            account: with its permissions by topic and by group.
            is_topic: tells whether there is a topic of a name.
        """
        return self.need.is_met_by(account, is_topic)

    def __str__(self) -> str:
        permission = self.need.permission if isinstance(self.need, Need) else SUB
        return f"{permission.name} on the topic of the message"


_Need: TypeAlias = Need | NotDenied | AnyNeed | OfMessage


class AdminOnly(Enum):
    """The rule of requests that only an administrator may send."""

    ADMIN = "administrators"


ADMIN: Final = AdminOnly.ADMIN
#: What a request needs.
Rule: TypeAlias = Callable[[RemotingCommand, TopicAt], Iterable[_Need]] | AdminOnly


def _keeps_what_is_others(topic: str) -> bool:
    """Tell whether a topic is one that a default does not open to readers."""
    return topic.lower().startswith(_SYSTEM_PREFIXES) or topic.endswith(_REPLIES_SUFFIX)


_SOME_GROUP = AnyNeed(SUB)
_SOMETHING = AnyNeed(PUB | SUB, topics_too=True)


def _behind_each(name: str, separator: str) -> Iterator[str]:
    """What follows each separator in a name."""
    while separator in name:
        name = name.partition(separator)[2]
        yield name


# ---- the rules, by what their topic and group are named in -------------------------------------


def _of_topic(topic: str, permission: Permission, group: str = "") -> Iterator[Need | NotDenied]:
    """A topic's permission; retry and dead-letter topics belong to their group."""
    prefix = next((each for each in _GROUP_PREFIXES if topic.startswith(each)), None)
    if prefix is None:
        yield Need(permission, topic=topic)
        return
    name = _named(topic.removeprefix(prefix))
    rest = name.removeprefix(group)
    if group and prefix == _RETRY_PREFIX and rest != name and rest[:1] in ("_", "+"):
        # the retry topic of one topic, of a group that pops
        yield Need(SUB, group=group)
        yield Need(SUB, topic=rest[1:])
        return
    if prefix == _RETRY_PREFIX and "+" in name:
        # no group has that in its name, nor has a topic
        group, _, popped = name.partition("+")
        yield Need(SUB, group=_named(group))
        yield Need(SUB, topic=_named(popped))
        return
    yield Need(SUB, group=name)
    if prefix == _RETRY_PREFIX:
        # it may be the retry topic of one topic, of a group that pops, whatever group is named
        yield NotDenied(name)


def _of_group(request: RemotingCommand, name: str = "consumerGroup") -> Need:
    return Need(SUB, group=_named(request.text(name)))


def _named(name: object) -> str:
    """A name that can be looked up; an empty one would mean no need at all."""
    if not isinstance(name, str) or not name:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "a topic or group has no name")
    return name


def any_account(_: RemotingCommand, __: TopicAt) -> Iterable[_Need]:
    """Any account."""
    return ()


def publish(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    """PUB on the topic.

    Whichever of its two names that comes under, or both; of a half message PUB on its group, too,
    and on the light queues that it names.
    """
    given = [request.ext_fields[name] for name in ("topic", "b") if name in request.ext_fields]
    for topic in given or [request.text("topic")]:
        yield from _of_topic(_named(topic), PUB)
    for text in (request.ext_fields.get(name, "") for name in ("properties", "i")):
        if _HALF in text:
            for group in _values(text, "PGROUP"):
                yield Need(PUB, group=_named(group))
        if _LIGHT in text:
            for names in _values(text, _LIGHT):
                yield from (Need(PUB, topic=_named(name)) for name in names.split(","))


def _values(properties: str, name: str) -> Iterator[str]:
    """The values of one property: ``name U+0001 value U+0002``, again and again."""
    begin = name + "\x01"
    for each in properties.split("\x02"):
        if each.startswith(begin):
            yield each.removeprefix(begin)


def read_topic(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    """SUB on the topic."""
    yield from _of_topic(_named(request.text("topic")), SUB)


def consume(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    """SUB on the group and on the topic.

    Who names a retry topic reads all that lies there, also what another group of that whole name
    has given back.
    """
    yield _of_group(request)
    yield from _of_topic(_named(request.text("topic")), SUB)


def settle(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    """SUB on the group and on the topic."""
    group = _of_group(request)
    yield group
    yield from _of_topic(_named(request.text("topic")), SUB, group.group)


def be_in_group(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    """SUB on the group."""
    yield _of_group(request)


def leave_group(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    """SUB on the group that is left, if one is named."""
    if request.ext_fields.get("consumerGroup"):
        yield _of_group(request)


def view_message(request: RemotingCommand, topic_at: TopicAt) -> Iterator[_Need]:
    """SUB on the topic of the message.

    Args:
        request: header ``offset``: a physical offset.
        topic_at: gives the topic of the record at a physical offset, None where none begins.

    Raises:
        RequestRefusedError: no message begins there.
    """
    yield _SOMETHING
    offset = request.number("offset")
    topic = topic_at(offset)
    if topic is None:
        # answered here: behind the gate there might be one a moment later
        remark = f"can not find message by the offset, {offset}"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
    yield from map(OfMessage, _of_topic(topic, SUB))


def send_back(request: RemotingCommand, topic_at: TopicAt) -> Iterator[_Need]:
    """SUB on the group and on the topic of the message.

    Args:
        request: header ``group`` and ``offset``: a physical offset.
        topic_at: gives the topic of the record at a physical offset, None where none begins.

    Raises:
        RequestRefusedError: no message begins there.
    """
    yield _of_group(request, "group")
    offset = request.number("offset")
    topic = topic_at(offset)
    if topic is None:
        remark = f"look message by offset failed, {offset}"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
    yield from map(OfMessage, _of_topic(topic, SUB))


def end_transaction(request: RemotingCommand, topic_at: TopicAt) -> Iterator[_Need]:
    """PUB on the producer group and on the topic of the message.

    Args:
        request: header ``producerGroup`` and ``commitLogOffset``: a physical offset.
        topic_at: gives the topic of the record at a physical offset, None where none begins.

    Raises:
        RequestRefusedError: no message begins there.
    """
    group = _named(request.text("producerGroup"))
    yield Need(PUB, group=group)
    topic = topic_at(request.number("commitLogOffset"))
    if topic is None:
        remark = "Find prepared transaction message failed"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
    yield from map(OfMessage, _of_topic(topic, PUB))


def any_is(_: str) -> bool:
    """Take every name for a topic's: for who cannot look, so that nothing is let pass by that."""
    return True


def of_use(topic: str, permission: Permission) -> Iterator[_Need]:
    """What the first use of a topic needs, which may make it: as its later uses, see `publish`.

    Args:
        topic: by name; a retry topic needs its group as well.
        permission: PUB or SUB.
    """
    yield from _of_topic(topic, permission)


def of_transaction(group: str, topic: str) -> Iterator[_Need]:
    """What the end of a transaction needs: of its producer group, of the topic of its message.

    Args:
        group: the producer group.
        topic: of the message.
    """
    yield Need(PUB, group=group)
    yield from _of_topic(topic, PUB)


# ---- those that have their names in the body


def heart_beat(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    """SUB on each group of consumers and on each topic that it subscribes."""
    yield _SOMETHING
    for entry in objects_in(read_object(request), "consumerDataSet"):
        group = _named(entry.get("groupName"))
        yield Need(SUB, group=group)
        for wanted in objects_in(entry, "subscriptionDataSet"):
            yield from _of_topic(_named(wanted.get("topic")), SUB, group)


def lock_queues(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    """SUB on the group and on the topic of each queue."""
    yield _SOME_GROUP
    body = read_object(request)
    group = _named(body.get("consumerGroup"))
    yield Need(SUB, group=group)
    for queue in objects_in(body, "mqSet"):
        yield from _of_topic(_named(queue.get("topic")), SUB, group)


def share_queues(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    """SUB on the group and on the topic."""
    yield _SOME_GROUP
    body = read_object(request)
    group = _named(body.get("consumerGroup"))
    yield Need(SUB, group=group)
    yield from _of_topic(_named(body.get("topic")), SUB, group)


def check_expression(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    """SUB on the group and on the topic."""
    yield _SOME_GROUP
    body = read_object(request)
    group, wanted = _named(body.get("group")), body.get("subscriptionData")
    yield Need(SUB, group=group)
    if isinstance(wanted, dict):
        yield from _of_topic(_named(wanted.get("topic")), SUB, group)


def acknowledge_several(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    """SUB on the group and on the topic of each checkpoint."""
    yield _SOME_GROUP
    for ack in objects_in(read_object(request), "acks", ACKS_MAX):
        for given in _under(ack, "c", "consumerGroup"):
            group = _named(given)
            yield Need(SUB, group=group)
            for topic in _under(ack, "t", "topic"):
                yield from _of_topic(_named(topic), SUB, group)


def _under(fields: Mapping[str, object], *names: str) -> list[object]:
    """What comes under one name or another; nobody says here which of them counts."""
    return [fields[name] for name in names if name in fields] or [None]
