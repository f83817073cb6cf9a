"""A broker's own configuration: what ``mqadmin getBrokerConfig`` prints, saved as broker.conf."""

from __future__ import annotations

import pickle
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from golden.stores import unpack
from rmqcore import ConfigError, ConfigWarning, StoreConfig, open_store
from rmqcore.config import load_config, parse_broker_conf, to_broker_conf
from rmqcore.doctor.verify import verify

pytestmark = pytest.mark.logic

DUMPS = Path(__file__).parent / "broker_configs"


@pytest.fixture
def conf(tmp_path):
    """Write lines to a broker.conf and return its path."""

    def write(*lines: str) -> Path:
        path = tmp_path / "broker.conf"
        path.write_text("\n".join(lines) + "\n", "utf-8")
        return path

    return write


@pytest.mark.parametrize("release", ["4.9.7", "5.5.0"])
class TestDump:
    def test_every_name_is_known_and_every_value_kept(self, release):
        path = DUMPS / f"{release}.txt"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            config = load_config(path)
        properties = parse_broker_conf(path)
        assert properties.pop("").startswith("===")
        assert properties.items() >= config.ignored.items()
        assert len(config.ignored) + len(config.explicit) == len(properties) + len(
            {"profile", "retention"}
        )

    @pytest.mark.engine
    def test_it_opens_the_store_it_belongs_to(self, release, tmp_path, conf):
        golden = unpack(release, "basic", tmp_path / "golden")
        sizes = golden.conf.read_text("utf-8").splitlines()
        path = conf(*(DUMPS / f"{release}.txt").read_text("utf-8").splitlines(), *sizes)
        ends = {}
        for mode in ("r", "a"):
            with open_store(golden.path, mode=mode, config=path, retention=False) as store:
                assert store.config.max_message_size == 4_194_304
                assert store.config.effective_max_message_size < 1 << 20
                ends[mode] = {
                    queue: (store.min_queue_offset(*queue), store.max_queue_offset(*queue))
                    for queue in store.queues()
                }
        assert ends["r"] == ends["a"]
        assert len(ends["a"]) == len(golden.manifest["queues"])
        assert verify(golden.path).clean

    @pytest.mark.engine
    def test_broker_conf_gives_everything_back(self, release, tmp_path):
        path = DUMPS / f"{release}.txt"
        given = parse_broker_conf(path)
        given.pop("")
        with open_store(tmp_path / "s", config=path, mapped_file_size_commit_log=65536) as store:
            back = parse_broker_conf(store.broker_conf())
            again = StoreConfig.from_properties(back)
            assert replace(again, retention=True) == StoreConfig(
                **{name: getattr(store.config, name) for name in store.config.explicit}
                | {"profile": "rocketmq", "max_message_size": 65436}
            )
        ours = {"storePathRootDir", "storePathCommitLog"}
        kept = set(store.config.ignored) - ours
        assert len(kept) > 140
        assert {name: back[name] for name in kept} == {name: given[name] for name in kept}
        assert back["storePathRootDir"] == str(tmp_path / "s")


class TestMessageSize:
    def test_one_that_a_file_gave_is_clamped(self, conf):
        path = conf("mappedFileSizeCommitLog=65536", "maxMessageSize=4194304")
        config = load_config(path)
        assert config.effective_max_message_size == 65_436
        assert "maxMessageSize=65436" in to_broker_conf(config)
        for twin in (pickle.loads(pickle.dumps(config)), config.with_settings({"retention": True})):
            assert twin.effective_max_message_size == 65_436

    def test_one_that_a_caller_gave_is_refused(self, conf):
        path = conf("mappedFileSizeCommitLog=65536", "maxMessageSize=4194304")
        for again in (load_config, lambda path, **given: load_config(path).with_settings(given)):
            with pytest.raises(ConfigError, match="mapped_file_size_commit_log=65536"):
                again(path, max_message_size=4_194_304)

    @pytest.mark.engine
    def test_one_that_does_not_go_with_the_files_is_refused_and_they_are_not_called_corrupt(
        self, store_path, conf
    ):
        with open_store(store_path, mapped_file_size_commit_log=65_536) as store:
            store.put("T", b"x")
        for mode in ("a", "r"):
            with pytest.raises(ConfigError, match="max_message_size=4194304: at most 65436"):
                open_store(store_path, mode=mode, max_message_size=4_194_304)
            with open_store(store_path, mode=mode, config=conf("maxMessageSize=4194304")) as store:
                assert store.config.effective_max_message_size == 65_436


