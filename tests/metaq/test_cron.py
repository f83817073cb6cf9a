"""Quartz expressions over cronsim."""

from datetime import UTC, datetime
from itertools import islice

import pytest

from rmqcore.errors import ConfigError
from rmqcore.metaq.cron import QuartzCron

pytestmark = pytest.mark.logic

START = datetime(2024, 1, 1, tzinfo=UTC)  # a Monday


def runs(expression, count=3):
    cron, moment = QuartzCron(expression), START

    def follow():
        nonlocal moment
        while True:
            moment = cron.next_after(moment)
            yield moment.strftime("%m-%d %a %H:%M:%S")

    return list(islice(follow(), count))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (
            "0 0 6,18 * * ?",
            ["01-01 Mon 06:00:00", "01-01 Mon 18:00:00", "01-02 Tue 06:00:00"],
        ),
        ("30 15 10 ? * 1", ["01-07 Sun 10:15:30", "01-14 Sun 10:15:30", "01-21 Sun 10:15:30"]),
        ("0 0 0 ? * 2-3", ["01-02 Tue 00:00:00", "01-08 Mon 00:00:00", "01-09 Tue 00:00:00"]),
        ("0 0 0 ? * mon,FRI", ["01-05 Fri 00:00:00", "01-08 Mon 00:00:00", "01-12 Fri 00:00:00"]),
        ("0 0 0 ? * 6#3", ["01-19 Fri 00:00:00", "02-16 Fri 00:00:00", "03-15 Fri 00:00:00"]),
        ("0 0 0 ? * 6L", ["01-26 Fri 00:00:00", "02-23 Fri 00:00:00", "03-29 Fri 00:00:00"]),
        ("0 0 0 ? * L", ["01-06 Sat 00:00:00", "01-13 Sat 00:00:00", "01-20 Sat 00:00:00"]),
        ("0 0 0 L * ? *", ["01-31 Wed 00:00:00", "02-29 Thu 00:00:00", "03-31 Sun 00:00:00"]),
        ("0 0/20 * * * ?", ["01-01 Mon 00:20:00", "01-01 Mon 00:40:00", "01-01 Mon 01:00:00"]),
        ("0 0 0 ? * 2/2", ["01-03 Wed 00:00:00", "01-05 Fri 00:00:00", "01-08 Mon 00:00:00"]),
    ],
)
def test_next_runs(expression, expected):
    assert runs(expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "* * * * *",
        "0 0 6 1 * 2",
        "0 0 6 15W * ?",
        "0 0 6 L-3 * ?",
        "0 0 6 ? * FRI-MON",
        "0 0 6 * * ? 2030",
        "61 0 6 * * ?",
        "0 0 6 31 2 ?",
        "0 0 6 ? * 8",
    ],
)
def test_what_is_wrong_or_not_supported_is_refused(expression):
    with pytest.raises(ConfigError, match="Quartz"):
        QuartzCron(expression)
