"""The application: every command under its name."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_group

from rmqcore.cli.contents import EXAMPLES, PANELS, SHORT
from rmqcore.cli.examples import NOT_HERE, has_examples
from rmqcore.cli.exit_codes import EXIT_CODES, ExitCode
from rmqcore.cli.failures import Application, StoreCommand
from rmqcore.cli.notes import note
from rmqcore.cli.times import TIMES
from rmqcore.version import __version__

#: Every command: its module below this room, and its function or its application there.
_COMMANDS = {
    "serve": "serve:serve",
    "broker": "serve:broker",
    "namesrv": "serve:namesrv",
    "proxy": "serve:proxy",
    "produce": "produce:produce",
    "consume": "produce:consume",
    "put": "put:put",
    "cat": "read:cat",
    "tail": "read:tail",
    "query": "query:query",
    "stat": "stat:stat",
    "web": "web:web",
    "offsets": "offsets:offsets",
    "verify": "check:verify",
    "dump": "check:dump",
    "export": "transfer:export",
    "import": "transfer:import_",
    "archive": "archive:archive",
    "restore": "archive:restore_",
    "table": "table:table",
    "rebuild": "rebuild:app",
    "doctor": "doctor:app",
    "selftest": "selftest:app",
    "admin": "admin:app",
    "ha": "ha:app",
    "sql": "sql:sql",
    "bench": "bench:bench",
    "debug": "debug:app",
    "man": "man:man",
}
if has_examples():
    _COMMANDS["demo"] = "demo:demo"
#: Commands that need more than [cli], and the extra that brings it.
_NEEDS = {
    "metaq": ("metaq:app", ("cronsim",)),
    "spark": ("spark:app", ("pyspark", "pyarrow", "pandas")),
}
_MISSING = {
    name: name for name, (_, packages) in _NEEDS.items() if not all(map(find_spec, packages))
}
_COMMANDS |= {name: place for name, (place, _) in _NEEDS.items() if name not in _MISSING}
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


class _Commands(UserDict[str, Any]):
    """Commands by name; a module is imported when its command is asked for."""

    def __getitem__(self, name: str) -> Any:
        command = super().__getitem__(name)
        if isinstance(command, str):
            command = self.data[name] = _load(name, command)
        return command


def _load(name: str, place: str) -> Any:
    """The command or the group of commands at ``module:attribute``."""
    module, attribute = place.split(":")
    target = getattr(import_module(f"rmqcore.cli.{module}"), attribute)
    holder = typer.Typer()
    if isinstance(target, typer.Typer):
        holder.add_typer(target, name=name)
    else:
        holder.command(name, cls=StoreCommand, epilog=EXIT_CODES)(target)
    command = get_group(holder).commands[name]
    for words, each in _with_subcommands(name, command):
        each.epilog = _epilog(words, each)
        # no help has markup, and an extra's name is printed in its brackets
        for told in (each, *each.params):
            if getattr(told, "help", None):
                told.help = _unmarked(_unbroken(told.help))
    return command


def _with_subcommands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _with_subcommands(f"{words} {name}", inner)


def _epilog(words: str, command: Any) -> str:
    """What stands below a command's options: examples, what a time is, the exit codes."""
    examples = [_unmarked(line) for line in EXAMPLES.get(words, ())]
    paragraphs = ["\n".join(["Examples:", *(f"  {line}" for line in examples)])] if examples else []
    metavars = {str(param.metavar) for param in command.params}
    if any("TIME" in metavar.split("|") for metavar in metavars):
        paragraphs.append(TIMES)
    if command.epilog:
        paragraphs.append(command.epilog)
    return "\n\n".join(paragraphs)


def _unmarked(text: str) -> str:
    """A text that the help prints as it is."""
    return text.replace("[", r"\[")


def _unbroken(text: str) -> str:
    """Paragraphs without the line breaks of the source, for a terminal of any width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


class _Rmqcore(Application):
    """The command; what a user did not ask for is not imported."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands({**_COMMANDS, **self.commands})
        self.epilog = _epilog("", self)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, those of one panel side by side."""
        known = [name for name in _PANEL_OF if name in self.commands]
        return [*known, *(name for name in self.commands if name not in _PANEL_OF)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """What the list of commands shows of one."""
        if cmd_name in _COMMANDS and cmd_name in SHORT:
            panel = _PANEL_OF[cmd_name]
            return TyperCommand(cmd_name, help=SHORT[cmd_name], rich_help_panel=panel)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is run."""
        if args[0] in self.commands:
            return args[0], self.commands[args[0]], args[1:]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="rmqcore",
    help="Look into, write, check, repair and serve RocketMQ message stores. No JVM.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    cls=_Rmqcore,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

#: A command that is not installed takes any argument, to say what to install.
_ANYTHING = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _rmqcore(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="and exit")
    ] = False,
) -> None:
    """Options of the command itself."""


def _say_what_is_missing(name: str, help_: str, words: str) -> None:
    @app.command(
        name,
        help=help_,
        context_settings=_ANYTHING,
        rich_help_panel=_PANEL_OF[name],
    )
    def _missing() -> None:
        note(f"rmqcore: {words}")
        raise typer.Exit(ExitCode.USAGE)


if "demo" not in _COMMANDS:
    _say_what_is_missing("demo", "Not installed: see examples/ of the source.", NOT_HERE)
for _name, _extra in _MISSING.items():
    _pip = f"pip install 'rmqcore[{_extra}]'"
    _say_what_is_missing(_name, f"Not installed: {_unmarked(_pip)}.", f"{_name} needs {_pip}")


def main() -> None:
    """Run the application and end the process."""
    app(prog_name="rmqcore")
