"""``rmqcore ha``: masters and slaves, how far they are in step, and the way back."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from rmqcore.cli.exit_codes import EXIT_CODES, ExitCode
from rmqcore.cli.failures import StoreCommand
from rmqcore.cli.notes import note
from rmqcore.cli.options import AsJson, ConfigFile, Settings, StorePath, configured
from rmqcore.cli.output import print_json, print_table
from rmqcore.cli.progress import Bars
from rmqcore.cli.remote import (
    DEFAULT_NAME_SERVER,
    AccessKey,
    NameServer,
    SecretKey,
    Tls,
    access,
)
from rmqcore.cli.tables import cell_text
from rmqcore.client.blocking import Admin
from rmqcore.config import StoreConfig
from rmqcore.errors import CorruptStoreError, StoreLockedError
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.files.store_dir import StoreDir, subdirectories
from rmqcore.ha.resync import Divergence, cut, damage_in, fetch, find_divergence
from rmqcore.recovery.geometry import fitted_config
from rmqcore.remoting import RemotingError
from rmqcore.remoting.client import split_address
from rmqcore.store.opening import open_store

app = typer.Typer(
    help="Masters and slaves: how far they are in step.", epilog=EXIT_CODES, no_args_is_help=True
)

_COLUMNS = ("broker_name", "role", "address", "end", "peer", "lag_bytes", "lag_ms", "problem")


@app.command("status", cls=StoreCommand, epilog=EXIT_CODES)
def status(
    namesrv: NameServer = DEFAULT_NAME_SERVER,
    access_key: AccessKey = None,
    secret_key: SecretKey = None,
    tls: Tls = False,
    as_json: AsJson = False,
) -> None:
    """Every master with its slaves, and every slave: bytes and milliseconds behind, problems."""
    allowed = access(access_key, secret_key, tls)
    with Admin(namesrv, acl=allowed.acl, tls=allowed.tls) as admin:
        rows = [
            row
            for entry in admin.clusters()
            for _, address in sorted(entry.addresses.items())
            for row in _rows(entry.broker_name, address, _asked(admin, address))
        ]
    if as_json:
        print_json(rows)
        return
    cells = [["" if row[name] is None else row[name] for name in _COLUMNS[:-1]] for row in rows]
    heads = [name.replace("_", " ") for name in _COLUMNS[:-1]]
    print_table(heads, cells, right=["end", "lag bytes", "lag ms"])
    for row in rows:
        if row["problem"]:
            said = f"{row['broker_name']} {row['role']} {row['address']}: {row['problem']}"
            typer.echo(cell_text(said))


def _asked(admin: Admin, address: str) -> dict[str, Any]:
    """What a broker says of replication; one that cannot be asked says why."""
    try:
        return admin.ha_status(address)
    except RemotingError as error:
        return {"haClientRuntimeInfo": {"problem": f"it does not say: {error}"}}


def _rows(name: str, address: str, told: dict[str, Any]) -> list[dict[str, Any]]:
    """What one broker says: of a master a row for each slave, or one without."""
    facts = {"broker_name": name, "address": address, "problem": None}
    if not told.get("master"):
        slave = dict(told.get("haClientRuntimeInfo") or {})
        problem = slave.get("problem")
        if problem is None and not slave.get("activated"):
            problem = "not connected to a master"
        row = {"role": "slave", "end": slave.get("maxOffset"), "peer": slave.get("masterAddr")}
        return [{**facts, **row, "lag_bytes": None, "lag_ms": None, "problem": problem}]
    end = told.get("masterCommitLogMaxOffset")
    slaves = [dict(slave) for slave in told.get("haConnectionInfo") or ()]
    return [
        {
            **facts,
            "role": "master",
            "end": end,
            "peer": slave.get("addr"),
            "lag_bytes": slave.get("diff"),
            "lag_ms": slave.get("lagMs"),
            "problem": slave.get("problem"),
        }
        for slave in slaves or [{}]
    ]


@app.command("resync", cls=StoreCommand, epilog=EXIT_CODES)
def resync(
    store: StorePath,
    master: Annotated[
        str,
        typer.Option(
            "--master", "-m", help="replication port of the side that is right, host:port"
        ),
    ],
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="cut the log where it is not the master's")
    ] = False,
    get: Annotated[
        bool, typer.Option("--fetch", help="with --yes: get what the other side has more, at once")
    ] = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Say up to where a slave's log is its master's; with --yes cut it there.

    For the store of a slave that is not running. What is cut off is kept in a folder in the store,
    and the slave gets the master's instead when it runs again.

    A master that has lost the end of its log gets it back from its slave: on the store of the
    master, which is not running, with --yes --fetch and the replication port of the slave.
    """
    try:
        split_address(master)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--master") from error
    if get and not yes:
        raise typer.BadParameter("it changes the store: give --yes, too", param_hint="--fetch")
    asked = configured(config, settings).with_settings({"broker_role": "SLAVE"})
    directory = StoreDir(store, asked.store_path_commit_log)
    directory.require()
    # the log is moved away whole, so the next opening cannot read sizes off its files
    asked = fitted_config(asked, directory)
    kept, fetched, end = None, 0, 0
    with Bars() as bars:
        found, damaged = _found(directory, asked, master, bars, cuts=yes)
        if yes and not found.in_order:
            kept = cut(directory, found)
        if yes:
            with open_store(store, config=_cut_short(asked), progress=bars.recovery) as slave:
                bars.hide_recovery()
                if get:
                    shown = partial(bars.show, "fetch", total=None)
                    fetched = asyncio.run(fetch(slave.followed_log, master, shown))
                    end = slave.max_phy_offset
    if fetched and found.end == 0 and not (config or settings):
        _drop_derived(directory)
    facts: dict[str, Any] = {
        "begin": found.begin,
        "same_up_to": found.common_end,
        "end": found.end,
        "differs": found.master_goes_on,
        "kept_in": str(kept) if kept else None,
        "damaged_kept_in": str(damaged) if damaged else None,
        "fetched": fetched,
    }
    if as_json:
        print_json(facts)
    else:
        typer.echo(_told(found, kept))
        if fetched:
            _print_fetched(fetched, end, whole=found.common_end <= found.begin)
    if not found.in_order and kept is None:
        raise typer.Exit(ExitCode.FINDINGS)


