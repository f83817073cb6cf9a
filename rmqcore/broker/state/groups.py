"""The subscription groups of a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from rmqcore.broker.state.budgets import (
    GROUP_SIZE_MAX,
    GROUPS_CREATED_MAX,
    GROUPS_MAX,
    PAIRS_MAX,
    BudgetExceededError,
)
from rmqcore.broker.state.pop_scan import PRIORITY_FACTOR, is_percentage
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.broker.state.table_file import TableFile
from rmqcore.broker.state.topics import QUEUES_MAX
from rmqcore.errors import MessageIllegalError
from rmqcore.files.group_table import SubscriptionGroupTable
from rmqcore.files.service_topics import REVIVE_GROUP, TRANSACTION_GROUP
from rmqcore.java.json import format_compact_java_json
from rmqcore.remoting import RequestRefusedError, ResponseCode

GROUP_NAME_MAX: Final = 120
#: The one under which RocketMQ's tools read, and ours.
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
_SYSTEM_GROUPS: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
_SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"
_SWITCHES: Final = frozenset(
    {
        "consumeBroadcastEnable",
        "consumeEnable",
        "consumeFromMinEnable",
        "consumeMessageOrderly",
        "notifyConsumerIdsChangedEnable",
    }
)
_NUMBERS: Final = frozenset(
    {
        "brokerId",
        "consumeTimeoutMinute",
        "groupSysFlag",
        "retryMaxTimes",
        "whichBrokerWhenConsumeSlowly",
    }
)
_INT32_MAX: Final = 2**31 - 1
#: A group has no other attributes, as in RocketMQ.
_ATTRIBUTES: Final = frozenset(
    {
        PRIORITY_FACTOR,
        "lite.bind.topic",
        "lite.sub.client.max.event.cnt",
        "lite.sub.client.quota",
        "lite.sub.model",
        "lite.sub.reset.offset.exclusive",
        "lite.sub.reset.offset.unsubscribe",
        "lite.sub.wildcard",
    }
)


def _check_field(name: str, value: object) -> None:
    """Refuse a field of another type, and more queues than a topic may have.

    Raises:
        RequestRefusedError: it is so; answers with code 29.
    """
    if name in _SWITCHES and type(value) is not bool:
        rule = "true or false"
    elif name in _NUMBERS and not (type(value) is int and -_INT32_MAX <= value <= _INT32_MAX):
        rule = "a whole number of 32 bits"
    elif name == "retryQueueNums" and not (type(value) is int and 0 <= value <= QUEUES_MAX):
        rule = f"a number from 0 to {QUEUES_MAX}"
    else:
        return
    remark = f"{name}={str(value)[:40]}: expected {rule}"
    raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)


def _altered(former: object, changes: object) -> dict[str, str]:
    """Attributes of a group after changes: ``+name`` sets one, ``-name`` removes it.

    Raises:
        RequestRefusedError: a change is none; answers with code 29.

    Source: AttributeUtil, alterCurrentAttributes.
    """
    attributes = dict(former) if isinstance(former, Mapping) else {}
    if not isinstance(changes, Mapping):
        raise _no_attribute("attributes", changes, "an object")
    for name, value in changes.items():
        sign, key = name[:1], name[1:]
        if key not in _ATTRIBUTES or sign not in ("+", "-"):
            raise _no_attribute(name, value, "+ or - and a name of RocketMQ's")
        if sign == "-":
            attributes.pop(key, None)
        elif key == PRIORITY_FACTOR and not (isinstance(value, str) and is_percentage(value)):
            raise _no_attribute(name, value, "a number from 0 to 100")
        else:
            attributes[key] = str(value)
    return attributes


def _no_attribute(name: str, value: object, rule: str) -> RequestRefusedError:
    remark = f"{name[:40]}={str(value)[:40]}: expected {rule}"
    return RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)


class Groups:
    """Which groups there are; unknown ones are created by their first use, if settings say so.

    Source: RocketMQ broker/subscription/SubscriptionGroupManager.java.
    """

    def __init__(
        self,
        table: SubscriptionGroupTable,
        config: Callable[[], BrokerConfig],
        on_change: Callable[[], None],
    ) -> None:
        """Create the groups that every broker has.

        Args:
            table: the store's groups.
            config: the broker's settings at this moment.
            on_change: called after each change, to write the table.
        """
        self.table = table
        self.file = TableFile(table, on_change)
        self._config = config
        self._on_change = on_change
        for group in _SYSTEM_GROUPS:
            if table.get(group) is None:
                table.put(group, {"consumeBroadcastEnable": True})

    def find(self, group: str) -> Mapping[str, Any] | None:
        """The settings of a group under RocketMQ's names, created if that is allowed.

        Raises:
            BudgetExceededError: it would be created, and there are too many.
        """
        found = self.table.get(group)
        if found is None and (
            self._config().auto_create_subscription_group
            or group in _SYSTEM_GROUPS
            or group.startswith(_SYSTEM_PREFIX)
        ):
            if len(self.table) >= GROUPS_CREATED_MAX:
                raise BudgetExceededError("groups to create one more", GROUPS_CREATED_MAX)
            self.put(group, {})
            found = self.table.get(group)
        return found

    def expect(self, group: str) -> Mapping[str, Any]:
        """As `find`.

        Raises:
            RequestRefusedError: there is none; answers with code 26.
        """
        found = self.find(group)
        if found is None:
            remark = (
                f"subscription group [{group}] does not exist; create it, or let the broker do so "
                "with autoCreateSubscriptionGroup=true"
            )
            raise RequestRefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return found

    def expect_for_client(self, group: str) -> Mapping[str, Any]:
        """As `expect`, for who consumes in it.

        Raises:
            RequestRefusedError: there is none, code 26; it is the broker's own, code 16.
        """
        self.check_not_own(group)
        return self.expect(group)

    @staticmethod
    def check_not_own(group: str) -> None:
        """Refuse a group whose offsets are the broker's own progress.

        Raises:
            RequestRefusedError: it is one; answers with code 16.
        """
        if group in (TRANSACTION_GROUP, REVIVE_GROUP):
            remark = f"the consumer group[{group}] is the broker's own"
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)

    def expect_readable(self, group: str, topic: str) -> None:
        """Refuse to let a group read a topic that is forbidden to it.

        Args:
            group: by name; an unknown one is forbidden nothing.
            topic: by name; it need not exist.

        Raises:
            RequestRefusedError: it is; answers with code 16.
        """
        if not self.table.may_read(group, topic):
            remark = f"the consumer group[{group}] is forbidden for topic[{topic}]"
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)

    def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Allow a group to read a topic, or forbid it; as in RocketMQ, neither has to be there.

        Args:
            group: by name: letters, digits, %, |, _ and -.
            topic: by name: letters, digits, %, |, _ and -.
            readable: False forbids it.

        Raises:
            RequestRefusedError: one of them is no name; answers with code 29.
            BudgetExceededError: it is to be forbidden, and too many are.
        """
        new = not readable and self.table.may_read(group, topic)
        if new and self.table.forbidden_count >= PAIRS_MAX:
            raise BudgetExceededError("topics that are forbidden to groups", PAIRS_MAX)
        try:
            self.table.set_readable(group, topic, readable)
        except MessageIllegalError as error:
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        self._changed(group)

    def put(self, group: str, fields: Mapping[str, object]) -> None:
        """Create or replace a group.

        Args:
            group: by name; at most `GROUP_NAME_MAX` characters.
            fields: of RocketMQ's ``SubscriptionGroupConfig``, by its names; None leaves the
                default.

        Raises:
            RequestRefusedError: its name is no group's, or a field is not what RocketMQ's is;
                answers with code 29.
            BudgetExceededError: there are too many groups, or the fields are too large.
        """
        fields = {name: value for name, value in fields.items() if value is not None}
        if self.table.get(group) is None and len(self.table) >= GROUPS_MAX:
            raise BudgetExceededError("groups", GROUPS_MAX)
        if fields and len(format_compact_java_json(fields)) > GROUP_SIZE_MAX:
            raise BudgetExceededError("bytes of settings of a group", GROUP_SIZE_MAX)
        for name, value in fields.items():
            _check_field(name, value)
        former = (self.table.get(group) or {}).get("attributes")
        fields["attributes"] = _altered(former, fields.get("attributes", {}))
        if len(group) > GROUP_NAME_MAX:
            remark = f"group name of {len(group)} characters: at most {GROUP_NAME_MAX} fit"
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
        try:
            self.table.put(group, fields)
        except MessageIllegalError as error:
            remark = f"group {group!r}: only letters, digits, %, |, _ and - are accepted"
            raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark) from error
        self._changed(group)

    def remove(self, group: str) -> bool:
        """Forget a group; returns whether it was there."""
        removed = self.table.remove(group)
        if removed:
            self._changed(group)
        return removed

    def _changed(self, group: str) -> None:
        """Let the file have what has changed of a group."""
        self.file.changed(group)
        self._on_change()
