"""`Plan`: what happens in a run, as data: cluster, load and faults, drawn before it begins.

A plan replays without the code that has drawn it, and anything in it can be left out without the
rest becoming another.
"""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

#: Files so small that some are rolled, filled and deleted in one run.
FILE_SIZES: Final = {
    "mappedFileSizeCommitLog": 10 * 4096,
    "mappedFileSizeConsumeQueue": 3 * 4096 - 3 * 4096 % 20,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "messageDelayLevel": "1s 5s 10s 30s 1m",
}
#: Time limits of brokers, so short that a run sees them pass.
TIMEOUTS: Final = {
    "haSendHeartbeatInterval": 1000,
    "haHousekeepingInterval": 6000,
    "slaveTimeout": 1000,
    # a producer that is cut off for long must not lose its transaction by that
    "transactionCheckMax": 100_000,
}
#: The sizes of bodies; the last one is compressed.
_SIZES: Final = (20, 200, 2000, 6000)
#: The share of plans without any fault.
_WITHOUT_FAULTS: Final = 0.1
#: In a burst operations follow each other in this part of the average time.
_BURST: Final = 0.1
#: The share of plans whose puts go through the transient pool.
_POOLS: Final = 0.15
#: The share of promotions among plans that may have one.
_PROMOTIONS: Final = 0.5
#: The shares of plans with a group that pops in order, and with offsets that somebody resets.
_ORDERED_POPS: Final = 0.3
_RESETS: Final = 0.3
#: The share of plans whose clients' processes die, and come again.
_CRASHES: Final = 0.3
#: The share of groups of brokers whose logs have a quota, each its own, in log files.
_QUOTAS: Final = 0.2
_QUOTA_FILES: Final = (0, 2, 3, 5)
#: The share of plans that take so many times as long, with no more load.
_SLOW: Final = 0.2
_SLOWER: Final = 60
#: After an operation a burst ends with this probability; the pause behind it is so many times the
#: average.
_RESTS: Final = 0.1
_REST: Final = 10.0
#: The delay of each level of ``messageDelayLevel`` in seconds, that of level 1 first.
DELAYS_S: Final = (1, 5, 10, 30, 60)


class Does(StrEnum):
    """What a client does."""

    SEND = "send"
    BATCH = "batch"
    TRANSACTION = "transaction"
    DELAY = "delay"
    TIMER = "timer"


class Way(StrEnum):
    """How a group consumes."""

    PUSH = "push"
    ORDERLY = "orderly"
    POP = "pop"
    POP_IN_ORDER = "pop in order"


class Fault(StrEnum):
    """What befalls the cluster."""

    KILL = "kill"
    POWER_CUT = "power cut"
    PAUSE = "pause"
    CLOCK = "clock"
    PARTITION = "partition"
    ONE_WAY = "one way"
    BREAK = "break"
    SLOW = "slow"
    LOSS = "loss"
    RESTART = "restart"
    DELETE = "delete"
    FULL = "full disk"
    FAIL = "failing disk"
    PROMOTE = "promotion"
    RESET = "reset"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that a client does.

    Attributes:
        at_s: when, behind the beginning.
        client: who.
        does: what.
        number: of the message, or of the first of a batch.
        topic: where to.
        queue_id: of which queue; -1: in turns.
        size: bytes of the body.
        count: messages of a batch; level of a delay; seconds until a timer; of a transaction 0 to
            commit, 1 to roll back, 2 to say nothing and commit when asked, 3 to roll back then.
    """

    at_s: float
    client: str
    does: Does
    number: int
    topic: str
    queue_id: int
    size: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class Befalls:
    """One fault.

    Attributes:
        at_s: when, behind the beginning.
        what: which.
        whom: the server; of a deletion the client that asks every master for it; of a promotion
            the group; of a reset the group of consumers; of a crash the client.
        other: at the other end of a link; the topic that is deleted, or that a group is to read
            from its beginning on.
        for_s: how long it lasts; of a promotion, how long who was the master stays away.
        size: seconds of a clock's step; at which sync from then on somebody dies, below 0 at which
            write; how slow a link is, in seconds, or how lossy; of a promotion 0 when the master is
            killed before, 1 when it ends in order.
    """

    at_s: float
    what: Fault
    whom: str
    other: str = ""
    for_s: float = 0.0
    size: float = 0.0


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """One consumer: a group's on one client.

    Attributes:
        refuses: how often of a hundred times it gives a message back.
        work_s: the longest that it works on a message.
        leaves_s: when it ends in order, and begins again, behind the beginning; 0: not at all.
    """

    client: str
    group: str
    way: Way
    topics: tuple[str, ...]
    refuses: int = 0
    work_s: float = 0.0
    leaves_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Group:
    """A master and its slaves, with their settings.

    Attributes:
        slack: how much longer their services rest than they want to.
        quotas: the bytes of log that each keeps, the master first; 0: all; empty: all keep all.
    """

    name: str
    slaves: int
    slack: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)
    quotas: tuple[int, ...] = ()

    @property
    def expires(self) -> bool:
        """Whether a broker of it deletes its oldest messages."""
        return any(self.quotas)


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module.

    Attributes:
        seed: what is drawn on the way follows from it.
        for_s: how long load and faults last; then faults end, and the cluster has to get on.
    """

    seed: str
    for_s: float
    names: int
    groups: tuple[Group, ...]
    clients: tuple[str, ...]
    topics: tuple[str, ...]
    operations: tuple[Operation, ...]
    consumers: tuple[ConsumerPlan, ...]
    faults: tuple[Befalls, ...]

    def to_json(self) -> str:
        """The plan as a text."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of a text that `to_json` has made."""
        told = json.loads(text)
        return cls(
            seed=told["seed"],
            for_s=told["for_s"],
            names=told["names"],
            groups=tuple(
                Group(**{**each, "quotas": tuple(each.get("quotas", ()))})
                for each in told["groups"]
            ),
            clients=tuple(told["clients"]),
            topics=tuple(told["topics"]),
            operations=tuple(
                Operation(**{**each, "does": Does(each["does"])}) for each in told["operations"]
            ),
            consumers=tuple(
                ConsumerPlan(**{**each, "way": Way(each["way"]), "topics": tuple(each["topics"])})
                for each in told["consumers"]
            ),
            faults=tuple(
                Befalls(**{**each, "what": Fault(each["what"])}) for each in told["faults"]
            ),
        )


