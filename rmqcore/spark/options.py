"""The options of ``format("rmq")``: their names, their grammar, and what was meant by a wrong one.

Names are those of Spark's Kafka source where it has them.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rmqcore.arguments import directory_path
from rmqcore.errors import ConfigError
from rmqcore.files.objects import is_url

#: (topic, queue id) -> queue offset
QueueOffsets = tuple[tuple[str, int, int], ...]
EARLIEST, LATEST = -2, -1
#: Of the numbers of a message, and of a queue.
_NUMBER_MAX, _QUEUE_ID_MAX = 2**63 - 1, 2**31 - 1
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read, and how; sizes in bytes, times in Unix milliseconds.

    Attributes:
        stores: (broker name, store directory).
        show_broker: add the column ``broker``.
        columns: names asked for, None for the default set.
        starting_offsets, ending_offsets: "earliest", "latest", or queue offsets.
        assign: topics, and the ids of their queues.
        starting_times, ending_times: Unix milliseconds of single queues.
        min_offsets_per_trigger: a trigger waits for this many, or ``max_trigger_delay_s``.
        archive: URL of the store's archive, which is read where retention has deleted.
        storage_options: with which archives are opened.
        verify_crc: "off", "fail", "flag"; None compares the bodies that are handed out.
    """

    stores: tuple[tuple[str, str], ...] = ()
    show_broker: bool = False
    columns: str | None = None
    topics: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    assign: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    queue_ids: tuple[int, ...] | None = None
    tags: tuple[str, ...] | None = None
    starting_offsets: str | QueueOffsets | None = None
    ending_offsets: str | QueueOffsets | None = None
    starting_phy_offset: int | None = None
    ending_phy_offset: int | None = None
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    starting_times: QueueOffsets | None = None
    ending_times: QueueOffsets | None = None
    starting_times_strategy: str = "error"
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_s: float = 900
    max_bytes_per_trigger: int | None = None
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    max_partition_bytes: int | None = None
    max_partition_records: int | None = None
    slots: int | None = None
    fail_on_data_loss: bool = True
    include_properties: bool = False
    include_uncommitted: bool = False
    decompress_body: bool = False
    verify_crc: str | None = None
    batch_rows: int = 8192
    batch_bytes: int = 16 << 20
    config: str | None = None
    archive: str | None = None
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    given: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where to append rows, and as what.

    Attributes:
        path: the store's directory; made when missing.
        topic: of rows without a topic of their own.
        queue_count: queues that rows without a queue id are spread over.
        job_id: appends of one job id happen once, however often the job is run.
        copy: rows are what another store has: delayed messages and those of a broker's own topics
            are appended as they are.
        lock_timeout_s: how long the commit waits for another writer's end.
        config: settings of the store, as for `open_store`.
    """

    path: str
    topic: str | None = None
    queue_count: int = 4
    job_id: str | None = None
    copy: bool = False
    lock_timeout_s: float = 60
    config: str | None = None


# ---- the grammar of values


def _whole(name: str, text: str, *, least: int = 0, most: int = _NUMBER_MAX) -> int:
    if not re.fullmatch(r"\d{1,19}", text.strip(), re.ASCII) or not least <= int(text) <= most:
        rule = f"expected a whole number, at least {least}"
        rule += f" and at most {most}" if text.strip().isdigit() and int(text) > most else ""
        raise ConfigError(name, text, rule)
    return int(text)


def _queue_id(text: str) -> int:
    """The id of a queue in JSON, which is a text there.

    Raises:
        ValueError: it is none.
    """
    return _whole("queue", text, most=_QUEUE_ID_MAX)


def _time(name: str, text: str) -> int:
    """Unix milliseconds: numbers that are seconds or microseconds of our days are refused."""
    time_ms = _whole(name, text)
    for low, high, unit, right in (
        (10**8, 10**11, "seconds", time_ms * 1000),
        (10**15, 10**18, "microseconds", time_ms // 1000),
        (10**18, 10**19, "nanoseconds", time_ms // 10**6),
    ):
        if low <= time_ms < high:
            rule = f"expected Unix milliseconds, and this looks like {unit}: did you mean {right}?"
            raise ConfigError(name, text, rule)
    return time_ms


def _size(name: str, text: str) -> int:
    match = re.fullmatch(r"(\d{1,18})\s*([kmgt]?)i?b?", text.strip().lower(), re.ASCII)
    if match is None or int(match[1]) == 0:
        raise ConfigError(name, text, "expected bytes, such as 67108864, 64m or 1g")
    return int(match[1]) * _UNITS[match[2]]


def seconds(name: str, text: str) -> float:
    """A time such as 60s, 500ms or 5min.

    Args:
        name: of the option, for errors.
        text: a number, and a unit; without one it is seconds.

    Raises:
        ConfigError: it is none.
    """
    match = re.fullmatch(r"(\d{1,7}(?:\.\d{1,3})?)\s*(s|ms|m|min)?", text.strip().lower(), re.ASCII)
    if match is None:
        raise ConfigError(name, text, "expected a time such as 60s, 500ms or 5min")
    return float(match[1]) * {None: 1, "s": 1, "ms": 0.001, "m": 60, "min": 60}[match[2]]


def flag(name: str, text: str) -> bool:
    """True or false.

    Args:
        name: of the option, for errors.
        text: ``true`` or ``false``; capitals do not matter.

    Raises:
        ConfigError: it is neither.
    """
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(name, text, "expected true or false")
    return text.strip().lower() == "true"


def _names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ConfigError(name, text, "expected names, separated by commas")
    return names


def _tags(name: str, text: str) -> tuple[str, ...]:
    tags = tuple(part.strip() for part in text.split("||") if part.strip())
    if not tags or "*" in tags:
        raise ConfigError(name, text, "expected tags such as TagA || TagB")
    return tags


def _queue_ids(name: str, text: str) -> tuple[int, ...]:
    return tuple(_whole(name, part, most=_QUEUE_ID_MAX) for part in _names(name, text))


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(name, text, f"expected a regular expression: {error}") from None
    return text


def _one_of(name: str, text: str, *, words: tuple[str, ...]) -> str:
    if text.strip().lower() not in words:
        raise ConfigError(name, text, f"expected one of {', '.join(words)}")
    return text.strip().lower()


def _job_id(name: str, text: str) -> str:
    if not re.fullmatch(r"[\w.-]{1,128}", text, re.ASCII):
        raise ConfigError(name, text, "expected letters, digits, and any of _ . -")
    return text


def _text(_name: str, text: str) -> str:
    return text


def named_offsets(offsets: str | QueueOffsets | None) -> set[int]:
    """The numbers that a JSON option gives queues; none for a word."""
    return set() if offsets is None or isinstance(offsets, str) else {o for _, _, o in offsets}


def _offsets(name: str, text: str) -> str | QueueOffsets:
    if text.strip().lower() in ("earliest", "latest"):
        return text.strip().lower()
    rule = 'expected earliest, latest, or JSON such as {"TopicA": {"0": 23, "1": -2}}'
    try:
        found = json.loads(text)
        offsets = tuple(
            (topic, _queue_id(queue_id), offset)
            for topic, queues in found.items()
            for queue_id, offset in queues.items()
        )
    except (ValueError, AttributeError):
        raise ConfigError(name, text, rule) from None
    if not all(
        type(offset) is int and EARLIEST <= offset <= _NUMBER_MAX for _, _, offset in offsets
    ):
        raise ConfigError(name, text, rule)
    return offsets


def _assigned(name: str, text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    rule = 'expected JSON such as {"TopicA": [0, 1], "TopicB": [2]}'
    try:
        found = tuple(
            (topic, tuple(sorted(set(queue_ids)))) for topic, queue_ids in json.loads(text).items()
        )
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(name, text, rule) from None
    ids = [queue_id for _, queue_ids in found for queue_id in queue_ids]
    if not ids or not all(
        type(queue_id) is int and 0 <= queue_id <= _QUEUE_ID_MAX for queue_id in ids
    ):
        raise ConfigError(name, text, rule)
    return tuple(sorted(found))


def _times(name: str, text: str) -> QueueOffsets:
    rule = 'expected JSON with Unix milliseconds, such as {"TopicA": {"0": 1764000000000}}'
    try:
        found = tuple(
            (topic, _queue_id(queue_id), time_ms)
            for topic, queues in json.loads(text).items()
            for queue_id, time_ms in queues.items()
        )
    except (ValueError, AttributeError):
        raise ConfigError(name, text, rule) from None
    for _, _, time_ms in found:
        if type(time_ms) is not int:
            raise ConfigError(name, text, rule)
        _time(name, str(time_ms))
    return found


def _storage_options(name: str, text: str) -> tuple[tuple[str, str], ...]:
    try:
        found = json.loads(text)
        if all(isinstance(value, str) for value in found.values()):
            return tuple(sorted(found.items()))
    except (ValueError, AttributeError):
        pass
    # the text is not shown: there are credentials in it
    raise ConfigError(name, ..., 'expected JSON such as {"aws_endpoint_url": "http://..."}')


_count = partial(_whole, least=1)
#: reads a value, given the name of its option
Parser = Callable[[str, str], Any]
_READ: dict[str, tuple[str, Parser]] = {
    "columns": ("columns", _text),
    "topics": ("topics", _names),
    "subscribe": ("topics", _names),
    "subscribePattern": ("topic_pattern", _pattern),
    "assign": ("assign", _assigned),
    "queueIds": ("queue_ids", _queue_ids),
    "tags": ("tags", _tags),
    "startingOffsets": ("starting_offsets", _offsets),
    "endingOffsets": ("ending_offsets", _offsets),
    "startingPhyOffset": ("starting_phy_offset", _whole),
    "endingPhyOffset": ("ending_phy_offset", _whole),
    "startingTimestamp": ("starting_timestamp", _time),
    "endingTimestamp": ("ending_timestamp", _time),
    "startingOffsetsByTimestamp": ("starting_times", _times),
    "endingOffsetsByTimestamp": ("ending_times", _times),
    "startingOffsetsByTimestampStrategy": (
        "starting_times_strategy",
        partial(_one_of, words=("error", "latest")),
    ),
    "minOffsetsPerTrigger": ("min_offsets_per_trigger", _count),
    "maxTriggerDelay": ("max_trigger_delay_s", seconds),
    "maxBytesPerTrigger": ("max_bytes_per_trigger", _size),
    "maxOffsetsPerTrigger": ("max_offsets_per_trigger", _count),
    "minPartitions": ("min_partitions", _count),
    "maxPartitionBytes": ("max_partition_bytes", _size),
    "maxRecordsPerPartition": ("max_partition_records", _count),
    "slots": ("slots", _count),
    "failOnDataLoss": ("fail_on_data_loss", flag),
    "includeProperties": ("include_properties", flag),
    "includeUncommitted": ("include_uncommitted", flag),
    "decompressBody": ("decompress_body", flag),
    "verifyCrc": ("verify_crc", partial(_one_of, words=("off", "fail", "flag"))),
    "batchRows": ("batch_rows", _count),
    "batchBytes": ("batch_bytes", _size),
    "config": ("config", _text),
    "archive": ("archive", _text),
    "storageOptions": ("storage_options", _storage_options),
}
_WRITE: dict[str, tuple[str, Parser]] = {
    "topic": ("topic", _text),
    "queueCount": ("queue_count", _count),
    "jobId": ("job_id", _job_id),
    "copy": ("copy", flag),
    "lockTimeout": ("lock_timeout_s", seconds),
    "config": ("config", _text),
}
#: At most one of these attributes may be given.
_EXCLUSIVE = (
    ("topics", "topic_pattern"),
    ("topics", "assign"),
    ("topic_pattern", "assign"),
    ("queue_ids", "assign"),
    ("max_bytes_per_trigger", "max_offsets_per_trigger"),
    ("starting_offsets", "starting_times"),
    ("starting_timestamp", "starting_times"),
    ("ending_offsets", "ending_times"),
)
#: Options that `_stores` reads; `_SPARKS_OWN` are those that Spark adds for a writer of streams.
_PLACES = ("path", "paths", "broker")
_SPARKS_OWN = ("checkpointlocation", "queryname", "triggerinterval")


# ---- reading them


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a batch or stream reader.

    Raises:
        ConfigError: an unknown option, a wrong value, or two that contradict each other.
    """
    found = parsed(options, _READ)
    check_exclusive(found)
    stores = _stores(options)
    if "archive" in found and (len(stores) > 1 or is_url(stores[0][1])):
        raise ConfigError("archive", found["archive"], "expected one store, in a directory")
    return ReadOptions(
        stores=stores,
        show_broker="broker" in options or len(stores) > 1,
        given=frozenset(found),
        **found,
    )


