"""The store's mark: where log and queues ended, for an opening after files were lost.

Holds what no other file of the store tells. RocketMQ never reads it. Without it, or with one that
cannot be read, opening still works, but notices fewer losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rmqcore.errors import CorruptConfigFileError
from rmqcore.files.config_file import ConfigFile, sealed, unsealed
from rmqcore.files.store_dir import queue_id_of
from rmqcore.files.store_trace import Note, unnoted
from rmqcore.java.json import format_java_json, parse_java_json
from rmqcore.native.base._lock import ReentrantLock
from rmqcore.native.format._numbers import UNIT_SIZE

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rmqcore.files.store_dir import StoreDir

MARK_NAME = "storeMark.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OFFSET_MAX = 2**63 - 1
#: The largest end of a queue: a unit behind it would have no place in a file.
_END_MAX = _OFFSET_MAX // UNIT_SIZE
#: A directory's name has at most this many bytes.
_NAME_MAX = 255
QueueKey = tuple[str, int]


class StoreMark:
    """Ends of queues, how far a derivation is, and when the machine was started.

    Attributes:
        is_known: whether `load` has found a mark.
        log_end: physical offset; the log was on the disk up to here, and every queue.
        first_offset, first_timestamp_ms: physical offset and store time of the log's first record
            then, which tell whether the mark is of this log.
        ends: each queue's end then. A queue may be longer since, never shorter. What is not UTF-8
            is a directory's name, and no topic that a message can have; it is not written.
        batch_queues: those of them that are queues of stored batches.
        first_units: number of the first unit of those queues that looked then as if a file in front
            of it were missing; see `UnitFile.may_lack_first_file`. None where the mark does not
            say which.
        derive_from: physical offset from which an opening derives queues, and has not finished; -1
            when there is none: see `derive_again_from`.
        queues_from_before: queues that such an opening has found, damaged or not; None where nobody
            says which.
        doubted_from: physical offset from which the next opening compares queues with the log, as
            one was found damaged; -1 when there is none: see `doubt_from`.
        unsure_from: physical offset from which a crash may have left other bytes than were written;
            -1 when there was none, or all was compared with another copy since.
        without_index: whether who has the store open, or had it last, keeps no index.
        machine: which start of the machine, and which directory, the store was last opened in and
            found in order; empty when that is not known.

    Threads: `store` from any.
    Durability: disk when `store` returns.
    """

    def __init__(self, directory: StoreDir, note: Note = unnoted) -> None:
        self._commit_log = directory.commit_log
        self._check_there = directory.check_there
        self._note = note
        self._file = ConfigFile(directory.config / MARK_NAME, _decoded)
        self._lock = ReentrantLock()
        self._stored = ""
        self.is_known = False
        self.log_end = 0
        self.first_offset = 0
        self.first_timestamp_ms = 0
        self.ends: dict[QueueKey, int] = {}
        self.batch_queues: set[QueueKey] = set()
        self.first_units: dict[QueueKey, int] | None = None
        self.derive_from = self.doubted_from = self.unsure_from = -1
        self.queues_from_before: set[QueueKey] | None = None
        self.without_index = False
        self.machine = ""

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def discard_unfinished(self) -> None:
        """Remove what a kill has left of a `store`; not beside one."""
        self._file.discard_unfinished()

    def load(self) -> None:
        """Read the file; one that is missing or damaged says nothing."""
        content = None
        with suppress(CorruptConfigFileError):
            content = self._file.load()
        if content is None:
            return
        numbers, self.machine, self.ends, batches, self.first_units, before, self.without_index = (
            content
        )
        self.queues_from_before = None if before is None else set(before)
        self.ends |= batches
        self.batch_queues = set(batches)
        self.log_end, self.first_offset, self.first_timestamp_ms = numbers[:3]
        self.derive_from, self.unsure_from, self.doubted_from = numbers[3:]
        self._stored = self._text()
        self.is_known = True

    def shorten(self, log_end: int, ends: Mapping[QueueKey, int]) -> None:
        """Forget what lay behind the end of a log that has become shorter; `store` writes it.

        What is put there next has other numbers, and may be on no disk yet.

        Args:
            log_end: where the log ends.
            ends: where each queue ends.
        """
        self.log_end = log_end
        self.ends = {key: min(self.ends[key], ends[key]) for key in self.ends.keys() & ends}
        self.batch_queues &= self.ends.keys()

    def derive_again_from(self, offset: int, queues: Callable[[], Iterable[QueueKey]]) -> None:
        """Have queues derived from a place of the log on, until ``derive_from`` is -1 again.

        Args:
            offset: physical offset; an earlier one that is noted stays.
            queues: gives the queues that are there now, of which that stays known.

        Raises:
            OSError: as of `store`.
        """
        if not 0 <= self.derive_from <= offset:
            if self.derive_from < 0:
                self.queues_from_before = set(queues())
            self.derive_from = offset
            self.store()

    def doubt_from(self, offset: int) -> None:
        """Have queues compared with the log from a place on, until ``doubted_from`` is -1 again.

        Args:
            offset: physical offset; an earlier one that is noted stays.

        Raises:
            OSError: as of `store`.
        """
        with self._lock.within():
            if not 0 <= self.doubted_from <= offset:
                self.doubted_from = offset
                self.store()

    def changing(self) -> AbstractContextManager[object]:
        """While what belongs together changes, and is stored: others store all of it or nothing."""
        return self._lock.within()

    def store(self) -> None:
        """Write the file when anything has changed.

        Raises:
            OSError: it could not be written; the former one is still in place.
        """
        with self._lock.within():
            text = self._text()
            if text != self._stored:
                self._check_there()
                self._file.store(text)
                self._stored = text
                self._note("mark", len(self.ends), f"the log's end was {self.log_end}")

    def _text(self) -> str:
        batches = {key: end for key, end in self.ends.items() if key in self.batch_queues}
        plain = {key: end for key, end in self.ends.items() if key not in self.batch_queues}
        content = {
            "batchQueueEnds": _by_topic(batches),
            "deriveFrom": self.derive_from,
            "doubtedFrom": self.doubted_from,
            "firstOffset": self.first_offset,
            "firstTimestamp": self.first_timestamp_ms,
            "logEnd": self.log_end,
            "machine": self.machine,
            "queueEnds": _by_topic(plain),
            "unsureFrom": self.unsure_from,
        }
        if self.first_units is not None:
            content["firstUnits"] = _by_topic(self.first_units)
        if self.derive_from >= 0 and self.queues_from_before is not None:
            content["queuesFromBefore"] = _by_topic(dict.fromkeys(self.queues_from_before, 0))
        if self.without_index:
            content["withoutIndex"] = True
        return sealed(format_java_json(content))

    @property
    def is_of_this_machine(self) -> bool:
        """Whether the machine has been running since the store was last found in order."""
        return self.machine == self.this_machine() != ""

    def this_machine(self) -> str:
        """The ``machine`` of now; it changes when the machine is rebooted or the store is copied.

        Pages that were written live on in the kernel's memory as long as this stays the same,
        whatever happens to the process.
        """
        try:
            boot = _BOOT_ID.read_text("ascii").strip()
            place = self._commit_log.stat()
        except OSError:
            return ""
        return f"{boot}/{place.st_dev}/{place.st_ino}"


_Numbers = dict[QueueKey, int]
_Content = tuple[
    tuple[int, int, int, int, int, int],
    str,
    _Numbers,
    _Numbers,
    _Numbers | None,
    _Numbers | None,
    bool,
]


def _decoded(text: str) -> _Content:
    content = parse_java_json(unsealed(text))
    if not isinstance(content, dict):
        raise ValueError("the file is no object")  # noqa: TRY004 - the text is wrong, not a type
    numbers = (
        _number(content.get("logEnd", 0)),
        _number(content.get("firstOffset", 0)),
        _number(content.get("firstTimestamp", 0)),
        _number(content.get("deriveFrom", -1)),
        _number(content.get("unsureFrom", -1)),
        _number(content.get("doubtedFrom", -1)),
    )
    machine = str(content.get("machine", ""))
    ends, batch_ends = _ends(content, "queueEnds"), _ends(content, "batchQueueEnds")
    first_units, before = (
        _ends(content, name) if name in content else None
        for name in ("firstUnits", "queuesFromBefore")
    )
    without_index = content.get("withoutIndex") is True
    return numbers, machine, ends, batch_ends, first_units, before, without_index


def _ends(content: dict[str, object], name: str) -> dict[QueueKey, int]:
    topics = content.get(name, {})
    if not isinstance(topics, Mapping):
        raise ValueError(f"{name} is no object")  # noqa: TRY004 - the text is wrong, not a type
    ends = {}
    for topic, queues in topics.items():
        if "/" in topic or "\0" in topic or topic in ("", ".", "..") or _too_long(topic):
            raise ValueError(f"topic {topic!r} is no name")
        if not isinstance(queues, Mapping):
            raise ValueError(f"{name}: {topic} is no object")  # noqa: TRY004 - same
        for queue_id, end in queues.items():
            number = queue_id_of(str(queue_id))
            if number is None or not 0 <= _number(end) <= _END_MAX:
                raise ValueError(f"{name}: {topic}/{queue_id} cannot end at {end}")
            ends[topic, number] = end
    return ends


def _by_topic(numbers: _Numbers) -> dict[str, dict[int, int]]:
    """A number of each queue as the file has it: by queue id, by topic."""
    found: dict[str, dict[int, int]] = {}
    for (topic, queue_id), number in sorted(numbers.items()):
        if _is_text(topic):
            found.setdefault(topic, {})[queue_id] = number
    return found


def _is_text(topic: str) -> bool:
    """False where the file system's bytes are no UTF-8."""
    try:
        topic.encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_long(topic: str) -> bool:
    return len(topic.encode(errors="replace")) > _NAME_MAX


def _number(value: object) -> int:
    if type(value) is not int or not -1 <= value <= _OFFSET_MAX:
        raise ValueError(f"{value!r} is no offset")
    return value
