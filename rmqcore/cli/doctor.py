"""``rmqcore doctor``: plan, repair and undo, explain and diff of stores that may be damaged."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from rmqcore.cli import complete
from rmqcore.cli.archive import StorageOptions, place_of, storage_options
from rmqcore.cli.exit_codes import FSCK_CODES, FsckCode
from rmqcore.cli.failures import DoctorCommand, DoctorGroup, as_followed
from rmqcore.cli.options import AsJson, ConfigFile, Settings, StorePath, configured
from rmqcore.cli.output import print_json
from rmqcore.cli.progress import Bars
from rmqcore.doctor import Difference, Explanation, RepairPlan, Step
from rmqcore.doctor import diff as diff_stores
from rmqcore.doctor import explain as explain_store
from rmqcore.doctor import plan as plan_repair
from rmqcore.doctor import repair as repair_store
from rmqcore.doctor import undo as undo_repair
from rmqcore.files.store_dir import StoreDir

app = typer.Typer(
    help="Say what is wrong with a store, and repair it; every repair can be undone.",
    epilog=FSCK_CODES,
    no_args_is_help=True,
    cls=DoctorGroup,
)

Jobs = Annotated[int, typer.Option(min=1, help="processes that work side by side")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]
_SHOWN = 20


@app.command("plan", cls=DoctorCommand, epilog=FSCK_CODES)
def plan(
    store: StorePath,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also write the plan there, for repair")
    ] = None,
    jobs: Jobs = 1,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong, and each step of a repair with what it saves and gives up.

    Changes nothing. Exit code 4 when there is something to repair.
    """
    with Bars() as bars:
        made = plan_repair(
            store, config=configured(config, settings), jobs=jobs, progress=_shown_by(bars)
        )
    if out is not None:
        out.write_text(json.dumps(made.to_dict(), indent=1) + "\n", "utf-8")
    if as_json:
        print_json(made.to_dict())
    else:
        _print_plan(made)
    raise typer.Exit(FsckCode.CLEAN if made.clean else FsckCode.UNCORRECTED)


@app.command("repair", cls=DoctorCommand, epilog=FSCK_CODES)
def repair(
    store: StorePath,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="what `plan --out` has written")
    ] = None,
    yes: Yes = False,
    jobs: Jobs = 1,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Repair a store; what was there before is kept, and undo brings it back.

    Goes on where a repair was interrupted. Exit code 1 when all is corrected, 4 when errors are
    left, 0 when there was nothing to do.
    """
    loaded = configured(config, settings)
    with Bars() as bars:
        progress = _shown_by(bars)
        made = None
        if plan is not None:
            made = RepairPlan.from_json(plan.read_bytes())
        elif not yes:
            _refuse_locked(StoreDir(store, loaded.store_path_commit_log))
            made = plan_repair(store, config=loaded, jobs=jobs, progress=progress)
    if not yes and made is not None and (made.steps or made.interrupted):
        _print_plan(made)
        if not _agreed("Repair it?"):
            raise typer.Exit(FsckCode.UNCORRECTED)
    if made is not None and made.interrupted:
        made = None
    with Bars() as bars:
        report = repair_store(store, config=loaded, plan=made, jobs=jobs, progress=_shown_by(bars))
    if as_json:
        print_json(report.to_dict())
    else:
        lines = []
        if report.resumed:
            lines.append("went on with the repair that was interrupted")
        if report.journal is None:
            lines.append("nothing to repair" if report.clean else "nothing was changed")
        else:
            lines.append(f"repaired: {_counted(len(report.plan.steps), 'step')}")
            lines.append(f"what was there before: {report.journal}")
        lines += [f"left: {one}" for one in report.left]
        lines.append("verify: clean" if report.clean else "verify: NOT clean")
        _write(lines)
    if not report.clean:
        raise typer.Exit(FsckCode.UNCORRECTED)
    raise typer.Exit(FsckCode.CLEAN if report.journal is None else FsckCode.CORRECTED)


@app.command("undo", cls=DoctorCommand, epilog=FSCK_CODES)
def undo(
    store: StorePath,
    yes: Yes = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Bring back what was there before the last repair, byte for byte; also of half a repair.

    Exit code 0 when there was nothing to undo, 1 when a repair was undone.
    """
    if not yes and not _agreed(f"Undo the last repair of {store}?"):
        raise typer.Exit(FsckCode.UNCORRECTED)
    with Bars() as bars:
        report = undo_repair(store, config=configured(config, settings), progress=_shown_by(bars))
    if as_json:
        print_json(report.to_dict())
    elif report.changes:
        _write([f"undone: {_counted(report.changes, 'change')}; every byte is what it was before"])
    else:
        _write(["there is no repair to undo"])
    raise typer.Exit(FsckCode.CORRECTED if report.changes else FsckCode.CLEAN)


