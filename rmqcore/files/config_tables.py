"""What the tables below ``config/`` have in common, and that of topics; others have own files.

Each is read whole, changed in memory, and written whole in RocketMQ's shape; unknown fields stay.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from rmqcore.arguments import text
from rmqcore.errors import MessageIllegalError
from rmqcore.files.config_file import ConfigFile
from rmqcore.files.entry_texts import EntryTexts
from rmqcore.files.topic_check import checked_topic
from rmqcore.java.json import format_java_json, parse_java_json
from rmqcore.native.base._lock import ReentrantLock

TOPIC_NAME_MAX: Final = 127
DERIVED_TOPIC_NAME_MAX: Final = 255
_DERIVED_PREFIXES: Final = ("%RETRY%", "%DLQ%")
_TOPIC_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
OFFSET_MAX: Final = 2**63 - 1
QUEUE_ID_MAX: Final = 2**31 - 1
#: Every broker of RocketMQ has these topics, so a table with one of them lists all topics.
BROKERS_OWN: Final = frozenset(("SELF_TEST_TOPIC", "TBW102", "OFFSET_MOVED_EVENT"))
#: A field of our own: the version of the master's table that a slave has taken over.
_FOLLOWED: Final = "followedVersion"
#: Another one: entries that a table which was begun anew did not have.
_KEPT: Final = "keptOfFollowed"
#: A third one: when a master's table was begun, which its slaves take over with it.
BEGUN: Final = "tableBegun"


def check_topic_name(topic: str, what: str = "topic") -> None:
    """Refuse a name under which no topic can be created; ``what`` says whose name it is.

    Args:
        topic: the name.
        what: whose name it is, also for errors: a topic's, or a group's.

    Raises:
        MessageIllegalError: the name is empty, longer than 127 (retry and dead-letter topics:
            255), or has a character other than letters, digits, ``%``, ``|``, ``_`` and ``-`` (so
            it cannot be a path).

    Source: RocketMQ common/topic/TopicValidator.java, validateTopic.
    """
    # a group has a retry topic and a dead-letter topic of its own, whatever it is called
    derived = what == "topic" and topic.startswith(_DERIVED_PREFIXES)
    longest = DERIVED_TOPIC_NAME_MAX if derived else TOPIC_NAME_MAX
    if len(topic) > longest:
        raise MessageIllegalError(f"{what} of {len(topic)} characters: at most {longest} fit")
    if not _TOPIC_NAME.fullmatch(topic):
        raise MessageIllegalError(
            f"{what} {topic!r}: only letters, digits, %, |, _ and - are accepted, at least one"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One topic. Source: RocketMQ common/TopicConfig.java."""

    #: its name.
    topic_name: str
    #: queues that consumers read, 0 to ``read_queue_nums - 1``.
    read_queue_nums: int = 8
    #: queues that producers write.
    write_queue_nums: int = 8
    #: permission bits, as on disk: 8 priority, 4 read, 2 write, 1 inherit.
    perm: int = 6
    #: "SINGLE_TAG" or "MULTI_TAG".
    topic_filter_type: str = "SINGLE_TAG"
    #: bits for system topics: 1 unit, 2 unit subscription.
    topic_sys_flag: int = 0
    #: whether the topic keeps its queues in order across brokers.
    order: bool = False
    #: ``queue.type``, ``cleanup.policy``, ``message.type``, ``reserve.time``; without a plus sign.
    attributes: Mapping[str, str] = field(default_factory=dict)
    #: fields of other releases, kept as they are.
    other: Mapping[str, object] = field(default_factory=dict)

    def to_java(self) -> dict[str, object]:
        """The object as it stands in ``topics.json``, fields in alphabetical order."""
        known = {java: getattr(self, name) for java, name in _TOPIC_FIELDS.items()}
        return dict(sorted({**self.other, **known}.items()))

    @classmethod
    def from_java(cls, name: str, entry: object) -> Self:
        """Read an entry of ``topics.json``.

        Args:
            name: of the topic, by which it stands in the file.
            entry: the JSON object that stands there; fields that nobody knows are kept in
                ``other``.

        Raises:
            ValueError: it is no object, or a field has a wrong type.
        """
        values = dict(mapping(f"topic {name}", entry))
        known: dict[str, Any] = {"topicName": name}
        for java, own in _TOPIC_FIELDS.items():
            value = values.pop(java, None)
            if value is None or java == "topicName":
                continue
            if type(value) is not _TOPIC_TYPES[own]:
                raise ValueError(f"topic {name}: {java}={value!r}")
            known[java] = value
        return cls(**{_TOPIC_FIELDS[java]: value for java, value in known.items()}, other=values)


