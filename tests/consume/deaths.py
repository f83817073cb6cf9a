"""Consumers and tables in a process that is killed, or whose power fails: `python deaths.py TASK`.

The process that does it has one thread, so that it may fork, and its system calls are watched;
test_deaths.py starts it. What it tells last is a list of broken promises, and how many deaths
there were.
"""

import json
import random
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from children import die, run_child

import rmqcore
from rmqcore.doctor.selftest import _system_calls
from rmqcore.doctor.selftest.block_log import BlockLog
from rmqcore.doctor.selftest.workload import MODES, SIZES
from rmqcore.store.consume import lease_table
from rmqcore.store.consume.holders import new_holder
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.parts import key_values
from rmqcore.world import World

GROUP, TABLE = "g", "t"
TOPICS = {"T": "*", "D": "*"}
KEYS = [b"k%d" % number for number in range(6)]
WEIGHTS = {
    "put": 6,
    "lease": 6,
    "acknowledge": 5,
    "give_back": 2,
    "bury": 1,
    "change": 1,
    "release": 1,
    "set": 6,
    "swap": 2,
    "take": 1,
    "delete_topic": 0.5,
    "flush": 1,
    "save": 1,
}
ALWAYS = 1 << 30
AN_HOUR_MS = 3_600_000
DEATHS_A_STORE = 12
CUTS_A_STORE = 20
#: things that one worker does, and more bodies than it puts
OPERATIONS = 60
BODIES_MAX = 4 * OPERATIONS
#: system calls that a worker makes, about
CALLS = 400
#: how many workers die at no certain call, and within which time of their first word
AT_RANDOM_MOMENTS = 0.3
LIFE_S = 0.02


class Broken(Exception):
    """A promise that does not hold."""


class Model:
    """What must be there, may be, and may not, as told by who did it.

    Args:
        power: whether it dies by a power cut: then only what was flushed must be there, and what
            was acknowledged may come again.
        synced: whether each put waits for the disk.
    """

    def __init__(self, *, power=False, synced=False):
        self.power = power
        self.synced = synced or not power
        #: bodies
        self.must, self.recent, self.done, self.known, self.buried = (
            set(),
            set(),
            set(),
            set(),
            set(),
        )
        #: by key, the values that it may have; the last one is the newest
        self.values = {key: [None] for key in KEYS}
        self.begun = None

    def hear(self, event):
        what, *about = event
        if what == "end":
            self.end(*self.begun)
            self.begun = None
            return
        if what in ("acknowledge", "delete"):
            self.must -= set(about[0])
            self.recent -= set(about[0])
        elif what == "put":
            self.known |= set(about[0])
        elif what == "set":
            for key, value in about[0].items():
                self.values[key].append(value)
        elif what == "got":
            self.check_got(set(about[0]))
            return
        self.begun = event

    def end(self, what, *about):
        if what == "put":
            (self.must if self.synced else self.recent).update(about[0])
        elif what in ("acknowledge", "delete"):
            self.done |= set(about[0])
        elif what == "bury":
            self.buried |= set(about[0])
        elif what == "set" and self.synced:
            for key in about[0]:
                del self.values[key][:-1]
        elif what == "flush":
            self.must |= self.recent
            self.recent.clear()
            for values in self.values.values():
                del values[:-1]

    def check_got(self, bodies):
        if strange := bodies - self.known:
            raise Broken(f"never put: {strange}")
        # a deletion lets a group begin at the topic's first message before the queues go
        deletes = self.begun is not None and self.begun[0] == "delete"
        settled = (self.done | self.buried) - set(self.begun[1] if deletes else ())
        if not self.power and (again := bodies & settled):
            raise Broken(f"acknowledged, and comes again: {again}")

    def check(self, found, dead, values):
        """Compare with what a store has after the death, and know it from then on."""
        if len(set(found)) != len(found):
            raise Broken(f"twice: {sorted(found)}")
        self.check_got(set(found))
        if lost := self.must - set(found) - set(dead):
            raise Broken(f"lost: {lost} at {self.begun}")
        if not self.power and (lost := self.buried - set(dead)):
            raise Broken(f"dead letters lost: {lost}")
        for key, allowed in self.values.items():
            if values.get(key) not in allowed:
                raise Broken(f"{key}: {values.get(key)} is none of {allowed} at {self.begun}")
            self.values[key] = [values.get(key)]
        self.begun = None
        self.done -= set(found)
        self.buried -= set(found)
        # what was being put or acknowledged has been found now, or it has not
        self.done |= self.known - set(found) - set(dead)
        self.must = set(found) | set(dead)


