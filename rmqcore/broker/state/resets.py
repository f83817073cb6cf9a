"""`Resets`: where groups have to go on in queues, whatever their clients know."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from rmqcore.broker.state.budgets import OFFSETS_MAX
from rmqcore.files.config_file import ConfigFile
from rmqcore.files.consume_queue import LIGHT_QUEUE_PREFIX
from rmqcore.files.readers_of_lost import (
    ReadersOfLost,
    ReadersOfLostFile,
    ReadQueue,
    by_topic,
    offsets_in,
)
from rmqcore.java.json import format_compact_java_json, parse_java_json
from rmqcore.remoting import Connection

_NAME: Final = "readersOfDeleted.json"
#: A member of the file: where groups have to go on.
_OFFSETS: Final = "offsets"
#: Fields of our own in what a master tells of offsets: `Resets`, its `ends`, its `unknown_groups`.
_RESETS: Final = "readersToReset"
_ENDS: Final = "readersOfLost"
_UNKNOWN: Final = "unknownGroupsOfLost"
RESETS_TOLD: Final = (_RESETS, _ENDS, _UNKNOWN)
#: Stands in `UnknownGroups` for a group that has come.
_CAME: Final = -1
#: A group is noted in `UnknownGroups` while it has fewer members; so many questions of clients.
_UNKNOWN_MAX: Final = 2 * OFFSETS_MAX
#: Of queues whose topics were deleted since a crash this many are known behind the next one.
_GONE_MAX: Final = 65_536
_ANSWERS_MAX: Final = 65_536
#: Bytes of `UnknownGroups` in an answer to slaves, which has 16 MiB for the offsets, too; what an
#: entry takes of them beside its names.
_TOLD_SIZE: Final = 4 << 20
_ENTRY_SIZE: Final = 32


class UnknownGroups(dict[ReadQueue, int]):
    """Where queues ended of a log that may have been longer, for groups that have no offset.

    They may have read what is lost: a slave whose own disk fails takes no offsets over, and a crash
    takes those of its last seconds. The ends stand under an empty name; under their own names stand
    groups that have come since.
    """

    def __init__(self) -> None:
        super().__init__()
        #: of which groups clients were told that nobody knows where they are, with None; and under
        #: an empty name, what offset of a queue they were told last: by address, for who asks over
        #: a proxy in this process has a connection for each request; the oldest first
        self._answers: OrderedDict[tuple[str, ReadQueue], int | None] = OrderedDict()
        #: by address, the clients that go on where they are, of groups each of whose clients reads
        #: all of a queue
        self._back: set[tuple[str, ReadQueue]] = set()
        #: with so many members those of queues that are gone are counted
        self._counted_at = _GONE_MAX

    def is_pending(self, key: ReadQueue) -> bool:
        """Tell whether it counts where a queue ended when a group comes that has no offset."""
        return bool(self) and key not in self and _of_all(key) in self

    def pending_end(self, key: ReadQueue) -> int | None:
        """Where a queue ended for a group that has not come since; None: it has, or nobody says."""
        return None if key in self else self.get(_of_all(key))

    def note_asked(self, client: Connection, key: ReadQueue) -> None:
        """Note that a client was told that its group has no offset: it begins where it wants.

        Args:
            client: that asks; others of the group may still go on where they were.
            key: what it asks for.
        """
        if self.is_pending(key):
            self._note_answer(client, key, None)

    def note_told(self, client: Connection, topic: str, queue_id: int, offset: int) -> None:
        """Note what a client was told of a queue: who begins just there has read nothing before.

        Those that keep their offsets themselves, and have none yet, ask for the queue's end, or by
        time.

        Args:
            client: that asks.
            topic: of the queue.
            queue_id: of the queue.
            offset: where the queue ends, or where a time is.
        """
        key = "", topic, queue_id
        if key in self:
            self._note_answer(client, key, offset)

    def _note_answer(self, client: Connection, key: ReadQueue, offset: int | None) -> None:
        place = client.remote_address, key
        self._answers[place] = offset
        self._answers.move_to_end(place)
        if len(self._answers) > _ANSWERS_MAX:
            self._answers.popitem(last=False)

    def note_came(self, key: ReadQueue, client: Connection | None, offset: int) -> int | None:
        """Note that a group has come, if there is room; where its queue ended.

        Args:
            key: group and queue; it is pending.
            client: of the group; None: not known.
            offset: that it comes with.

        Returns:
            None where it begins where it wants.
        """
        if len(self) >= _UNKNOWN_MAX:
            return None
        self[key] = _CAME
        begins = client is not None and self._begins(client, key, offset)
        return None if begins else self[_of_all(key)]

    def _begins(self, client: Connection, key: ReadQueue, offset: int) -> bool:
        """Whether a client begins where it wants, as it was told that nobody knows where it is."""
        address = client.remote_address
        told = self._answers.get((address, _of_all(key)))
        return (address, key) in self._answers or told == offset

    def end_for(self, key: ReadQueue, client: Connection, offset: int) -> int | None:
        """Where one client of many has to go on that read all of a queue, and keep their offsets.

        Args:
            key: group and queue; it is pending, and stays so.
            client: that pulls.
            offset: where from.

        Returns:
            None: there, as later, once it has come from where the queue ended, or from before it,
            or begins.
        """
        end, place = self[_of_all(key)], (client.remote_address, key)
        if place in self._back or len(self._back) >= _ANSWERS_MAX:
            return None
        if offset > end and not self._begins(client, key, offset):
            return end
        self._back.add(place)
        return None

    def begin(self, queues: Collection[tuple[str, int]]) -> None:
        """Let all groups that have no offset begin with queues of a topic that was deleted.

        What clients were told of the former queues tells nothing of these.

        Args:
            queues: by topic and queue id.
        """
        begun = frozenset(queues)
        for place in [place for place in self._answers if place[1][1:] in begun]:
            del self._answers[place]
        self._back = {place for place in self._back if place[1][1:] not in begun}
        for topic, queue_id in queues:
            # behind the others: who came last is forgotten last
            self.pop(("", topic, queue_id), None)
            self["", topic, queue_id] = 0

    def bound(self, is_gone: Callable[[ReadQueue], bool]) -> None:
        """As `forget_oldest`, now and then."""
        if len(self) > self._counted_at:
            self.forget_oldest(is_gone)
            self._counted_at = len(self) + _GONE_MAX

    def forget_oldest(self, is_gone: Callable[[ReadQueue], bool]) -> None:
        """Keep no more than `_GONE_MAX` of the queues that are gone, those that came last."""
        for key in [key for key in self if is_gone(key)][:-_GONE_MAX]:
            del self[key]

    def told(self) -> dict[ReadQueue, int]:
        """What slaves are told: as much as an answer has room for; light queues, the last of it."""
        told, room = dict[ReadQueue, int](), _TOLD_SIZE
        for light in (False, True):
            for key, end in list(self.items()):
                if key[1].startswith(LIGHT_QUEUE_PREFIX) is light:
                    room -= _ENTRY_SIZE + len(key[0]) + len(key[1])
                    if room < 0:
                        return told
                    told[key] = end
        return told

    def take_over(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Note where queues end, by topic and queue id; the lower of two ends counts."""
        for (topic, queue_id), end in ends.items():
            key = "", topic, queue_id
            self[key] = min(end, self.get(key, end))


