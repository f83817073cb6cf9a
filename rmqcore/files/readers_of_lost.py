"""``config/readersOfLost.json``: where queues ended of a log that may have been longer.

A broker sends on who comes from behind such an end: what was read there is lost, and its place is
given to other messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from rmqcore.files.config_file import ConfigFile
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.java.json import format_compact_java_json, parse_java_json

READERS_OF_LOST_NAME: Final = "readersOfLost.json"
_READERS: Final = "readers"
_UNKNOWN: Final = "unknownGroups"
_SERVING: Final = "serving"
_LOG_END: Final = "logEnd"
_DELETIONS_END: Final = "deletionsEnd"
_FOUND_END: Final = "foundEnd"

#: Group, topic and queue id.
ReadQueue: TypeAlias = tuple[str, str, int]


@dataclass(slots=True)
class ReadersOfLost:
    """What the file says.

    Attributes:
        ends: by group and queue, where groups that have offsets are sent that come from behind.
        unknown_groups: by an empty name and the queue, the same for groups that have none; under
            their own names, with a negative number, stand those that have come since.
        was_serving: whether a master that served the store last did not end in order; None: none
            did.
        log_end: physical offset where the log ended when that master did, in order, or which it
            had reached when it did not; where a slave's ended when it was opened first as no
            slave's; below 0: the log was cut since; None: not known.
        deletions_end: physical offset of the last deletion of a topic that it knew; None: not
            known.
        found_end: physical offset where the log ended when it was opened first behind that, or
            behind a slave, if it may have lost its end; None: it has not, or was not opened since.
    """

    ends: dict[ReadQueue, int] = field(default_factory=dict)
    unknown_groups: dict[ReadQueue, int] = field(default_factory=dict)
    was_serving: bool | None = None
    log_end: int | None = None
    deletions_end: int | None = None
    found_end: int | None = None

    def note_cut(
        self, ends: Mapping[tuple[str, int], int], readers: Iterable[tuple[str, str, int]]
    ) -> None:
        """Note where queues end behind which the log is cut; the lower of two ends counts.

        Args:
            ends: by topic and queue id.
            readers: groups that have offsets, and of which queues: topic, group and queue id.
        """
        self.log_end = -1
        known = ((group, topic, queue_id) for topic, group, queue_id in readers)
        for key in (*known, *(key for key in self.unknown_groups if key[0])):
            if (end := ends.get(key[1:])) is not None:
                self.ends[key] = min(end, self.ends.get(key, end))
        for (topic, queue_id), end in ends.items():
            of_all = "", topic, queue_id
            self.unknown_groups[of_all] = min(end, self.unknown_groups.get(of_all, end))

    def note_begin(self, topic: str, queue_id: int) -> None:
        """Note that a queue begins anew: all groups come to its first message.

        Args:
            topic: that was deleted and made again.
            queue_id: of the queue.
        """
        for ends in (self.ends, self.unknown_groups):
            for key in [key for key in ends if key[1:] == (topic, queue_id)]:
                del ends[key]
        self.unknown_groups["", topic, queue_id] = 0


class ReadersOfLostFile:
    """The file.

    Threads: one caller at a time.
    Durability: disk when `store` returns.

    Args:
        folder: the store's ``config`` folder.
        check_there: raises when it is another store's.
    """

    def __init__(self, folder: Path, check_there: Callable[[], object] = bool) -> None:
        self._file = ConfigFile(folder / READERS_OF_LOST_NAME, _readers_in, check_there)

    def load(self) -> ReadersOfLost:
        """Read it; one that is missing says nothing.

        Raises:
            CorruptConfigFileError: it cannot be read.
        """
        return self._file.load() or ReadersOfLost()

    def store(self, readers: ReadersOfLost) -> None:
        """Replace it.

        Raises:
            OSError: it cannot be written.
        """
        content: dict[str, object] = {_READERS: by_topic(readers.ends)}
        if readers.unknown_groups:
            content[_UNKNOWN] = by_topic(readers.unknown_groups)
        if readers.was_serving is not None:
            content[_SERVING] = readers.was_serving
        if readers.log_end is not None:
            content[_LOG_END] = readers.log_end
        if readers.deletions_end is not None:
            content[_DELETIONS_END] = readers.deletions_end
        if readers.found_end is not None:
            content[_FOUND_END] = readers.found_end
        self._file.store(format_compact_java_json(content))


def begin_groups_anew(
    folder: Path, queues: Collection[tuple[str, int]], clock: Callable[[], int]
) -> None:
    """Let groups begin with queues of topics that were made again.

    Args:
        folder: the ``config`` folder of a store that nobody has open.
        queues: by topic and queue id.
        clock: Unix time in milliseconds.

    Raises:
        OSError, CorruptConfigFileError: it cannot be written, or read.
    """
    file = ReadersOfLostFile(folder)
    readers = file.load()
    for queue in queues:
        readers.note_begin(*queue)
    # first, as a broker has it: offsets that are gone rely on where groups begin
    file.store(readers)
    offsets = ConsumerOffsetTable(folder, clock=clock)
    for queue in queues:
        offsets.forget_queue(*queue)
    offsets.persist_removal()


def note_found_end(
    folder: Path, log_end: int, marked_end: int | None = None, *, was_slaves: bool = False
) -> None:
    """Note where a log ends that a broker has served, when it may have lost its end since.

    Whoever opens it puts others in the places of what is lost, maybe before the broker comes.

    Args:
        folder: the store's ``config`` folder.
        log_end: physical offset.
        marked_end: physical offset which the log had reached before; None: not known.
        was_slaves: whether it was a slave's, and is none any more: groups may have read at its
            master what it lacks, until it has led itself.

    Raises:
        OSError, CorruptConfigFileError: it cannot be written, or read.
    """
    file = ReadersOfLostFile(folder)
    readers = file.load()
    noted = replace(readers)
    # its tables say so for ever; where it has led since it knows itself where its log ended
    was_slaves &= readers.was_serving is None
    may_be_shorter = was_slaves or readers.was_serving or (readers.log_end or 0) > log_end
    if may_be_shorter and (readers.found_end is None or log_end < readers.found_end):
        noted.found_end = log_end
    if readers.log_end is None and was_slaves:
        # an older end may have been found, beyond which nobody comes any more
        noted.log_end = log_end
    elif readers.log_end is None and readers.was_serving and marked_end is not None:
        # what lies behind it may be another broker's, which tells of no deletion
        noted.log_end = min(marked_end, log_end)
    if noted != readers:
        file.store(noted)


def _readers_in(text: str) -> ReadersOfLost:
    """Read the file.

    Raises:
        ValueError: it is none.
    """
    content = parse_java_json(text)
    if not isinstance(content, dict):
        raise ValueError("it does not say who has read what is lost")  # noqa: TRY004 - the text is
    serving, log_end = content.get(_SERVING), content.get(_LOG_END)
    deletions_end, found_end = content.get(_DELETIONS_END), content.get(_FOUND_END)
    return ReadersOfLost(
        offsets_in(content.get(_READERS)),
        offsets_in(content.get(_UNKNOWN)),
        None if serving is None else bool(serving),
        log_end if type(log_end) is int else None,
        deletions_end if type(deletions_end) is int else None,
        found_end if type(found_end) is int else None,
    )


def by_topic(offsets: Mapping[ReadQueue, int]) -> dict[str, dict[str, dict[int, int]]]:
    """Offsets by topic, group and queue id, as they are written and told."""
    table: dict[str, dict[str, dict[int, int]]] = {}
    for (group, topic, queue_id), offset in offsets.items():
        table.setdefault(topic, {}).setdefault(group, {})[queue_id] = offset
    return table


def offsets_in(table: Any) -> dict[ReadQueue, int]:
    """What `by_topic` makes, read.

    Raises:
        ValueError: it is none.
    """
    try:
        return {
            (group, topic, int(queue_id)): int(offset)
            for topic, groups in (table or {}).items()
            for group, queues in groups.items()
            for queue_id, offset in queues.items()
        }
    except (AttributeError, TypeError, OverflowError) as error:
        raise ValueError("it does not say who has read what is lost") from error