class TestWrongFiles:
    def test_an_unknown_name_is_passed_over_with_a_warning(self, conf):
        path = conf("brokerName=b", "flushdisktype=SYNC_FLUSH", "maxIndexNum=50")
        with pytest.warns(ConfigWarning) as caught:
            config = load_config(path)
        (warning,) = caught
        assert str(warning.message).startswith(f"{path}:2: flushdisktype: no such setting")
        assert str(warning.message).endswith("did you mean flushDiskType?")
        assert config.ignored == {"brokerName": "b", "flushdisktype": "SYNC_FLUSH"}
        assert config.max_index_num == 50

    def test_the_same_name_from_a_caller_stays_an_error(self):
        with pytest.raises(ConfigError, match="flushDiskType"):
            load_config({"flushdisktype": "SYNC_FLUSH"})

    def test_every_wrong_setting_is_named_with_its_line(self, conf):
        path = conf("# ours", "maxIndexNum=1", "brokerName=b", "deleteWhen=\\", "  25")
        with pytest.raises(ConfigError) as error:
            load_config(path)
        text = str(error.value)
        assert text.startswith(f"{path}:2: max_index_num='1': at least 2; ")
        assert f"{path}:4: delete_when='25': " in text
        assert error.value.source == f"{path}:2"

    def test_a_contradiction_is_named_with_its_line(self, conf):
        one = conf("maxHashSlotNum=2000000000", "maxIndexNum=20000000")
        with pytest.raises(ConfigError, match=re.escape(f"{one}:2: max_index_num=")):
            load_config(one)
        twice = conf("maxIndexNum=50", "", "max_index_num=51")
        with pytest.raises(ConfigError, match=re.escape(f"{twice}:3: max_index_num=")):
            load_config(twice)

    @pytest.mark.engine
    def test_a_size_that_the_files_contradict_is_named_with_its_line(self, conf, tmp_path):
        open_store(tmp_path / "s", mapped_file_size_commit_log=65536).close()
        path = conf("brokerName=b", "mappedFileSizeCommitLog=131072")
        with open_store(tmp_path / "s") as store:
            store.put("T", b"x")
        for mode in ("r", "a"):
            with pytest.raises(ConfigError, match=re.escape(f"{path}:2: mapped_file_size_")):
                open_store(tmp_path / "s", mode=mode, config=path)

    def test_a_wrong_escape_is_named_with_its_line(self, conf):
        path = conf("a=1", "brokerName=\\u12g4")
        with pytest.raises(ConfigError, match=re.escape(f"{path}:2: ")):
            load_config(path)

    def test_the_settings_of_two_brokers_are_refused(self, conf):
        path = conf("============Master: 10.0.0.1:10911============", "brokerName=b")
        assert load_config(path).ignored == {"brokerName": "b"}
        second = "============My Master: 10.0.0.1:10911=====Slave: 10.0.0.2:10911============"
        path = conf(*path.read_text("utf-8").splitlines(), second, "brokerName=c")
        with pytest.raises(ConfigError, match=re.escape(f"{path}:3: ")):
            load_config(path)


class TestStoresOfAnotherKind:
    @pytest.mark.parametrize(
        ("name", "value", "harmless"),
        [
            ("enableDLegerCommitLog", "true", "false"),
            ("storeType", "defaultRocksDB", "default"),
            ("readOnlyCommitLogStorePaths", "/a,/b", ""),
            ("storePathCommitLog", "/a/commitlog,/b/commitlog", "/a/commitlog"),
        ],
    )
    def test_they_are_refused_by_name(self, conf, name, value, harmless):
        path = conf("brokerName=b", f"{name}={value}")
        with pytest.raises(ConfigError, match=re.escape(f"{path}:2: {name}=")):
            load_config(path)
        with pytest.raises(ConfigError, match=name):
            load_config({name: value})
        assert load_config({name: harmless})

    @pytest.mark.engine
    def test_extension_files_are_read_but_not_written(self, conf, tmp_path):
        path = conf("enableConsumeQueueExt=true")
        with pytest.raises(ConfigError, match=re.escape(f"{path}:1: enableConsumeQueueExt=")):
            open_store(tmp_path / "s", config=path)
        assert not (tmp_path / "s").exists()
        open_store(tmp_path / "s").close()
        with open_store(tmp_path / "s", mode="r", config=path) as store:
            assert store.queues() == []
