"""Tables of a hostile master: a slave refuses them, or takes them over, and goes on."""

import asyncio
import json
import logging
import threading

import pytest
from ha.test_tables import ANSWERS, KINDS, Slave

from rmqcore.files.config_tables import OFFSET_MAX
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.remoting import RequestCode, ResponseCode, failure
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

TABLES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_DELAY_OFFSET,
)


def test_tables_of_the_last_version_that_there_is_can_be_read_again(tmp_path, monkeypatch):
    version = b'{"dataVersion":{"counter":%d,"timestamp":1},' % OFFSET_MAX
    for code in TABLES:
        monkeypatch.setitem(ANSWERS, code, version + ANSWERS[code][1:])
    slave = Slave(tmp_path)
    assert asyncio.run(slave.synchronize())
    for _ in range(2):
        for table in slave.tables:
            table._changed = True
            table.persist()
    read = [kind(tmp_path, clock=wall_clock_ms) for kind in KINDS]
    assert [table.is_whole for table in read[1:]] == [True] * 3
    assert [table.to_text() for table in read] == [table.to_text() for table in slave.tables]
    assert "delays" in slave.taken


def test_the_loop_goes_on_while_tables_are_taken_over(tmp_path, monkeypatch):
    """One of 10 MiB took it for 14 seconds."""
    threads = []

    def noting(adopt):
        def noted(*args):
            threads.append(threading.current_thread())
            return adopt(*args)

        return noted

    slave = Slave(tmp_path)
    for table in slave.tables:
        monkeypatch.setattr(table, "adopt", noting(table.adopt))
    assert asyncio.run(slave.synchronize())
    assert len(threads) == len(KINDS)
    assert threading.current_thread() not in threads


def test_what_a_master_says_is_told_in_short(tmp_path, monkeypatch, caplog):
    slave = Slave(tmp_path)

    async def refused(_, request, __):
        return failure(ResponseCode.SYSTEM_ERROR, f"{request.code}" * 100_000)

    monkeypatch.setattr(slave, "invoke", refused)
    with caplog.at_level(logging.WARNING):
        asyncio.run(slave.synchronize())
    assert "300008 characters" in max(caplog.messages, key=len)
    assert max(map(len, [*caplog.messages, slave.problem()])) < 1000


def test_a_range_of_the_log_that_is_no_short_answer_is_none(tmp_path, monkeypatch):
    code = RequestCode.GET_BROKER_RUNTIME_INFO
    told = json.loads(ANSWERS[code])
    slave = Slave(tmp_path)
    for size, taken in (1000, True), (64 << 10, False):
        told["table"]["more"] = "x" * size
        monkeypatch.setitem(ANSWERS, code, json.dumps(told).encode())
        assert asyncio.run(slave.synchronize()) is taken


def test_a_delay_level_of_any_number_is_one_place_to_look_at(tmp_path, monkeypatch):
    code = RequestCode.GET_ALL_DELAY_OFFSET
    monkeypatch.setitem(ANSWERS, code, b'{"offsetTable":{"1":5,"1000000":7}}')
    slave = Slave(tmp_path)
    assert asyncio.run(slave.synchronize())
    levels = [queue_id + 1 for topic, queue_id, _ in slave.pending() if topic == SCHEDULE_TOPIC]
    assert levels == [*range(1, 1025), 1_000_000]
