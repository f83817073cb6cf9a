"""Settings that change while a store is open, and those that do not."""

import pytest

import rmqcore
from rmqcore.config import DYNAMIC_SETTINGS
from rmqcore.errors import ConfigError, MessageIllegalError

pytestmark = pytest.mark.engine

NEW = {
    "max_message_size": 10,
    "delete_when": "05",
    "retention_bytes": 1 << 30,
    "clean_file_forcibly_enable": False,
    "keep_unarchived": True,
    "disk_max_used_space_ratio": 50,
    "disk_space_clean_forcibly_ratio": 60,
    "disk_space_warning_level_ratio": 70,
}


@pytest.fixture
def store(store_path):
    with rmqcore.open_store(store_path) as opened:
        yield opened


@pytest.mark.parametrize("name", sorted(DYNAMIC_SETTINGS))
def test_a_dynamic_setting_is_taken_at_once(store, name):
    store.change_settings(**{name: NEW.get(name, 1234)})
    assert getattr(store.config, name) == NEW.get(name, 1234)


def test_the_largest_body_is_the_new_one(store):
    store.put("T", b"x" * 100)
    store.change_settings(maxMessageSize=10)
    with pytest.raises(MessageIllegalError, match="max_message_size is 10"):
        store.put("T", b"x" * 100)


def test_services_and_waiting_puts_have_the_new_times(store):
    store.change_settings(flush_interval_commit_log_ms=7, sync_flush_timeout_ms=9)
    log_flush = next(s for s in store.parts.upkeep.services if s.name == "FlushRealTimeService")
    assert log_flush.run(0.0) == 0.007
    assert store.parts.settings.policy.timeout_ms == 9


def test_any_other_setting_is_refused_and_nothing_changes(store):
    with pytest.raises(ConfigError, match="open it again"):
        store.change_settings(max_message_size=10, flush_disk_type="SYNC_FLUSH")
    assert store.config.max_message_size is None
    store.put("T", b"x" * 100)


def test_a_value_that_breaks_a_rule_changes_nothing(store):
    with pytest.raises(ConfigError):
        store.change_settings(sync_flush_timeout_ms=0)
    assert store.config.sync_flush_timeout_ms == 5000


def test_a_name_that_means_nothing_to_a_store_is_refused_too(store):
    with pytest.raises(ConfigError, match="brokerName"):
        store.change_settings(max_message_size=10, brokerName="b")
    assert store.config.max_message_size is None
