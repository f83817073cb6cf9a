"""What is taken as it was typed is what the checked way makes of it."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.main import get_command

from rmqcore.cli.failures import StoreCommand

pytestmark = pytest.mark.logic


class Kind(StrEnum):
    ONE = "one"
    TWO = "two"


def values(words, cls, monkeypatch):
    """The values of a command of every kind of parameter, made by a class of commands."""
    monkeypatch.setenv("OF_THE_SHELL", "7")
    app, taken = typer.Typer(), []

    def work(
        place: Path,
        more: Annotated[list[Path] | None, typer.Argument()] = None,
        text: str | None = None,
        texts: Annotated[list[str] | None, typer.Option("-t")] = None,
        number: Annotated[int, typer.Option(min=1, max=9)] = 3,
        ratio: float = 0.5,
        flag: bool = False,
        off: Annotated[bool, typer.Option("--on/--off")] = True,
        kind: Kind = Kind.ONE,
        told: Annotated[int, typer.Option(envvar="OF_THE_SHELL")] = 0,
    ) -> None:
        taken.append([place, more, text, texts, number, ratio, flag, off, kind, told])

    app.command(cls=cls)(work)
    try:
        get_command(app).main(words, standalone_mode=False)
    except Exception as error:  # noqa: BLE001 - whatever both of them raise
        return type(error).__name__, str(error)
    return [(type(value), value) for value in taken[0]]


@pytest.mark.parametrize(
    "words",
    [
        ["a"],
        ["a", "b", "c", "-t", "x", "-t", "", "--text", "y"],
        ["a", "--number", "9", "--ratio", "2", "--flag", "--off", "--kind", "two"],
        ["a", "--number", "10"],
        ["a", "--number", "many"],
        ["a", "--ratio", "x"],
        ["a", "--kind", "three"],
        ["-"],
        [],
    ],
)
def test_a_value_is_the_same_as_that_of_the_checked_way(words, monkeypatch):
    plain = values(words, typer.core.TyperCommand, monkeypatch)
    assert values(words, StoreCommand, monkeypatch) == plain


def test_an_empty_path_is_not_the_current_directory(monkeypatch):
    said = values([""], StoreCommand, monkeypatch)
    assert said == ("BadParameter", "empty; '.' is the current directory")
