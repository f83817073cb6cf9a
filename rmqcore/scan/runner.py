"""Running one function over many splits, in this process or in several."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeVar

from rmqcore.errors import StoreError
from rmqcore.scan.split import Split

Result = TypeVar("Result")


class Runner(Protocol):
    """What calls a function with every split somewhere else, in a cluster for example."""

    def __call__(
        self, function: Callable[[Split], Result], splits: Sequence[Split], /
    ) -> Iterator[Result]:
        """Call it; yields its results in the order of the splits."""
        ...


def run(
    function: Callable[[Split], Result],
    splits: Sequence[Split],
    *,
    jobs: int | Runner = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Result]:
    """Call a function with every split; yields its results in the order of the splits.

    Args:
        function: importable by its name, or a ``functools.partial`` of such a one, when there is
            more than one job.
        splits: what to work on.
        jobs: processes; 1 works in this one. Or what else runs the function.
        progress: called with (bytes of log done, bytes of log in all) after each split.

    Raises:
        StoreError: a worker process was killed; whatever ``function`` raises.
    """
    total = sum(split.size for split in splits)
    done = 0
    if progress is not None:
        progress(0, total)
    for split, result in zip(splits, _results(function, splits, jobs), strict=True):
        done += split.size
        if progress is not None:
            progress(done, total)
        yield result


def _results(
    function: Callable[[Split], Result], splits: Sequence[Split], jobs: int | Runner
) -> Iterator[Result]:
    if not isinstance(jobs, int):
        yield from jobs(function, splits)
        return
    if jobs <= 1 or len(splits) <= 1:
        yield from map(function, splits)
        return
    # a fresh interpreter: this one may run the threads of an open store, which a fork would break
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(splits)), mp_context=context) as pool:
        try:
            yield from pool.map(function, splits)
        except BrokenProcessPool as error:
            raise StoreError(f"a worker process ended before its work was done: {error}") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
