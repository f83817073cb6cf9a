"""What has to hold behind a run, whatever has happened in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmqcore.doctor.verify import verify
from rmqcore.errors import RmqCoreError
from rmqcore.simulation.history import Delivery, History, Outcome, Place, Put, number_of
from rmqcore.simulation.plan import Befalls, Does, Fault, Plan, Way, servers_of
from rmqcore.simulation.promotion import Masters
from rmqcore.store.opening import open_store

_PAGE: Final = 64
#: A timer message may come this much too early: a timer is as exact as its wheel.
_EARLY_S: Final = 1.0
#: Behind so long a time without a fault nobody forgets any more what a group is done with.
_CALM_S: Final = 60.0
#: A queue that a killed consumer has locked is nobody's for so long: a minute until the broker
#: gives the lock up, and until the next member asks for it, twice where the first answer is late.
_LOCKED_S: Final = 100.0


@dataclass(frozen=True, slots=True)
class Broken:
    """One thing that did not hold.

    Attributes:
        name: of the invariant.
        text: what was found.
    """

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


#: what lies in the queues of clients' topics at the end
Contents = dict[Place, int]


def read_store(broker: str, path: Path, topics: tuple[str, ...]) -> Iterator[tuple[Place, int]]:
    """The place and number of each message of clients' topics in a broker's store.

    Args:
        broker: its name, for the places.
        path: of the store, which nobody writes.
        topics: of clients; others are passed over.

    Raises:
        ValueError: a message that nobody has sent, or a queue with a hole.
    """
    with open_store(path, mode="r") as store:
        for topic, queue_id in store.queues():
            if topic not in topics:
                continue
            offset = store.min_queue_offset(topic, queue_id)
            end = store.max_queue_offset(topic, queue_id)
            while offset < end:
                found = store.get_message(topic, queue_id, offset, max_messages=_PAGE)
                for message in found:
                    if message.queue_offset != offset:
                        raise ValueError(
                            f"{broker}: {topic}/{queue_id} has {message.queue_offset} at {offset}"
                        )
                    body = message.decompressed_body()
                    yield Place(broker, topic, queue_id, offset), number_of(body)
                    offset += 1
                if not len(found):
                    raise ValueError(f"{broker}: {topic}/{queue_id} has nothing at {offset}")


def judge(
    plan: Plan, history: History, stores: dict[str, Path], masters: Masters
) -> Iterator[Broken]:
    """Look at what is left of a run that has ended in order.

    Args:
        plan: what was to happen.
        history: what clients did and saw.
        stores: the directory of each broker.
        masters: the groups' masters at the end.
    """
    contents: Contents = {}
    expired = Expired(plan)
    weak, promoted = weak_brokers(plan), promoted_groups(plan)
    for broker, path in stores.items():
        report = verify(path)
        if not report.clean:
            yield Broken("verify", f"{broker}: {'; '.join(map(str, report.findings))}")
    for group in plan.groups:
        path = stores[masters.name_of(group.name)]
        try:
            contents |= dict(read_store(group.name, path, plan.topics))
            expired.look_at(group.name, path)
        except (ValueError, RmqCoreError) as error:
            yield Broken("dense", str(error))
    yield from _copies(plan, stores, weak, masters)
    yield from (Broken("strange", text) for text in history.strange)
    yield from _lost(plan, history, contents, expired)
    yield from _never(history, contents)
    yield from _gone(history, contents, promoted)
    yield from _places(history, contents, weak, promoted)
    yield from _order(history, weak, promoted)
    yield from _delivered(plan, history, contents, weak)
    yield from _in_order(plan, history, contents, weak, masters.since_s)
    yield from _read_again(history, weak | promoted, expired)
    yield from _done_for_good(plan, history, contents)
    if not any(fault.what is Fault.CLOCK for fault in plan.faults):
        yield from _early(history)


class Expired:
    """Which messages may be gone with the oldest files of the logs that have a quota.

    Args:
        plan: of the run, with the quotas.
    """

    def __init__(self, plan: Plan) -> None:
        self._brokers = {group.name for group in plan.groups if group.expires}
        self._least: dict[tuple[str, str, int], int] = {}

    def look_at(self, broker: str, path: Path) -> None:
        """Note where the queues of a store begin.

        Args:
            broker: the name of the group whose master's it is.
            path: of the store, which nobody writes.
        """
        if broker not in self._brokers:
            return
        with open_store(path, mode="r") as store:
            for queue in store.queues():
                self._least[broker, *queue] = store.min_queue_offset(*queue)

    def may_have(self, put: Put) -> bool:
        """Whether a message may be gone; one whose place nobody knows may be anywhere."""
        if put.place is None:
            return bool(self._brokers)
        broker, topic, queue_id, offset = put.place
        # a queue that has no message left may be gone as a whole
        least = self._least.get((broker, topic, queue_id), offset + 1)
        return broker in self._brokers and offset < least


def _copies(
    plan: Plan, stores: dict[str, Path], weak: set[str], masters: Masters
) -> Iterator[Broken]:
    """A slave has the bytes of its master's log."""
    for group in plan.groups:
        if group.name in weak | masters.shortened:
            continue
        master = masters.name_of(group.name)
        for slave in servers_of((group,)):
            for file in sorted((stores[slave] / "commitlog").iterdir()):
                there = stores[master] / "commitlog" / file.name
                if not there.exists():
                    continue
                mine, other = file.read_bytes(), there.read_bytes()
                if mine != other:
                    at = next(n for n, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b)
                    yield Broken("copy", f"{slave} differs from {master} at {int(file.name) + at}")


