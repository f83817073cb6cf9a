"""Ctrl-C while keys are filed: each key has one entry, and no index file is left half in use."""

import pytest

from rmqcore import open_store
from rmqcore.derived.index_service import IndexService
from rmqcore.doctor.verify import verify
from rmqcore.files.index_file import IndexFile

pytestmark = pytest.mark.engine

SETTINGS = {
    "mapped_file_size_commit_log": 65536,
    "max_hash_slot_num": 16,
    "max_index_num": 64,
}


def interrupt_once(monkeypatch, owner, name, *, after):
    """The next call of a method is interrupted at its end, or at its beginning."""
    original, done = getattr(owner, name), []

    def interrupted(*arguments):
        if done:
            return original(*arguments)
        done.append(True)
        if after:
            original(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)
    return done


@pytest.mark.parametrize("count", [0, 63])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (IndexFile, "create"),
        (IndexFile, "put_keys"),
        (IndexService, "note_filed"),
        (IndexService, "_names_changed"),
    ],
)
def test_keys_are_filed_once(store_path, monkeypatch, count, after, owner, name):
    store = open_store(store_path, **SETTINGS)
    for number in range(count):
        store.put("T", b"%d" % number, keys=f"k{number}")
    store.max_queue_offset("T", 0)
    # nobody but this thread dispatches
    store.parts.upkeep.runner.stop(store.parts.log_services.reput)
    done = interrupt_once(monkeypatch, owner, name, after=after)
    store.put("T", b"last", keys=("k1", "k2"))
    with pytest.raises(KeyboardInterrupt):
        store.query_message("T", "k1")
    assert done
    assert len(store.query_message("T", "k1", max_messages=9).messages) == 1 + (count > 0)
    files = store.index.files
    assert [file.path.name for file in files] == store.index.names()
    assert sum(file.entry_count for file in files) == count + 2
    store.flush()
    store.close()
    assert verify(store_path).finding_count == 0
    with open_store(store_path, **SETTINGS) as again:
        assert again.recovery_report.findings == []