def opened(path, mode, ahead_ms=0):
    config = rmqcore.StoreConfig(**SIZES | MODES[mode])
    return DefaultMessageStore(
        path, config, world=World(lambda: time.time_ns() // 1_000_000 + ahead_ms)
    )


class Worker:
    """Does one thing after another, and tells before and after it."""

    def __init__(self, store, rng, first, tell):
        self.store, self.rng, self.tell = store, rng, tell
        self.number = first
        self.holder = new_holder()
        self.held = {}
        self.values = dict(store.kv_list(TABLE))

    def work(self, count):
        whats = self.rng.choices(list(WEIGHTS), WEIGHTS.values(), k=count)
        for what in whats:
            getattr(self, what)()

    def do(self, what, about, call):
        self.tell((what, about))
        found = call()
        self.tell(("end",))
        return found

    def some_held(self):
        count = self.rng.randint(0, min(3, len(self.held)))
        return self.rng.sample(sorted(self.held), count)

    def put(self):
        topic, queue_id = self.rng.choice("TTD"), self.rng.randrange(2)
        for _ in range(self.rng.randint(1, 3)):
            body = b"%s%d" % (topic.encode(), self.number)
            self.number += 1
            self.do("put", [body], partial(self.store.put, topic, body, queue_id=queue_id))

    def lease(self):
        count = self.rng.randint(1, 5)
        found = self.store.lease(
            GROUP, TOPICS, holder=self.holder, max_messages=count, max_reconsume_times=ALWAYS
        )
        bodies = [bytes(message.body) for message in found]
        if again := set(bodies) & set(self.held):
            raise Broken(f"leased twice at a time: {again}")
        self.tell(("got", bodies))
        self.held.update(zip(bodies, (message.place for message in found), strict=True))

    def acknowledge(self):
        some = self.some_held()
        places = [self.held.pop(body) for body in some]
        self.do("acknowledge", some, partial(self.store.acknowledge, GROUP, places))

    def give_back(self):
        places = [self.held.pop(body) for body in self.some_held()]
        self.store.give_back(GROUP, places, delay_ms=0, max_reconsume_times=ALWAYS)

    def bury(self):
        some = self.some_held()
        places = [self.held.pop(body) for body in some]
        self.do("bury", some, partial(self.store.give_back, GROUP, places, max_reconsume_times=0))

    def change(self):
        places = [self.held[body] for body in self.some_held()]
        self.store.change_lease(GROUP, places, 60_000)

    def release(self):
        self.store.release_leases(self.holder)
        self.held.clear()

    def changed(self, changes, call):
        if self.do("set", changes, call) is False:
            raise Broken(f"no such value before: {changes}")
        self.values.update(changes)

    def value(self):
        self.number += 1
        return None if self.rng.random() < 0.3 else b"%d" % self.number

    def set(self):
        key, value = self.rng.choice(KEYS), self.value()
        self.changed({key: value}, partial(self.store.kv_put, TABLE, key, value))

    def swap(self):
        key, value = self.rng.choice(KEYS), self.value()
        old = self.values.get(key)
        self.changed({key: value}, partial(self.store.kv_swap, TABLE, key, old, value))

    def take(self):
        first, last = sorted(self.rng.choices(KEYS, k=2))
        gone = {key: None for key in KEYS if first <= key < last}
        self.changed(gone, partial(self.store.kv_take, TABLE, first=first, last=last))

    def delete_topic(self):
        bodies = [b"D%d" % number for number in range(self.number)]
        self.held = {body: place for body, place in self.held.items() if body[:1] != b"D"}
        self.do("delete", bodies, partial(self.store.delete_topic, "D"))

    def flush(self):
        self.do("flush", None, self.store.flush)

    def save(self):
        self.store.consumer_offsets.persist()


def contents(path, mode, ahead_ms=0):
    """What the group gets of a store, its dead letters, and the table."""
    store, found = opened(path, mode, ahead_ms), []
    try:
        while some := store.lease(GROUP, TOPICS, holder=new_holder(), max_reconsume_times=ALWAYS):
            found += [bytes(message.body) for message in some]
        dead = [bytes(message.body) for message in store.messages(f"%DLQ%{GROUP}")]
        return found, dead, dict(store.kv_list(TABLE))
    finally:
        if ahead_ms:
            store.close()


# ---- kills


class Death:
    """Kills this process at a system call that concerns a directory: before, in or after it."""

    def __init__(self, path, number, moment):
        self.path, self.left, self.moment = str(path), number, moment
        self.fatal = False

    def before(self, call, fd, at, size, path):
        place = path or (str(Path(f"/proc/self/fd/{fd}").readlink()) if fd >= 0 else "")
        if not place.startswith(self.path):
            return 0
        self.left -= 1
        self.fatal = self.left == 0
        if self.fatal and self.moment == "before":
            die()
        return -(size // 2) if self.fatal and call == "write" and self.moment == "in" else 0

    def after(self, call, fd, at, size, result):
        if self.fatal:
            die()


def forked(run, life_s=None):
    """As `run_child`; what it told, and if it was killed."""
    code, told = run_child(run, life_s)
    if code not in (0, -signal.SIGKILL):
        raise Broken(f"it ended with {code}")
    return told, code != 0


def work_in(path, mode, seed, first, death, tell):
    """Open a store and do some things, by a seed; bodies have numbers from the first on."""
    if death is not None:
        _system_calls.watch(death)
    Worker(opened(path, mode), random.Random(seed), first, tell).work(OPERATIONS)


def tell_contents(path, mode, tell):
    tell(contents(path, mode))


def kills(count, rng, scratch):
    """Kill workers, each in the store that the one before has left; how many died."""
    deaths, first, path = 0, 0, scratch / "store"
    while deaths < count:
        model = Model()
        for _ in range(DEATHS_A_STORE):
            mode, life_s, death = rng.choice(["sync", "async"]), None, None
            if rng.random() < AT_RANDOM_MOMENTS:
                life_s = rng.random() * LIFE_S
            else:
                moment = rng.choice(["before", "in", "after"])
                death = Death(path, rng.randint(1, CALLS), moment)
            told, was_killed = forked(
                partial(work_in, path, mode, rng.random(), first, death), life_s
            )
            deaths += was_killed
            first += BODIES_MAX
            for event in told:
                model.hear(event)
            found, _ = forked(partial(tell_contents, path, mode))
            model.check(*found[0])
        shutil.rmtree(path)
    return deaths


# ---- power cuts


def recorded(path, mode, seed):
    """The log of a disk while somebody works on it, and what was told, each with its moment."""
    path.mkdir()
    log, events = BlockLog(path), []
    _system_calls.watch(log)
    store = opened(path, mode)
    worker = Worker(
        store, random.Random(seed), 0, lambda event: events.append((log.observe(), event))
    )
    worker.work(OPERATIONS)
    _system_calls.watch(None)
    _system_calls.raise_again()
    store.close()
    return log, events


def power_cuts(count, rng, scratch):
    """Cut the power of workers; how often."""
    cuts, path, target = 0, scratch / "store", scratch / "cut"
    while cuts < count:
        mode = rng.choice(["sync", "async"])
        log, events = recorded(path, mode, rng.random())
        for _ in range(CUTS_A_STORE):
            moment = rng.randint(events[0][0], events[-1][0])
            log.cut(target, moment, rng)
            model = Model(power=True, synced=mode == "sync")
            for at, event in events:
                if at <= moment:
                    model.hear(event)
            model.check(*contents(target, mode, AN_HOUR_MS))
            shutil.rmtree(target)
            cuts += 1
        shutil.rmtree(path)
    return cuts


def main():
    """Do one of the two so often, by a seed."""
    what, count, seed = json.loads(sys.argv[1])
    # both are written anew every few records
    lease_table._COMPACT_AT_LEAST = 600
    key_values.COMPACTED_FROM = 12
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="deaths-", dir=memory) as scratch:
        do = {"kills": kills, "power cuts": power_cuts}[what]
        print(do(count, random.Random(seed), Path(scratch)), "deaths")


if __name__ == "__main__":
    main()