def _print_fetched(fetched: int, end: int, *, whole: bool) -> None:
    typer.echo(f"fetched {fetched} bytes; the log ends at {end}")
    if whole:
        typer.echo("topics, groups and offsets are not in it: copy config/ of the other side")


def _drop_derived(directory: StoreDir) -> None:
    """Let whoever opens the store next derive queues and index, in files of sizes of its own.

    Not where a broker's table lacks one of the topics: without its queues it counts as deleted.
    """
    queues = directory.consume_queue, directory.batch_consume_queue
    try:
        directory.lock()
    except StoreLockedError:
        return  # whose files these are by now
    try:
        deleted = DeletedTopics(directory).load()
        topics = [topic for root in queues for topic in subdirectories(root)]
        if not any(map(deleted.is_unlisted, topics)):
            for root in (*queues, directory.index):
                shutil.rmtree(root, ignore_errors=True)
    finally:
        directory.unlock()


def _cut_short(config: StoreConfig) -> StoreConfig:
    """The settings that open a store whose log was cut: queues and index follow it."""
    return config.with_settings({"on_corruption": "truncate"})


def _found(
    directory: StoreDir, config: StoreConfig, master: str, bars: Bars, *, cuts: bool
) -> tuple[Divergence, Path | None]:
    """Compare a store's log with its master's; a damaged one is cut first, where that is allowed.

    Returns:
        what was found, and the folder that keeps what followed the damage.
    """

    def compared(asked: StoreConfig) -> Divergence:
        with open_store(
            directory.path, config=asked, create=False, progress=bars.recovery
        ) as slave:
            bars.hide_recovery()
            shown = partial(bars.show, "compare")
            return asyncio.run(find_divergence(slave.followed_log, master, shown))

    try:
        return compared(config), None
    except CorruptStoreError as error:
        damage = damage_in(directory, error)
        if damage is None:
            raise
        if not cuts:
            error.add_note("--yes ends the log there, and keeps what follows in a folder")
            raise
    kept = cut(directory, damage)
    note(f"damaged at {damage.common_end}; what follows is kept in {kept}")
    return compared(_cut_short(config)), kept


def _told(found: Divergence, kept: Path | None) -> str:
    if found.in_order:
        return f"the log is the master's up to its end, {found.end}: nothing to do"
    if found.end == found.begin:
        does = f"is put aside in {kept}" if kept else "--yes begins it anew"
        return f"the log is empty, and begins at {found.end}, where the master has nothing: {does}"
    lost = found.end - found.common_end
    if kept is not None:
        return f"cut at {found.common_end}; {lost} bytes are kept in {kept}"
    if found.common_end <= found.begin:
        return (
            f"nothing of the log, which goes from {found.begin} to {found.end}, is the master's: "
            "the master has deleted what follows it, or one of them is another's. --yes puts it "
            "aside whole, for what the master has"
        )
    why = (
        "the master has others there"
        if found.master_goes_on
        else "the master does not have them, and may have lost them: if so, give it back what was "
        "acknowledged, with --fetch on its store"
    )
    return (
        f"the log is the master's up to {found.common_end} and ends at {found.end}: of the last "
        f"{lost} bytes {why}. --yes cuts them off and keeps them in a folder"
    )