def check_exclusive(found: Mapping[str, Any]) -> None:
    """Refuse options of a reader that contradict each other.

    Raises:
        ConfigError: two of them do.
    """
    for one, other in _EXCLUSIVE:
        if one in found and other in found:
            names = {attribute: name for name, (attribute, _) in reversed(_READ.items())}
            raise ConfigError(names[other], found[other], f"give it or {names[one]}, not both")
    if found.get("min_offsets_per_trigger", 0) > found.get("max_offsets_per_trigger", 2**63):
        raise ConfigError(
            "minOffsetsPerTrigger",
            found["min_offsets_per_trigger"],
            "expected no more than maxOffsetsPerTrigger",
        )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a batch or stream writer.

    Raises:
        ConfigError: an unknown option or a wrong value.
    """
    found = parsed(options, _WRITE)
    stores = _stores(options)
    if len(stores) != 1 or "broker" in options or is_url(stores[0][1]):
        raise ConfigError("path", [path for _, path in stores], "expected one store to append to")
    return WriteOptions(path=stores[0][1], **found)


def read_parsers() -> dict[str, tuple[str, Parser]]:
    """The options of a reader: attribute of `ReadOptions`, and what reads the value."""
    return dict(_READ)


def parsed(options: Mapping[str, str], table: Mapping[str, tuple[str, Parser]]) -> dict[str, Any]:
    """Values of options by attribute.

    Args:
        options: text by name; capitals do not matter. Those of places and Spark's own are passed
            over.
        table: (attribute, what reads the text) by name.

    Raises:
        ConfigError: an unknown option, a wrong value, or one given twice.
    """
    names = {name.lower(): name for name in table}
    found: dict[str, Any] = {}
    for key, text in options.items():
        if key.lower() in (*_PLACES, *_SPARKS_OWN):
            continue
        name = names.get(key.lower())
        if name is None:
            raise unknown("option", key, [*table, "path", "broker"])
        attribute, parse = table[name]
        if attribute in found:
            raise ConfigError(name, text, "it was given twice, once by its other name")
        found[attribute] = parse(name, str(text))
    return found


def _stores(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if "path" in options:
        paths = [options["path"]]
    else:
        paths = json.loads(options["paths"]) if "paths" in options else []
    if not paths:
        raise ConfigError("path", "", "give the store's directory: .load(path)")
    paths = [_local(path) for path in paths]
    if "broker" in options:
        brokers = _names("broker", options["broker"])
    else:
        brokers = tuple(Path(path).name for path in paths)
    if len(set(brokers)) != len(paths):
        raise ConfigError(
            "broker", ",".join(brokers), f"expected {len(paths)} different names, one for each path"
        )
    return tuple(zip(brokers, paths, strict=True))


def _local(path: str) -> str:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", path)
    if scheme and scheme[1].lower() != "file":
        if is_url(path):
            return path.rstrip("/")
        rule = "expected a directory that driver and executors have mounted, or an archive's URL"
        raise ConfigError("path", path, rule)
    plain = re.sub(r"^file:(//)?", "", path) if scheme else path
    return str(directory_path("path", plain).absolute())


def unknown(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that nothing has, with the nearest one that something has.

    Args:
        kind: what it is the name of: ``option``, ``column``.
        name: as it was given.
        known: all that would be accepted; at least one.

    Returns:
        it is not raised here.
    """
    right = {name.lower(): name for name in known}
    near = difflib.get_close_matches(name.lower(), right, n=1, cutoff=0.4)
    hint = f"did you mean {right[near[0]]}?" if near else f"there are {', '.join(right.values())}"
    return ConfigError(kind, name, f"unknown; {hint}")
