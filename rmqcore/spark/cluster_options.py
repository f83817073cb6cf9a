"""The options of ``format("rmq")`` over a running cluster: those of a directory, by the same names.

What only a directory has, such as physical offsets, is refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rmqcore.client import MessageQueue
from rmqcore.client.names import GROUP_MAX, check_name
from rmqcore.errors import ArgumentError, ConfigError
from rmqcore.scan.cluster import Access, parse_namesrv_url
from rmqcore.scan.cluster.topology import TOOLS_GROUP
from rmqcore.spark.options import (
    EARLIEST,
    ReadOptions,
    check_exclusive,
    flag,
    parsed,
    read_parsers,
    seconds,
)

#: topic, broker (None: the only one of the topic), queue id, offset or time
QueueNumbers = tuple[tuple[str, str | None, int, int], ...]
NAMESRV: Final = "namesrvAddr"
_ONLY_FILES: Final = {
    "startingPhyOffset": "brokers hand out messages by their queue offsets: use startingOffsets",
    "endingPhyOffset": "brokers hand out messages by their queue offsets: use endingOffsets",
    "maxBytesPerTrigger": "brokers do not tell sizes ahead: use maxOffsetsPerTrigger",
    "maxPartitionBytes": "brokers do not tell sizes ahead: use maxRecordsPerPartition",
    "includeUncommitted": "prepared messages are in no queue; name RMQ_SYS_TRANS_HALF_TOPIC",
    "config": "the brokers have their own settings",
    "path": f"give it or {NAMESRV}, not both",
    "paths": f"give it or {NAMESRV}, not both",
    "broker": "brokers have names of their own, in the column broker",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What to read of a cluster, and how.

    Attributes:
        access: which cluster, and as whom.
        read: what directories have as well.
        starting_offsets, ending_offsets: "earliest", "latest", or queue offsets.
        starting_times, ending_times: Unix milliseconds of single queues.
        group_id: the group that gets the progress of a stream; None for none.
    """

    access: Access
    read: ReadOptions
    starting_offsets: str | QueueNumbers | None = None
    ending_offsets: str | QueueNumbers | None = None
    starting_times: QueueNumbers | None = None
    ending_times: QueueNumbers | None = None
    group_id: str | None = None

    @property
    def pulling_group(self) -> str:
        """The group whose permissions are checked."""
        return self.group_id or TOOLS_GROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterWriteOptions:
    """Where to send rows.

    Attributes:
        access: which cluster, and as whom.
        topic: of rows without a topic of their own.
        job_id: the unique keys of a job that is run again are those of the first run.
        timeout_ms: for one batch of messages with all its tries.
    """

    access: Access
    topic: str | None = None
    job_id: str | None = None
    timeout_ms: float = 30_000.0


def is_cluster(options: Mapping[str, str]) -> bool:
    """Tell whether options name a running cluster, by its option or as ``namesrv://``."""
    named = any(name.lower() == NAMESRV.lower() for name in options)
    return named or options.get("path", "").startswith(("namesrv://", "namesrvs://"))


def cluster_read_options(options: Mapping[str, str]) -> ClusterOptions:
    """The options of a batch or stream reader.

    Raises:
        ConfigError: an unknown option, a wrong value, or two that contradict each other.
    """
    options = _without_url(options, "subscribe")
    _refuse(options)
    table = {name: row for name, row in read_parsers().items() if name not in _ONLY_FILES}
    for name, numbers in (
        ("startingOffsets", _offsets),
        ("endingOffsets", _offsets),
        ("startingOffsetsByTimestamp", _times),
        ("endingOffsetsByTimestamp", _times),
    ):
        table[name] = (table[name][0], numbers)
    found = parsed(options, {**table, **_ACCESS, "groupId": ("group_id", _group)})
    check_exclusive(found)
    given = frozenset(found)
    access = _access(found)
    own = {
        name: found.pop(name)
        for name in (
            "starting_offsets",
            "ending_offsets",
            "starting_times",
            "ending_times",
            "group_id",
        )
        if name in found
    }
    read = ReadOptions(show_broker=True, given=given, **found)
    return ClusterOptions(access=access, read=read, **own)


def cluster_write_options(options: Mapping[str, str]) -> ClusterWriteOptions:
    """The options of a batch or stream writer.

    Raises:
        ConfigError: an unknown option or a wrong value.
    """
    options = _without_url(options, "topic")
    _refuse(options)
    table = {
        "topic": ("topic", lambda _name, text: text),
        "jobId": ("job_id", lambda _name, text: text),
        "sendTimeout": ("timeout_ms", lambda name, text: 1000 * seconds(name, text)),
    }
    found = parsed(options, {**table, **_ACCESS})
    return ClusterWriteOptions(access=_access(found), **found)


