"""Quartz cron expressions, as MetaQ's ``deleteWhen`` holds them, over the cronsim library.

Quartz counts the days of the week from 1 (Sunday), writes ``?`` for "the other day field decides",
and may end in a year. Not supported, and refused by name: ``15W``, ``L-3``, ranges that wrap
around (``FRI-MON``), a year other than ``*``.

Needs the extra ``[metaq]``.
"""

from __future__ import annotations

import re
from datetime import datetime

from cronsim import CronSim, CronSimError

from rmqcore.errors import ConfigError

_DAY_NUMBER = re.compile(r"(?<![#/\d])([1-7])(?!\d)", re.ASCII)
_STEP_FROM = re.compile(r"(?<![-\w])(\w+)/", re.ASCII)
_RULE = (
    "a Quartz cron expression: second minute hour day-of-month month day-of-week [*], "
    "with ? in one of the two day fields; nW, L-n, wrapping ranges and years are not supported"
)


class QuartzCron:
    """One schedule.

    Raises:
        ConfigError: the expression is wrong, or uses what is not supported.
    """

    def __init__(self, expression: str, field: str = "deleteWhen") -> None:
        self.expression = expression
        fields = expression.upper().split()
        if len(fields) == 7 and fields[6] in {"*", "?"}:
            del fields[6]
        if len(fields) != 6 or not {fields[3], fields[5]} & {"*", "?"}:
            raise ConfigError(field, expression, _RULE)
        if fields[5] == "L":
            fields[5] = "7"
        fields[5] = _DAY_NUMBER.sub(lambda match: str(int(match[1]) - 1), fields[5])
        fields[5] = _STEP_FROM.sub(r"\1-SAT/", fields[5])  # cronsim's week also ends in day 7
        self._fields = " ".join(fields).replace("?", "*")
        try:
            next(CronSim(self._fields, datetime(2000, 1, 1)))  # noqa: DTZ001
        except (CronSimError, StopIteration):
            raise ConfigError(field, expression, _RULE) from None

    def next_after(self, moment: datetime) -> datetime:
        """The first time strictly after a moment, in the moment's time zone."""
        return next(CronSim(self._fields, moment))
