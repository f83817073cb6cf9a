"""``rmqcore debug bundle``: what a report of a defect needs, in one file, without bodies."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rmqcore import ReadOnlyMessageStore
from rmqcore.cli.exit_codes import EXIT_CODES
from rmqcore.cli.failures import StoreCommand, describe
from rmqcore.cli.options import (
    AsJson,
    ConfigFile,
    Settings,
    StorePath,
    configured,
    open_for_reading,
)
from rmqcore.cli.output import print_facts, print_json, size_text
from rmqcore.cli.progress import Bars
from rmqcore.cli.stat import queue_rows, store_facts, topic_rows, trace_rows
from rmqcore.cli.times import parse_duration
from rmqcore.doctor import explain, verify
from rmqcore.errors import RmqCoreError
from rmqcore.files.store_dir import StoreDir
from rmqcore.version import __version__
from rmqcore.world import wall_clock_ms

app = typer.Typer(help="What a report of a defect needs.", epilog=EXIT_CODES, no_args_is_help=True)

_LOG_BYTES: Final = 64 << 10
_MESSAGES: Final = 20
_FILES_MAX: Final = 10_000
#: The fields of a message that a bundle shows: none that a producer has filled.
_HEADER: Final = (
    "topic",
    "queue_id",
    "queue_offset",
    "phy_offset",
    "store_size",
    "flag",
    "sys_flag",
    "born_timestamp_ms",
    "store_timestamp_ms",
    "reconsume_times",
    "body_crc",
)
_PACKAGES: Final = ("numpy", "typer", "rich", "pyarrow", "protobuf", "uvloop", "pyspark")
_BLOTTED_NAME: Final = (
    "secret|passw|passphrase|token|access_?key|credential|authorization|signature"
)
_SECRET: Final = re.compile(
    rf"""((?:{_BLOTTED_NAME})[\w.-]*["']?\s*[=:]\s*["']?)[^\s"',;}}]+""", re.IGNORECASE
)
_HIDDEN: Final = "***"


@app.command("bundle", cls=StoreCommand, epilog=EXIT_CODES)
def bundle(
    store: StorePath,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="a new .tar.gz; one here without it")
    ] = None,
    logs: Annotated[
        list[Path] | None,
        typer.Option("--log", metavar="FILE", help="also the end of this log file; repeatable"),
    ] = None,
    max_duration: Annotated[
        str, typer.Option(metavar="DURATION", help="end the verification after this long")
    ] = "1m",
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Put what a report needs into one file: figures, settings, findings, versions, no bodies.

    No body, no key, no property of a message is in it, and what looks like a secret in settings
    and log files is blotted out. Names of topics, groups and files are in it: look before you send.
    """
    StoreDir(store, configured(config, settings).store_path_commit_log).require()
    path = out or Path(f"rmqcore-debug-{store.resolve().name}-{wall_clock_ms()}.tar.gz")
    parts = _Parts(store, config, settings, parse_duration(max_duration) or 0.0)
    with (
        Bars() as bars,
        open(path, "xb", opener=_private) as stream,
        tarfile.open(fileobj=stream, mode="w:gz") as archive,
    ):
        for name, value in parts.all(bars):
            _add(archive, f"{name}.json", json.dumps(value, indent=1, default=str).encode())
        for log in logs or ():
            try:
                _add(archive, f"logs/{log.name}", _end_of(log))
            except OSError as error:
                parts.left_out[f"logs/{log.name}"] = describe(error)
        _add(archive, "left_out.json", json.dumps(parts.left_out, indent=1).encode())
        names = archive.getnames()
    facts = {"file": str(path), "bytes": path.stat().st_size, "parts": names}
    if as_json:
        print_json(facts | {"left_out": parts.left_out})
        return
    print_facts(
        {
            "file": f"{path}, {size_text(path.stat().st_size)}",
            "in it": ", ".join(names),
            **{f"without {name}": why for name, why in parts.left_out.items()},
            "not in it": "bodies, keys and properties of messages; secrets",
        }
    )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _Parts:
    """What is looked at, one after the other; what cannot be had is said, and the rest goes on.

    Attributes:
        left_out: why a part is not there, by its name.
    """

    def __init__(
        self, store: Path, config: Path | None, settings: list[str] | None, max_duration_s: float
    ) -> None:
        self._store = store
        self._config = config
        self._settings = settings
        self._max_duration_s = max_duration_s
        self.left_out: dict[str, str] = {}

    def all(self, bars: Bars) -> Iterator[tuple[str, object]]:
        """The name and the value of each part that can be had."""
        parts: dict[str, Callable[[], object]] = {
            "versions": _versions,
            "settings": self._all_settings,
            "files": self._files,
            "stat": lambda: self._read(_stat),
            "trace": lambda: self._read(trace_rows),
            "last_messages": lambda: self._read(_last_messages),
            "explain": self._explain,
            "verify": lambda: self._verify(bars),
        }
        for name, part in parts.items():
            bars.show(name, 0, None)
            try:
                yield name, part()
            except (RmqCoreError, OSError) as error:
                self.left_out[name] = _blotted(describe(error))

    def _read(self, work: Callable[[ReadOnlyMessageStore], object]) -> object:
        with open_for_reading(self._store, self._config, self._settings) as opened:
            return work(opened)

    def _all_settings(self) -> object:
        loaded = configured(self._config, self._settings)
        given = {name: getattr(loaded, name) for name in sorted(loaded.explicit)}
        return {
            "given": {name: _without_secret(name, value) for name, value in given.items()},
            "ignored": list(loaded.ignored),
            "limits": {"open_files": _open_files()},
        }

    def _files(self) -> object:
        found = []
        for path in sorted(self._store.rglob("*"))[:_FILES_MAX]:
            about = path.lstat()
            found.append(
                {
                    "name": path.relative_to(self._store).as_posix(),
                    "mode": oct(about.st_mode),
                    "bytes": about.st_size,
                    "on_disk": about.st_blocks * 512,
                    "modified_ms": about.st_mtime_ns // 1_000_000,
                }
            )
        return found

    def _explain(self) -> object:
        return explain(self._store, config=configured(self._config, self._settings)).to_dict()

    def _verify(self, bars: Bars) -> object:
        report = verify(
            self._store,
            config=configured(self._config, self._settings),
            max_duration_s=self._max_duration_s,
            progress=lambda phase, done, total: bars.show(f"check {phase}", done, total),
        )
        return report.as_dict()


