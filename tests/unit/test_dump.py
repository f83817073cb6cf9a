"""A dump shows every byte of every file once, whatever state the file is in."""

import json

import pytest

from golden.stores import packed_stores
from rmqcore.doctor import dump
from rmqcore.errors import ConfigError
from rmqcore.native.format._message_ext import message_from

pytestmark = pytest.mark.logic

COVERED = ("commitlog", "consumequeue", "batchconsumequeue")


def store_files(path):
    for file in sorted(path.rglob("*")):
        if file.is_file() and not file.name.startswith(("abort", "lock", "position")):
            yield file


@pytest.mark.parametrize("store", packed_stores(), ids="-".join)
def test_every_file_of_a_golden_store(golden_store, store):
    golden = golden_store(*store)
    for file in store_files(golden.path):
        items = list(dump(file))
        assert items
        json.dumps([item.as_dict() for item in items])
        if any(part in COVERED for part in file.parts):
            assert [item.at for item in items[1:]] == [i.at + i.size for i in items[:-1]]
            assert items[0].at == 0
            assert items[-1].at + items[-1].size == file.stat().st_size
        data = file.read_bytes()
        for item in items:
            for one in item.fields:
                assert data[one.at : one.at + len(one.raw)] == one.raw
        if golden.name != "crashed":
            assert [item.problem for item in items if item.problem] == []


def test_a_record_is_shown_field_by_field(golden_store):
    golden = golden_store("5.5.0", "hosts-v2")
    file = sorted((golden.path / "commitlog").iterdir())[0]
    data = file.read_bytes()
    records = [item for item in dump(file) if item.kind == "record"]
    for item in records:
        message = message_from(data, item.at)
        values = {one.name: one.value for one in item.fields}
        assert values["queue_offset"] == message.queue_offset
        assert values["born_host"] == message.born_host
        assert values["store_host"] == message.store_host
        assert values["topic"] == message.topic
        assert values["properties"] == message.properties
        assert values["store_timestamp"] == message.store_timestamp_ms
        assert sum(one.size for one in item.fields) == item.size == message.store_size
    assert len(records) == 160


@pytest.mark.parametrize("release", ["5.5.0", "4.9.7"])
def test_garbage_is_one_item_and_says_so(golden_store, release):
    golden = golden_store(release, "crashed")
    torn = golden.manifest["torn"]
    items = list(dump(golden.path / "commitlog" / torn["file"]))
    (garbage,) = [item for item in items if item.problem]
    assert (garbage.kind, garbage.at) == ("garbage", torn["position"])


def test_what_follows_damage_is_shown(golden_store):
    golden = golden_store("5.5.0", "basic")
    file = sorted((golden.path / "commitlog").iterdir())[1]
    before = list(dump(file))
    data = bytearray(file.read_bytes())
    data[before[2].at] ^= 0x40
    data[before[5].at + 90] ^= 1
    file.write_bytes(data)
    after = list(dump(file))
    assert [item.at for item in after] == [item.at for item in before]
    assert [item.kind for item in after[:6]] == ["record"] * 2 + ["garbage"] + ["record"] * 3
    assert "CRC" in after[5].problem


def test_a_dump_begins_where_it_is_told(golden_store):
    golden = golden_store("5.5.0", "basic")
    file = sorted((golden.path / "commitlog").iterdir())[1]
    items = list(dump(file))
    assert list(dump(file, start=items[10].at)) == items[10:]


def test_kinds_and_geometry_are_told_or_asked_for(golden_store, tmp_path):
    golden = golden_store("5.5.0", "basic")
    file = sorted((golden.path / "commitlog").iterdir())[0]
    strange = tmp_path / "copy.bin"
    strange.write_bytes(file.read_bytes())
    with pytest.raises(ConfigError, match="say which kind"):
        list(dump(strange))
    assert [i.at for i in dump(strange, kind="commitlog")] == [i.at for i in dump(file)]
    with pytest.raises(ConfigError, match="one of"):
        list(dump(strange, kind="nothing"))
    index = tmp_path / "index" / "20260101000000000"
    index.parent.mkdir()
    index.write_bytes(bytes(40 + 4 * 7 + 20 * 11))
    with pytest.raises(ConfigError, match="give it"):
        list(dump(index))
    assert [item.kind for item in dump(index, hash_slot_num=7)] == ["header"]


def test_any_bytes_are_shown_and_nothing_fails(tmp_path, rng):
    for kind, name in (
        ("commitlog", f"{0:020d}"),
        ("consumequeue", f"{0:020d}"),
        ("batchconsumequeue", f"{0:020d}"),
        ("consumequeue_ext", f"{0:020d}"),
        ("checkpoint", "checkpoint"),
        ("json", "a.json"),
    ):
        for size in (0, 1, 7, 19, 20, 45, 300, 4096):
            file = tmp_path / name
            for data in (rng.randbytes(size), bytes(size), b"\xda\xa3\x20\xa7" * (size // 4)):
                file.write_bytes(data)
                items = list(dump(file, kind=kind))
                assert sum(item.size for item in items) == len(data)