def weak_brokers(plan: Plan) -> set[str]:
    """The masters that lose what they have acknowledged at a level that does not survive that.

    Those whose power is cut although they acknowledge before the disk has a message, and those that
    are killed, or stop while their disk is full, although they acknowledge what is in their own
    memory only. What such an end takes, and gives to others, is nobody's fault. Where slaves are
    promoted, each broker of the group counts: it may be the only one that has a message, and in
    memory.
    """
    cut = {fault.whom for fault in plan.faults if fault.what is Fault.POWER_CUT}
    full = [fault for fault in plan.faults if fault.what is Fault.FULL]
    ended = cut | {
        fault.whom
        for fault in plan.faults
        if fault.what is Fault.KILL
        or (fault.what is Fault.RESTART and any(_is_beside(fault, one) for one in full))
    }
    return {
        group.name
        for group in plan.groups
        if (group.name in cut and group.settings.get("flushDiskType") != "SYNC_FLUSH")
        or (group.name in promoted_groups(plan) and not cut.isdisjoint(servers_of((group,))))
        or (group.name in ended and group.settings.get("transientStorePoolEnable"))
    }


def _is_beside(fault: Befalls, longer: Befalls) -> bool:
    """Whether a fault befalls a broker while another one lasts there."""
    begins_s, ends_s = longer.at_s, longer.at_s + longer.for_s
    return fault.whom == longer.whom and begins_s <= fault.at_s <= ends_s


def promoted_groups(plan: Plan) -> set[str]:
    """The groups in which a slave may become the master.

    What their masters had not confirmed may be gone with them, although somebody has seen it.
    """
    return {fault.whom for fault in plan.faults if fault.what is Fault.PROMOTE}


def must_have(plan: Plan, history: History, put: Put) -> bool:
    """Whether a message has to be in its topic at the end.

    Args:
        plan: of the run; says which brokers may lose what they have acknowledged.
        history: of the run.
        put: of the message.
    """
    operation = put.operation
    if operation.does is Does.TRANSACTION and operation.count % 2:
        return False
    if put.outcome is not Outcome.OK or not history.is_last(put):
        return False
    weak = weak_brokers(plan)
    return not weak or (put.place is not None and put.place.broker not in weak)


def _lost(plan: Plan, history: History, contents: Contents, expired: Expired) -> Iterator[Broken]:
    there = set(contents.values())
    for number, put in history.puts.items():
        if number in there or expired.may_have(put):
            continue
        if must_have(plan, history, put):
            yield Broken("lost", f"{number}, acknowledged after {put.ended_s:.6f}, {put}")


def _never(history: History, contents: Contents) -> Iterator[Broken]:
    """What may not be there: what was rolled back, and what nobody has sent."""
    for place, number in contents.items():
        put = history.puts.get(number)
        if put is None or put.operation.topic != place.topic:
            yield Broken("unexpected", f"{number} at {place}")
        elif put.operation.does is Does.TRANSACTION and put.operation.count % 2:
            yield Broken("rolled back", f"{number} at {place}")


def _gone(history: History, contents: Contents, promoted: set[str]) -> Iterator[Broken]:
    """What was deleted with its topic does not come back into it.

    A slave learns later of a deletion: one that is promoted before may have it all.
    """
    for place, number in contents.items():
        put = history.puts.get(number)
        if put is None or place.broker in promoted:
            continue
        if put.place == place and history.is_deleted(put):
            yield Broken("came back", f"{number} at {place}, {put}")


def _places(
    history: History, contents: Contents, weak: set[str], promoted: set[str]
) -> Iterator[Broken]:
    """Each place is one message's as long as its topic is not deleted."""
    seen = [(put.place, put.number) for put in history.puts.values() if put.place is not None]
    for deliveries in history.deliveries.values():
        seen += [(each.place, each.number) for each in deliveries]
    for place, number in seen:
        if history.deleted(place.broker, place.topic) and not history.is_last(history.puts[number]):
            continue
        if place.broker in promoted and not _is_confirmed(history.puts[number], place):
            continue
        if place.broker not in weak and contents.get(place, number) != number:
            yield Broken("place", f"{place} was {number}, and is {contents[place]}")


def _is_confirmed(put: Put, place: Place) -> bool:
    """Whether a master has confirmed a message at a place."""
    return put.outcome is Outcome.OK and put.place == place