def draw(seed: object, minutes: float = 1.0, *, power_cuts: bool = False) -> Plan:
    """Draw a plan: each has its own cluster, load and faults, and leaves out some kinds of each.

    Args:
        seed: what everything follows from, by its text.
        minutes: how long load and faults last, on the average.
        power_cuts: whether servers lose their power, and disks are full or fail, which needs
            watched system calls.
    """
    rng = random.Random(f"{seed}/plan")  # noqa: S311 - repeatable
    for_s = round(minutes * 60 * rng.uniform(0.5, 1.5), 3)
    groups = tuple(_draw_group(rng, number) for number in range(rng.choice((1, 1, 2))))
    clients = tuple(f"client{number}" for number in range(rng.randint(1, 3)))
    topics = tuple(f"T{number}" for number in range(rng.randint(1, 3)))
    names = rng.choice((1, 1, 2))
    operations = _draw_operations(rng, clients, topics, for_s)
    consumers = _draw_consumers(rng, clients, topics, for_s)
    watched = (Fault.POWER_CUT, Fault.FULL, Fault.FAIL)
    kinds = [kind for kind in Fault if power_cuts or kind not in watched]
    for drawn_apart in (Fault.PROMOTE, Fault.RESET, Fault.CRASH):
        kinds.remove(drawn_apart)
    faults: tuple[Befalls, ...] = ()
    if rng.random() >= _WITHOUT_FAULTS:
        faults = _draw_faults(rng, _some(rng, kinds), names, groups, clients, topics, for_s)
    faults += _draw_promotions(seed, groups, for_s)
    groups = _draw_quotas(seed, groups)
    consumers += _draw_ordered_pops(seed, clients, topics)
    faults += _draw_resets(seed, consumers, for_s)
    faults += _draw_crashes(seed, clients, for_s)
    plan = Plan(str(seed), for_s, names, groups, clients, topics, operations, consumers, faults)
    rng = random.Random(f"{seed}/pace")  # noqa: S311 - repeatable
    return _slowed(plan, rng) if rng.random() < _SLOW else plan


def _slowed(plan: Plan, rng: random.Random) -> Plan:
    """A plan with the same load and faults in a longer time; some faults and all timers, too."""
    return dataclasses.replace(
        plan,
        for_s=plan.for_s * _SLOWER,
        operations=tuple(
            dataclasses.replace(
                each,
                at_s=each.at_s * _SLOWER,
                count=each.count * _SLOWER if each.does is Does.TIMER else each.count,
            )
            for each in plan.operations
        ),
        consumers=tuple(
            dataclasses.replace(each, leaves_s=each.leaves_s * _SLOWER) for each in plan.consumers
        ),
        faults=tuple(_slower(each, plan.for_s, rng.choice((1, _SLOWER))) for each in plan.faults),
    )


