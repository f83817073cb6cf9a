"""What each request needs, and the gate that refuses those who have not got it.

Every request code that may pass is in `RULES`; any other is refused, whoever sends it. There are no
addresses from which requests pass unsigned. A refusal says the same of an unknown account, a wrong
signature and a wrong address, and nothing of what there is on the server.

Source: PlainAccessValidator, PlainPermissionManager; DefaultAuthorizationContextBuilder of 5.x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from rmqcore.chance import token_hex
from rmqcore.remoting.accounts import Account, Permission
from rmqcore.remoting.acl import ACCESS_KEY, signature_is_right, strict_signature_is_right
from rmqcore.remoting.codes import RequestCode, ResponseCode
from rmqcore.remoting.command import RemotingCommand, failure
from rmqcore.remoting.connection import Connection
from rmqcore.remoting.errors import RequestRefusedError
from rmqcore.remoting.json_body import objects_in, read_object
from rmqcore.world import wall_clock_ns

PUB, SUB = Permission.PUB, Permission.SUB

_RETRY_PREFIX = "%RETRY%"
_GROUP_PREFIXES = (_RETRY_PREFIX, "%DLQ%")
#: topics in which the broker keeps what was sent to others; a default does not open them
_SYSTEM_PREFIXES = ("rmq_sys_", "schedule_topic_", "trans_check_max_time_", "offset_moved_")
#: properties of a message whose transaction is open, and of one that goes to light queues, too
_HALF, _LIGHT = "TRAN_MSG", "INNER_MULTI_DISPATCH"
#: characters at the end of a retry topic's name in which a topic's is looked for: more than one has
_SEARCHED_MAX = 256
_UNSIGNED = "no permission: the request needs the AccessKey and the Signature of an account"
_NOT_ALLOWED = "no permission: the request is for administrators"

#: The topic of the message at a physical offset, as its producer named it; None: there is none.
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
            hidden = self.topic.lower().startswith(_SYSTEM_PREFIXES) and self.permission == SUB
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
        """Tell whether it is so."""
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


_Need: TypeAlias = Need | NotDenied | AnyNeed
#: What a request needs; None: to be an administrator.
Rule: TypeAlias = Callable[[RemotingCommand, TopicAt], Iterable[_Need]] | None

_SOME_GROUP = AnyNeed(SUB)
_SOMETHING = AnyNeed(PUB | SUB, topics_too=True)
#: where a connection keeps the account of the request that passed last
_ACCOUNT = "account"


class AccessGate:
    """Lets the requests of accounts pass that may send them; see `RemotingServer`.

    Args:
        accounts: by access key.
        topic_at: tells the topic of a stored message; for requests that name an offset only.
        is_topic: tells whether there is a topic; for retry topics that name one.
        clock_ns: the time of day, Unix time in nanoseconds; for strict signatures.
    """

    def __init__(
        self,
        accounts: Mapping[str, Account],
        topic_at: TopicAt | None = None,
        is_topic: IsTopic = _none_is,
        clock_ns: Callable[[], int] = wall_clock_ns,
    ) -> None:
        self._accounts = accounts
        self._clock_ns = clock_ns
        self._topic_at = topic_at or _nothing_at
        self._is_topic = is_topic
        self._decoy = token_hex(16)

    def __call__(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """Return the refusal of a request; None lets it pass, and notes whose it is."""
        account = self._accounts.get(request.ext_fields.get(ACCESS_KEY, ""))
        # an unknown account takes as long to be refused as a wrong signature
        right = signature_is_right(request, account.secret_key if account else self._decoy)
        if account is None or not right or not account.may_come_from(connection.remote_address):
            return _refusal(_UNSIGNED)
        if account.strict:
            now_ms = self._clock_ns() // 1_000_000
            if not strict_signature_is_right(request, account.secret_key, now_ms):
                return _refusal(_UNSIGNED)
        note_account(connection, account)
        return self.refusal_of(account, request)

    def refusal_of(self, account: Account, request: RemotingCommand) -> RemotingCommand | None:
        """Return the refusal of what an account that is known to ask may not; None lets it pass."""
        if request.code not in RULES:
            return _refusal(_NOT_ALLOWED)
        if account.admin:
            return None
        rule = RULES[request.code]
        if rule is None:
            return _refusal(_NOT_ALLOWED)
        for need in rule(request, self._topic_at):
            if not need.is_met_by(account, self._is_topic):
                return _refusal(f"no permission: {need} is needed")
        return None


def note_account(connection: Connection, account: Account) -> None:
    """Note whose the requests of a connection are from now on."""
    connection.attributes[_ACCOUNT] = account


def account_of(connection: Connection) -> Account | None:
    """Whose request a processor has been given; None where everybody is served."""
    account: Account | None = connection.attributes.get(_ACCOUNT)
    return account


def may_end_transaction(account: Account | None, group: str, topic: str) -> bool:
    """Tell whether an account may end a producer group's transactions, and be asked for them.

    Who is asked is shown the message.

    Args:
        account: None where everybody is served.
        group: the producers'.
        topic: where the message goes when it is committed.
    """
    if account is None or account.admin:
        return True
    if not group or not topic:
        return False
    return all(need.is_met_by(account) for need in _of_transaction(group, topic))


def _refusal(remark: str) -> RemotingCommand:
    return failure(ResponseCode.NO_PERMISSION, remark)


def _nothing_at(_: int) -> str | None:
    return None


def _behind_each(name: str, separator: str) -> Iterator[str]:
    """What follows each separator in a name."""
    while separator in name:
        name = name.partition(separator)[2]
        yield name


# ---- the needs of requests --------------------------------------------------------------------


def _of_topic(topic: str, permission: Permission, group: str = "") -> Iterator[_Need]:
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


def _signed(_: RemotingCommand, __: TopicAt) -> Iterable[Need]:
    """Any account may."""
    return ()


def _publish(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    """Whichever of its two names the topic comes under, or both."""
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


def _read_topic(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    yield from _of_topic(_named(request.text("topic")), SUB)


def _consume(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    group = _of_group(request)
    yield group
    yield from _of_topic(_named(request.text("topic")), SUB, group.group)


def _group_only(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    yield _of_group(request)


def _leave(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    if request.ext_fields.get("consumerGroup"):
        yield _of_group(request)


def _view(request: RemotingCommand, topic_at: TopicAt) -> Iterator[_Need]:
    offset = request.number("offset")
    topic = topic_at(offset)
    if topic is None:
        # answered here: behind the gate there might be one a moment later
        remark = f"can not find message by the offset, {offset}"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
    yield from _of_topic(topic, SUB)


def _send_back(request: RemotingCommand, topic_at: TopicAt) -> Iterator[_Need]:
    group = _of_group(request, "group")
    yield group
    offset = request.number("offset")
    topic = topic_at(offset)
    if topic is None:
        remark = f"look message by offset failed, {offset}"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
    yield from _of_topic(topic, SUB, group.group)


def _end_transaction(request: RemotingCommand, topic_at: TopicAt) -> Iterator[_Need]:
    group = _named(request.text("producerGroup"))
    yield Need(PUB, group=group)
    topic = topic_at(request.number("commitLogOffset"))
    if topic is None:
        remark = "Find prepared transaction message failed"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
    yield from _of_transaction(group, topic)


def _of_transaction(group: str, topic: str) -> Iterator[_Need]:
    yield Need(PUB, group=group)
    yield from _of_topic(topic, PUB)


# ---- those that have their names in the body


def _heart_beat(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    yield _SOMETHING
    for entry in objects_in(read_object(request), "consumerDataSet"):
        group = _named(entry.get("groupName"))
        yield Need(SUB, group=group)
        for wanted in objects_in(entry, "subscriptionDataSet"):
            yield from _of_topic(_named(wanted.get("topic")), SUB, group)


def _lock(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    yield _SOME_GROUP
    body = read_object(request)
    group = _named(body.get("consumerGroup"))
    yield Need(SUB, group=group)
    for queue in objects_in(body, "mqSet"):
        yield from _of_topic(_named(queue.get("topic")), SUB, group)


def _assignment(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    yield _SOME_GROUP
    body = read_object(request)
    group = _named(body.get("consumerGroup"))
    yield Need(SUB, group=group)
    yield from _of_topic(_named(body.get("topic")), SUB, group)


def _check_client(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    yield _SOME_GROUP
    body = read_object(request)
    group, wanted = _named(body.get("group")), body.get("subscriptionData")
    yield Need(SUB, group=group)
    if isinstance(wanted, dict):
        yield from _of_topic(_named(wanted.get("topic")), SUB, group)


def _acks(request: RemotingCommand, _: TopicAt) -> Iterator[_Need]:
    yield _SOME_GROUP
    for ack in objects_in(read_object(request), "acks"):
        for given in _under(ack, "c", "consumerGroup"):
            group = _named(given)
            yield Need(SUB, group=group)
            for topic in _under(ack, "t", "topic"):
                yield from _of_topic(_named(topic), SUB, group)


def _under(fields: Mapping[str, object], *names: str) -> list[object]:
    """What comes under one name or another; nobody says here which of them counts."""
    return [fields[name] for name in names if name in fields] or [None]


#: What every request needs that may pass at all, at brokers and name servers.
RULES: Mapping[int, Rule] = {
    # producers
    RequestCode.SEND_MESSAGE: _publish,
    RequestCode.SEND_MESSAGE_V2: _publish,
    RequestCode.SEND_BATCH_MESSAGE: _publish,
    RequestCode.SEND_REPLY_MESSAGE: _publish,
    RequestCode.SEND_REPLY_MESSAGE_V2: _publish,
    RequestCode.RECALL_MESSAGE: _publish,
    RequestCode.END_TRANSACTION: _end_transaction,
    # consumers
    RequestCode.PULL_MESSAGE: _consume,
    RequestCode.LITE_PULL_MESSAGE: _consume,
    RequestCode.POP_MESSAGE: _consume,
    RequestCode.PEEK_MESSAGE: _consume,
    RequestCode.ACK_MESSAGE: _consume,
    RequestCode.BATCH_ACK_MESSAGE: _acks,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _consume,
    RequestCode.NOTIFICATION: _consume,
    RequestCode.POLLING_INFO: _consume,
    RequestCode.QUERY_ASSIGNMENT: _assignment,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.QUERY_CONSUMER_OFFSET: _consume,
    RequestCode.UPDATE_CONSUMER_OFFSET: _consume,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group_only,
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _lock,
    RequestCode.CHECK_CLIENT_CONFIG: _check_client,
    # both
    RequestCode.HEART_BEAT: _heart_beat,
    RequestCode.UNREGISTER_CLIENT: _leave,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _signed,
    # reading beside consuming
    RequestCode.QUERY_MESSAGE: _read_topic,
    RequestCode.VIEW_MESSAGE_BY_ID: _view,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _read_topic,
    RequestCode.GET_MAX_OFFSET: _read_topic,
    RequestCode.GET_MIN_OFFSET: _read_topic,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _read_topic,
    # of administrators, topics
    RequestCode.UPDATE_AND_CREATE_TOPIC: None,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: None,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: None,
    RequestCode.GET_ALL_TOPIC_CONFIG: None,
    RequestCode.GET_TOPIC_CONFIG: None,
    RequestCode.GET_TOPIC_STATS_INFO: None,
    RequestCode.DELETE_TOPIC_IN_BROKER: None,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: None,
    RequestCode.QUERY_CONSUME_TIME_SPAN: None,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: None,
    RequestCode.QUERY_CONSUME_QUEUE: None,
    # of administrators, groups, offsets, clients
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: None,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: None,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: None,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: None,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: None,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: None,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: None,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: None,
    RequestCode.GET_ALL_PRODUCER_INFO: None,
    RequestCode.GET_CONSUME_STATS: None,
    RequestCode.GET_BROKER_CONSUME_STATS: None,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: None,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: None,
    RequestCode.GET_ALL_CONSUMER_OFFSET: None,
    RequestCode.GET_ALL_DELAY_OFFSET: None,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: None,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: None,
    RequestCode.CLONE_GROUP_OFFSET: None,
    RequestCode.GET_CONSUMER_RUNNING_INFO: None,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: None,
    RequestCode.SET_MESSAGE_REQUEST_MODE: None,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: None,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: None,
    # of administrators, the broker
    RequestCode.UPDATE_BROKER_CONFIG: None,
    RequestCode.GET_BROKER_CONFIG: None,
    RequestCode.GET_BROKER_RUNTIME_INFO: None,
    RequestCode.VIEW_BROKER_STATS_DATA: None,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: None,
    RequestCode.CLEAN_UNUSED_TOPIC: None,
    RequestCode.DELETE_EXPIRED_COMMITLOG: None,
    RequestCode.GET_TIMER_CHECK_POINT: None,
    RequestCode.GET_TIMER_METRICS: None,
    RequestCode.GET_BROKER_HA_STATUS: None,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: None,
    # of administrators and brokers, the name server
    RequestCode.REGISTER_BROKER: None,
    RequestCode.UNREGISTER_BROKER: None,
    RequestCode.QUERY_DATA_VERSION: None,
    RequestCode.BROKER_HEARTBEAT: None,
    RequestCode.GET_BROKER_MEMBER_GROUP: None,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: None,
    RequestCode.GET_BROKER_CLUSTER_INFO: None,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: None,
    RequestCode.GET_TOPICS_BY_CLUSTER: None,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: None,
    RequestCode.GET_UNIT_TOPIC_LIST: None,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: None,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: None,
    RequestCode.PUT_KV_CONFIG: None,
    RequestCode.GET_KV_CONFIG: None,
    RequestCode.DELETE_KV_CONFIG: None,
    RequestCode.GET_KVLIST_BY_NAMESPACE: None,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: None,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: None,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: None,
    RequestCode.UPDATE_NAMESRV_CONFIG: None,
    RequestCode.GET_NAMESRV_CONFIG: None,
}
