"""`SubscriptionGroupTable`: the groups of a store, and which topics are forbidden to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from rmqcore.files.config_tables import ConfigTable, check_topic_name, mapping

#: the bit of a forbidden topic that stands for reading. Source: PermName, INDEX_PERM_READ
_READ: Final = 1 << 2

_DEFAULTS: Final[Mapping[str, object]] = {
    "attributes": {},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}


class _Tables(NamedTuple):
    """What the file holds."""

    groups: dict[str, dict[str, object]]
    #: by group and topic, the bits of what is forbidden
    forbidden: dict[str, dict[str, int]]


class SubscriptionGroupTable(ConfigTable):
    """``subscriptionGroup.json``: kept as it is, group by group.

    Source: RocketMQ broker/subscription/SubscriptionGroupManager.java.
    """

    file_name = "subscriptionGroup.json"

    def __init__(self, directory: Path, *, clock: Callable[[], int]) -> None:
        """See `ConfigTable`."""
        self._groups: dict[str, dict[str, object]] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        super().__init__(directory, clock=clock)

    def get(self, group: str) -> Mapping[str, object] | None:
        """The fields of a group under RocketMQ's names; None when it is unknown."""
        return self._groups.get(group)

    def put(self, group: str, fields: Mapping[str, object]) -> None:
        """Create or replace a group; fields that are left out keep RocketMQ's defaults.

        Args:
            group: 1 to 127 letters, digits, %, |, _ and -.
            fields: by RocketMQ's names, as they stand in the file.

        Raises:
            MessageIllegalError: the group is no legal name.
        """
        check_topic_name(group)
        with self._lock.within():
            entry = {**_DEFAULTS, **fields, "groupName": group}
            self._groups[group] = dict(sorted(entry.items()))
            self._changed = True

    def remove(self, group: str) -> bool:
        """Forget a group, and what is forbidden to it; returns whether there was any of it."""
        with self._lock.within():
            known = self._groups.pop(group, None) is not None
            known |= self._forbidden.pop(group, None) is not None
            self._changed |= known
            return known

    def __len__(self) -> int:
        return len(self._groups)

    def names(self) -> list[str]:
        """All groups."""
        with self._lock.within():
            return sorted(self._groups)

    # ---- what is forbidden

    def may_read(self, group: str, topic: str) -> bool:
        """Tell whether a topic is not forbidden to a group.

        Args:
            group: by name; one that is unknown may read everything.
            topic: by name; it need not exist.
        """
        topics = self._forbidden.get(group)
        return topics is None or not max(0, topics.get(topic, 0)) & _READ

    def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Allow a group to read a topic, or forbid it; neither has to be there.

        Args:
            group: 1 to 127 letters, digits, %, |, _ and -.
            topic: 1 to 127 letters, digits, %, |, _ and -.
            readable: False forbids it; the group's clients get no messages of the topic.

        Raises:
            MessageIllegalError: one of them is no legal name, so nothing can be forbidden.
        """
        if not readable:
            check_topic_name(group)
            check_topic_name(topic)
        with self._lock.within():
            topics = dict(self._forbidden.get(group, {}))
            bits = max(0, topics.pop(topic, 0))
            bits = bits & ~_READ if readable else bits | _READ
            if bits:
                topics[topic] = bits
            self._forbidden.pop(group, None)
            if topics:
                self._forbidden[group] = topics
            self._changed = True

    @property
    def forbidden_count(self) -> int:
        """How many pairs of a group and a topic have something forbidden."""
        return sum(map(len, self._forbidden.values()))

    def forbidden(self) -> dict[str, dict[str, int]]:
        """By group and topic, RocketMQ's bits of what is forbidden."""
        with self._lock.within():
            table = sorted(self._forbidden.items())
            return {group: dict(sorted(topics.items())) for group, topics in table}

    # ---- the file

    @staticmethod
    def _decode(content: dict[str, object]) -> _Tables:
        groups = _objects("subscriptionGroupTable", content)
        forbidden = _objects("forbiddenTable", content)
        for group, topics in forbidden.items():
            if not all(type(bits) is int for bits in topics.values()):
                raise ValueError(f"forbiddenTable: {group} has what is no number")
        return _Tables(groups, forbidden)

    def _install(self, table: _Tables) -> None:
        self._groups, self._forbidden = table

    @staticmethod
    def _names(table: _Tables) -> frozenset[str]:
        return frozenset(table.groups)

    def _names_here(self) -> frozenset[str]:
        return frozenset(self._groups)

    def _followed_by(self, told: _Tables, keep: Callable[[str], bool]) -> _Tables:
        mine = [group for group in self._groups if group not in told.groups and keep(group)]
        groups = {group: self._groups[group] for group in mine}
        forbidden = {group: self._forbidden[group] for group in mine if group in self._forbidden}
        return _Tables({**groups, **told.groups}, {**forbidden, **told.forbidden})

    def _with(self, told: _Tables) -> _Tables:
        return _Tables({**self._groups, **told.groups}, {**self._forbidden, **told.forbidden})

    @staticmethod
    def _is_empty(told: _Tables) -> bool:
        return not any(told)

    def _encode(self) -> dict[str, object]:
        return {
            "forbiddenTable": self.forbidden(),
            "subscriptionGroupTable": dict(sorted(self._groups.items())),
        }

    def _content(self) -> object:
        return self._groups, self._forbidden


def _objects(name: str, content: dict[str, object]) -> dict[str, dict[str, Any]]:
    """Take a member out that is an object of objects; one that is missing has none."""
    member = content.pop(name, None)
    entries = {} if member is None else mapping(name, member)
    return {key: dict(mapping(f"{name}: {key}", entry)) for key, entry in entries.items()}
