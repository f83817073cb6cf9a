"""``rmqcore man``: manual pages, made from what the commands' own help says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rmqcore.cli.contents import EXAMPLES, PANELS
from rmqcore.cli.exit_codes import TABLE
from rmqcore.cli.times import TIMES
from rmqcore.version import __version__

_ENVIRONMENT: Final = {
    "NAMESRV_ADDR": "name servers, where --namesrv is not given",
    "ROCKETMQ_ACCESS_KEY, ROCKETMQ_SECRET_KEY": "who signs the requests of produce, consume, admin",
    "SSL_CERT_FILE": "certificates that --tls trusts, instead of the system's",
    "NO_COLOR": "print no colours",
    "RMQCORE_TRACEBACK": "show where a defect is, instead of one line",
}


def man(
    ctx: typer.Context,
    command: Annotated[
        str | None, typer.Argument(metavar="COMMAND", help="of this command; else of rmqcore")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="write every page into this directory")
    ] = None,
) -> None:
    """Print the manual page of rmqcore, or of one command, in what the program man reads."""
    root = ctx.find_root().command
    commands: dict[str, Any] = dict(sorted(getattr(root, "commands", {}).items()))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name in [None, *commands]:
            title = f"rmqcore-{name}" if name else "rmqcore"
            page = _page_of(name, root, ctx)
            (out / f"{title}.1").write_text(page, "utf-8")
        typer.echo(f"{len(commands) + 1} pages in {out}")
        return
    if command is not None and command not in commands:
        raise typer.BadParameter(f"{command!r} is none of {', '.join(commands)}")
    typer.echo(_page_of(command, root, ctx), nl=False)


def _page_of(name: str | None, root: Any, ctx: typer.Context) -> str:
    command = root.commands[name] if name else root
    lines = [*_head(name, command), *_usage(name or "", command, ctx)]
    if name is None:
        for panel, names in PANELS.items():
            lines.append(f".SS {_quoted(panel)}")
            for each in names:
                if each in root.commands:
                    shown = root.get_command(ctx, each).get_short_help_str(200)
                    lines += [".TP", rf"\fBrmqcore {_text(each)}\fR", _text(_plain(shown))]
    for words, inner in _subcommands(name or "", command) if name else ():
        lines += [f".SH {_quoted('rmqcore ' + words)}", *_described(inner)]
        lines += _usage(words, inner, ctx, below=True)
    lines += _tail(name, command)
    return "\n".join(lines) + "\n"


def _head(name: str | None, command: Any) -> Iterator[str]:
    title = f"rmqcore-{name}" if name else "rmqcore"
    first = _plain(command.help or "").partition("\n\n")[0].rstrip(".")
    yield f'.TH "{title.upper()}" "1" "" "rmqcore {__version__}" "RocketMQ message stores"'
    yield from (".SH NAME", rf"{_text(title)} \- {_text(first)}", ".SH SYNOPSIS")
    yield rf"\fBrmqcore{' ' + _text(name) if name else ''}\fR " + _synopsis(command)
    yield ".SH DESCRIPTION"
    yield from _described(command)


def _synopsis(command: Any) -> str:
    if hasattr(command, "commands"):
        return r"\fICOMMAND\fR [\fIOPTIONS\fR] ..."
    arguments = [_text(_metavar(param)) for param in command.params if param.opts[0][:1] != "-"]
    return " ".join([r"[\fIOPTIONS\fR]", *(rf"\fI{each}\fR" for each in arguments)])


def _described(command: Any) -> Iterator[str]:
    for number, paragraph in enumerate(_plain(command.help or "").split("\n\n")):
        if number:
            yield ".PP"
        yield _text(" ".join(paragraph.split()))


def _usage(words: str, command: Any, ctx: typer.Context, *, below: bool = False) -> Iterator[str]:
    """Arguments, options and examples of a command."""
    shown = [param for param in command.params if getattr(param, "help", None)]
    if shown:
        yield ".PP" if below else ".SH OPTIONS"
    for param in shown:
        names = [*param.opts, *param.secondary_opts]
        if names[0].startswith("-"):
            value = "" if param.is_flag else rf" \fI{_text(_metavar(param))}\fR"
            named = ", ".join(rf"\fB{_text(each)}\fR" for each in names) + value
        else:
            named = rf"\fI{_text(_metavar(param))}\fR"
        yield from (".TP", named, _text(_plain(param.help)))
    if EXAMPLES.get(words):
        yield ".PP" if below else ".SH EXAMPLES"
        yield from (".nf", *(_text(line) for line in EXAMPLES[words]), ".fi")


def _tail(name: str | None, command: Any) -> Iterator[str]:
    metavars = [_metavar(param) for _, each in _subcommands("", command) for param in each.params]
    metavars += [_metavar(param) for param in command.params]
    if name is None or any("TIME" in each.split("|") for each in metavars):
        yield from (".SH TIMES", ".nf", *map(_text, TIMES.splitlines()), ".fi")
    yield ".SH EXIT STATUS"
    for row in TABLE:
        said = row.doctor if name == "doctor" else row.commands
        if said:
            yield from (".TP", str(row.code), _text(said))
    yield ".SH ENVIRONMENT"
    for variable, meaning in _ENVIRONMENT.items():
        yield from (".TP", _text(variable), _text(meaning))


def _subcommands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        if words:
            yield f"{words} {name}", inner


def _metavar(param: Any) -> str:
    given = param.metavar or param.name.upper().replace("_", "-")
    return str(given).strip("[]")


def _plain(text: str) -> str:
    """Help without the marks of its formatting."""
    return re.sub(r"\\\[", "[", text)


def _text(text: str) -> str:
    """A line as roff prints it: nothing in it is taken for a request."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped[:1] in {".", "'"} else escaped


def _quoted(text: str) -> str:
    return f'"{_text(text)}"'
