"""What the shell completes: stores, their topics and groups; it reads names of files only."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import typer

_LOG: Final = "commitlog"
_QUEUES: Final = ("consumequeue", "batchconsumequeue")
_GROUP: Final = re.compile(r'"([^"@]*)@([^"]+)"\s*:')
#: where the shells tell it: bash; zsh and fish
_TOLD: Final = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
#: A table of offsets is read up to this size; names behind that are not completed.
_READ_BYTES: Final = 4 << 20


def starting(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that begin so, each once.

    Args:
        names: all there are, perhaps some twice.
        incomplete: what was typed so far; empty begins every name.
    """
    return sorted({name for name in names if name.startswith(incomplete)})


def stores(incomplete: str) -> list[str]:
    """Directories that are a store, and those that may lead to one."""
    above, _, begin = incomplete.rpartition("/")
    root = f"{above}/" if "/" in incomplete else ""
    found = []
    with suppress(OSError):
        for path in Path(root or ".").iterdir():
            hidden = path.name.startswith(".") and not begin.startswith(".")
            if path.name.startswith(begin) and path.is_dir() and not hidden:
                found.append(root + path.name + ("" if (path / _LOG).is_dir() else "/"))
    return sorted(found)


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics that have queues in the store of the command line.

    Args:
        ctx: of the command line that is being typed.
        incomplete: what was typed so far.
    """
    return starting(_topics(_store(ctx)), incomplete)


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Groups that have offsets in the store of the command line.

    Args:
        ctx: of the command line that is being typed.
        incomplete: what was typed so far.
    """
    return starting(_groups(_store(ctx)), incomplete)


def words() -> list[str]:
    """What is typed so far, as the shell tells it: an option without its value hides the rest."""
    told = next((os.environ[name] for name in _TOLD if name in os.environ), "")
    with suppress(ValueError):
        return shlex.split(told)
    return told.split()


def _store(ctx: typer.Context) -> object:
    given = ctx.params.get("store")
    return given or next((word for word in words() if (Path(word) / _LOG).is_dir()), None)


def _topics(store: object) -> Iterator[str]:
    for folder in _QUEUES if store else ():
        with suppress(OSError):
            yield from (path.name for path in (Path(str(store)) / folder).iterdir())


def _groups(store: object) -> Iterator[str]:
    if store:
        with (
            suppress(OSError),
            (Path(str(store)) / "config" / "consumerOffset.json").open("rb") as f,
        ):
            text = f.read(_READ_BYTES).decode("utf-8", "replace")
            yield from (group for _, group in _GROUP.findall(text))
