"""A slave's tables of keys and values are what its master has put by now."""

import asyncio

import pytest
from ha.pair import following, has_all, master_store, serving, slave_store

pytestmark = pytest.mark.engine


def test_a_slave_reads_what_its_master_has_changed(tmp_path):
    async def scenario(master):
        async with serving(master) as service:
            with slave_store(tmp_path / "s") as slave:
                async with following(slave, service.port, master):
                    for value in (b"1", b"2"):
                        master.kv_put("t", b"a", value)
                        await has_all(slave, master)
                        assert slave.kv_list("t") == [(b"a", value)]
                    assert master.kv_swap("t", b"a", b"2", None)
                    await has_all(slave, master)
                    assert slave.kv_get("t", [b"a"]) == [None]

    with master_store(tmp_path / "m") as master:
        asyncio.run(scenario(master))
