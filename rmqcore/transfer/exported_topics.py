"""Which records of a log are messages that an export has: those that an import may put again.

Not what was deleted with its topic; of what waits in a broker's own topics what has still to be
delivered; and nothing of what its services note of places in queues, which are others after an
import.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, TypeAlias

from rmqcore.errors import CorruptConfigFileError
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.files.service_topics import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    REVIVE_PREFIX,
    ROCKSDB_HALF_TOPICS,
    TRANSACTION_GROUP,
)
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.timer_check import TIMER_TOPIC, TimerCheck
from rmqcore.scan.any_log import AnyLog
from rmqcore.scan.joined_log import JoinedLog
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.selection import HIDDEN, TopicRule
from rmqcore.scan.shown_topics import ShownTopics
from rmqcore.world import wall_clock_ms

_NOTES: Final = (OP_HALF_TOPIC, ROCKSDB_HALF_TOPICS[1])

#: What has this queue offset, by topic and queue id, is the first that was not delivered.
NextOffsets: TypeAlias = dict[tuple[str, int], int]


class ExportedTopics:
    """The `TopicRule` of an export; it can be pickled.

    Args:
        shown: what was not deleted; None where that cannot be told.
        named: topics that are asked for by name, and so whatever they are.
        delivered: by topic and queue id, the physical offset below which all is delivered.
        notes: also what services note.
    """

    def __init__(
        self,
        shown: ShownTopics | None,
        named: frozenset[str],
        delivered: dict[str, dict[int, int]],
        *,
        notes: bool = False,
    ) -> None:
        self._shown = shown
        self._named = named
        self._delivered = delivered
        self._notes = notes

    def rule(self, topic: str) -> tuple[int, dict[int, int]]:
        """From which physical offset on records of a topic are exported; see `TopicRule`."""
        is_note = topic in _NOTES or topic.startswith(REVIVE_PREFIX)
        if is_note and not (self._notes or topic in self._named):
            return HIDDEN, {}
        first, queues = (0, {}) if self._shown is None else self._shown.rule(topic)
        for queue_id, offset in self._delivered.get(topic, {}).items():
            queues[queue_id] = max(queues.get(queue_id, first), offset)
        return first, queues


def read_delivered(directory: StoreDir) -> NextOffsets:
    """Up to where the services of a store have delivered what waited; before its log is looked at.

    A service writes it down behind the messages that it has delivered, so that a log which is
    looked at later has those.

    Args:
        directory: of the store, or of none, of which nothing is known.
    """
    found: NextOffsets = {}
    with suppress(CorruptConfigFileError):
        levels = DelayOffsetTable(directory.config, clock=wall_clock_ms).levels()
        found |= {(SCHEDULE_TOPIC, level - 1): offset for level, offset in levels.items()}
    with suppress(CorruptConfigFileError):
        table = ConsumerOffsetTable(directory.config, clock=wall_clock_ms)
        decided = table.queues(HALF_TOPIC, TRANSACTION_GROUP)
        found |= {(HALF_TOPIC, queue_id): offset for queue_id, offset in decided.items()}
    timers = TimerCheck(directory.config).load()
    if timers is not None:
        found[TIMER_TOPIC, 0] = timers.first_pending
    return found


def exported_topics(
    log: AnyLog, named: tuple[str, ...], delivered: NextOffsets, *, uncommitted: bool
) -> TopicRule:
    """What an export has of the topics of a log.

    Args:
        log: the log; an archive alone does not tell what has been delivered.
        named: topics that are asked for by name.
        delivered: of `read_delivered`.
        uncommitted: also what services note, and what waited and has been delivered.
    """
    shown = None
    with suppress(CorruptConfigFileError):
        shown = log.shown_topics(named, services=True)
    if uncommitted:
        return ExportedTopics(shown, frozenset(named), {}, notes=True).rule
    live = log.live if isinstance(log, JoinedLog) else log
    begins: dict[str, dict[int, int]] = {}
    for (topic, queue_id), offset in delivered.items():
        if not isinstance(live, LogPlan):
            break
        phy_offset = live.place_in_log(topic, queue_id, offset)
        if phy_offset is not None:
            begins.setdefault(topic, {})[queue_id] = phy_offset
    return ExportedTopics(shown, frozenset(named), begins).rule
