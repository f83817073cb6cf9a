"""What the broker's benchmark makes of what its load client has printed."""

from broker.run import ROWS, rows, table

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


def test_a_turn_has_every_row():
    found = rows(PHASES, 40.0, 0.25)
    assert set(found) == set(ROWS)
    assert found["async, 1024 outstanding"] == 10_000
    assert round(found["processor, million async + consumed"], 6) == 21
    assert found["start"] == 250


def test_a_row_is_reached_or_below_by_the_ratio_of_the_medians():
    java = [rows(PHASES, 400.0, 5.0)] * 3
    ours = [rows(PHASES, 40.0, 0.4), rows(PHASES, 60.0, 0.4), rows(PHASES, 40.0, 9.0)]
    lines = table({"java": java, "rmqcore": ours}).splitlines()
    told = {line.split(" | ")[0].removeprefix("| "): line for line in lines[2:]}
    assert "| 0.10 | ≤ 0.125 | reached |" in told["memory of its own"]
    assert "| 0.08 | ≤ 0.1 | reached |" in told["start"]
    assert "| 1.00 | ≤ 0.5 | **below** |" in told["processor, million async + consumed"]
    assert "| 1.00 | ≥ 1 | reached |" in told["consumer"]


def test_one_side_alone_has_no_ratio():
    text = table({"rmqcore": [rows(PHASES, 40.0, 0.4)]})
    assert "reached" not in text
    assert "below" not in text
