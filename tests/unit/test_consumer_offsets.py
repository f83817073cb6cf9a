"""Consumer offsets of an open store: when they are in the file, and which are refused."""

from __future__ import annotations

import numpy
import pytest
from patience import until

from rmqcore import ArgumentError, open_store
from rmqcore.java.json import parse_java_json
from rmqcore.services import save_tables
from rmqcore.services.save_tables import SaveTablesService

pytestmark = pytest.mark.engine


def saved(path):
    file = path / "config" / "consumerOffset.json"
    return parse_java_json(file.read_text("utf-8"))["offsetTable"] if file.exists() else None


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "s") as opened:
        for number in range(3):
            opened.put("T", b"%d" % number)
        yield opened


def test_a_flush_writes_them(store):
    store.consumer_offsets.commit("T", "g", 0, 2)
    assert saved(store.path) is None
    store.flush()
    assert saved(store.path) == {"T@g": {"0": 2}}


def test_a_timer_writes_them(tmp_path, monkeypatch):
    assert save_tables.SAVE_INTERVAL_S == 5
    monkeypatch.setattr(save_tables, "SAVE_INTERVAL_S", 0.01)
    with open_store(tmp_path / "s") as store:
        store.put("T", b"x")
        store.consumer_offsets.commit("T", "g", 0, 1)
        until(lambda: saved(store.path) == {"T@g": {"0": 1}}, "they are in the file")


@pytest.mark.logic
def test_a_table_that_cannot_be_written_is_tried_again():
    class Table:
        rounds = 0

        def persist(self):
            self.rounds += 1
            if self.rounds == 1:
                raise OSError(28, "no space")
            return True

    service = SaveTablesService(first := Table(), second := Table())
    with pytest.raises(OSError, match="no space"):
        service.run(0.0)
    assert (first.rounds, second.rounds) == (1, 1)
    assert service.run(1.0) == 5.0
    assert (first.rounds, second.rounds) == (2, 2)


def test_one_beyond_the_end_is_refused(store):
    store.consumer_offsets.commit("T", "g", 0, 3)
    for queue, beyond in (("T", 4), ("Other", 1)):
        with pytest.raises(ArgumentError, match=f"queue_offset={beyond}: expected at most "):
            store.consumer_offsets.commit(queue, "g", 0, beyond)
    store.consumer_offsets.commit("Other", "g", 0, 0)
    assert store.consumer_offsets.queues("T", "g") == {0: 3}


def test_no_whole_number_is_refused(store):
    with pytest.raises(ArgumentError, match=r"queue_offset=1\.5"):
        store.consumer_offsets.commit("T", "g", 0, 1.5)


@pytest.mark.parametrize("number", [True, numpy.int64(1), numpy.uint8(1)])
def test_what_stands_for_a_number_is_one_in_the_file(tmp_path, number):
    with open_store(tmp_path / "s") as store:
        store.put("T", b"x", queue_id=1)
        store.consumer_offsets.commit("T", "g", number, number)
    with open_store(tmp_path / "s") as store:
        assert store.consumer_offsets.queues("T", "g") == {1: 1}


def test_a_queue_id_that_no_queue_can_have_is_refused(store):
    with pytest.raises(ArgumentError, match="queue_id="):
        store.consumer_offsets.commit("T", "g", 1 << 31, 0)
