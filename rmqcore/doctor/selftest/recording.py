"""Writers whose disk is recorded: what they put, what was acknowledged when, and what a kill left.

Several threads put side by side, some of them just while a flush is under way.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from rmqcore import Durability, MessageStore
from rmqcore.doctor.selftest import _system_calls
from rmqcore.doctor.selftest.block_log import BlockLog
from rmqcore.doctor.selftest.workload import NUMBERS_A_WRITER, check_store, put
from rmqcore.native.log._tail import LogTail
from rmqcore.world import monotonic_s, sleep

_WRITERS = 3
#: How often a put is followed by a look at all pages, by a flush of the store, by a pause.
_LOOKS, _FLUSHES, _PAUSES = 0.2, 0.06, 0.03
_PAUSE_S = 0.006
#: How often a put waits until a flush begins, and how many seconds each of them waits for the
#: other.
_BESIDE, _BESIDE_S = 0.7, 0.002
_STEP_S = 0.0002
#: A writer that is about to be killed does this many puts after which nothing reaches the disk any
#: more.
_LAST_PUTS = 8
_LAST_S = 0.05
#: opens a store, with settings that a random number decides
Opened = Callable[[random.Random], MessageStore]


class Recording:
    """The log of a disk while a store on it is used, by one process or by two.

    Args:
        path: the store, all of which is on the disk.
        opened: opens it.
        clock: gives the store times of the records, Unix milliseconds.
        rng: decides what the writers do.
        killed: the first process is killed, and another one goes on in what it has left: in memory,
            and no more of it on the disk than before.

    Raises:
        BrokenPromiseError: what a kill may not take is not there.
    """

    def __init__(
        self, path: Path, opened: Opened, clock: Iterator[int], rng: random.Random, *, killed: bool
    ) -> None:
        self.log = BlockLog(path)
        self._processes: list[_Process] = []
        must: list[int] = []
        for dies in (True, False) if killed else (False,):
            process = _Process(self.log, rng, clock)
            process.run(opened, must, dies=dies)
            self._processes.append(process)
            must = process.written

    def order_at(self, moment: int) -> list[int]:
        """What may be there after a cut at a moment, in the order of the log."""
        return list(self._had(moment)[-1].offsets)

    def durable_at(self, moment: int) -> list[int]:
        """What a cut at a moment may not take: it was acknowledged as on the disk by then."""
        had = self._had(moment)
        end = max(end for one in had for at, end in one.durable if at <= moment)
        return [number for number, offset in had[-1].offsets.items() if offset < end]

    def _had(self, moment: int) -> list[_Process]:
        return [one for one in self._processes if one.begun <= moment]


class _Process:
    """What would be a process: it opens the store, puts, and closes it or is killed.

    Attributes:
        begun: the moment at which it did.
        offsets: physical offset of each number that is in the log, in its order.
        durable: pairs (moment, physical offset): all before that was acknowledged by then.
        written: numbers that a kill may not take.
    """

    def __init__(self, log: BlockLog, rng: random.Random, clock: Iterator[int]) -> None:
        self.begun = log.now
        self.offsets: dict[int, int] = {}
        self.durable: list[tuple[int, int]] = []
        self.written: list[int] = []
        self._log, self._rng, self._clock = log, rng, clock
        self._lock = threading.Lock()
        #: physical offset behind the last put that has returned
        self._end = 0
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._flush_begins = threading.Event()
        self._waiting = 0
        self._dying = threading.Event()

    def run(self, opened: Opened, must: Collection[int], *, dies: bool) -> None:
        """Use the store to the end.

        Raises:
            BrokenPromiseError: a number that must be there is not.
        """
        moment, written = 0, self.written
        _system_calls.watch(self._log)
        try:
            store = opened(self._rng)
            try:
                self._begin(store, must, dies=dies)
                if dies:
                    self._dying.wait()
                    self._threads[0].join(_LAST_S)
                    # puts that have returned by now are in memory at that moment
                    written, moment = list(self.written), self._log.at_rest()
                else:
                    self._join()
                if dies or self._rng.random() < 0.5:
                    _system_calls.watch(None)
            finally:
                self._log.beside = None
                self._log.let_flushes_go_on()
                self._join()
                store.close()
        finally:
            _system_calls.watch(None)
        _system_calls.raise_again()
        if self._failure is not None:
            raise self._failure
        self.offsets = dict(sorted(self.offsets.items(), key=lambda one: one[1]))
        if dies:
            self._log.kill(moment)
            self.written = written
            self.durable = [one for one in self.durable if one[0] <= moment]

    def _begin(self, store: MessageStore, must: Collection[int], *, dies: bool) -> None:
        tail: LogTail = store.parts.files.tail  # type: ignore[attr-defined]
        self.offsets = found = check_store(store, must)
        self.written += found
        if self.begun <= 1:
            # all that the recording begins with is on the disk
            self.durable.append((0, max(found.values(), default=-1) + 1))
        self._log.beside = partial(self._flush_has_begun, tail)
        puts = self._rng.choice((5, 40, 120))
        for number in range(self._rng.randint(1, _WRITERS)):
            start = number * NUMBERS_A_WRITER
            mine = [one for one in found if 0 <= one - start < NUMBERS_A_WRITER]
            numbers = iter(range(max(mine, default=start - 1) + 1, start + NUMBERS_A_WRITER))
            rng = random.Random(self._rng.random())  # noqa: S311 - repeatable
            count = puts // (number + 1)
            work = (store, tail, numbers, count, rng, dies and number == 0)
            self._threads.append(threading.Thread(target=self._write, args=work))
        for thread in self._threads:
            thread.start()

    def _join(self) -> None:
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _flush_has_begun(self, tail: LogTail) -> None:
        """Let the writers put beside it that wait, until their records are in the log."""
        if self._waiting and not self._dying.is_set():
            count, until = tail.counts[0] + 3 * self._waiting, monotonic_s() + _BESIDE_S
            self._flush_begins.set()
            while tail.counts[0] < count and monotonic_s() < until:
                sleep(_STEP_S)
            self._flush_begins.clear()

    # ---- a writer

    def _write(
        self,
        store: MessageStore,
        tail: LogTail,
        numbers: Iterator[int],
        count: int,
        rng: random.Random,
        dies: bool,
    ) -> None:
        try:
            for _ in range(count):
                if self._dying.is_set():
                    return
                if rng.random() < _BESIDE:
                    self._wait_for_flush()
                self._put(store, tail, next(numbers))
                self._do_else(store, rng)
            if dies:
                self._log.block_flushes()
                self._dying.set()
                for _ in range(_LAST_PUTS):
                    self._put(store, tail, next(numbers), durability=Durability.PAGE_CACHE)
        except BaseException as error:  # noqa: BLE001 - raised where all have ended
            self._failure = self._failure or error
        finally:
            if dies:
                self._dying.set()

    def _wait_for_flush(self) -> None:
        with self._lock:
            self._waiting += 1
        self._flush_begins.wait(_BESIDE_S)
        with self._lock:
            self._waiting -= 1

    def _put(
        self,
        store: MessageStore,
        tail: LogTail,
        number: int,
        *,
        durability: Durability | None = None,
    ) -> None:
        with self._lock:
            tail.fixed_time_ms = next(self._clock)
        receipt = put(store, number, durability=durability)
        end = receipt.phy_offset + receipt.store_size
        with self._lock:
            self.offsets[number] = receipt.phy_offset
            self._end = max(self._end, end)
        if receipt.durability is not Durability.MEMORY:
            self.written.append(number)
        if receipt.durability is Durability.DISK:
            self.durable.append((self._log.observe(), end))

    def _do_else(self, store: MessageStore, rng: random.Random) -> None:
        """What a writer does now and then behind a put."""
        if rng.random() < _LOOKS:
            self._log.observe()
        if rng.random() < _FLUSHES:
            end = self._end
            store.flush()
            self.durable.append((self._log.observe(), end))
        if rng.random() < _PAUSES:
            sleep(_PAUSE_S)
