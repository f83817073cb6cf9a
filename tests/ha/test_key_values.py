"""A slave's tables of keys and values are what its master has put by now."""

import asyncio
import shutil

import pytest
from ha.pair import SMALL, following, has_all, master_store, serving, slave_store

from rmqcore import open_store
from rmqcore.files.store_dir import StoreDir
from rmqcore.ha.resync import Divergence, cut
from rmqcore.store.parts import key_values

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


def test_a_cut_in_what_a_table_was_put_anew_with_takes_no_other_entry(tmp_path, monkeypatch):
    monkeypatch.setattr(key_values, "COMPACTED_FROM", 12)
    topic, keys = key_values.TOPIC_PREFIX + "t", (b"a", b"b", b"c")
    with master_store(tmp_path / "m") as master:
        for key in keys:
            master.kv_put("t", key, b"kept")
        while master.consumer_offsets.get(topic, key_values.GROUP, 0) is None:
            master.kv_put("t", b"a", b"kept")
        begin, end = (
            master.consumer_offsets.get(topic, key_values.GROUP, 0),
            master.max_phy_offset,
        )
        places = [m.phy_offset for m in master.messages(topic, 0, start=begin - 1)]
    assert len(places) == 1 + len(keys) + 1
    for at in places:
        path = tmp_path / f"{at}"
        shutil.copytree(tmp_path / "m", path)
        cut(StoreDir(path), Divergence(0, at, end, True))
        with open_store(path, on_corruption="truncate", **SMALL) as store:
            assert store.kv_list("t") == [(key, b"kept") for key in keys]