_TOPIC_FIELDS: Final = {
    "attributes": "attributes",
    "order": "order",
    "perm": "perm",
    "readQueueNums": "read_queue_nums",
    "topicFilterType": "topic_filter_type",
    "topicName": "topic_name",
    "topicSysFlag": "topic_sys_flag",
    "writeQueueNums": "write_queue_nums",
}
_TOPIC_TYPES: Final = {
    "attributes": dict,
    "order": bool,
    "perm": int,
    "read_queue_nums": int,
    "topic_filter_type": str,
    "topic_sys_flag": int,
    "write_queue_nums": int,
}


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Tells two states of a table apart. Source: RocketMQ remoting/protocol/DataVersion.java."""

    #: changes since the table was new.
    counter: int = 0
    #: Unix time of the last change, milliseconds.
    timestamp_ms: int = 0
    #: epoch of the controller; 0 without one.
    state_version: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """The version after one more change; the last one that a file can hold is its own next."""
        return DataVersion(min(self.counter + 1, OFFSET_MAX), now_ms, self.state_version)

    def to_java(self) -> dict[str, object]:
        """The object as it stands in the files."""
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }

    @classmethod
    def from_java(cls, entry: object) -> DataVersion:
        """Read the object; one that is missing, as in files of 4.x, is version 0."""
        values = mapping("dataVersion", entry)
        return cls(
            counter=_integer("counter", values.get("counter", 0)),
            timestamp_ms=_integer("timestamp", values.get("timestamp", 0)),
            state_version=_integer("stateVersion", values.get("stateVersion", 0)),
        )


class ConfigTable:
    """A table in memory and its file.

    - ``persist`` writes only when something changed since the last write.
    - A change during ``persist`` is never lost: it makes the table dirty again.

    Attributes:
        ahead: called between taking the content and writing it, so that what the content relies on
            reaches the disk first; None for nothing. An OSError of it keeps the former file.
        check_there: raises when another store's file has its name, before that is written over.

    Threads: any; one lock a table.
    Durability: disk when ``persist`` returns.
    """

    file_name: ClassVar[str]

    def __init__(self, directory: Path, *, clock: Callable[[], int]) -> None:
        """Read the table of a store; without a file it is empty.

        Args:
            directory: the store's ``config`` folder.
            clock: Unix time in milliseconds.

        Raises:
            CorruptConfigFileError: the file and its backup can both not be read.
        """
        self.data_version = DataVersion()
        self._clock = clock
        self._lock = ReentrantLock()
        self._persist_lock = ReentrantLock()
        self._changed = False
        self.ahead: Callable[[], object] | None = None
        self.check_there: Callable[[], object] = bool
        self._other: dict[str, object] = {}
        decode = _decoded_by(self._decode)
        self._file = ConfigFile(directory / self.file_name, decode, self._check_there)
        #: the version that the master's table had when it was taken over; None when none was
        self._followed: DataVersion | None = None
        #: what the master had before it lost its table, and has not told again
        self._kept: frozenset[str] = frozenset()
        #: when the table was begun, here or where it was taken over from; None: nobody says
        self.begun_ms: int | None = None
        content = self._file.load()
        #: False where the file was lost, or never a broker's, or one of before is in its place:
        #: changes may lack
        self.is_whole = self._file.is_newest
        if content is not None:
            self._other, self.data_version = content[0], content[1]
            if (followed := self._other.pop(_FOLLOWED, None)) is not None:
                self._followed = DataVersion.from_java(followed)
            kept = self._other.pop(_KEPT, None)
            self._kept = frozenset(map(str, kept if isinstance(kept, list) else ()))
            self.begun_ms = _begun_in(self._other)
            if self.begun_ms is not None:
                # RocketMQ writes a table anew that has not changed
                self.is_whole &= not self._file.is_as_backup()
            self.is_whole &= self._is_of_a_broker(content[2])
            self._install(content[2])

    @property
    def path(self) -> Path:
        """The file of the table."""
        return self._file.path

    def discard_unfinished(self) -> None:
        """Remove what a kill has left of a `persist`; only for the store's writer."""
        self._file.discard_unfinished()

    @property
    def changed(self) -> bool:
        """Whether there is anything to persist."""
        return self._changed

    @property
    def follows(self) -> bool:
        """Whether this is the table of a broker that takes another's over."""
        return self._followed is not None

    @property
    def is_of_a_leader(self) -> bool:
        """Whether a broker has led with it: this one, or the one that it was taken over from."""
        return self.begun_ms is not None or self._followed not in (None, DataVersion())

    def follow(self) -> None:
        """Note, with the next `persist`, that another broker's table is to be taken over."""
        with self._lock.within():
            if self._followed is None:
                self._followed, self._changed = DataVersion(), True

    def lead(self) -> None:
        """Note, with the next `persist`, when the table was begun, for others that take it over.

        They tell it by that from one that takes its place when it is lost.
        """
        with self._lock.within():
            if self.begun_ms is None:
                self.begun_ms, self._changed = max(1, self._clock()), True

    def begin(self) -> None:
        """Have the next `persist` write the file if there is none, even of an empty table."""
        with self._lock.within():
            self._changed |= not self.path.exists()

    def _check_there(self) -> None:
        self.check_there()

    def persist(self) -> bool:
        """Write the table if it changed, or `begin` found no file.

        Returns:
            Whether anything was written.

        Raises:
            OSError: the file could not be written; the former one is still in place.
        """
        with self._persist_lock.within():
            try:
                with self._lock.within():
                    if not self._changed:
                        return False
                    self.data_version = self.data_version.next(self._clock())
                    self._changed = False
                    text = self.to_text()
                if self.ahead is not None:
                    self.ahead()
                self._file.store(text)
            except BaseException:
                # the disk refuses, or a signal handler has raised
                self._changed = True
                raise
            return True

    def persist_removal(self) -> None:
        """As `persist`, in the backup, too: it would bring back what was removed.

        Raises:
            OSError: it could not be written; the former file is still in place, or its backup.
        """
        if self.persist():
            self._changed = True
            self.persist()

    def to_text(self) -> str:
        """The file's content as it would be written now."""
        return self._text({})

    def _text(self, besides: Mapping[str, object]) -> str:
        version = self.data_version.to_java()
        content = {**self._other, **self._encode(), **besides, "dataVersion": version}
        if self._followed is not None:
            content[_FOLLOWED] = self._followed.to_java()
        if self._kept:
            content[_KEPT] = sorted(self._kept)
        content |= self.told_begin()
        return format_java_json(dict(sorted(content.items())))

    def told_begin(self) -> dict[str, object]:
        """When the table was begun, as a member of what others are told; empty: nobody says."""
        return {} if self.begun_ms is None else {BEGUN: self.begun_ms}

    def adopt(
        self,
        text: str,
        keep: Callable[[str], bool] = lambda _: False,
        counts: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Take over a table that another broker has told, in the form of the file.

        One that is empty, or of a lower version than was taken over before, or that was begun at
        another time, is that of a broker that has lost its own: it takes nothing away. What it does
        not have stays here also when its version has grown, until it has had it again.

        Args:
            text: the table.
            keep: tells of a topic, or a group, that is not in it that it stays.
            counts: asked while nobody changes this table: False takes nothing over.

        Returns:
            Whether that changed anything.

        Raises:
            ValueError: it is no such table; nothing was changed.
        """
        besides, version, told = _decoded_by(self._decode)(text)
        told, begun_ms = self._fitted(told), _begun_in(besides)
        with self._lock.within():
            if not counts():
                return False
            before, followed = self._content(), self._followed or DataVersion()
            names, kept = self._names(told), self._kept
            another = None not in (begun_ms, self.begun_ms) and begun_ms != self.begun_ms
            if another or version.counter < followed.counter or self._is_empty(told):
                self._kept = (kept | self._names_here()) - names
                self._install(self._with(told))
            else:
                self._kept = kept - names
                self._install(self._followed_by(told, lambda name: name in kept or keep(name)))
            self._followed = version
            self._changed |= self._kept != kept
            if begun_ms is not None:
                self._changed |= begun_ms != self.begun_ms
                self.begun_ms = begun_ms
            self._adopt_besides(besides)
            changed = self._content() != before
            if changed:
                # a slave of this broker, once it is a master, must not see a lower version either
                counter = max(self.data_version.counter, version.counter)
                self.data_version = dataclasses.replace(self.data_version, counter=counter)
                self._changed = True
            return changed

    def _adopt_besides(self, besides: dict[str, object]) -> None:
        """Take over what another broker has told beside its table; see `adopt`."""

    @classmethod
    def check(cls, text: str) -> None:
        """Look whether the text of a file is that of such a table.

        Raises:
            ValueError: it says what is wrong.
        """
        _decoded_by(cls._decode)(text)

    def _fitted(self, told: Any) -> Any:
        """What can be taken over of another broker's table."""
        return told

    @staticmethod
    def _names(table: Any) -> frozenset[str]:
        """The topics, or groups, of a table; none where single entries are not kept."""
        return frozenset()

    def _names_here(self) -> frozenset[str]:
        """The same, of this one."""
        return frozenset()

    def _followed_by(self, told: Any, keep: Callable[[str], bool]) -> Any:
        """The table when another broker's was taken over; see `adopt`."""
        return told

    def _with(self, told: Any) -> Any:
        """This table with what another broker's has."""
        raise NotImplementedError

    @staticmethod
    def _is_empty(told: Any) -> bool:
        return not told

    def _is_of_a_broker(self, told: Any) -> bool:
        """Whether what the file has may be all that a broker had."""
        return not self._is_empty(told)

    @staticmethod
    def _decode(content: dict[str, object]) -> object:
        """Take this table's fields out of the file's content; ValueError when they are wrong."""
        raise NotImplementedError

    def _install(self, table: Any) -> None:
        """Make what `_decode` returned the table."""
        raise NotImplementedError

    def _encode(self) -> dict[str, object]:
        """This table's fields of the file's content."""
        raise NotImplementedError

    def _content(self) -> object:
        """What tells whether a table that was taken over has changed this one; never changed."""
        return self._encode()


class TopicConfigTable(ConfigTable):
    """``topics.json``; `on_put` hears of each new entry. Source: RocketMQ TopicConfigManager."""

    file_name = "topics.json"

    def __init__(self, directory: Path, *, clock: Callable[[], int]) -> None:
        """See `ConfigTable`."""
        self._topics: dict[str, TopicConfig] = {}
        self._texts = EntryTexts(TopicConfig.to_java)
        self.on_put: Callable[[TopicConfig], None] = lambda _: None
        super().__init__(directory, clock=clock)

    def get(self, topic: str) -> TopicConfig | None:
        """The configuration of a topic; None when there is none."""
        return self._topics.get(text("topic", topic))

    def put(self, config: TopicConfig) -> None:
        """Create or replace a topic.

        Raises:
            MessageIllegalError: see `check_topic_name`.
            ArgumentError: a field is nothing that the file can hold.
        """
        config = checked_topic(config)
        check_topic_name(config.topic_name)
        with self._lock.within():
            self._topics[config.topic_name] = config
            self._changed = True
        self.on_put(config)

    def remove(self, topic: str) -> bool:
        """Forget a topic; returns whether it was there."""
        topic = text("topic", topic)
        with self._lock.within():
            known = self._topics.pop(topic, None) is not None
            self._changed |= known
            return known

    def __iter__(self) -> Iterator[TopicConfig]:
        # as they are now: another thread may put one meanwhile
        return iter(list(self._topics.values()))

    def __len__(self) -> int:
        return len(self._topics)

    @staticmethod
    def _decode(content: dict[str, object]) -> dict[str, TopicConfig]:
        entries = mapping("topicConfigTable", content.pop("topicConfigTable", {}))
        for name in entries:
            _refuse_path(name)
        return {name: TopicConfig.from_java(name, entry) for name, entry in entries.items()}

    def _install(self, table: dict[str, TopicConfig]) -> None:
        self._topics = table

    def _is_of_a_broker(self, told: dict[str, TopicConfig]) -> bool:
        return not BROKERS_OWN.isdisjoint(told)

    @staticmethod
    def _names(table: dict[str, TopicConfig]) -> frozenset[str]:
        return frozenset(table)

    def _names_here(self) -> frozenset[str]:
        return frozenset(self._topics)

    def _followed_by(
        self, told: dict[str, TopicConfig], keep: Callable[[str], bool]
    ) -> dict[str, TopicConfig]:
        mine = {name: topic for name, topic in list(self._topics.items()) if name not in told}
        return {**{name: topic for name, topic in mine.items() if keep(name)}, **told}

    def _with(self, told: dict[str, TopicConfig]) -> dict[str, TopicConfig]:
        return {**self._topics, **told}

    def _encode(self) -> dict[str, object]:
        return {"topicConfigTable": self._texts.table(self._topics)}

    def _content(self) -> object:
        return self._topics


_Content = tuple[dict[str, object], DataVersion, object]


def _decoded_by(decode: Callable[[dict[str, object]], object]) -> Callable[[str], _Content]:
    """Make a whole-file decoder of a table's: (other fields, version, table)."""

    def decode_text(text: str) -> _Content:
        content = dict(mapping("the file", parse_java_json(text)))
        version = DataVersion.from_java(content.pop("dataVersion", None) or {})
        table = decode(content)
        return content, version, table

    return decode_text


def mapping(name: str, value: object) -> Mapping[str, Any]:
    """What has to be an object of the file; ValueError names what is none.

    Args:
        name: what errors call it.
        value: as JSON gave it.

    Raises:
        ValueError: it is no object.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no object")  # noqa: TRY004 - the text is wrong, not a type
    return value


def _integer(name: str, value: object, *, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= OFFSET_MAX:
        raise ValueError(f"{name}={value!r} is no number from {least} to {OFFSET_MAX}")
    return value


def _begun_in(content: dict[str, object]) -> int | None:
    """Take out of a table when it was begun; None where it does not say."""
    found = content.pop(BEGUN, None)
    return found if type(found) is int and 0 < found <= OFFSET_MAX else None


def numbered_offsets(name: str, value: object) -> dict[int, int]:
    """Offsets by an integer key: a queue id or a delay level.

    Args:
        name: what errors call the object.
        value: a JSON object of offsets; its keys are at most ten digits.

    Returns:
        offset by number.

    Raises:
        ValueError: it is none; the text names what is wrong.
    """
    offsets = {}
    for key, offset in mapping(name, value).items():
        if not re.fullmatch(r"\d{1,10}", key, re.ASCII):
            raise ValueError(f"{name}: {key!r} is no number")
        offsets[int(key)] = _integer(f"{name}: {key}", offset, least=-OFFSET_MAX)
    return offsets


def _refuse_path(name: str) -> None:
    if "/" in name or "\0" in name or name in ("", ".", ".."):
        raise ValueError(f"topic {name!r} is no name")
