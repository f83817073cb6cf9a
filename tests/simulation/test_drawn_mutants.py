"""The simulation finds deliberate breaks by seeds that nobody has chosen."""

import pytest
from simulation.test_mutants import MUTANTS, found_by

pytestmark = pytest.mark.storm

SEEDS = 1000


@pytest.mark.parametrize("name", MUTANTS)
def test_a_break_is_found_by_drawn_seeds(name):
    found = found_by(MUTANTS[name], first=0, count=SEEDS, minutes=1.0)
    print(f"{name}: seed {found['seed']}, by {found['broken']}")
