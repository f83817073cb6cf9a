"""What the broker's benchmark makes of what its load clients have printed."""

import pytest
from broker.run import COLUMNS, ROWS, native_rows, rows, table

pytestmark = pytest.mark.logic

PHASES = {
    "sync": {"messages": 1000, "seconds": 0.5, "cpu_seconds": 0.03},
    "async": {"messages": 1000, "seconds": 0.1, "cpu_seconds": 0.02},
    "batch": {"messages": 1000, "seconds": 0.01, "cpu_seconds": 0.002},
    "consume": {"messages": 4000, "seconds": 0.1, "cpu_seconds": 0.004},
    "end to end": {
        "messages": 100,
        "p50_us": 500,
        "p99_us": 900,
        "p999_us": 1500,
        "cpu_seconds": 0.1,
    },
}
SENT = PHASES["async"] | {"own_cpu_seconds": 0.004}
NATIVE = dict.fromkeys(("sync", "async", "batch", "pull"), SENT)


def turn(memory, start):
    return {"start": start, COLUMNS: 9000} | rows(PHASES, memory) | native_rows(NATIVE)


def told(text):
    return {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines()[2:]}


def test_a_turn_has_every_row():
    found = turn(40.0, 250)
    assert set(found) == set(ROWS)
    assert found["async, 1024 outstanding"] == 10_000
    assert round(found["processor, million async + consumed"], 6) == 21
    assert found["start"] == 250
    assert found["native load: pull, 4 queues"] == 10_000
    assert round(found["native load: processor, million async + pulled"], 6) == 40
    assert round(found["native load: its own processor, million async + pulled"], 6) == 8


def test_a_row_is_reached_or_below_by_the_ratio_of_the_medians():
    java = [turn(400.0, 5000)] * 3
    ours = [turn(40.0, 400), turn(60.0, 400), turn(40.0, 9000)]
    lines = told(table({"java": java, "rmqcore": ours}))
    assert "| 0.10 | ≤ 0.125 | reached |" in lines["memory of its own"]
    assert "| 0.08 | ≤ 0.1 | reached |" in lines["start"]
    assert "| 1.00 | ≤ 0.5 | **below** |" in lines["processor, million async + consumed"]
    assert "| 1.00 | ≥ 1 | reached |" in lines["consumer"]
    assert "| 1.00 | ≥ 2 | **below** |" in lines["native load: async, 1024 outstanding"]
    own = lines["native load: its own processor, million async + pulled"]
    assert own.endswith("| 1.00 |  |  |")


def test_one_side_alone_has_no_ratio():
    text = table({"rmqcore": [turn(40.0, 400)]})
    assert "reached" not in text
    assert "below" not in text


def test_one_load_alone_has_its_own_rows():
    lines = told(table({"rmqcore": [native_rows(NATIVE)]}))
    assert set(lines) == set(native_rows(NATIVE))
