"""Arguments and options that commands share, and opening a store as they say."""

from __future__ import annotations

import difflib
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rmqcore
from rmqcore.cli import complete
from rmqcore.cli.exit_codes import ExitCode
from rmqcore.cli.failures import MissingWarning, as_followed, warn
from rmqcore.config import load_config
from rmqcore.errors import ArgumentError, CorruptConsumeQueueError, CorruptStoreError
from rmqcore.files.config_tables import TopicConfigTable
from rmqcore.files.store_dir import StoreDir
from rmqcore.world import wall_clock_ms

if TYPE_CHECKING:
    from collections.abc import Collection

    from rmqcore import DefaultMessageStore, MessageStore, ReadOnlyMessageStore, StoreConfig
    from rmqcore.cli.progress import Bars

StorePath = Annotated[
    Path,
    typer.Argument(
        metavar="STORE",
        help="the store's directory (storePathRootDir)",
        autocompletion=complete.stores,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="settings from a broker.conf"),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "-c", metavar="NAME=VALUE", help="one setting, by RocketMQ's name or ours; repeatable"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for machines")]
Long = Annotated[
    bool, typer.Option("--long", "-l", help="time, queue, offsets, tags and keys before each body")
]

SkipDamaged = Annotated[
    bool,
    typer.Option("--skip-damaged", help="pass over damaged records, count them, and end with 1"),
]

_NAMES_SHOWN = 8
#: A command names this many damaged places one by one, and counts the others.
_DAMAGE_NAMED = 20


def is_cluster(store: Path, **of_files: object) -> bool:
    """Tell whether a store is a topic of running brokers, ``namesrv://host:port/topic``.

    Args:
        store: as it was given.
        **of_files: options that have a meaning for the files of a store only.

    Raises:
        typer.BadParameter: it is, and one of them was given.
    """
    if not str(store).startswith(("namesrv:/", "namesrvs:/")):
        return False
    for name, value in of_files.items():
        if value:
            raise typer.BadParameter(f"{name} is of a store's files; {store} is a topic of brokers")
    return True


def parse_settings(pairs: list[str] | None) -> dict[str, object]:
    """The settings of ``-c``.

    Raises:
        typer.BadParameter: one of them is not NAME=VALUE.
    """
    settings: dict[str, object] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="-c")
        settings[name.strip()] = value.strip()
    return settings


def configured(config: Path | None, settings: list[str] | None) -> StoreConfig:
    """The configuration of ``--config`` and ``-c``; the latter wins.

    Args:
        config: path of a ``broker.conf``; None for none.
        settings: ``NAME=VALUE`` of each ``-c``, by RocketMQ's name or ours; None for none.

    Raises:
        ConfigError: a setting is unknown, or its value is none; the file cannot be read as one.
        OSError: the system refused the file.
    """
    return load_config(config).with_settings(parse_settings(settings))


def open_for_reading(
    store: Path, config: Path | None, settings: list[str] | None
) -> ReadOnlyMessageStore:
    """The store as its writer, if any, has it now; changes nothing.

    What its files have lost is said on standard error.

    Args:
        store: its directory.
        config: as those of `configured`: the file.
        settings: single ones.

    Raises:
        StoreNotFoundError: no store there.
        ConfigError: a setting is none.
        CorruptStoreError: its files are none that a writer leaves.
    """
    opened = rmqcore.open_store(store, mode="r", config=configured(config, settings))
    _warn_of_missing(store, opened)
    return opened


def _warn_of_missing(store: Path, opened: ReadOnlyMessageStore) -> None:
    for line in opened.missing():
        advice = as_followed("rmqcore doctor STORE says what can be had again", store)
        warnings.warn(f"{store}: {line}; {advice}", MissingWarning, stacklevel=2)


def say_what_is_missing(store: Path, config: StoreConfig) -> None:
    """Say on standard error what a store's files have lost, for who reads them in another way.

    Args:
        store: its directory, as it was given; of one that cannot be opened nothing is said.
        config: its settings.
    """
    with (
        suppress(CorruptStoreError),
        rmqcore.open_store(store, mode="r", config=config) as opened,
    ):
        _warn_of_missing(store, opened)


