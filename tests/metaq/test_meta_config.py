"""The ini file, its keys and defaults, events, reload, closed partitions."""

import contextlib
import dataclasses
import json
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqcore.errors import ConfigError
from rmqcore.metaq import MetaConfig, SystemConfig, TopicConfig, ZkConfig
from rmqcore.metaq.ini import evaluate_int, parse_ini
from rmqcore.metaq.meta_config import EVENTS
from rmqcore.metaq.settings import keys_of

pytestmark = pytest.mark.logic

REQUIRED = """[system]
brokerId=0
numPartitions=1
unflushThreshold=0
unflushInterval=10000
maxSegmentSize=1024*1024*1024
maxTransferSize=1048576
"""

#: key -> default, as the original has them (section 6.1 of its facts)
SYSTEM_KEYS = {
    "brokerId": 0,
    "numPartitions": 1,
    "unflushThreshold": 1000,
    "unflushInterval": 10000,
    "maxSegmentSize": 1073741824,
    "maxTransferSize": 1048576,
    "serverPort": 8123,
    "dashboardHttpPort": 8120,
    "hostName": None,
    "dataPath": str(Path("~/meta").expanduser()),
    "dataLogPath": str(Path("~/meta").expanduser()),
    "getProcessThreadCount": 10 * os.cpu_count(),
    "putProcessThreadCount": 10 * os.cpu_count(),
    "deletePolicy": "delete,168",
    "deleteWhen": "0 0 6,18 * * ?",
    "quartzThreadCount": 5,
    "maxCheckpoints": 3,
    "checkpointInterval": 3600000,
    "maxTxTimeoutTimerCapacity": 30000,
    "maxTxTimeoutInSeconds": 60,
    "flushTxLogAtCommit": 1,
    "acceptPublish": True,
    "acceptSubscribe": True,
    "stat": False,
    "updateConsumerOffsets": False,
    "loadMessageStoresInParallel": False,
    "appClassPath": "",
}
ZK_KEYS = {
    "zk.zkConnect": "",
    "zk.zkSessionTimeoutMs": 30000,
    "zk.zkConnectionTimeoutMs": 30000,
    "zk.zkSyncTimeMs": 5000,
    "zk.zkEnable": True,
    "zk.zkRoot": "/meta",
}
TOPIC_KEYS = {
    "numPartitions",
    "stat",
    "deletePolicy",
    "deleteWhen",
    "dataPath",
    "unflushInterval",
    "unflushThreshold",
    "acceptSubscribe",
    "acceptPublish",
}


@pytest.mark.parametrize(("section", "keys"), [(SystemConfig, SYSTEM_KEYS), (ZkConfig, ZK_KEYS)])
def test_every_key_and_its_default(section, keys):
    values = section()
    found = {key: getattr(values, setting.name) for key, setting in keys_of(section).items()}
    assert found.keys() == keys.keys()
    assert all(found[key] == value for key, value in keys.items() if value is not None)


def test_topics_inherit_and_override():
    text = f"{REQUIRED}dataPath=/data\nstat=true\n[topic=a]\nnumPartitions=4\nstat=\n[topic=b]\n"
    config = MetaConfig.from_text(text + "unflushInterval = 5*1000\ngroup.g1=com.example.Filter\n")
    assert keys_of(TopicConfig).keys() == TOPIC_KEYS
    assert list(config.topics) == ["a", "b"]
    assert (config.topics["a"].num_partitions, config.topics["a"].stat) == (4, True)
    b = config.topics["b"]
    assert (b.num_partitions, b.unflush_interval_ms, b.data_path) == (1, 5000, "/data")
    assert b.filters == {"g1": "com.example.Filter"}
    assert config.system.data_log_path == "/data"
    assert config.system.max_segment_size == 1 << 30


@pytest.mark.parametrize(
    "key", [k for k, f in keys_of(SystemConfig).items() if f.metadata.get("required")]
)
@pytest.mark.parametrize("value", ["", None])
def test_required_keys_have_a_value(key, value):
    lines = [line for line in REQUIRED.splitlines() if not line.startswith(f"{key}=")]
    if value is not None:
        lines.append(f"{key}={value}")
    with pytest.raises(ConfigError, match=key):
        MetaConfig.from_text("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        (REQUIRED + "dataPth=/x\n", "dataPath"),
        (REQUIRED + "[topic=a]\nnumPartition=2\n", "numPartitions"),
        (REQUIRED + "[zookeeper]\nzkConnect=h:1\n", "zk.zkConnect"),
        (REQUIRED + "[topci=a]\n", "topic=NAME"),
    ],
)
def test_a_wrong_key_names_the_nearest(text, nearest):
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        MetaConfig.from_text(text)


