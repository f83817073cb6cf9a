"""Spark's appends find a store whose log lies elsewhere, and a writer that has it open."""

import pytest

import rmqcore
from rmqcore.config import load_config
from rmqcore.spark.log_owner import check_free, finish_appends

pytestmark = pytest.mark.process


def test_appends_find_a_store_whose_log_lies_elsewhere(store_path, tmp_path):
    config = load_config(store_path_commit_log=str(tmp_path / "log"))
    with (
        rmqcore.open_store(store_path, config=config),
        pytest.raises(rmqcore.StoreLockedError),
    ):
        check_free(str(store_path), repeatable=True)
    check_free(str(store_path), repeatable=True)
    assert finish_appends(store_path, config=config) == {}