def _slower(befalls: Befalls, for_s: float, factor: int) -> Befalls:
    """A fault of a slowed plan, which does not last beyond the plan's end for longer than before.

    Args:
        befalls: of the plan as it was.
        for_s: how long that lasted.
        factor: so many times as long does the fault last.
    """
    left_s = (for_s - befalls.at_s) * _SLOWER
    return dataclasses.replace(
        befalls,
        at_s=befalls.at_s * _SLOWER,
        for_s=max(befalls.for_s, min(befalls.for_s * factor, left_s)),
    )


def _some(rng: random.Random, kinds: list[Any]) -> list[Any]:
    """About half of some kinds, one at least."""
    return [kind for kind in kinds if rng.random() < 0.5] or [rng.choice(kinds)]


def _draw_group(rng: random.Random, number: int) -> Group:
    settings: dict[str, Any] = {
        "flushDiskType": rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH")),
        "transactionCheckInterval": 2000,
        "transactionTimeOut": 2000,
        "flushIntervalCommitLog": rng.choice((60, 500)),
        "flushConsumerOffsetInterval": rng.choice((500, 5000)),
        # where it is 0, what checkpoint and mark say bears upon single records
        "open_check_bytes": rng.choice((0, 1 << 30)),
    }
    slack = rng.choice((1.0, 20.0, 20.0, 20.0))
    slaves = rng.choice((0, 0, 1, 1, 2))
    if not slaves and rng.random() < _POOLS:
        settings |= {"transientStorePoolEnable": True, "flushDiskType": "ASYNC_FLUSH"}
    if slaves:
        settings["brokerRole"] = rng.choice(("SYNC_MASTER", "ASYNC_MASTER"))
    return Group(f"broker{number}", slaves, slack, settings)


def _draw_operations(
    rng: random.Random, clients: tuple[str, ...], topics: tuple[str, ...], for_s: float
) -> tuple[Operation, ...]:
    kinds = _some(rng, list(Does))
    every_s = rng.choice((0.1, 0.5, 2.0))
    operations, at_s, number = [], 0.5, 0
    while at_s < for_s:
        does = rng.choice(kinds)
        count = 0
        if does is Does.BATCH:
            count = rng.randint(2, 5)
        elif does is Does.DELAY:
            count = rng.randint(1, len(DELAYS_S) - 1)
        elif does is Does.TIMER:
            count = rng.randint(1, 20)
        elif does is Does.TRANSACTION:
            count = rng.randrange(4)
        operations.append(
            Operation(
                at_s=round(at_s, 6),
                client=rng.choice(clients),
                does=does,
                number=number,
                topic=rng.choice(topics),
                queue_id=rng.choice((-1, 0, 1)) if does is Does.SEND else -1,
                size=rng.choice(_SIZES),
                count=count,
            )
        )
        number += count if does is Does.BATCH else 1
        # load comes in bursts
        at_s += rng.expovariate(1 / every_s) * (_REST if rng.random() < _RESTS else _BURST)
    return tuple(operations)


def _draw_consumers(
    rng: random.Random, clients: tuple[str, ...], topics: tuple[str, ...], for_s: float
) -> tuple[ConsumerPlan, ...]:
    consumers = []
    for way in _some(rng, [Way.PUSH, Way.ORDERLY, Way.POP]):
        refuses = rng.choice((0, 0, 10))
        consumers += [
            ConsumerPlan(
                client,
                f"group-{way}",
                way,
                topics,
                refuses,
                rng.choice((0.0, 0.01, 1.0)),
                round(rng.uniform(0, for_s), 3) if rng.random() < 0.2 else 0.0,
            )
            for client in clients[: rng.randint(1, len(clients))]
        ]
    return tuple(consumers)


def _draw_faults(
    rng: random.Random,
    kinds: list[Fault],
    names: int,
    groups: tuple[Group, ...],
    clients: tuple[str, ...],
    topics: tuple[str, ...],
    for_s: float,
) -> tuple[Befalls, ...]:
    brokers = servers_of(groups)
    everybody = [*brokers, *(f"names{number}" for number in range(names)), *clients]
    every_s = rng.choice((2.0, 10.0, 30.0))
    faults, at_s = [], rng.expovariate(1 / every_s)
    while at_s < for_s:
        what = rng.choice(kinds)
        dies = what in (Fault.KILL, Fault.POWER_CUT, Fault.RESTART)
        whom = rng.choice(everybody[: -len(clients)] if dies else everybody)
        if what is Fault.CLOCK:
            size = rng.choice((-60.0, -1.0, -0.01, 0.5, 5.0, 3600.0))
        elif dies:
            # at its nth sync from then on, or its nth write, or at once
            size = float(rng.choice((0, 0, 1, 2, 3, 8, -1, -2, -5)))
        else:
            size = rng.choice((0.05, 0.2, 0.5))
        other = rng.choice([one for one in everybody if one != whom])
        if what is Fault.DELETE:
            whom, other = rng.choice(clients), rng.choice(topics)
        elif what in (Fault.FULL, Fault.FAIL):
            whom = rng.choice(brokers)
        faults.append(
            Befalls(
                round(at_s, 6),
                what,
                whom,
                other,
                round(rng.choice((0.2, 2.0, 10.0, 40.0)) * rng.random(), 3),
                size,
            )
        )
        at_s += rng.expovariate(1 / every_s)
    return tuple(faults)


