"""A cold store, which no process has open for writing; replaces its derived directories."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rmqcore.config import StoreConfig, load_config
from rmqcore.errors import UNREADABLE
from rmqcore.files.store_dir import StoreDir, make_directory
from rmqcore.files.store_mark import StoreMark
from rmqcore.native.base._mapped import exchange_paths
from rmqcore.recovery.geometry import fitted_config
from rmqcore.recovery.light_queues import derives_light_queues
from rmqcore.recovery.unfinished_repair import report_unfinished_repair
from rmqcore.scan.log_walk import Damage
from rmqcore.scan.plan import LogPlan
from rmqcore.world import sync_directory, sync_file

_FRESH = ".rebuild"
_SET_ASIDE = ".before"


@dataclass(slots=True)
class RebuildReport:
    """What a rebuild did.

    Attributes:
        kind: "consume queues" or "index".
        records: records of the log that were walked.
        files: files written.
        digest_before, digest_after: SHA-256 of the old and the new files.
        notes: what could not be derived, or was taken over.
        damaged: (physical offset, reason) of damage that was passed over.
        begun_anew: queues whose topics were made again since what their old files had.
    """

    kind: str
    records: int = 0
    files: int = 0
    digest_before: str = ""
    digest_after: str = ""
    notes: list[str] = field(default_factory=list)
    damaged: list[tuple[int, str]] = field(default_factory=list)
    begun_anew: list[tuple[str, int]] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        """True when the new files are the old ones byte for byte."""
        return self.digest_before == self.digest_after

    def as_dict(self) -> dict[str, object]:
        """The report as plain values, for JSON."""
        return asdict(self) | {"identical": self.identical}


def passing_over(damaged: list[Damage], *, skip_damage: bool) -> Callable[[Damage], None] | None:
    """What a walk calls for a damaged place; None has it raise there.

    What the disk refuses to give is no damage: the record may be had from another read, and its
    place would be taken for lost.

    Args:
        damaged: gets what is passed over.
        skip_damage: pass over what is damaged.

    Raises:
        OSError: not here, but when it is called for what the disk refuses to give.
    """

    def note(damage: Damage) -> None:
        if damage.reason == UNREADABLE:
            raise OSError(errno.EIO, UNREADABLE, str(damage.path))
        damaged.append(damage)

    return note if skip_damage else None


@contextlib.contextmanager
def cold(
    store_path: str | os.PathLike[str], config: StoreConfig | str | Path | None
) -> Iterator[LogPlan]:
    """The plan of a store that is locked here, so that no process can open it for writing.

    Args:
        store_path: its directory.
        config: settings, or a ``broker.conf``; None for the defaults, which the files correct.

    Yields:
        with sizes as the files have them.

    Raises:
        StoreNotFoundError: no store there.
        StoreLockedError: a process has it open for writing.
        RepairUnfinishedError: a repair of it was interrupted.
        ConfigError: a setting is none, or contradicts the files.
    """
    loaded = load_config(config)
    directory = StoreDir(store_path, loaded.store_path_commit_log)
    directory.require()
    directory.lock()
    try:
        report_unfinished_repair(directory, loaded.on_corruption)
        for name in ("consume_queue", "batch_consume_queue", "index"):
            path: Path = getattr(directory, name)
            if path.is_symlink():
                # the new directory belongs beside the link's target, on the same disk
                path = path.resolve()
                setattr(directory, name, path)
            undo_swap(path)
        yield LogPlan(directory, fitted_config(loaded, directory))
    finally:
        directory.unlock()


def light_queues(plan: LogPlan) -> bool:
    """True when records stand in light queues, as for an opening."""
    mark = StoreMark(plan.directory)
    with contextlib.suppress(OSError):
        mark.load()
    return derives_light_queues(plan.config, plan.directory, mark.ends)


@contextlib.contextmanager
def fresh_beside(path: Path) -> Iterator[Path]:
    """An empty directory beside ``path``, where its successor is made.

    It goes when that ends in an error: a full disk gets its room back.
    """
    fresh = path.with_name(path.name + _FRESH)
    shutil.rmtree(fresh, ignore_errors=True)
    make_directory(fresh)
    try:
        yield fresh
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def sync_tree(root: Path) -> None:
    """Bring every file and name below a directory to the disk."""
    for directory, _, names in os.walk(root):
        for name in names:
            sync_file(Path(directory) / name)
        sync_directory(Path(directory))


def swap_in(fresh: Path, path: Path) -> None:
    """Put a complete directory in the place of the one there is, and remove that.

    Args:
        fresh: of the same file system; is gone afterwards.
        path: of the one that counts, which need not be there.

    Raises:
        OSError: the disk refused; the old directory is in place.
    """
    sync_tree(fresh)
    if not path.is_dir():
        fresh.rename(path)
        sync_directory(path.parent)
        return
    if exchange_paths(fresh, path):
        sync_directory(path.parent)
        shutil.rmtree(fresh)
        return
    aside = path.with_name(path.name + _SET_ASIDE)
    path.rename(aside)
    fresh.rename(path)
    sync_directory(path.parent)
    shutil.rmtree(aside)


def undo_swap(path: Path) -> None:
    """Undo a swap that was killed between its two renames, where one step was not to be had."""
    aside = path.with_name(path.name + _SET_ASIDE)
    if aside.is_dir() and not path.is_dir():
        aside.rename(path)
        sync_directory(path.parent)
    shutil.rmtree(aside, ignore_errors=True)
