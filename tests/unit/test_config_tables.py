"""The tables below config/: RocketMQ's shapes, typed access, nothing unknown is dropped."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy
import pytest

from rmqcore.errors import ArgumentError, CorruptConfigFileError, MessageIllegalError
from rmqcore.files.config_tables import TopicConfig, TopicConfigTable, check_topic_name
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.files.entry_texts import EntryTexts
from rmqcore.files.group_table import SubscriptionGroupTable
from rmqcore.files.request_mode_table import POP, PULL, MessageRequestModeTable
from rmqcore.java.json import format_java_json

pytestmark = pytest.mark.logic

NOW = 1_700_000_000_000


def open_table(kind, directory: Path):
    return kind(directory, clock=lambda: NOW)


def strict(text: str) -> object:
    return json.loads(text)


class Untouched(dict):
    """Nobody goes over all of it."""

    def items(self):
        raise AssertionError("all entries are looked at")

    keys = values = __iter__ = items


class TestTopics:
    def test_a_topic_that_comes_or_goes_takes_no_longer_where_there_are_many(self, tmp_path):
        table = open_table(TopicConfigTable, tmp_path)
        table._topics = Untouched({f"T{n}": TopicConfig(topic_name=f"T{n}") for n in range(3)})
        table.put(TopicConfig(topic_name="T3"))
        table.put(TopicConfig(topic_name="T0", perm=4))
        assert table.get("T0").perm == 4
        assert table.remove("T1")
        assert not table.remove("T1")
        assert len(table) == 3

    def test_one_that_goes_over_all_topics_is_not_disturbed(self, tmp_path):
        table = open_table(TopicConfigTable, tmp_path)
        for number in range(3):
            table.put(TopicConfig(topic_name=f"T{number}"))
        found = []
        for topic in table:
            table.put(TopicConfig(topic_name=f"{topic.topic_name}-again"))
            table.remove(topic.topic_name)
            found.append(topic.topic_name)
        assert found == ["T0", "T1", "T2"]

    def test_a_signal_handler_that_changes_topics_disturbs_no_write_of_them(self, tmp_path):
        table = open_table(TopicConfigTable, tmp_path)

        def interrupted(topic):
            table.remove("T2")
            table.put(TopicConfig(topic_name="new"))
            return topic.to_java()

        table._texts = EntryTexts(interrupted)
        for number in range(3):
            table.put(TopicConfig(topic_name=f"T{number}"))
        for names in (["T0", "T1", "T2"], ["T0", "T1", "new"]):
            assert table.persist()
            told = [each.topic_name for each in open_table(TopicConfigTable, tmp_path)]
            assert told == names

    def test_a_new_topic_stands_in_rocketmqs_shape(self, tmp_path):
        table = open_table(TopicConfigTable, tmp_path)
        table.put(TopicConfig(topic_name="TopicA"))
        assert table.persist()
        assert strict((tmp_path / "topics.json").read_text()) == {
            "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": NOW},
            "topicConfigTable": {
                "TopicA": {
                    "attributes": {},
                    "order": False,
                    "perm": 6,
                    "readQueueNums": 8,
                    "topicFilterType": "SINGLE_TAG",
                    "topicName": "TopicA",
                    "topicSysFlag": 0,
                    "writeQueueNums": 8,
                }
            },
        }

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("topic_name", 5),
            ("read_queue_nums", 4.0),
            ("write_queue_nums", float("inf")),
            ("read_queue_nums", 1 << 31),
            ("perm", "6"),
            ("topic_sys_flag", None),
            ("topic_filter_type", 1),
            ("order", 1),
            ("attributes", 5),
            ("attributes", {5: "x"}),
            ("attributes", {"x": float("nan")}),
            ("other", {"x": object()}),
        ],
    )
    def test_a_field_that_could_not_be_read_again_is_refused(self, tmp_path, name, value):
        table = open_table(TopicConfigTable, tmp_path)
        with pytest.raises(ArgumentError, match=f"{name}="):
            table.put(TopicConfig(**{"topic_name": "T", name: value}))
        assert not list(table)

    def test_what_stands_for_a_number_is_one_in_the_file(self, tmp_path):
        table = open_table(TopicConfigTable, tmp_path)
        table.put(TopicConfig(topic_name="T", read_queue_nums=numpy.int64(4), perm=True))
        table.persist()
        assert open_table(TopicConfigTable, tmp_path).get("T") == TopicConfig(
            topic_name="T", read_queue_nums=4, perm=1
        )

    def test_fields_come_in_alphabetical_order(self, tmp_path):
        table = open_table(TopicConfigTable, tmp_path)
        table.put(TopicConfig(topic_name="T", other={"liteTopic": True}))
        names = [line.split('"')[1] for line in table.to_text().splitlines() if '"' in line]
        assert names[names.index("T") + 1 :] == [
            "attributes",
            "liteTopic",
            "order",
            "perm",
            "readQueueNums",
            "topicFilterType",
            "topicName",
            "topicSysFlag",
            "writeQueueNums",
        ]

    def test_a_file_of_another_release_keeps_its_fields(self, tmp_path):
        (tmp_path / "topics.json").write_text(
            '{"dataVersion":{"counter":7,"timestamp":5},"newField":{"x":[1]},"topicConfigTable":'
            '{"TBW102":{"order":false,"perm":7,"readQueueNums":4,"topicName":"TBW102","what":1},'
            '"my.host-1":{"topicName":"my.host-1"}}}'
        )
        table = open_table(TopicConfigTable, tmp_path)
        config = table.get("TBW102")
        assert config is not None
        assert (config.perm, config.read_queue_nums, config.write_queue_nums) == (7, 4, 8)
        assert {entry.topic_name for entry in table} == {"TBW102", "my.host-1"}
        table.put(TopicConfig(topic_name="TopicB"))
        table.persist()
        written = strict((tmp_path / "topics.json").read_text())
        assert written["newField"] == {"x": [1]}
        assert written["topicConfigTable"]["TBW102"]["what"] == 1
        assert written["dataVersion"]["counter"] == 8
        assert len(open_table(TopicConfigTable, tmp_path)) == 3

    def test_removing(self, tmp_path):
        table = open_table(TopicConfigTable, tmp_path)
        table.put(TopicConfig(topic_name="TopicA"))
        assert table.remove("TopicA")
        assert not table.remove("TopicA")
        assert table.get("TopicA") is None

    @pytest.mark.parametrize(
        "text",
        [
            '{"topicConfigTable":[]}',
            '{"topicConfigTable":{"T":{"perm":"6"}}}',
            '{"topicConfigTable":{"T":{"perm":true}}}',
            '{"topicConfigTable":{"../../etc":{}}}',
            '{"topicConfigTable":{"..":{}}}',
            '{"dataVersion":{"counter":-1}}',
            '{"dataVersion":5}',
        ],
    )
    def test_content_of_a_wrong_shape_is_damage(self, tmp_path, text):
        (tmp_path / "topics.json").write_text(text)
        with pytest.raises(CorruptConfigFileError):
            open_table(TopicConfigTable, tmp_path)
        (tmp_path / "topics.json.bak").write_text('{"topicConfigTable":{"T":{}}}')
        assert open_table(TopicConfigTable, tmp_path).get("T") == TopicConfig(topic_name="T")


class TestTopicNames:
    @pytest.mark.parametrize("name", ["T", "%RETRY%g", "a|b_c-9", "x" * 127, "%DLQ%" + "x" * 250])
    def test_legal(self, name):
        check_topic_name(name)

    @pytest.mark.parametrize(
        "name",
        ["", "x" * 128, "%DLQ%" + "x" * 251, "../a", "a/b", "a.b", "a b", "a\n", "é", "a\0", "a@b"],
    )
    def test_illegal(self, name, tmp_path):
        with pytest.raises(MessageIllegalError):
            check_topic_name(name)
        with pytest.raises(MessageIllegalError):
            open_table(TopicConfigTable, tmp_path).put(TopicConfig(topic_name=name))


class TestConsumerOffsets:
    def test_the_shape_is_rocketmqs(self, tmp_path):
        table = open_table(ConsumerOffsetTable, tmp_path)
        table.commit("TopicA", "g", 1, 9)
        table.commit("TopicA", "g", 0, 12)
        table.persist()
        assert (tmp_path / "consumerOffset.json").read_text() == (
            '{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":'
            f"{NOW}"
            '\n\t},\n\t"offsetTable":{\n\t\t"TopicA@g":{\n\t\t\t0:12,\n\t\t\t1:9\n\t\t}\n\t}\n}'
        )
        again = open_table(ConsumerOffsetTable, tmp_path)
        assert again.queues("TopicA", "g") == {0: 12, 1: 9}
        assert again.data_version.counter == 1

    @pytest.mark.parametrize(
        "text", ['{"offsetTable":{"T@g":{0:3}}}', '{"offsetTable":{"T@g":{"0":3}}}']
    )
    def test_both_kinds_of_keys_are_read(self, tmp_path, text):
        (tmp_path / "consumerOffset.json").write_text(text)
        table = open_table(ConsumerOffsetTable, tmp_path)
        assert table.get("T", "g", 0) == 3
        assert table.get("T", "g", 1) is None
        assert table.get("U", "g", 0) is None

    def test_the_map_that_is_derived_from_the_offsets_does_not_outlive_them(self, tmp_path):
        (tmp_path / "consumerOffset.json").write_text(
            '{"groupTopicMap":{"g":["T"]},"offsetTable":{"T@g":{0:3}},"pullOffsetTable":{}}'
        )
        table = open_table(ConsumerOffsetTable, tmp_path)
        table.remove(group="g")
        assert "groupTopicMap" not in table.to_text()
        assert "pullOffsetTable" in table.to_text()

    def test_removing_by_topic_and_by_group(self, tmp_path):
        table = open_table(ConsumerOffsetTable, tmp_path)
        for topic, group in (("A", "g"), ("A", "h"), ("B", "g")):
            table.commit(topic, group, 0, 1)
        assert table.remove(topic="A", group="h") == 1
        assert table.remove(group="g") == 2
        assert table.pairs() == []
        assert table.remove(topic="A") == 0

    def test_unchanged_tables_are_not_written(self, tmp_path):
        table = open_table(ConsumerOffsetTable, tmp_path)
        assert not table.persist()
        table.commit("T", "g", 0, 1)
        assert table.persist()
        table.commit("T", "g", 0, 1)
        assert not table.persist()
        assert table.data_version.counter == 1

    @pytest.mark.parametrize("error", [OSError, RuntimeError, KeyboardInterrupt])
    def test_a_failed_write_is_tried_again(self, tmp_path, monkeypatch, error):
        table = open_table(ConsumerOffsetTable, tmp_path)
        table.commit("T", "g", 0, 1)

        def refuse(text):
            raise error("no")

        monkeypatch.setattr(table._file, "store", refuse)
        with pytest.raises(error, match="no"):
            table.persist()
        monkeypatch.undo()
        assert table.persist()
        assert open_table(ConsumerOffsetTable, tmp_path).get("T", "g", 0) == 1

    def test_negative_numbers_and_illegal_names_are_refused(self, tmp_path):
        table = open_table(ConsumerOffsetTable, tmp_path)
        with pytest.raises(ValueError, match="whole number from 0"):
            table.commit("T", "g", -1, 0)
        with pytest.raises(ValueError, match="whole number from 0"):
            table.commit("T", "g", 0, -1)
        with pytest.raises(MessageIllegalError):
            table.commit("T@U", "g", 0, 0)

    @pytest.mark.engine
    def test_commits_beside_persists_are_never_lost(self, tmp_path):
        table = open_table(ConsumerOffsetTable, tmp_path)
        done = threading.Event()

        def persist() -> None:
            while not done.is_set():
                table.persist()

        writer = threading.Thread(target=persist)
        writer.start()
        for offset in range(1, 2000):
            table.commit("T", f"g{offset % 50}", offset % 7, offset)
        done.set()
        writer.join()
        table.persist()
        again = open_table(ConsumerOffsetTable, tmp_path)
        assert {pair: again.queues(*pair) for pair in again.pairs()} == {
            pair: table.queues(*pair) for pair in table.pairs()
        }


class TestDelayOffsets:
    def test_a_file_of_release_4_9_7(self, tmp_path):
        (tmp_path / "delayOffset.json").write_text('{\n\t"offsetTable":{}\n}')
        table = open_table(DelayOffsetTable, tmp_path)
        assert table.levels() == {}
        table.commit(3, 17)
        table.persist()
        assert '"offsetTable":{\n\t\t3:17\n\t}' in (tmp_path / "delayOffset.json").read_text()
        assert open_table(DelayOffsetTable, tmp_path).get(3) == 17

    def test_levels_begin_at_one(self, tmp_path):
        table = open_table(DelayOffsetTable, tmp_path)
        for level, offset in ((0, 1), (1, -1)):
            with pytest.raises(ValueError, match="at least"):
                table.commit(level, offset)


class TestSubscriptionGroups:
    def test_everything_is_kept(self, tmp_path):
        text = (
            '{"dataVersion":{"counter":1},"forbiddenTable":{"g":{"T":2}},'
            '"subscriptionGroupTable":{"g":{"brokerId":0,"groupName":"g","new":{"a":1}}}}'
        )
        (tmp_path / "subscriptionGroup.json").write_text(text)
        table = open_table(SubscriptionGroupTable, tmp_path)
        table.put("h", {"retryMaxTimes": 3})
        table.persist()
        written = strict((tmp_path / "subscriptionGroup.json").read_text())
        assert written["forbiddenTable"] == {"g": {"T": 2}}
        assert written["subscriptionGroupTable"]["g"]["new"] == {"a": 1}
        assert written["subscriptionGroupTable"]["h"] == {
            "attributes": {},
            "brokerId": 0,
            "consumeBroadcastEnable": True,
            "consumeEnable": True,
            "consumeFromMinEnable": True,
            "consumeMessageOrderly": False,
            "consumeTimeoutMinute": 15,
            "groupName": "h",
            "groupRetryPolicy": {"type": "CUSTOMIZED"},
            "groupSysFlag": 0,
            "notifyConsumerIdsChangedEnable": True,
            "retryMaxTimes": 3,
            "retryQueueNums": 1,
            "whichBrokerWhenConsumeSlowly": 1,
        }
        again = open_table(SubscriptionGroupTable, tmp_path)
        assert again.names() == ["g", "h"]
        assert again.get("x") is None

    @pytest.mark.parametrize(
        "member",
        ['"forbiddenTable":[]', '"forbiddenTable":{"g":4}', '"forbiddenTable":{"g":{"T":"4"}}'],
    )
    def test_what_is_no_table_of_what_is_forbidden_is_refused(self, tmp_path, member):
        (tmp_path / "subscriptionGroup.json").write_text("{" + member + "}")
        with pytest.raises(CorruptConfigFileError):
            open_table(SubscriptionGroupTable, tmp_path)


class TestRequestModes:
    TEXT = '{"messageRequestModeMap":{"T":{"G":{"mode":"POP","popShareQueueNum":2,"new":1}}}}'

    def test_everything_is_kept_and_no_version_added(self, tmp_path):
        path = tmp_path / MessageRequestModeTable.file_name
        path.write_text(self.TEXT)
        table = open_table(MessageRequestModeTable, tmp_path)
        assert table.get("T", "G") == (POP, 2)
        assert table.get("T", "H") == table.get("U", "G") == (PULL, -1)
        table.put("T", "H", POP, 0)
        table.persist()
        written = strict(path.read_text())
        assert list(written) == ["messageRequestModeMap"]
        assert written["messageRequestModeMap"]["T"]["G"]["new"] == 1
        assert open_table(MessageRequestModeTable, tmp_path).get("T", "H") == (POP, 0)

    def test_another_brokers_modes_take_the_place_of_ones_own(self, tmp_path):
        table = open_table(MessageRequestModeTable, tmp_path)
        table.put("U", "G", POP, 0)
        assert table.adopt(self.TEXT)
        assert not table.adopt(self.TEXT)
        assert table.get("T", "G") == (POP, 2)
        assert table.get("U", "G") == (PULL, -1)

    @pytest.mark.parametrize(
        "text", ["{}", '{"messageRequestModeMap":{"T":[]}}', TEXT.replace("2", '"2"')]
    )
    def test_what_is_no_table_is_refused(self, tmp_path, text):
        (tmp_path / MessageRequestModeTable.file_name).write_text(text)
        with pytest.raises(CorruptConfigFileError):
            open_table(MessageRequestModeTable, tmp_path)


class TestAdopted:
    """What another broker has told."""

    @staticmethod
    def topics(counter, *names):
        table = {name: {"perm": 6} for name in names}
        version = {"counter": counter, "timestamp": counter, "stateVersion": 0}
        return format_java_json({"topicConfigTable": table, "dataVersion": version})

    @staticmethod
    def names(table):
        return {topic.topic_name for topic in table}

    def test_a_table_that_was_begun_anew_takes_nothing_away(self, tmp_path):
        table = open_table(TopicConfigTable, tmp_path)
        assert table.adopt(self.topics(7, "A", "B"))
        assert table.adopt(self.topics(8, "B", "C"))
        assert self.names(table) == {"B", "C"}
        for again in (False, True, True):
            if again:
                table.persist()
                table = open_table(TopicConfigTable, tmp_path)
            for _ in range(2):
                table.adopt(self.topics(7, "D"))
                assert self.names(table) == {"B", "C", "D"}
        # the version of the new table has grown beyond the one before
        for counter in (8, 9):
            table.adopt(self.topics(counter, "D"))
            table.persist()
            table = open_table(TopicConfigTable, tmp_path)
            assert self.names(table) == {"B", "C", "D"}
        table.adopt(self.topics(10, "B", "E"))
        assert self.names(table) == {"B", "C", "E"}
        table.adopt(self.topics(11, "E"))
        assert self.names(table) == {"C", "E"}

    @pytest.mark.parametrize(
        "kind", [TopicConfigTable, SubscriptionGroupTable, ConsumerOffsetTable]
    )
    def test_a_table_that_was_begun_at_another_time_is_another_one(self, tmp_path, kind):
        """It was lost and has outgrown the one before while nobody looked."""

        def put(table, name):
            if kind is TopicConfigTable:
                table.put(TopicConfig(topic_name=name))
            elif kind is SubscriptionGroupTable:
                table.put(name, {})
            else:
                table.commit(name, "G", 0, 1)

        def names(table):
            if kind is TopicConfigTable:
                return {topic.topic_name for topic in table}
            if kind is SubscriptionGroupTable:
                return set(table.names())
            return {topic for topic, _ in table.pairs()}

        slave = open_table(kind, tmp_path / "slave")
        for begun in (5, 6):
            master = kind(tmp_path / f"master {begun}", clock=lambda begun=begun: begun)
            master.lead()
            for counter in range(begun):
                put(master, f"A{begun}-{counter % 2}")
                master.persist()
            slave.adopt(master.to_text())
            slave.persist()
            assert open_table(kind, tmp_path / "slave").begun_ms == begun
        assert names(slave) == {f"A{begun}-{number}" for begun in (5, 6) for number in (0, 1)}
        assert slave.begun_ms == 6
        # who takes that one over goes on with it, also when it leads itself
        slave.lead()
        assert slave.begun_ms == 6

    def test_a_group_that_was_lost_stays_with_what_is_forbidden_to_it(self, tmp_path):
        def told(counter, *groups):
            table = {group: {"retryMaxTimes": 3} for group in groups}
            version = {"counter": counter}
            forbidden = {group: {"T": 4} for group in groups}
            content = {"subscriptionGroupTable": table, "forbiddenTable": forbidden}
            return format_java_json({**content, "dataVersion": version})

        table = open_table(SubscriptionGroupTable, tmp_path)
        table.adopt(told(5, "A", "B"))
        for counter, groups in ((0, ()), (1, ("C",)), (7, ("C",))):
            table.adopt(told(counter, *groups))
            assert table.names() == sorted(["A", "B", *groups])
        assert sorted(table.forbidden()) == ["A", "B", "C"]

    def test_an_empty_table_takes_nothing_away(self, tmp_path):
        topics = open_table(TopicConfigTable, tmp_path)
        topics.adopt(self.topics(7, "A"))
        assert not topics.adopt(self.topics(8))
        assert self.names(topics) == {"A"}
        groups = open_table(SubscriptionGroupTable, tmp_path)
        groups.put("G", {})
        assert not groups.adopt("{}")
        assert groups.names() == ["G"]
        modes = open_table(MessageRequestModeTable, tmp_path)
        modes.put("T", "G", POP, 1)
        assert not modes.adopt('{"messageRequestModeMap":{}}')
        assert modes.get("T", "G") == (POP, 1)

    def test_who_leads_next_tells_no_lower_version(self, tmp_path):
        table = open_table(TopicConfigTable, tmp_path)
        table.adopt(self.topics(70, "A"))
        table.persist()
        assert open_table(TopicConfigTable, tmp_path).data_version.counter == 71

    def test_topics_that_are_kept_stay_as_they_are(self, tmp_path):
        table = open_table(TopicConfigTable, tmp_path)
        table.put(TopicConfig(topic_name="A", read_queue_nums=3))
        table.put(TopicConfig(topic_name="B"))
        assert table.adopt(self.topics(1, "C"), keep=lambda name: name == "A")
        assert self.names(table) == {"A", "C"}
        assert table.get("A").read_queue_nums == 3

    def test_offsets_go_that_the_other_had_and_has_no_more(self, tmp_path):
        table = open_table(ConsumerOffsetTable, tmp_path)
        table.commit("T", "mine", 0, 5)
        table.adopt('{"offsetTable":{"T@G":{0:1},"T@H":{0:2}}}')
        table.adopt('{"offsetTable":{"T@H":{1:3}}}')
        assert table.pairs() == [("T", "mine"), ("T", "H")]
        assert table.queues("T", "H") == {1: 3}
        assert not table.adopt('{"offsetTable":{}}')

    def test_offsets_that_a_master_told_are_known_from_ones_own_behind_a_restart(self, tmp_path):
        """What the master has no more goes, whenever it was told; what it never told stays."""
        table = open_table(ConsumerOffsetTable, tmp_path)
        table.commit("T", "before", 0, 5)
        table.adopt('{"offsetTable":{"T@G":{0:1},"T@H":{0:2,1:3}}}')
        table.commit("T", "meanwhile", 0, 6)
        table.persist()
        table = open_table(ConsumerOffsetTable, tmp_path)
        table.adopt('{"offsetTable":{"T@H":{1:3}}}')
        assert table.pairs() == [("T", "before"), ("T", "meanwhile"), ("T", "H")]
        assert table.queues("T", "H") == {1: 3}
        # of a master all are its own
        table.lead()
        table.persist()
        table = open_table(ConsumerOffsetTable, tmp_path)
        table.adopt('{"offsetTable":{"T@G":{0:1}}}')
        assert len(table.pairs()) == 4

    @pytest.mark.parametrize("lost", ['"T@H":{0:4}', ""], ids=["begun anew", "empty"])
    def test_offsets_that_the_other_has_lost_stay_also_when_its_version_has_grown(
        self, tmp_path, lost
    ):
        def told(counter, offsets):
            return f'{{"offsetTable":{{{offsets}}},"dataVersion":{{"counter":{counter}}}}}'

        table = open_table(ConsumerOffsetTable, tmp_path)
        table.adopt(told(7, '"T@G":{0:1},"T@H":{0:2}'))
        table.adopt(told(1, lost))
        table.adopt(told(9, '"T@H":{0:5},"T@I":{0:6}'))
        assert table.queues("T", "G") == {0: 1}
        table.adopt(told(10, '"T@H":{0:5}'))
        assert table.pairs() == [("T", "G"), ("T", "H")]

    def test_what_the_offsets_know_of_pops_is_taken_over_until_one_is_set_back(self, tmp_path):
        """What was popped before an offset was set back says nothing of it."""
        table = open_table(ConsumerOffsetTable, tmp_path)
        for ends in ([1, 2], [3, 4]):
            table.adopt(f'{{"offsetTable":{{"T@G":{{0:5}}}},"reviveQueueEnds":{ends}}}')
            table.commit("T", "G", 0, 6)
            table.persist()
            assert open_table(ConsumerOffsetTable, tmp_path).read_revive_ends == ends
        table.commit("T", "G", 0, 4)
        table.persist()
        assert open_table(ConsumerOffsetTable, tmp_path).read_revive_ends is None

    def test_no_offset_lies_behind_the_end_of_its_queue(self, tmp_path):
        table = ConsumerOffsetTable(tmp_path, clock=int, end_of=lambda _, queue_id: queue_id)
        table.adopt('{"offsetTable":{"T@G":{0:1,1:1,3:2}}}')
        assert table.queues("T", "G") == {0: 0, 1: 1, 3: 2}
        delays = DelayOffsetTable(tmp_path, clock=int, end_of=lambda level: level)
        delays.adopt('{"offsetTable":{"1":1,"2":9}}')
        assert delays.levels() == {1: 1, 2: 2}

    def test_what_was_consumed_of_one_queue_is_forgotten(self, tmp_path):
        table = open_table(ConsumerOffsetTable, tmp_path)
        for topic, group, queue_id in (("T", "G", 0), ("T", "G", 1), ("T", "H", 0), ("U", "G", 0)):
            table.commit(topic, group, queue_id, 5)
        table.forget_queue("T", 0)
        assert table.pairs() == [("T", "G"), ("U", "G")]
        assert table.queues("T", "G") == {1: 5}
