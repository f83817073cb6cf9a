"""Loops and networks of seeds, and machines on them."""

import pytest

from rmqcore.simulation.cluster_loop import ClusterLoop


@pytest.fixture
def loop(seed):
    """A loop whose every event has to come off well."""
    loop = ClusterLoop(seed)
    yield loop
    loop.close()
    assert not loop.errors


@pytest.fixture
def machines(loop):
    """Nodes by name, each on a machine of its own."""

    def make(*names):
        return [loop.new_node(name, f"10.0.0.{at}") for at, name in enumerate(names, 1)]

    return make