def _draw_promotions(seed: object, groups: tuple[Group, ...], for_s: float) -> tuple[Befalls, ...]:
    """Promotions in groups that wait for their slaves."""
    rng = random.Random(f"{seed}/promotions")  # noqa: S311 - repeatable
    may = [group.name for group in groups if group.settings.get("brokerRole") == "SYNC_MASTER"]
    if not may or rng.random() >= _PROMOTIONS:
        return ()
    return tuple(
        Befalls(
            round(rng.uniform(0.0, for_s), 6),
            Fault.PROMOTE,
            rng.choice(may),
            for_s=round(rng.choice((0.2, 10.0, 40.0)) * rng.random(), 3),
            size=float(rng.randrange(2)),
        )
        for _ in range(rng.choice((1, 1, 2)))
    )


def _draw_quotas(seed: object, groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Let some brokers delete the oldest files of their logs."""
    rng = random.Random(f"{seed}/quotas")  # noqa: S311 - repeatable
    size = settings_of(groups[0], 0)["mappedFileSizeCommitLog"]
    return tuple(
        dataclasses.replace(
            group,
            quotas=tuple(size * rng.choice(_QUOTA_FILES) for _ in servers_of((group,))),
        )
        if rng.random() < _QUOTAS
        else group
        for group in groups
    )


def _draw_ordered_pops(
    seed: object, clients: tuple[str, ...], topics: tuple[str, ...]
) -> tuple[ConsumerPlan, ...]:
    """A group that pops in order, of all topics."""
    rng = random.Random(f"{seed}/pop in order")  # noqa: S311 - repeatable
    if rng.random() >= _ORDERED_POPS:
        return ()
    refuses, work_s = rng.choice((0, 0, 10)), rng.choice((0.0, 0.01, 1.0))
    return tuple(
        ConsumerPlan(client, "group-pop-in-order", Way.POP_IN_ORDER, topics, refuses, work_s)
        for client in clients[: rng.randint(1, len(clients))]
    )


def _draw_resets(
    seed: object, consumers: tuple[ConsumerPlan, ...], for_s: float
) -> tuple[Befalls, ...]:
    """Groups that somebody lets read a topic from its beginning on."""
    rng = random.Random(f"{seed}/resets")  # noqa: S311 - repeatable
    if rng.random() >= _RESETS:
        return ()
    befalls = []
    for _ in range(rng.choice((1, 1, 3))):
        consuming = rng.choice(consumers)
        at_s, topic = round(rng.uniform(0.0, for_s), 6), rng.choice(consuming.topics)
        befalls.append(Befalls(at_s, Fault.RESET, consuming.group, topic))
    return tuple(befalls)


def _draw_crashes(seed: object, clients: tuple[str, ...], for_s: float) -> tuple[Befalls, ...]:
    """Clients whose processes die, whatever they are about."""
    rng = random.Random(f"{seed}/crashes")  # noqa: S311 - repeatable
    if rng.random() >= _CRASHES:
        return ()
    return tuple(
        Befalls(
            round(rng.uniform(0.0, for_s), 6),
            Fault.CRASH,
            rng.choice(clients),
            for_s=round(rng.choice((0.2, 10.0, 40.0)) * rng.random(), 3),
        )
        for _ in range(rng.choice((1, 3, 6)))
    )


def settings_of(group: Group, number: int) -> dict[str, Any]:
    """The settings of a group's master, 0, or of its nth slave.

    Args:
        group: of brokers.
        number: 0 for the master.

    Returns:
        by RocketMQ's names.
    """
    settings = {**FILE_SIZES, **TIMEOUTS, "brokerName": group.name, **group.settings}
    if number:
        settings |= {"brokerRole": "SLAVE", "brokerId": number}
    if group.quotas and group.quotas[number]:
        settings["retention_bytes"] = group.quotas[number]
    return settings


def servers_of(groups: tuple[Group, ...]) -> list[str]:
    """The names of all brokers, each master in front of its slaves."""
    return [
        name
        for group in groups
        for name in (group.name, *(f"{group.name}-slave{n}" for n in range(1, group.slaves + 1)))
    ]
