"""The application: every command under its name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from rmqcore.cli import (
    admin,
    check,
    offsets,
    produce,
    put,
    query,
    read,
    rebuild,
    serve,
    stat,
    transfer,
)
from rmqcore.cli.demo import command as demo
from rmqcore.cli.failures import EXIT_CODES, Application, ExitCode, StoreCommand
from rmqcore.version import __version__

app = typer.Typer(
    name="rmqcore",
    help="Look into, write, check, repair and serve RocketMQ message stores. No JVM.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    cls=Application,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

#: of a command that is not installed: whatever is asked of it, it says what to install
_ANYTHING = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
_COMMANDS: dict[str, Callable[..., Any]] = {
    "demo": demo.demo,
    "serve": serve.serve,
    "broker": serve.broker,
    "namesrv": serve.namesrv,
    "produce": produce.produce,
    "consume": produce.consume,
    "put": put.put,
    "cat": read.cat,
    "tail": read.tail,
    "query": query.query,
    "stat": stat.stat,
    "offsets": offsets.offsets,
    "verify": check.verify,
    "dump": check.dump,
    "export": transfer.export,
    "import": transfer.import_,
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


for _name, _function in _COMMANDS.items():
    app.command(_name, cls=StoreCommand, epilog=EXIT_CODES)(_function)

app.add_typer(rebuild.app, name="rebuild")
app.add_typer(admin.app, name="admin")
if find_spec("cronsim"):
    from rmqcore.cli.metaq import app as metaq

    app.add_typer(metaq, name="metaq")
else:

    @app.command(
        "metaq",
        help=r"Not installed: pip install 'rmqcore\[metaq]'.",
        context_settings=_ANYTHING,
    )
    def _metaq() -> None:
        typer.echo("rmqcore: metaq needs pip install 'rmqcore[metaq]'", err=True)
        raise typer.Exit(ExitCode.USAGE)


if all(find_spec(name) for name in ("pyspark", "pyarrow", "pandas")):
    from rmqcore.cli.spark import app as spark

    app.add_typer(spark, name="spark")
else:

    @app.command(
        "spark",
        help=r"Not installed: pip install 'rmqcore\[spark]'.",
        context_settings=_ANYTHING,
    )
    def _spark() -> None:
        typer.echo("rmqcore: spark needs pip install 'rmqcore[spark]'", err=True)
        raise typer.Exit(ExitCode.USAGE)


def main() -> None:
    """Run the application and end the process."""
    app()
