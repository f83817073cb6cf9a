"""The simulation finds deliberate breaks by drawn seeds, which hold without them."""

import pytest
from simulation.test_mutants import MUTANTS, found_by

from rmqcore.simulation.runner import simulate

pytestmark = pytest.mark.storm

SEEDS = 1000


@pytest.mark.parametrize("name", MUTANTS)
def test_a_break_is_found_by_drawn_seeds(name):
    found = found_by(MUTANTS[name], first=0, count=SEEDS, minutes=1.0)
    report = simulate(seeds=1, seed=int(found["seed"]))
    assert report.clean, report.rows
    print(f"{name}: seed {found['seed']}, by {found['broken']}")