def _order(history: History, weak: set[str], promoted: set[str]) -> Iterator[Broken]:
    """What was sent when something else of the queue was acknowledged lies behind it."""
    by_queue: dict[tuple[str, str, int], list[Put]] = {}
    for put in history.puts.values():
        if put.place is None or put.place.broker in weak or not history.is_last(put):
            continue
        if put.place.broker not in promoted or put.outcome is Outcome.OK:
            by_queue.setdefault(put.place[:3], []).append(put)
    for queue, puts in by_queue.items():
        puts.sort(key=lambda put: put.place or Place("", "", 0, 0))
        latest_s = 0.0
        # from the last to the first: nobody may have ended before one in front of him began
        for put in reversed(puts):
            if latest_s and put.began_s > latest_s:
                yield Broken("order", f"{queue}: {put} lies before what ended at {latest_s}")
            latest_s = min(latest_s or put.ended_s, put.ended_s)


def _delivered(
    plan: Plan, history: History, contents: Contents, weak: set[str]
) -> Iterator[Broken]:
    """Each group has got everything that is in its topics."""
    for group, deliveries in history.deliveries.items():
        topics = {t for one in plan.consumers if one.group == group for t in one.topics}
        got = {each.number for each in deliveries}
        for place, number in contents.items():
            if number in got or history.is_homeless(number) or history.is_read_anew(plan, place):
                continue
            if place.topic in topics and place.broker not in weak:
                yield Broken("not delivered", f"{number} at {place} to {group}")


def _in_order(
    plan: Plan, history: History, contents: Contents, weak: set[str], promoted_s: dict[str, float]
) -> Iterator[Broken]:
    """A group that consumes in order passes over nothing.

    Of a queue that has got another master only what came since then counts, and of one that loses
    its oldest messages only what is left.
    """
    quotas = {group.name for group in plan.groups if group.expires}
    ordered = (Way.ORDERLY, Way.POP_IN_ORDER)
    orderly = {one.group for one in plan.consumers if one.way in ordered}
    for group in orderly:
        reached: dict[tuple[str, str, int], int] = {}
        got: set[int] = set()
        for each in history.deliveries.get(group, ()):
            queue, offset = each.place[:3], each.place.offset
            got.add(each.number)
            if each.at_s < promoted_s.get(each.place.broker, 0.0):
                continue
            if history.is_deleted_later(each):
                # a delayed message may come again, to the same place of the topic that follows
                continue
            broker = each.place.broker
            if history.deleted(*queue[:2]) or broker in promoted_s or broker in quotas:
                # numbers have begun again: what lies in front now has to have come before
                front = contents.get(each.place._replace(offset=offset - 1), each.number)
                is_there = contents.get(each.place) == each.number
                if is_there and front not in got and each.place.broker not in weak:
                    yield Broken("passed over", f"{group}: {each} before {front}")
                continue
            if offset > reached.get(queue, -1) + 1 and each.place.broker not in weak:
                yield Broken("passed over", f"{group}: {each} behind {reached.get(queue)}")
            reached[queue] = max(reached.get(queue, -1), offset)


def _read_again(history: History, weak: set[str], expired: Expired) -> Iterator[Broken]:
    """A group whose offsets were reset has got again what was there then."""
    for reset, put in history.unread_since(expired.may_have):
        if reset.broker not in weak:
            yield Broken("not read again", f"{put} behind {reset}")


def _done_for_good(plan: Plan, history: History, contents: Contents) -> Iterator[Broken]:
    """What a group is done with does not come again behind a calm time, unless it was set back.

    A message that a group which pops in order has given back comes again with all that lies behind
    it in its queue.
    """
    copies = Counter(contents.values())
    ways = {one.group: one.way for one in plan.consumers}
    for group, deliveries in history.deliveries.items():
        way = ways[group]
        calm_s = _CALM_S + (_LOCKED_S if way is Way.ORDERLY else 0.0)
        done: dict[int, Delivery] = {}
        for each in deliveries:
            before = done.get(each.number)
            if each.done_s < float("inf"):
                done.setdefault(each.number, each)
            elif way is Way.POP_IN_ORDER:
                done = {number: one for number, one in done.items() if not _is_behind(one, each)}
            if before is None or copies[each.number] != 1:
                continue
            if history.deleted(*each.place[:2]) or history.is_set_back(group, each):
                continue
            if history.was_calm(before.done_s, each.at_s, calm_s):
                yield Broken("came again", f"{group}: {each} behind {before}")


def _is_behind(one: Delivery, other: Delivery) -> bool:
    """Whether a message lies in the queue of another, at its place or behind it."""
    return one.place[:3] == other.place[:3] and one.place.offset >= other.place.offset


def _early(history: History) -> Iterator[Broken]:
    """Nothing that was delayed comes before its time."""
    due_s: dict[int, float] = {}
    for number, put in history.puts.items():
        if put.operation.does is Does.TIMER:
            due_s[number] = put.began_s + put.operation.count
        elif put.operation.does is Does.DELAY:
            due_s[number] = put.began_s + (1, 5, 10, 30, 60)[put.operation.count - 1]
    for group, deliveries in history.deliveries.items():
        for each in deliveries:
            if each.at_s < due_s.get(each.number, 0.0) - _EARLY_S:
                yield Broken("early", f"{group}: {each}, due at {due_s[each.number]}")