def _without_url(options: Mapping[str, str], topic_option: str) -> dict[str, str]:
    """The options with what a path ``namesrv://host:port/topic`` says as options.

    Raises:
        ConfigError: the path says something else, or an option says it, too.
    """
    found = dict(options)
    url = found.get("path", "")
    if url.startswith(("namesrv://", "namesrvs://")):
        try:
            access, topic = parse_namesrv_url(url)
        except ArgumentError as error:
            raise ConfigError("path", url, error.rule) from None
        del found["path"]
        said = {NAMESRV: access.namesrv_addr, topic_option: topic}
        for name in {name.lower() for name in found} & {name.lower() for name in said}:
            raise ConfigError(name, "...", f"{url} says it")
        found |= said | ({"tls": "true"} if access.tls else {})
    return found


def _refuse(options: Mapping[str, str]) -> None:
    names = {name.lower(): name for name in _ONLY_FILES}
    for key, text in options.items():
        if key.lower() in names:
            name = names[key.lower()]
            raise ConfigError(name, text, _ONLY_FILES[name])


def _access(found: dict[str, Any]) -> Access:
    """Take what says how the cluster is reached out of what was found."""
    names = ("namesrv_addr", "access_key", "secret_key", "tls", "tls_trust_cert_path")
    given = {name: found.pop(name) for name in names if name in found}
    access = Access(**given)
    try:
        access.name_servers  # noqa: B018 - what is wrong with them is said now
    except ArgumentError as error:
        raise ConfigError(NAMESRV, access.namesrv_addr, error.rule) from None
    access.signer()
    return access


def _text(_name: str, text: str) -> str:
    return text


def _group(name: str, text: str) -> str:
    try:
        check_name(name, text, GROUP_MAX)
    except ArgumentError as error:
        raise ConfigError(name, text, error.rule) from None
    return text


_ACCESS: Final = {
    NAMESRV: ("namesrv_addr", _text),
    "accessKey": ("access_key", _text),
    "secretKey": ("secret_key", _text),
    "tls": ("tls", flag),
    "tlsTrustCertPath": ("tls_trust_cert_path", _text),
}


def _offsets(name: str, text: str) -> str | QueueNumbers:
    if text.strip().lower() in ("earliest", "latest"):
        return text.strip().lower()
    rule = (
        'expected earliest, latest, or JSON such as {"TopicA": {"broker-a": {"0": 23, "1": -2}}}; '
        "the broker may be left out where a topic has only one"
    )
    return _numbers(name, text, rule, least=EARLIEST)


def _times(name: str, text: str) -> QueueNumbers:
    rule = 'expected JSON with Unix milliseconds: {"TopicA": {"broker-a": {"0": 1764000000000}}}'
    return _numbers(name, text, rule, least=0)


def _numbers(name: str, text: str, rule: str, *, least: int) -> QueueNumbers:
    found = []
    try:
        for topic, entries in json.loads(text).items():
            for key, value in entries.items():
                if isinstance(value, dict):
                    found += [(topic, key, _queue_id(each), n) for each, n in value.items()]
                else:
                    found.append((topic, None, _queue_id(key), value))
    except (ValueError, AttributeError):
        raise ConfigError(name, text, rule) from None
    if not all(type(number) is int and number >= least for _, _, _, number in found):
        raise ConfigError(name, text, rule)
    return tuple(found)


def _queue_id(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ValueError(text)
    return int(text)


def of_queues(
    name: str, numbers: QueueNumbers, queues: Mapping[MessageQueue, object]
) -> dict[MessageQueue, int]:
    """The numbers by queue.

    Args:
        name: of the option.
        numbers: what it says.
        queues: those that there are.

    Raises:
        ConfigError: a queue that there is not, or one of several brokers.
    """
    found = {}
    for topic, broker, queue_id, number in numbers:
        there = {queue.broker_name for queue in queues if queue.topic == topic}
        if broker is None and len(there) > 1:
            rule = f"say of which broker: {', '.join(sorted(there))}"
            raise ConfigError(f"{name}: {topic}", queue_id, rule)
        named = broker if broker is not None else next(iter(there), "")
        queue = MessageQueue(topic, named, queue_id)
        if queue not in queues:
            known = ", ".join(f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in sorted(queues))
            place = f"{topic}/{named or '?'}/{queue_id}"
            raise ConfigError(f"{name}: queue", place, f"there are {known or 'none that are read'}")
        found[queue] = number
    return found