@pytest.mark.parametrize(
    "line",
    [
        "brokerId=1024",
        "numPartitions=0",
        "serverPort=70000",
        "maxSegmentSize=2147483648",
        "maxSegmentSize=1/0",
        "maxSegmentSize=2**31",
        "maxSegmentSize=__import__('os')",
        "stat=yes",
        "deletePolicy=burn,1",
        "deletePolicy=delete",
        "deletePolicy=delete,soon",
        "deleteWhen=every day",
        "flushTxLogAtCommit=3",
    ],
)
def test_wrong_values_are_refused_with_their_key(line):
    key = line.partition("=")[0]
    text = "\n".join(li for li in REQUIRED.splitlines() if not li.startswith(f"{key}="))
    with pytest.raises(ConfigError, match=key):
        MetaConfig.from_text(f"{text}\n{line}\n")


@pytest.mark.parametrize("text", ["", "brokerId=0\n", "[system\nbrokerId=0\n", "[system]\nwhat\n"])
def test_what_is_no_ini_is_refused(text):
    with pytest.raises(ConfigError):
        MetaConfig.from_text(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1024*1024", 1 << 20), ("10/3", 3), ("-10/3", -3), ("-7%3", -1), ("2*(3+4)-1", 13)],
)
def test_numbers_are_expressions_and_divide_as_java_does(text, value):
    assert evaluate_int("k", text, -(2**31), 2**31) == value


@pytest.mark.engine
@given(st.text(max_size=60))
def test_no_expression_does_anything_but_count(text):
    with contextlib.suppress(ConfigError):
        assert isinstance(evaluate_int("k", text, -(2**31), 2**31), int)


@given(st.text(max_size=200) | st.text("[]=:#;\\\n\r au0 ", max_size=30))
def test_any_text_is_an_ini_or_a_config_error(text):
    try:
        parse_ini(text)
        MetaConfig.from_text(text)
    except ConfigError:
        pass


def test_comments_blank_values_indents_and_gbk(tmp_path):
    path = tmp_path / "server.ini"
    path.write_bytes(
        ("# 参数配置文件\n; 伯岩\n" + REQUIRED + "  dataPath = \n[topic=t]\n").encode("gbk")
    )
    config = MetaConfig.from_file(path)
    assert config.system.data_path == SystemConfig().data_path
    assert config.config_file_checksum == zlib.crc32(path.read_bytes())


def test_verify_wants_topics_and_zookeeper():
    with pytest.raises(ConfigError, match="topic"):
        MetaConfig().verify()
    config = MetaConfig(SystemConfig(), ["t"])
    config.verify(zookeeper=False)
    with pytest.raises(ConfigError, match="zkConnect"):
        config.verify()
    MetaConfig(SystemConfig(), ["t"], ZkConfig(zk_connect="h:2181")).verify()


# ---- events and reload ----


@pytest.fixture
def reloadable(tmp_path):
    path = tmp_path / "server.ini"
    path.write_text(REQUIRED + "[topic=a]\n")
    config = MetaConfig.from_file(path)
    events = []
    for event in EVENTS:
        config.add_property_change_listener(event, lambda event=event: events.append(event))

    def rewrite(text, *, seconds=5):
        path.write_text(text)
        moment = path.stat().st_mtime + seconds
        os.utime(path, (moment, moment))

    return config, events, rewrite


def test_reload_takes_topics_alone_and_tells_in_order(reloadable):
    config, events, rewrite = reloadable
    rewrite(REQUIRED.replace("brokerId=0", "brokerId=9") + "[topic=b]\nunflushInterval=5\n")
    assert config.reload()
    assert events == ["configFileChecksum", "topics", "topicConfigMap", "unflushInterval"]
    assert list(config.topics) == ["b"]
    assert config.system.broker_id == 0