class Resets(dict[ReadQueue, int]):
    """Offsets that an administrator set, or with which a topic that was deleted begins again.

    Until a pull is from there the group is sent there, and commits nothing. They are kept in
    ``config/readersOfDeleted.json``, `ends` in ``config/readersOfLost.json``: clients
    outlive a broker. Used on the event loop, `keep` and `persist_ends` by any thread.

    Attributes:
        was_serving: whether a master served the store last, and ended in order (False) or not,
            whoever has opened and closed it since; None where a slave did, or none is known.
        log_end: physical offset where the log ended when that broker ended in order, or which it
            had reached when it did not; where a slave's ended when it was opened first as no
            slave's; below 0: it was cut since; None: not known.
        deletions_end: physical offset of the last deletion of a topic that a broker knew, see
            `know_deletions`; None: not known.
        found_end: physical offset where the log ended when somebody opened it first behind a broker
            that served it, if it may have lost its end by then, or when a master's log began to
            come behind it, which has not told yet where groups go on; None: it has not.
        ends: where queues ended when this broker took over a log that may have been longer. A group
            that comes from behind such an end has read what is lost, and is sent there; it commits
            nothing behind it before a pull is from there, or from before it.
        unknown_groups: the same, for groups that have no offset: see `note_came`.
        ahead: called before it is written that a broker serves, which ends what is done once
            behind a promotion; an OSError of it keeps what was written.

    Args:
        folder: the store's ``config`` folder.
        check_there: raises when it is another store's.

    Raises:
        CorruptConfigFileError: what was kept cannot be read.
    """

    def __init__(self, folder: Path, check_there: Callable[[], object] = bool) -> None:
        super().__init__()
        self._file = ConfigFile(folder / _NAME, _readers_in, check_there)
        self._kept, self._kept_offsets = self._file.load() or ([], {})
        self._ends_file = ReadersOfLostFile(folder, check_there)
        lost = self._ends_file.load()
        self.ends, self.was_serving, self.log_end = lost.ends, lost.was_serving, lost.log_end
        self.deletions_end, self.found_end = lost.deletions_end, lost.found_end
        self.unknown_groups = UnknownGroups()
        self.unknown_groups.update(lost.unknown_groups)
        self._serving, self._begun = self.was_serving, False
        self._ends_changed = self._resets_changed = False
        #: who begins anew with topics that are being deleted: written, and not among these yet
        self._beginning: dict[ReadQueue, None] = {}
        #: held while one of the files is written: a write may outlast the task that has begun it
        self._writing = threading.Lock()
        self.ahead: Callable[[], object] = lambda: None

    def __contains__(self, key: object) -> bool:
        """Whether a group may have to go on elsewhere."""
        return super().__contains__(key) or key in self.ends

    def forget(self, key: ReadQueue) -> None:
        """Let a group go on where it is."""
        self._resets_changed |= self.pop(key, None) is not None
        self._ends_changed |= self.ends.pop(key, None) is not None

    def note_came(self, key: ReadQueue, client: Connection | None, offset: int) -> None:
        """Let it count for a group that has no offset, and that comes first, where its queue ended.

        Args:
            key: group and queue, which is pending in `unknown_groups`.
            client: see `UnknownGroups.note_came`.
            offset: that it comes with.
        """
        end = self.unknown_groups.note_came(key, client, offset)
        if end is not None:
            self.ends[key] = min(end, self.ends.get(key, end))
        self._ends_changed |= key in self.unknown_groups

    def settle(self, key: ReadQueue, *, has_offset: bool) -> None:
        """Let nothing count for a group that comes first: it has an offset now, or had one.

        Args:
            key: group and queue.
            has_offset: whether the table has it, which says enough then.
        """
        if has_offset:
            self._ends_changed |= self.unknown_groups.pop(key, None) is not None
        elif self.unknown_groups.is_pending(key):
            self.unknown_groups[key] = _CAME
            self._ends_changed = True

    def forget_topic(self, topic: str) -> None:
        """Let all groups go on where they are in a topic, but for those that begin anew with it.

        Among them are those that nobody knew since its queues may have been longer.
        """
        self._forget_where(lambda key: key[1] == topic)

    def _forget_where(self, is_gone: Callable[[ReadQueue], bool]) -> None:
        for key in filter(is_gone, [*self, *self.ends]):
            begins = self.get(key) == 0
            self.forget(key)
            if begins:
                self[key] = 0
        for key in filter(is_gone, list(self.unknown_groups)):
            self._ends_changed = True
            if key[0]:
                del self.unknown_groups[key]
            else:
                self.unknown_groups[key] = 0

    def take_over(
        self, ends: Mapping[ReadQueue, int], of_all: Mapping[tuple[str, int], int] | None = None
    ) -> None:
        """Note where queues end of a log that may have been longer; the lower of two ends counts.

        Args:
            ends: by group and queue, of groups that have offsets.
            of_all: by topic and queue id, for groups that have none; of all queues, or of none.
        """
        of_all = of_all or {}
        known = self.unknown_groups
        if of_all:
            known.forget_oldest(lambda key: key[1:] not in of_all)
        came = {key: of_all[key[1:]] for key in known if key[0] and key[1:] in of_all}
        for key, end in (came | dict(ends)).items():
            self.ends[key] = min(end, self.ends.get(key, end))
        self.unknown_groups.take_over(of_all)
        self._ends_changed |= bool(ends or of_all)

    def begin(self) -> None:
        """Note, with the next `persist_ends`, that a broker serves from now on."""
        self._ends_changed |= not self._serving or self.found_end is not None
        self._serving = self._begun = True
        self.log_end = self.found_end = None

    def end(self, log_end: int) -> None:
        """Note, with the next `persist_ends`, that it ends in order; without a begin nothing.

        Args:
            log_end: physical offset behind the last byte of the log.
        """
        if self._begun:
            self._ends_changed |= (self._serving, self.log_end) != (False, log_end)
            self._serving, self.log_end = False, log_end

    def deleted_by_others(self, deletions: Mapping[str, int]) -> list[str]:
        """The topics that somebody has deleted since a broker served the store.

        Args:
            deletions: of the store: by topic, physical offset where the log ended then.
        """
        known, end = self.deletions_end, self.log_end
        if self.was_serving is False and end is not None and end >= 0:
            # at its last moment it may have deleted one itself, of which nobody has read since
            known = end - 1
        if self.was_serving is None or known is None:
            return []
        # one that counts no more is at 0
        return [topic for topic, at in deletions.items() if at > max(known, 0)]

    def know_deletions(self, deletions: Mapping[str, int]) -> None:
        """Note, with the next `persist_ends`, that all deletions of the store are known."""
        last = max(deletions.values(), default=-1)
        self._ends_changed |= last != self.deletions_end
        self.deletions_end = last

    def follow(self, log_end: int) -> None:
        """Let a master's log come behind this one's end, which groups may have read beyond.

        What was known before is kept until that master tells where they go on: it may be gone
        before it has. Any thread; with the next `persist_ends` it is written.

        Args:
            log_end: physical offset where this broker's log ends; 0: there is none yet.
        """
        found = self.found_end
        if log_end > 0:
            found = log_end if found is None else min(log_end, found)
        self._ends_changed |= (self._serving, self.log_end, self.found_end) != (None, None, found)
        self._serving, self._begun = None, False
        self.log_end, self.found_end = None, found

    # ---- what a slave knows of its master's

    def begin_queues(self, topic: str, queue_ids: Collection[int]) -> None:
        """Let groups without an offset begin with queues of a topic that the master made again.

        Until `adopt` says where they go on: what the slave had of the master before that was of the
        former topic. Any thread; with the next `persist_told` it is written.

        Args:
            topic: of the queues.
            queue_ids: whose offsets are forgotten.
        """
        self._forget_where(lambda key: key[1] == topic and key[2] in queue_ids)
        self.unknown_groups.begin([(topic, queue_id) for queue_id in queue_ids])
        self._ends_changed |= bool(queue_ids)

    def told(self) -> dict[str, object]:
        """What slaves have to know, as members of an object: see `adopt`; empty for nothing."""
        tables = {
            _RESETS: self.copy(),
            _ENDS: self.ends.copy(),
            _UNKNOWN: self.unknown_groups.told(),
        }
        return {name: by_topic(table) for name, table in tables.items() if table}

    def adopt(self, told: Mapping[str, object]) -> None:
        """Take over, on a slave, what its master has told; what it does not tell any more is done.

        Who reads here alone is sent to the master then: that one passes over what is committed
        until a pull has come to it. When this is the master, it sends them on itself.

        Args:
            told: an object with the members of `told`, and others.

        Raises:
            ValueError: they are wrong; nothing has changed.
        """
        resets, ends, unknown_groups = (offsets_in(told.get(name)) for name in RESETS_TOLD)
        if self != resets or self._kept or self._kept_offsets:
            # what the file has been keeping since the start is of before, too
            self._kept, self._kept_offsets = [], {}
            self.clear()
            self.update(resets)
            self._resets_changed = True
        if self.ends != ends or self.found_end is not None:
            self.ends, self._ends_changed, self.found_end = ends, True, None
        if self.unknown_groups != unknown_groups:
            self.unknown_groups.clear()
            self.unknown_groups.update(unknown_groups)
            self._ends_changed = True

    def persist_told(self) -> None:
        """Write all of this, if it has changed. Any thread.

        Raises:
            OSError: it cannot be written.
        """
        if self._resets_changed:
            self.persist_resets()
        self.persist_ends()

    def persist_resets(self) -> None:
        """Write where groups have to go on. Any thread.

        Raises:
            OSError: it cannot be written.
        """
        self._resets_changed = False
        try:
            self._store_resets()
        except BaseException:
            self._resets_changed = True
            raise

    def persist_ends(self) -> None:
        """Write `ends` and `unknown_groups` down, and whether a broker serves, if that has changed.

        Raises:
            OSError: it cannot be written.
        """
        with self._writing:
            self._persist_ends()

    def _persist_ends(self) -> None:
        if not self._ends_changed:
            return
        self._ends_changed = False
        try:
            self.ahead()
            of_all = self.unknown_groups.copy()
            serving = self._serving, self.log_end, self.deletions_end, self.found_end
            self._ends_file.store(ReadersOfLost(self.ends.copy(), of_all, *serving))
        except BaseException:
            self._ends_changed = True
            raise

    def moved_to(self, key: ReadQueue, offset: int, committed: int | None) -> int | None:
        """Where a group has to go on that pulls from an offset; None: there, now and later.

        Who has read what is lost goes on at what the group has committed: clients drop what they
        have pulled and not consumed when they are sent elsewhere.

        Args:
            key: whose pull it is.
            offset: where it begins.
            committed: the group's offset.
        """
        reset = self.get(key)
        if reset is None:
            end = self.ends.get(key, offset)
            reset = offset if offset <= end else min(end, end if committed is None else committed)
        if reset != offset:
            return reset
        self.forget(key)
        return None

    def accepts(self, key: ReadQueue, offset: int) -> bool:
        """Tell whether a group may commit an offset.

        Args:
            key: group, topic and queue id.
            offset: queue offset that is to be committed.
        """
        return self.get(key) is None and offset <= self.ends.get(key, offset)

    def bring_back(self, offset_of: Callable[[ReadQueue], int | None]) -> None:
        """Go on with what was kept, but for groups that have gone on since.

        Args:
            offset_of: what a group has committed; None: nothing, of a topic that begins anew.
        """
        kept = self._kept_offsets.items()
        self.update({key: offset for key, offset in kept if offset_of(key) == offset})
        self.update({key: 0 for key in self._kept if offset_of(key) is None})

    def keep(self, more: Collection[ReadQueue]) -> None:
        """Write down that groups begin anew, before a topic is deleted.

        Raises:
            OSError: it cannot be written.
        """
        if more:
            self._beginning.update(dict.fromkeys(more))
            self._store_resets()

    def _store_resets(self) -> None:
        with self._writing:
            resets = self.copy()
            begun = [key for key, offset in resets.items() if offset == 0]
            self._write_readers(dict.fromkeys([*begun, *self._beginning]), resets)

    def _write_readers(self, keys: Iterable[ReadQueue], resets: Mapping[ReadQueue, int]) -> None:
        table: dict[str, dict[str, list[int]]] = {}
        for group, topic, queue_id in keys:
            table.setdefault(topic, {}).setdefault(group, []).append(queue_id)
        offsets = {_OFFSETS: by_topic(resets)} if resets else {}
        self._file.store(format_compact_java_json({"readers": table, **offsets}))

    def begin_anew(
        self,
        readers: Iterable[ReadQueue],
        queues: Iterable[tuple[str, int]],
        begins: Callable[[tuple[str, int]], bool],
    ) -> None:
        """Send groups to the beginning of their queues, once a topic was deleted or was not.

        Args:
            readers: group and queue of each that is known; `keep` was told of them before.
            queues: that others may have read, by topic and queue id: groups that have committed
                nothing, and of which no client has told.
            begins: tells which queue begins anew.
        """
        self.update({key: 0 for key in readers if begins(key[1:])})
        begun = [queue for queue in queues if begins(queue)]
        self.unknown_groups.begin(begun)
        self._ends_changed |= bool(begun)
        for key in readers:
            self._beginning.pop(key, None)
        for key in list(self)[:-OFFSETS_MAX]:
            del self[key]


def _of_all(key: ReadQueue) -> ReadQueue:
    """Where `UnknownGroups` has the end of a queue."""
    return "", key[1], key[2]


def _readers_in(text: str) -> tuple[list[ReadQueue], dict[ReadQueue, int]]:
    """Read the file: who begins anew, and where groups have to go on.

    Raises:
        ValueError: it is none.
    """
    content = parse_java_json(text)
    try:
        readers = [
            (group, topic, int(queue_id))
            for topic, groups in (content.get("readers") or {}).items()
            for group, queue_ids in groups.items()
            for queue_id in queue_ids
        ]
        return readers, offsets_in(content.get(_OFFSETS))
    except (AttributeError, TypeError) as error:
        raise ValueError("it does not say who has read deleted topics") from error
