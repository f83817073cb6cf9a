"""What a client of a shared store was given, in the hands of the garbage collector."""

import gc

import pytest
from children import in_child

import rmqcore

pytestmark = pytest.mark.process

#: of each kind what shows bytes of the owner's answer
GIVEN = {
    "message": lambda store: store.get_message("T", 0, 0).messages[0],
    "found": lambda store: store.query_message("T", "key").messages[0],
    "record": lambda store: store.get_message("T", 0, 0).messages[0].record,
    "leased": lambda store: store.lease("g", {"T": "*"}, lease_ms=1000, timeout_ms=0)[0].stored,
}


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("kind", GIVEN)
def test_it_is_collected_with_a_cycle_that_it_belongs_to(store_path, kind):
    with rmqcore.open_shared(store_path) as store:
        store.put("T", bytes(5000), keys="key")

        def collected():
            cycle = [GIVEN[kind](store)]
            cycle.append(cycle)
            del cycle
            return gc.collect()

        assert in_child(collected) > 0