@app.command("explain", cls=DoctorCommand, epilog=FSCK_CODES)
def explain(
    store: StorePath,
    topic: Annotated[
        str | None, typer.Option(help="with --offset or --key", autocompletion=complete.topics)
    ] = None,
    queue: Annotated[int, typer.Option(min=0, help="queue of the topic")] = 0,
    offset: Annotated[int | None, typer.Option(min=0, help="number in the queue")] = None,
    key: Annotated[str | None, typer.Option(help="a key, or the unique key")] = None,
    message_id: Annotated[str | None, typer.Option(help="an offset id")] = None,
    phy_offset: Annotated[int | None, typer.Option(min=0, help="place in the log")] = None,
    options: StorageOptions = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Say why a message is not found, and which slot a key probes.

    Without a message: why the store takes no puts, and which log files will be deleted. Exit code 0
    when the message is found, or the store takes puts, else 4.
    """
    answer = explain_store(
        place_of(store),
        storage_options=storage_options(options),
        topic=topic,
        queue_id=queue,
        queue_offset=offset,
        key=key,
        message_id=message_id,
        phy_offset=phy_offset,
        config=configured(config, settings),
    )
    if as_json:
        print_json(answer.to_dict())
    else:
        _write(_told(answer, store))
    raise typer.Exit(FsckCode.CLEAN if answer.found else FsckCode.UNCORRECTED)


def _told(answer: Explanation, store: Path) -> list[str]:
    # what an error advises in Python's words stands below in those of the doctor
    reason = answer.reason.partition(". Nothing was changed.")[0]
    lines = [f"{answer.question}: {reason}"]
    lines += [f"  {what}: {there}" for what, there in answer.facts if there != answer.reason]
    lines += [f"what helps: {answer.advice}"] if answer.advice else []
    return [as_followed(line, store) for line in lines]


@app.command("look", cls=DoctorCommand, epilog=FSCK_CODES)
def look(
    store: StorePath,
    jobs: Jobs = 1,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Say what is against using a store, whether it is damaged, and what helps; changes nothing.

    `rmqcore doctor STORE` is short for it. Exit code 4 when something is wrong; that the store is
    open for writing elsewhere is nothing wrong.
    """
    loaded = configured(config, settings)
    answer = explain_store(store, config=loaded)
    with Bars() as bars:
        made = plan_repair(store, config=loaded, jobs=jobs, progress=_shown_by(bars))
    if as_json:
        print_json({"store": answer.to_dict(), "plan": made.to_dict()})
    else:
        if answer.found and not made.clean:
            answer.advice = ""  # "verify says more": what follows does
        lines = _told(answer, store)
        if made.clean:
            lines.append("damage: none")
        else:
            lost = f", {_counted(len(made.lost), 'message')} lost" if made.lost else ""
            lines.append(f"damage: {_counted(len(made.steps), 'step')} of a repair{lost}")
            lines += [f"  {step.kind.value} {step.path}: {step.what}" for step in made.steps]
            lines += [f"cannot be repaired: {one}" for one in made.left]
            lines.append("see it:  rmqcore doctor plan STORE")
            lines.append("do it:   rmqcore doctor repair STORE, which undo takes back")
        _write([as_followed(line, store) for line in lines])
    usable = answer.found or answer.in_use
    raise typer.Exit(FsckCode.CLEAN if usable and made.clean else FsckCode.UNCORRECTED)


@app.command("diff", cls=DoctorCommand, epilog=FSCK_CODES)
def diff(
    a: Annotated[
        Path,
        typer.Argument(metavar="A", help="directory of a store", autocompletion=complete.stores),
    ],
    b: Annotated[
        Path,
        typer.Argument(
            metavar="B", help="directory of another one", autocompletion=complete.stores
        ),
    ],
    count: Annotated[int, typer.Option("-n", min=0, help="at most this many records")] = 20,
    jobs: Jobs = 1,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Say where two logs begin to differ, and what differs behind it, record by record.

    Exit code 0 when they are the same, from where they begin to where they end, else 4.
    """
    with Bars() as bars:
        report = diff_stores(
            a,
            b,
            config=configured(config, settings),
            differences_max=count,
            jobs=jobs,
            progress=_shown_by(bars),
        )
    if as_json:
        print_json(report.to_dict())
    else:
        lines = [
            f"A: {report.a}, physical offsets {report.a_bounds[0]} to {report.a_bounds[1]}",
            f"B: {report.b}, physical offsets {report.b_bounds[0]} to {report.b_bounds[1]}",
        ]
        for name, spans in ("A", report.only_a), ("B", report.only_b):
            lines += [f"only {name} has physical offsets {low} to {high}" for low, high in spans]
        if report.first >= 0:
            lines.append(f"they differ from physical offset {report.first} on")
        else:
            lines.append(f"the same in the {report.compared:,} bytes that both have")
        lines += [_difference_line(one) for one in report.differences]
        lines += ["and more"] if report.more else []
        _write(lines)
    raise typer.Exit(FsckCode.CLEAN if report.same else FsckCode.UNCORRECTED)


def _difference_line(one: Difference) -> str:
    if one.fields:
        return f"{one.phy_offset}: {one.a}; differs in {', '.join(one.fields)}"
    return f"{one.phy_offset}: {one.kind}: {one.a or one.b}"


def _refuse_locked(directory: StoreDir) -> None:
    """Raise at once, and not after a long plan, when a process has the store open."""
    directory.require()
    if directory.is_locked():
        directory.lock()


def _agreed(question: str) -> bool:
    """Ask whoever sits at the terminal.

    Raises:
        typer.BadParameter: nobody does.
    """
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody is here to ask; give it", param_hint="--yes")
    return typer.confirm(question)


def _shown_by(bars: Bars) -> Callable[[str, int, int], None]:
    return bars.show


def _print_plan(made: RepairPlan) -> None:
    live = ", a writer has it open" if made.live else ""
    lines = [f"store: {made.path}{live}"]
    if made.interrupted:
        lines.append(f"a {made.interrupted} was interrupted; run it again to go on where it was")
    for number, step in enumerate(made.steps, 1):
        lines += _step_lines(number, step)
    lines += [f"lost: {one} at physical offset {one.phy_offset}" for one in made.lost[:_SHOWN]]
    if len(made.lost) > _SHOWN:
        lines.append(f"lost: and {len(made.lost) - _SHOWN} more, which --json lists")
    for topic, queue_id, first, stop in made.unnamed[:_SHOWN]:
        span = f"offset {first}" if stop == first + 1 else f"offsets {first} to {stop - 1}"
        lines.append(f"lost: {topic}/{queue_id} {span}; no queue knows where")
    lines += [f"cannot be repaired: {one}" for one in made.left]
    if made.clean:
        lines.append("nothing to repair")
    elif made.steps:
        lines.append(f"{_counted(len(made.steps), 'step')}; nothing was changed")
    _write(lines)


def _step_lines(number: int, step: Step) -> list[str]:
    where = f", physical offsets {step.start} to {step.stop}" if step.start >= 0 else ""
    lines = [f"{number}. {step.kind.value} {step.path}{where}", f"   wrong: {step.what}"]
    lines.append(f"   saves: {step.saves}")
    if step.gives_up:
        lines.append(f"   gives up: {step.gives_up}")
    return lines


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _write(lines: list[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