def test_equal_topics_tell_of_the_file_and_the_intervals(reloadable):
    config, events, rewrite = reloadable
    config.topic_config("asked for once")
    rewrite(REQUIRED + "[topic=a]\n# a comment\n")
    assert config.reload()
    assert events == ["configFileChecksum", "unflushInterval"]


def test_a_file_that_was_only_touched_is_not_reloaded(reloadable):
    config, events, rewrite = reloadable
    rewrite(REQUIRED + "[topic=a]\n")
    assert not config.reload()
    assert not config.reload()
    assert events == []


def test_a_broken_file_changes_nothing_and_is_tried_again(reloadable):
    config, events, rewrite = reloadable
    before = config.config_file_checksum
    rewrite(REQUIRED + "[topic=b]\nnumPartition=1\n")
    for _ in range(2):
        with pytest.raises(ConfigError):
            config.reload()
    assert (list(config.topics), config.config_file_checksum, events) == (["a"], before, [])
    rewrite(REQUIRED + "[topic=b]\n", seconds=9)
    assert config.reload()
    assert list(config.topics) == ["b"]


def test_setting_the_checksum_and_adding_a_topic_tell(reloadable):
    config, events, _ = reloadable
    config.set_config_file_checksum(5)
    config.add_topic(TopicConfig(topic="new"))
    assert events == ["configFileChecksum", "topics", "topicConfigMap"]
    assert config.config_file_checksum == 5


def test_listeners_can_leave_and_unknown_events_are_refused(reloadable):
    config, _, _ = reloadable
    calls = []

    def listener():
        calls.append(1)

    config.add_property_change_listener("topics", listener)
    config.remove_property_change_listener(listener)
    config.add_topic(TopicConfig(topic="new"))
    assert calls == []
    with pytest.raises(ConfigError, match="unflushInterval"):
        config.add_property_change_listener("topic", listener)


# ---- closed partitions ----


def test_partitions_close_and_open():
    config = MetaConfig(SystemConfig(num_partitions=8), ["t"])
    assert config.close_partitions("t", 2, 4)
    assert config.close_partitions("t", 4, 5)
    closed = [p for p in range(8) if config.is_closed_partition("t", p)]
    assert closed == [2, 3, 4, 5]
    assert config.open_partitions("t") == {2, 3, 4, 5}
    assert config.open_partitions("t") == set()
    assert not config.is_closed_partition("t", 2)


@pytest.mark.parametrize(
    ("topic", "start", "end"), [("", 0, 1), ("x", 0, 1), ("t", -1, 1), ("t", 2, 1)]
)
def test_what_is_no_range_of_a_topic_closes_nothing(topic, start, end):
    config = MetaConfig(SystemConfig(num_partitions=8), ["t"])
    assert not config.close_partitions(topic, start, end)
    assert not any(config.is_closed_partition("t", p) for p in range(8))


def test_a_huge_range_costs_nothing():
    config = MetaConfig(SystemConfig(num_partitions=2), ["t"])
    assert config.close_partitions("t", 0, 2**62)
    assert config.open_partitions("t") == {0, 1}


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SystemConfig().broker_id = 3


INI4J = json.loads(Path(__file__).with_name("ini4j.json").read_text("utf-8"))


@pytest.mark.parametrize(("text", "sections"), INI4J)
def test_an_ini_reads_as_with_ini4j(text, sections):
    """What ini4j 0.5.1 made of each; null where it refuses, or drops a last line half said."""
    if sections is None:
        with pytest.raises(ConfigError, match=r"line \d"):
            parse_ini(text)
    else:
        assert parse_ini(text) == sections


def test_a_windows_path_and_a_continued_value(tmp_path):
    text = REQUIRED.replace("[system]", "[system]\nhostName=a\\u0062\\\n  c\ndataPath=C:\\\\meta")
    config = MetaConfig.from_text(text)
    assert (config.system.host_name, Path(config.system.data_path).name) == ("abc", "C:\\meta")


def test_an_unknown_section_is_passed_over_and_said(caplog):
    config = MetaConfig.from_text(REQUIRED + "[topic=t]" + "\n[dashboard]\nanything=1\n")
    assert list(config.topics) == list(MetaConfig.from_text(REQUIRED + "[topic=t]").topics)
    assert "section [dashboard] is passed over" in caplog.text
