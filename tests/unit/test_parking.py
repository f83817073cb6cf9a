"""How delayed messages are parked by level."""

from __future__ import annotations

import pytest

from rmqcore.config import StoreConfig
from rmqcore.errors import MessageIllegalError
from rmqcore.message import Message
from rmqcore.services.delay_schedule import (
    SCHEDULE_TOPIC,
    delay_level_deadline,
    park,
    requested_delay_level,
)

pytestmark = pytest.mark.logic

LEVELS_MS = StoreConfig().delay_levels_ms
NOW = 1_700_000_000_000


class TestParking:
    def test_a_parked_message_keeps_where_it_wanted_to_go(self):
        message = Message(
            "TopicA",
            b"b",
            queue_id=5,
            tags="t",
            keys=("k1", "k2"),
            properties={"p": "v", "TIMER_DELAY_SEC": "9", "UNIQ_KEY": "u"},
            flag=7,
            sys_flag=8,
            born_timestamp_ms=NOW,
            born_host="10.0.0.1:2",
            store_host="10.0.0.2:3",
            reconsume_times=4,
        )
        parked = park(message, 3, LEVELS_MS)
        assert (parked.topic, parked.queue_id, parked.body) == (SCHEDULE_TOPIC, 2, b"b")
        assert parked.properties == {
            "p": "v",
            "UNIQ_KEY": "u",
            "DELAY": "3",
            "REAL_TOPIC": "TopicA",
            "REAL_QID": "5",
        }
        assert (parked.tags, parked.keys, parked.flag, parked.sys_flag) == ("t", ("k1", "k2"), 7, 8)
        assert (parked.born_timestamp_ms, parked.reconsume_times) == (NOW, 4)
        assert (parked.born_host, parked.store_host) == ("10.0.0.1:2", "10.0.0.2:3")
        assert parked.delay_level == 0
        assert message.topic == "TopicA"
        assert "DELAY" not in message.properties

    def test_a_level_above_the_last_is_the_last(self):
        parked = park(Message("T"), 99, LEVELS_MS)
        assert (parked.queue_id, parked.properties["DELAY"]) == (17, "18")

    @pytest.mark.parametrize(
        ("message", "level"),
        [
            (Message("T"), 0),
            (Message("T", delay_level=2), 2),
            (Message("T", delay_level=2, properties={"DELAY": "5"}), 2),
            (Message("T", properties={"DELAY": "5"}), 5),
            (Message("T", properties={"DELAY": "-5"}), 0),
            (Message("T", delay_level=2, sys_flag=0x4), 0),
            (Message("T", delay_level=2, sys_flag=0x8), 2),
            (Message("T", delay_level=2, sys_flag=0xC), 0),
        ],
    )
    def test_the_requested_level(self, message, level):
        assert requested_delay_level(message) == level

    def test_a_level_that_is_no_number_is_refused(self):
        with pytest.raises(MessageIllegalError, match="DELAY='soon'"):
            requested_delay_level(Message("T", properties={"DELAY": "soon"}))

    @pytest.mark.parametrize(
        ("level", "delay_ms"), [(1, 1000), (18, 7_200_000), (0, 1000), (19, 1000)]
    )
    def test_deadlines(self, level, delay_ms):
        assert delay_level_deadline(LEVELS_MS, level, NOW) == NOW + delay_ms

    def test_the_first_level_is_level_one(self):
        assert [delay_level_deadline((7, 8), level, 0) for level in (0, 1, 2, 3)] == [
            1000,
            7,
            8,
            1000,
        ]
