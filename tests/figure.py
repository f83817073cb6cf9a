"""`figure`: a test of the lane `measure` notes a number; `make measure` knows its history."""

import json
import os
from pathlib import Path

import pytest


@pytest.fixture
def figure(request, capsys):
    """`figure(name, value, unit, at_most=None)`: note a number of this test.

    It is printed, and written as a line of JSON to the file that RMQCORE_FIGURES names, where
    `scripts/measure` reads it. ``at_most`` is what the number may be on any machine.
    """
    noted = []

    def note(name, value, unit, at_most=None):
        noted.append({"name": f"{request.node.name}: {name}", "value": value, "unit": unit})
        if at_most is not None:
            assert value <= at_most, f"{name}: {value:.6g} {unit}, more than {at_most:.6g}"

    yield note
    if path := os.environ.get("RMQCORE_FIGURES"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(one) + "\n" for one in noted)
    with capsys.disabled():
        for one in noted:
            print(f"\n{one['name']} {one['value']:,.6g} {one['unit']}", end=" ")