def open_for_writing(
    store: Path, config: Path | None, settings: list[str] | None, bars: Bars
) -> DefaultMessageStore:
    """The store to write to, made when missing; shows how far its recovery is.

    Args:
        store: its directory.
        config: as those of `configured`: the file.
        settings: single ones.
        bars: show how far it is.

    Raises:
        StoreLockedError: another process has it open for writing.
        ConfigError: a setting is none.
        CorruptStoreError: the log is damaged; nothing was changed.
    """
    opened = rmqcore.open_store(store, config=configured(config, settings), progress=bars.recovery)
    bars.hide_recovery()
    return opened


def open_with_others(
    store: Path, config: Path | None, settings: list[str] | None, bars: Bars
) -> MessageStore:
    """As `open_for_writing`, of a store that other processes may have open by `open_shared`.

    Arguments as those of `open_for_writing`.

    Raises:
        StoreLockedError: a process that does not share it has it open for writing.
    """
    opened = rmqcore.open_shared(store, config=configured(config, settings), progress=bars.recovery)
    bars.hide_recovery()
    return opened


def check_queue(
    store: ReadOnlyMessageStore,
    topic: str | None,
    queue: int | None,
    *,
    may_come: bool = False,
    lost: Collection[int] = (),
) -> None:
    """Refuse a topic or a queue that the store does not have, and a queue without a topic.

    Args:
        store: where it should be.
        topic: None for the whole log.
        queue: None for all of the topic.
        may_come: what is not there yet is only worth a warning.
        lost: queues of the topic that count as there, though their files are not.

    Raises:
        typer.BadParameter: a queue of no topic.
        ArgumentError: it is not there; names the nearest topic.
    """
    if topic is None:
        if queue is not None:
            raise typer.BadParameter("a queue of which topic? give one", param_hint="--queue")
        return
    queues = queues_of(store, lost)
    numbers = sorted({number for name, number in queues if name == topic}.union(lost))
    names = {name for name, _ in queues} | {
        config.topic_name
        for config in TopicConfigTable(StoreDir(store.path).config, clock=wall_clock_ms)
    }
    error = None
    if topic not in names and not lost:
        error = ArgumentError("topic", topic, one_of("topic", topic, sorted(names)))
    elif queue is not None and queue not in numbers:
        rule = f"one of {', '.join(map(str, numbers))}" if numbers else "a topic with queues"
        error = ArgumentError("queue", queue, rule)
    if error is not None and not may_come:
        raise error
    if error is not None:
        warn(f"{error}; waiting for it", as_json=False)


def queues_of(store: ReadOnlyMessageStore, lost: Collection[int]) -> list[tuple[str, int]]:
    """The topic and number of each queue.

    Args:
        store: an open one.
        lost: see `check_queue`; where there are some, all files may be gone.

    Raises:
        CorruptConsumeQueueError: as `check_queues_are_there`.
    """
    try:
        return store.queues()
    except CorruptConsumeQueueError:
        if not lost:
            raise
        return []


def check_queues_are_there(store: ReadOnlyMessageStore) -> None:
    """Tell a store whose consume queues are lost from an empty one.

    Raises:
        CorruptConsumeQueueError: there is none, though the log has messages that belong into one;
            not while a writer may still make them.
    """
    store.queues()


def one_of(kind: str, wrong: str, names: list[str]) -> str:
    """What would be accepted: the nearest name, or all when they are few.

    Args:
        kind: what the names are of: ``topic``, ``queue``.
        wrong: as it was typed.
        names: all that would be accepted.
    """
    near = difflib.get_close_matches(wrong, names, n=1)
    if near:
        return f"a {kind} of this store; did you mean {near[0]}?"
    if len(names) > _NAMES_SHOWN:
        return f"one of the {len(names)} {kind}s that rmqcore stat lists"
    return f"one of {', '.join(names)}" if names else f"a {kind} of this store, which has none"


class DamageCount:
    """Counts the damaged places that a command passes over, and says so."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.places = 0

    def __call__(self, error: CorruptStoreError) -> None:
        """Note one place; pass it as ``on_damage``."""
        self.places += 1
        if self.places <= _DAMAGE_NAMED:
            warn(f"passed over: {error}", as_json=self._as_json)

    def finish(self) -> None:
        """End the command as its findings want.

        Raises:
            typer.Exit: something was passed over.
        """
        if self.places:
            warn(f"damaged places that were passed over: {self.places}", as_json=self._as_json)
            raise typer.Exit(ExitCode.FINDINGS)
