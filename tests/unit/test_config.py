"""StoreConfig: names, defaults, checks, and a broker.conf read and written."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path

import pytest

from rmqcore.config import (
    DYNAMIC_SETTINGS,
    RETENTION_SETTINGS,
    BrokerRole,
    FlushDiskType,
    StoreConfig,
    load_config,
    parse_broker_conf,
    to_broker_conf,
)
from rmqcore.config.known_properties import known_properties
from rmqcore.errors import ConfigError
from rmqcore.java.properties import format_property

pytestmark = pytest.mark.logic

JAVA_DEFAULTS = {
    "mappedFileSizeCommitLog": "1073741824",
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    "flushDiskType": "ASYNC_FLUSH",
    "brokerRole": "ASYNC_MASTER",
    "flushIntervalCommitLog": "500",
    "flushCommitLogLeastPages": "4",
    "flushCommitLogThoroughInterval": "10000",
    "flushIntervalConsumeQueue": "1000",
    "syncFlushTimeout": "5000",
    "checkCRCOnRecover": "true",
    "warmMapedFileEnable": "false",
    "autoMessageVersionOnTopicLen": "true",
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "osPageCacheBusyTimeOutMills": "1000",
    "maxMsgsNumBatch": "64",
}


class TestDefaults:
    def test_the_plain_constructor_has_rocketmqs_defaults(self):
        assert StoreConfig.from_properties(JAVA_DEFAULTS) == StoreConfig()

    def test_nothing_is_explicit_and_nothing_is_deleted(self):
        config = StoreConfig()
        assert config.explicit == frozenset()
        assert not config.retention
        assert not config.deliver_delayed

    @pytest.mark.usefixtures("embedded_as_released")
    def test_embedded_is_small_and_warm(self):
        config = StoreConfig.embedded()
        assert config.mapped_file_size_commit_log == 64 << 20
        assert config.mapped_file_size_consume_queue == 6_000_000
        assert (config.max_hash_slot_num, config.max_index_num) == (100_000, 400_000)
        assert config.warm_mapped_file_enable
        assert StoreConfig.embedded(max_index_num=50).max_index_num == 50

    def test_eighteen_delay_levels(self):
        levels = StoreConfig().delay_levels_ms
        assert len(levels) == 18
        assert (levels[0], levels[4], levels[17]) == (1000, 60_000, 7_200_000)


class TestExplicit:
    def test_a_given_default_is_explicit(self):
        config = StoreConfig(mapped_file_size_commit_log=1 << 30)
        assert config.explicit == {"mapped_file_size_commit_log"}

    def test_replace_keeps_and_adds(self):
        config = dataclasses.replace(StoreConfig(max_index_num=20_000_000), max_hash_slot_num=7)
        assert config.explicit == {"max_index_num", "max_hash_slot_num"}
        assert config.max_hash_slot_num == 7

    def test_profile_values_are_not_explicit_after_replace(self):
        config = dataclasses.replace(StoreConfig.embedded(), sync_flush_timeout_ms=9)
        assert config.explicit == {"profile", "sync_flush_timeout_ms"}

    def test_copies_are_equal(self):
        config = StoreConfig.embedded(retention_bytes=1 << 20, topic_queue_types={"T": "BatchCQ"})
        for twin in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
            assert twin == config
            assert twin.explicit == config.explicit
        assert len({config, copy.copy(config)}) == 1


class TestRetention:
    @pytest.mark.parametrize("name", sorted(RETENTION_SETTINGS))
    def test_any_retention_setting_switches_it_on(self, name):
        value = getattr(StoreConfig(), name) or 1
        assert StoreConfig(**{name: value}).retention
        assert load_config(StoreConfig(), **{name: value}).retention

    def test_replace_switches_it_on_and_off(self):
        on = dataclasses.replace(StoreConfig(), retention_bytes=5)
        assert on.retention
        assert not dataclasses.replace(on, retention=False).retention

    def test_an_explicit_no_wins(self):
        assert not StoreConfig(retention=False, file_reserved_time_hours=3).retention

    def test_other_settings_do_not(self):
        assert not load_config({"clean_resource_interval_ms": 5}).retention


class TestChecks:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("mapped_file_size_commit_log", 0),
            ("mapped_file_size_commit_log", 1 << 31),
            ("mapped_file_size_commit_log", True),
            ("mapped_file_size_commit_log", 65536.0),
            ("max_index_num", 1),
            ("max_hash_slot_num", None),
            ("sync_flush_timeout_ms", -1),
            ("check_crc_on_recover", 1),
            ("check_crc_on_recover", "yes"),
            ("flush_disk_type", "sync"),
            ("broker_role", 0),
            ("delete_when", "24"),
            ("delete_when", ";"),
            ("message_delay_level", "1s 5x"),
            ("message_delay_level", ""),
            ("disk_max_used_space_ratio", 101),
            ("retention_bytes", 0),
            ("store_host", "localhost:10911"),
            ("store_host", "10.0.0.1:65536"),
            ("profile", "huge"),
            ("on_corruption", "ignore"),
            ("topic_queue_types", {"T": "RocksDBCQ"}),
            ("topic_queue_types", 5),
        ],
    )
    def test_a_wrong_value_is_refused_with_its_name(self, name, value):
        with pytest.raises(ConfigError) as error:
            StoreConfig(**{name: value})
        assert error.value.field == name
        assert error.value.rule

    def test_text_is_converted(self):
        config = load_config({"flushDiskType": "SYNC_FLUSH", "brokerRole": " SLAVE "})
        assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        assert config.broker_role is BrokerRole.SLAVE
        assert load_config({"checkCRCOnRecover": "False"}).check_crc_on_recover is False

    @pytest.mark.parametrize("text", ["64K", "0x10", "1_000", "", "1 2", "\uff11", "9" * 25])
    def test_a_number_is_decimal_digits(self, text):
        with pytest.raises(ConfigError, match="max_hash_slot_num"):
            load_config({"maxHashSlotNum": text})

    def test_consume_queue_sizes_become_whole_units(self):
        config = StoreConfig(
            mapped_file_size_consume_queue=1001, mapper_file_size_batch_consume_queue=1
        )
        assert config.mapped_file_size_consume_queue == 1020
        assert config.mapper_file_size_batch_consume_queue == 46

    def test_log_files_need_no_page_multiple(self):
        assert StoreConfig(mapped_file_size_commit_log=65_537).mapped_file_size_commit_log == 65_537

    def test_an_index_file_ends_below_two_gibibytes(self):
        fits = (2**31 - 1 - 40 - 4) // 20
        assert StoreConfig(max_hash_slot_num=1, max_index_num=fits)
        with pytest.raises(ConfigError, match="max_hash_slot_num=1 an index file would take"):
            StoreConfig(max_hash_slot_num=1, max_index_num=fits + 1)

    def test_slots_and_header_of_an_index_file_count(self):
        slots = (2**31 - 1 - 40 - 2 * 20) // 4
        assert StoreConfig(max_hash_slot_num=slots, max_index_num=2)
        with pytest.raises(ConfigError):
            StoreConfig(max_hash_slot_num=slots + 1, max_index_num=2)

    def test_limits_themselves_are_accepted(self):
        StoreConfig(disk_max_used_space_ratio=100, allocate_ahead=0, store_host="1.2.3.4:65535")
        StoreConfig(mapped_file_size_commit_log=2**31 - 1, open_check_bytes=0)

    def test_a_slave_has_no_transient_pool(self):
        assert StoreConfig(transient_store_pool_enable=True).transient_store_pool_effective
        assert not StoreConfig().transient_store_pool_effective
        assert not StoreConfig(
            transient_store_pool_enable=True, broker_role="SLAVE"
        ).transient_store_pool_effective

    def test_types_of_topics(self):
        config = StoreConfig(topic_queue_types={"B": "BatchCQ"})
        assert (config.queue_type("B"), config.queue_type("A")) == ("BatchCQ", "SimpleCQ")

    def test_an_explicit_message_size_has_to_fit_into_a_file(self):
        assert StoreConfig(mapped_file_size_commit_log=65_536, max_message_size=65_436)
        with pytest.raises(ConfigError, match="mapped_file_size_commit_log=65536"):
            StoreConfig(mapped_file_size_commit_log=65_536, max_message_size=65_437)

    def test_an_unset_message_size_is_clamped(self):
        assert StoreConfig().effective_max_message_size == 4 << 20
        small = StoreConfig(mapped_file_size_commit_log=65_536)
        assert small.effective_max_message_size == 65_436
        assert small.max_message_size is None

    def test_deleting_begins_before_refusing(self):
        with pytest.raises(ConfigError, match="disk_space_warning_level_ratio=50"):
            StoreConfig(disk_space_clean_forcibly_ratio=60, disk_space_warning_level_ratio=50)
        assert StoreConfig(disk_space_warning_level_ratio=50)


class TestNames:
    def test_every_known_name_without_meaning_is_reported(self):
        meant = {item.metadata.get("java") for item in dataclasses.fields(StoreConfig)}
        others = known_properties() - meant - {"readOnlyCommitLogStorePaths"}
        assert len(others) > 480
        assert set(load_config(dict.fromkeys(others, "anything")).ignored) == others

    @pytest.mark.parametrize(
        ("wrong", "right"),
        [
            ("mappedFileSizeCommitlog", "mappedFileSizeCommitLog"),
            ("warmMappedFileEnable", "warmMapedFileEnable"),
            ("flush_interval_commit_log", "flush_interval_commit_log_ms"),
            ("flushdisktype", "flushDiskType"),
            ("brokerClusteName", "brokerClusterName"),
        ],
    )
    def test_an_unknown_name_is_refused_with_the_nearest(self, wrong, right):
        with pytest.raises(ConfigError, match=f"did you mean {right}\\?"):
            load_config({wrong: "1"})
        with pytest.raises(ConfigError, match=right):
            load_config(None, **{wrong: 1})

    def test_one_setting_twice_has_to_agree(self):
        assert load_config({"maxIndexNum": "50", "max_index_num": 50}).max_index_num == 50
        with pytest.raises(ConfigError, match="give it once"):
            load_config({"maxIndexNum": "50", "max_index_num": 51})

    def test_every_java_name_belongs_to_rocketmq(self):
        names = {item.metadata.get("java") for item in dataclasses.fields(StoreConfig)} - {None}
        assert names <= known_properties()
        assert len(names) > 30

    def test_what_may_change_while_the_store_is_open(self):
        assert RETENTION_SETTINGS <= DYNAMIC_SETTINGS
        assert {
            "commit_interval_commit_log_ms",
            "delete_commit_log_files_interval_ms",
            "delete_file_batch_max",
            "flush_commit_log_least_pages",
            "flush_commit_log_thorough_interval_ms",
            "flush_consume_queue_least_pages",
            "flush_consume_queue_thorough_interval_ms",
            "flush_interval_commit_log_ms",
            "flush_interval_consume_queue_ms",
            "keep_unarchived",
            "max_message_size",
            "sync_flush_timeout_ms",
        } == DYNAMIC_SETTINGS - RETENTION_SETTINGS

    def test_the_usual_place_of_the_log_is_no_setting(self):
        usual = {"storePathRootDir": "/data/store", "storePathCommitLog": "/data/store/commitlog/"}
        assert load_config(usual).store_path_commit_log is None
        other = usual | {"storePathCommitLog": "/fast/commitlog"}
        assert load_config(other).store_path_commit_log == "/fast/commitlog"

    @pytest.mark.parametrize("given", [StoreConfig, StoreConfig.embedded, load_config])
    def test_a_log_in_several_directories_is_refused_by_name(self, given):
        with pytest.raises(ConfigError, match="a commit log in several") as refused:
            given(store_path_commit_log="/a,/b")
        assert refused.value.field == "store_path_commit_log"


class TestLoading:
    def test_settings_win_over_the_configuration(self):
        config = load_config({"maxIndexNum": "50"}, max_index_num=60)
        assert config.max_index_num == 60

    def test_relations_are_checked_after_all_is_known(self):
        config = load_config({"maxMessageSize": "100000000"}, mappedFileSizeCommitLog=1 << 30)
        assert config.max_message_size == 100_000_000

    @pytest.mark.usefixtures("embedded_as_released")
    def test_without_a_profile_a_new_store_is_small(self):
        assert load_config().mapped_file_size_commit_log == 64 << 20
        assert load_config(profile="rocketmq").mapped_file_size_commit_log == 1 << 30
        assert load_config(StoreConfig()).mapped_file_size_commit_log == 1 << 30

    def test_a_profile_fills_what_is_not_explicit(self):
        config = load_config(StoreConfig(max_index_num=77), profile="embedded")
        assert (config.max_index_num, config.max_hash_slot_num) == (77, 100_000)

    def test_a_config_object_passes_through(self):
        config = StoreConfig()
        assert load_config(config) is config

    def test_a_path_is_read(self, tmp_path: Path):
        file = tmp_path / "broker.conf"
        file.write_text("# c\nmaxIndexNum = 256 \nbrokerName=b\n")
        for path in (file, str(file)):
            config = load_config(path)
            assert config.max_index_num == 256
            assert config.ignored == {"brokerName": "b"}
        with pytest.raises(FileNotFoundError):
            load_config(tmp_path / "none")

    def test_a_file_in_latin_1_is_read(self, tmp_path: Path):
        file = tmp_path / "broker.conf"
        file.write_bytes(b"# \xe9\xff\nmaxIndexNum=256\n")
        assert load_config(file).max_index_num == 256


class TestPropertiesSyntax:
    def test_java_rules(self):
        text = (
            "# comment\\\n! comment\n\n  a = 1 \nb: two words\nc three\nd\n"
            "e=x\\\n   y\\\n\tz\nf\\=g=h\nu=\\u00e9\\t\\q\\\\\nu2=\\uD83D\\uDE00\n"
            "#last=1\r\nw=1\rv=2\na=9\nempty=\n#g=\\"
        )
        assert parse_broker_conf(text) == {
            "a": "9",
            "b": "two words",
            "c": "three",
            "d": "",
            "e": "xyz",
            "f=g": "h",
            "u": "é\tq\\",
            "u2": "😀",
            "w": "1",
            "v": "2",
            "empty": "",
        }

    def test_a_value_may_hold_separators(self):
        assert parse_broker_conf("namesrvAddr=a:1;b:2\n")["namesrvAddr"] == "a:1;b:2"

    def test_the_last_line_may_end_in_a_backslash(self):
        assert parse_broker_conf("a=1\\") == {"a": "1"}

    def test_only_line_feed_and_return_end_a_line(self):
        assert parse_broker_conf("a=1\x0b2\x852\u20283") == {"a": "1\x0b2\x852\u20283"}

    def test_a_bad_escape_is_refused(self):
        with pytest.raises(ConfigError, match="four hexadecimal"):
            parse_broker_conf("a=\\u12g4")

    @pytest.mark.parametrize("value", ["plain", "C:\\store\\new", "/d/été/😀", "a\nb", "#=:!"])
    def test_a_written_value_reads_back(self, value):
        line = format_property("name", value)
        assert line.isascii()
        assert parse_broker_conf(line) == {"name": value}


class TestToBrokerConf:
    def test_it_names_the_sizes_always(self):
        lines = to_broker_conf(StoreConfig()).splitlines()
        assert lines == [
            "mappedFileSizeCommitLog=1073741824",
            "mappedFileSizeConsumeQueue=6000000",
            "maxHashSlotNum=5000000",
            "maxIndexNum=20000000",
        ]

    def test_what_differs_comes_back(self):
        config = StoreConfig.embedded(
            flush_disk_type="SYNC_FLUSH", file_reserved_time_hours=5, enabled_append_prop_crc=True
        )
        back = StoreConfig.from_properties(
            parse_broker_conf(to_broker_conf(config)), profile="embedded"
        )
        assert back == config

    def test_small_files_name_the_message_size_that_fits(self):
        conf = to_broker_conf(StoreConfig(mapped_file_size_commit_log=65_536))
        assert "maxMessageSize=65436" in conf

    def test_the_place_is_written_when_asked_for(self, tmp_path: Path):
        conf = parse_broker_conf(to_broker_conf(StoreConfig(), path=tmp_path))
        assert conf["storePathCommitLog"] == str(tmp_path / "commitlog")
        assert load_config(conf).store_path_commit_log is None
