"""The application: every command under its name."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.main import get_group

from rmqcore.cli.exit_codes import EXIT_CODES, ExitCode
from rmqcore.cli.failures import Application, StoreCommand
from rmqcore.cli.notes import note
from rmqcore.version import __version__

#: every command: its module below this room, and its function or its application there
_COMMANDS = {
    "demo": "demo.command:demo",
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
    "offsets": "offsets:offsets",
    "verify": "check:verify",
    "dump": "check:dump",
    "export": "transfer:export",
    "import": "transfer:import_",
    "archive": "archive:archive",
    "restore": "archive:restore_",
    "rebuild": "rebuild:app",
    "doctor": "doctor:app",
    "selftest": "selftest:app",
    "admin": "admin:app",
    "ha": "ha:app",
}
if find_spec("cronsim"):
    _COMMANDS["metaq"] = "metaq:app"
if all(find_spec(name) for name in ("pyspark", "pyarrow", "pandas")):
    _COMMANDS["spark"] = "spark:app"


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
    return get_group(holder).commands[name]


class _Rmqcore(Application):
    """The command; what a user did not ask for is not imported."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands({**_COMMANDS, **self.commands})


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


if "metaq" not in _COMMANDS:

    @app.command(
        "metaq",
        help=r"Not installed: pip install 'rmqcore\[metaq]'.",
        context_settings=_ANYTHING,
    )
    def _metaq() -> None:
        note("rmqcore: metaq needs pip install 'rmqcore[metaq]'")
        raise typer.Exit(ExitCode.USAGE)


if "spark" not in _COMMANDS:

    @app.command(
        "spark",
        help=r"Not installed: pip install 'rmqcore\[spark]'.",
        context_settings=_ANYTHING,
    )
    def _spark() -> None:
        note("rmqcore: spark needs pip install 'rmqcore[spark]'")
        raise typer.Exit(ExitCode.USAGE)


def main() -> None:
    """Run the application and end the process."""
    app()
