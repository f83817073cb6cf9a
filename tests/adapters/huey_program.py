"""The huey program of test_huey_consumers_suite: each task leaves a line in a file."""

import os
import time
from pathlib import Path

from rmqcore.adapters.huey import RmqHuey

folder = Path(os.environ["HUEY_PROGRAM"])
huey = RmqHuey("program", path=folder / "store", lease_ms=600_000, result_ttl=600)


@huey.task()
def note(number):
    time.sleep(0.02)
    with open(folder / "done", "a") as done:
        done.write(f"{number}\n")


@huey.task()
def add(x, y):
    return x + y


@huey.task()
def total(numbers):
    return sum(numbers)
