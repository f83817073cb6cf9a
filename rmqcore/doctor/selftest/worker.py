"""The process that does one kind of self-test: ``python -m rmqcore.doctor.selftest.worker``.

It has one thread, so that it may fork, and its system calls can be watched.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

from rmqcore.doctor.selftest.damage import damage
from rmqcore.doctor.selftest.failing_calls import failing_calls
from rmqcore.doctor.selftest.kills import kills
from rmqcore.doctor.selftest.mounted import mounted_cuts
from rmqcore.doctor.selftest.power_cuts import power_cuts
from rmqcore.doctor.selftest.report import Row
from rmqcore.world import monotonic_s

_TELL_EVERY_S = 0.2


class _Teller:
    """Writes what is done to standard output, a JSON object a line."""

    def __init__(self) -> None:
        self._told_at = 0.0

    def progress(self, name: str, done: int, total: int) -> None:
        now = monotonic_s()
        if now - self._told_at >= _TELL_EVERY_S or done == total:
            self._told_at = now
            self.tell({"progress": [name, done, total]})

    @staticmethod
    def tell(what: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


def run(task: dict[str, Any], teller: _Teller) -> list[Row]:
    """Do one task of the runner's.

    Args:
        task: ``task`` names one, ``seed`` and ``scratch`` are of all; the rest are its own
            arguments.
        teller: is told how far it is.
    """
    seed, scratch, told = task["seed"], Path(task["scratch"]), teller.progress
    keep = Path(task["keep"]) if task.get("keep") else None
    match task["task"]:
        case "power_cuts":
            return [power_cuts(task["mode"], task["cuts"], seed, scratch, told, keep)]
        case "kills":
            first = task["first"]
            return [kills(task["count"], seed, scratch, told, first=first, kept=keep)]
        case "mounted":
            return [mounted_cuts(task["file_system"], task["cuts"], seed, scratch, told)]
        case "failing_calls":
            return failing_calls(task["most"], seed, scratch, told)
        case _:
            store = Path(task["store"]) if task["store"] else None
            part, parts = task["part"], task["parts"]
            return damage(task["most"], seed, scratch, told, store=store, part=part, parts=parts)


def main() -> None:
    """Do the task that the only argument has as JSON; the last line has its rows."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    teller = _Teller()
    rows = run(json.loads(sys.argv[1]), teller)
    teller.tell({"rows": [row.to_dict() for row in rows]})


if __name__ == "__main__":
    main()
