"""Settings under RocketMQ's names, and the few that a request may change."""

import os

import pytest

from rmqcore.errors import ConfigError, CorruptConfigFileError
from rmqcore.namesrv import NamesrvConfig
from rmqcore.namesrv.kv_config import KVConfig

pytestmark = pytest.mark.logic


def test_the_defaults_are_javas_but_for_where_it_listens_and_what_it_keeps():
    shown = dict(line.split("=") for line in NamesrvConfig().to_properties().splitlines())
    assert shown == {
        "bindAddress": "127.0.0.1",
        "deleteTopicWithBrokerRegistration": "false",
        "enableAllTopicList": "true",
        "enableTopicList": "true",
        "listenPort": "9876",
        "needWaitForService": "false",
        "notifyMinBrokerIdChanged": "false",
        "orderMessageEnable": "false",
        "returnOrderTopicConfigToBroker": "true",
        "scanNotActiveBrokerInterval": "5000",
        "serverChannelMaxIdleTimeSeconds": "120",
        "supportActingMaster": "false",
        "waitSecondsForService": "45",
    }


def test_a_file_for_javas_name_server_is_read(tmp_path):
    path = tmp_path / "namesrv.conf"
    path.write_text(
        "listenPort=1234\norderMessageEnable = true\nserverWorkerThreads=8\n"
        "kvConfigPath=/somewhere/kv.json\nclusterTest=false\n",
        "utf-8",
    )
    config = NamesrvConfig.load(path)
    assert (config.listen_port, config.order_message_enable) == (1234, True)
    assert config.kv_config_path == "/somewhere/kv.json"
    path.write_bytes("# für\nlistenPort=4321\n".encode("latin-1"))
    assert NamesrvConfig.load(path).listen_port == 4321


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listenport", "1"),
        ("listenPort", "65536"),
        ("listenPort", "many"),
        ("orderMessageEnable", "yes"),
        ("clusterTest", "true"),
        ("enableControllerInNamesrv", "true"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name, value):
    with pytest.raises(ConfigError):
        NamesrvConfig.from_properties({name: value})


def test_dynamic_settings_change_all_or_none():
    config = NamesrvConfig()
    changed = config.changed({"orderMessageEnable": "true", "waitSecondsForService": "7"})
    assert (changed.order_message_enable, changed.wait_for_service_s) == (True, 7)
    for name in ("listenPort", "kvConfigPath", "configStorePath", "rocketmqHome", "bindAddress"):
        with pytest.raises(ConfigError):
            config.changed({"orderMessageEnable": "true", name: "1"})
    with pytest.raises(ConfigError):
        config.changed({"waitSecondsForService": "-1"})


def test_only_switches_and_numbers_are_dynamic():
    kinds = {
        field.metadata["kind"]
        for field in NamesrvConfig.__dataclass_fields__.values()
        if field.metadata["dynamic"]
    }
    assert kinds == {bool, int}


def test_keys_are_kept_in_memory_without_a_path():
    kv = KVConfig()
    kv.put("N", "k", "v")
    assert kv.get("N", "k") == "v"
    assert kv.get("N", "x") is kv.get("M", "k") is kv.namespace("M") is None
    kv.delete("N", "k")
    kv.delete("N", "k")
    kv.delete("M", "k")
    assert kv.namespace("N") == {}
    assert kv.namespace("M") is None


def test_keys_are_kept_in_javas_form(tmp_path):
    path = tmp_path / "new" / "kvConfig.json"
    kv = KVConfig(str(path))
    kv.put("ORDER_TOPIC_CONFIG", "T", "b:4;c:4")
    kv.put("N", "käy", 'v"')
    kv.put("N", "gone", "")
    kv.delete("N", "gone")
    assert path.read_text("utf-8") == (
        '{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"b:4;c:4"},"N":{"käy":"v\\""}}}'
    )
    again = KVConfig(str(path))
    assert again.get("N", "käy") == 'v"'
    assert again.namespace("ORDER_TOPIC_CONFIG") == {"T": "b:4;c:4"}


def test_a_damaged_file_is_not_taken_for_an_empty_one(tmp_path):
    path = tmp_path / "kvConfig.json"
    for text in ("{", '{"configTable":{"N":{"k":1}}}', '{"configTable":[]}', "[]"):
        path.write_text(text, "utf-8")
        with pytest.raises(CorruptConfigFileError) as error:
            KVConfig(str(path))
        # no doctor of a store looks at it
        assert "move it and its .bak away: rmqcore then begins without" in str(error.value)


@pytest.mark.parametrize("name", ["kvConfig.json", "kvConfig.json.bak"])
def test_a_pipe_in_the_place_of_the_file_holds_nobody(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(CorruptConfigFileError, match="a pipe"):
        KVConfig(str(tmp_path / "kvConfig.json"))


def test_a_device_in_the_place_of_the_file_holds_nobody(tmp_path):
    (tmp_path / "kvConfig.json").symlink_to("/dev/zero")
    with pytest.raises(CorruptConfigFileError):
        KVConfig(str(tmp_path / "kvConfig.json"))


def test_what_cannot_be_kept_is_not_taken(tmp_path):
    path = tmp_path / "kvConfig.json"
    kv = KVConfig(str(path))
    kv.put("N", "k", "v")
    path.with_name("kvConfig.json.tmp").mkdir()
    with pytest.raises(OSError, match="directory"):
        kv.put("N", "k", "w")
    assert kv.get("N", "k") == "v"


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    kv = KVConfig("kvConfig.json")
    monkeypatch.chdir(tmp_path / "there")
    kv.put("N", "k", "v")
    assert list((tmp_path / "there").iterdir()) == []
    assert KVConfig(str(tmp_path / "kvConfig.json")).get("N", "k") == "v"
