"""``rmqcore verify`` and ``rmqcore dump``: is a store whole, and what is in its files."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from rmqcore.cli.archive import StorageOptions, place_of, verify_place
from rmqcore.cli.exit_codes import ExitCode
from rmqcore.cli.failures import HELP, as_followed
from rmqcore.cli.options import AsJson, ConfigFile, Settings, StorePath, configured
from rmqcore.cli.output import print_facts, print_json, print_table, show, styled
from rmqcore.cli.progress import Bars
from rmqcore.cli.times import parse_duration
from rmqcore.doctor import DumpField, DumpItem, Finding, Severity, VerifyReport
from rmqcore.doctor import dump as dump_file
from rmqcore.doctor import verify as verify_store
from rmqcore.doctor.dump import KINDS, kind_of
from rmqcore.errors import ConfigError
from rmqcore.files.store_dir import StoreDir
from rmqcore.scan.any_log import is_archive

_STYLES = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "dim"}
_HEX_SHOWN = 16


def verify(
    store: StorePath,
    jobs: Annotated[int, typer.Option(min=1, help="processes that read side by side")] = 1,
    crc: Annotated[bool, typer.Option("--crc/--no-crc", help="compare bodies with CRCs")] = True,
    deep: Annotated[
        bool, typer.Option(help="also each record's time, and unpack compressed bodies")
    ] = False,
    max_duration: Annotated[
        str | None, typer.Option(metavar="DURATION", help="end after this long, such as 30s or 10m")
    ] = None,
    start: Annotated[
        int, typer.Option(min=0, metavar="OFFSET", help="begin at this physical offset")
    ] = 0,
    options: StorageOptions = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Check log, consume queues, index, checkpoint, and that they agree; changes nothing.

    Exit code 0 when there is nothing but notes, 1 with errors or warnings. With --max-duration or
    --start only the log is looked at, as far as it comes. STORE may be an archive's URL: then all
    of its files are compared with what its manifest says.
    """
    if is_archive(place_of(store)):
        verify_place(place_of(store), options, crc=crc, jobs=jobs, as_json=as_json)
    with Bars() as bars:
        report = verify_store(
            store,
            config=configured(config, settings),
            jobs=jobs,
            check_crc=crc,
            deep=deep,
            start_phy_offset=start,
            max_duration_s=parse_duration(max_duration),
            progress=lambda phase, done, total: bars.show(f"check {phase}", done, total),
        )
    if as_json:
        told = report.as_dict()
        told["findings"] = [
            asdict(each) | {"severity": each.severity.value, "path": str(each.path)}
            for each in _followed(report)
        ]
        print_json(told)
    else:
        print_report(report)
    raise typer.Exit(ExitCode.DONE if report.clean else ExitCode.FINDINGS)


def print_report(report: VerifyReport) -> None:
    """Print what a verification found."""
    findings = _followed(report)
    for finding in findings:
        show(str(replace(finding, how="")), style=_STYLES[finding.severity])
    if report.finding_count > len(report.findings):
        show(f"and {report.finding_count - len(report.findings):,} more")
    print_facts(
        {
            "store": f"{report.path}{', a writer has it open' if report.live else ''}",
            "log": f"physical offsets {report.min_phy_offset} to {report.max_phy_offset}, "
            f"{report.records:,} records",
            "queues": f"{report.units:,} units in {report.queues:,} queues",
            "index": f"{report.index_entries:,} entries",
            "took": f"{report.elapsed_s:.2f} s",
        }
    )
    if not report.complete:
        show(f"the time was over: go on with --start {report.verified_to}")
    verdict = styled("clean", "good") if report.clean else styled("NOT clean", "bad")
    so_far = "" if report.complete else f" up to physical offset {report.verified_to}"
    show(f"verdict: {verdict}{so_far}, {report.finding_count:,} findings")
    helps = list(dict.fromkeys(each.how for each in findings if each.how))
    if not report.clean:
        helps.insert(0, as_followed(HELP, report.path))
    for advice in helps:
        show(f"what helps: {advice}")


def _followed(report: VerifyReport) -> list[Finding]:
    """The findings, whose advice names this store."""
    return [replace(each, how=as_followed(each.how, report.path)) for each in report.findings]


def dump(
    store: StorePath,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="a file of the store; without it, they are listed"),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help=f"where the place does not tell: {', '.join(KINDS)}")
    ] = None,
    start: Annotated[int, typer.Option(min=0, help="position in the file to begin at")] = 0,
    count: Annotated[int | None, typer.Option("-n", min=0, help="at most this many items")] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show any file of a store field by field, with positions and bytes; exit 1 at damage.

    FILE is relative to the store, as in `rmqcore dump STORE commitlog/00000000000000000000`.
    """
    loaded = configured(config, settings)
    StoreDir(store, loaded.store_path_commit_log).require()
    if file is None:
        _list_files(store, as_json)
        return
    (store / file).stat()
    given = "max_hash_slot_num" in loaded.explicit
    items = dump_file(
        store / file,
        kind=kind,
        start=start,
        hash_slot_num=loaded.max_hash_slot_num if given else None,
    )
    damaged = False
    for item in islice(items, count):
        damaged = damaged or bool(item.problem)
        if as_json:
            print_json(item.as_dict())
        else:
            sys.stdout.write(_as_text(item))
    raise typer.Exit(ExitCode.FINDINGS if damaged else ExitCode.DONE)


def _list_files(store: Path, as_json: bool) -> None:
    rows = []
    for path in sorted(store.rglob("*")):
        if path.is_file():
            with contextlib.suppress(ConfigError):
                name = path.relative_to(store).as_posix()
                rows.append({"file": name, "kind": kind_of(path), "bytes": path.stat().st_size})
    if as_json:
        print_json(rows)
    else:
        columns = ["file", "kind", "bytes"]
        print_table(columns, [row.values() for row in rows], right=["bytes"])


def _as_text(item: DumpItem) -> str:
    head = f"{item.kind} at {item.at}, {item.size} bytes"
    lines = [f"{head}: PROBLEM: {item.problem}" if item.problem else head]
    lines += [_field_text(field) for field in item.fields]
    return "\n".join(lines) + "\n"


def _field_text(field: DumpField) -> str:
    data = field.raw[:_HEX_SHOWN].hex(" ", -4) + (" .." if field.size > _HEX_SHOWN else "")
    value = repr(field.value) if isinstance(field.value, str | bytes) else str(field.value)
    return f"  {field.at:>10}  {field.name:<28} {data:<39}  {value}"