def _stat(store: ReadOnlyMessageStore) -> dict[str, Any]:
    rows = queue_rows(store)
    conf = store.broker_conf()
    return {
        **store_facts(store),
        "topics": topic_rows(rows),
        "queues": rows,
        "broker_conf": _blotted(conf),
    }


def _last_messages(store: ReadOnlyMessageStore) -> list[dict[str, Any]]:
    """The last messages of the log that queues lead to, without what was put."""
    ends = []
    for queue in store.consume_queues:
        for number in range(max(queue.min_offset, queue.max_offset - _MESSAGES), queue.max_offset):
            unit = queue.unit_at(number)
            if unit is not None:
                ends.append(unit[0])
    found = (store.message_at(offset) for offset in sorted(set(ends))[-_MESSAGES:])
    return [{name: getattr(each, name) for name in _HEADER} for each in found if each is not None]


def _versions() -> dict[str, object]:
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "-"
    return {
        "rmqcore": __version__,
        "python": sys.version,
        "system": " ".join(os.uname()[0:5:2]),
        "kernel": os.uname().version,
        "processors": os.cpu_count(),
        "packages": packages,
    }


def _open_files() -> str:
    """What the system says of this process's descriptors; empty where it says nothing."""
    try:
        lines = Path("/proc/self/limits").read_text("ascii", "replace").splitlines()
    except OSError:
        return ""
    return next((" ".join(line.split()) for line in lines if line.startswith("Max open")), "")


def _end_of(log: Path) -> bytes:
    """The last lines of a log file, without secrets."""
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _LOG_BYTES))
        text = stream.read(_LOG_BYTES).decode("utf-8", "replace")
    return _blotted(text).encode()


def _without_secret(name: str, value: object) -> object:
    return _HIDDEN if re.search(_BLOTTED_NAME, name, re.IGNORECASE) else value


def _blotted(text: str) -> str:
    return _SECRET.sub(rf"\1{_HIDDEN}", text)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(f"rmqcore-debug/{name}")
    entry.size, entry.mode, entry.mtime = len(data), 0o600, wall_clock_ms() // 1000
    archive.addfile(entry, io.BytesIO(data))
