"""export and import: the same messages on the other side."""

import json

import pytest

from rmqcore import open_store
from rmqcore.cli.exit_codes import ExitCode

pytestmark = pytest.mark.engine


def contents(path):
    with open_store(path, mode="r") as opened:
        return [
            (m.topic, m.queue_id, m.body, m.properties, m.born_timestamp_ms, m.born_host)
            for m in opened.messages()
        ]


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_what_is_exported_can_be_imported(rmqcore, store, tmp_path, file_format):
    words = ("export", store, tmp_path / "out", "--format", file_format, "--json")
    parts = rmqcore(*words).json["parts"]
    assert sum(part["rows"] for part in parts) == 11
    done = rmqcore("import", tmp_path / "copy", tmp_path / "out", "--json").json
    assert (done["messages"], done["body_bytes"]) == (11, 12)
    assert contents(tmp_path / "copy") == contents(store)


def test_export_takes_only_the_topics_that_are_named(rmqcore, store, tmp_path):
    words = ("export", store, tmp_path / "out", "--topic", "Bytes", "--jobs", 2)
    assert rmqcore(*words).stdout.startswith("1 messages, ")
    lines = [
        json.loads(line)
        for file in (tmp_path / "out").glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert [line["topic"] for line in lines] == ["Bytes"]


def test_export_reads_a_store_that_is_being_written(rmqcore, store, tmp_path):
    with open_store(store) as opened:
        opened.put("Letters", b"f")
        assert rmqcore("export", store, tmp_path / "out").stdout.startswith("12 messages, ")


def test_a_row_that_is_no_message_is_named(rmqcore, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"topic": "T", "body": "a"}\n{"body": "b"}\n')
    outcome = rmqcore("import", tmp_path / "store", tmp_path / "in.jsonl")
    assert outcome.exit_code == ExitCode.USAGE
    assert f"{tmp_path / 'in.jsonl'}, row 2: " in outcome.stderr
    assert contents(tmp_path / "store") == []


def test_importing_nothing_makes_no_store(rmqcore, tmp_path):
    assert rmqcore("import", tmp_path / "store", tmp_path / "none").exit_code == ExitCode.SYSTEM
    assert not (tmp_path / "store").exists()
    (tmp_path / "empty").mkdir()
    outcome = rmqcore("import", tmp_path / "store", tmp_path / "empty")
    assert outcome.exit_code
    assert "no file of an export" in outcome.stderr
    assert not (tmp_path / "store").exists()


def test_a_store_that_is_missing_is_exported_nowhere(rmqcore, tmp_path):
    assert rmqcore("export", tmp_path / "none", tmp_path / "out").exit_code == ExitCode.STORE
    assert not (tmp_path / "out").exists()
