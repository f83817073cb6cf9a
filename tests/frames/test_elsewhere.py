"""A topic of a running cluster as a dataset, as files of an export, and printed by the command."""

import json
import pickle
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from frames.test_cluster import create, send, topic  # noqa: F401 - fixtures
from pyarrow import parquet
from spark_by_hand import numbered
from typer.testing import CliRunner

from rmqcore.cli.app import app
from rmqcore.errors import ArgumentError
from rmqcore.scan.cluster import arrow_dataset

pytestmark = pytest.mark.engine


@pytest.fixture
def url(rocketmq_broker, topic, send):  # noqa: F811
    """A topic with 30 messages in two of its three queues."""
    for queue_id in (0, 2):
        send(topic, *numbered(15, 2), queue_id=queue_id)
    return f"namesrv://{rocketmq_broker.namesrv_addr}/{topic}"


def command(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_topic_is_a_dataset(url):
    dataset = arrow_dataset(url, ("queue_id", "queue_offset", "body"))
    table = dataset.to_table(filter=pc.field("queue_id") == 2, columns=["queue_offset", "body"])
    assert table.column("body").to_pylist() == numbered(15, 2)
    again = pickle.loads(pickle.dumps(dataset))
    assert again.count_rows() == dataset.to_table().num_rows == 30
    assert [part.count_rows() for part in dataset.get_fragments()] == [15, 15]
    assert dataset.filter(pc.field("queue_offset") < 2).to_table().num_rows == 4
    assert dataset.take([16, 0]).column("queue_offset").to_pylist() == [1, 0]
    newest = dataset.sort_by([("queue_offset", "descending")]).head(2).to_pydict()
    assert newest["queue_offset"] == [14, 14]


def test_a_topic_is_printed(url):
    assert command("cat", url).splitlines() == 2 * [body.decode() for body in numbered(15, 2)]
    one = command("cat", url, "--queue", "2", "--start", "3", "--stop", "9", "-n", "2")
    assert one.splitlines() == ["03", "04"]


def test_what_only_files_have_is_refused(url, tmp_path):
    for arguments in (("cat", url, "T"), ("export", url, tmp_path, "--topic", "T")):
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == 2
        assert "of a store's files" in done.output


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "delta"])
def test_a_topic_is_exported(url, tmp_path, kind):
    found = json.loads(command("export", url, tmp_path, "--format", kind, "--json"))
    manifest = json.loads((tmp_path / "_manifest.json").read_text())
    assert manifest["parts"] == found["parts"]
    assert [part["rows"] for part in found["parts"]] == [15, 15]
    files = [tmp_path / part["file"] for part in found["parts"]]
    assert sorted(BODIES[kind](tmp_path, files)) == sorted(2 * numbered(15, 2))


def bodies_of_lines(_, files):
    lines = [line for file in files for line in file.read_text().splitlines()]
    return [json.loads(line)["body"].encode() for line in lines]


def bodies_of_parquet(_, files):
    return [body for file in files for body in parquet.read_table(file).column("body").to_pylist()]


def bodies_of_delta(directory, _):
    deltalake = pytest.importorskip("deltalake")
    table = pa.table(deltalake.DeltaTable(directory).to_pyarrow_table())
    return table.column("body").to_pylist()


BODIES = {"jsonl": bodies_of_lines, "parquet": bodies_of_parquet, "delta": bodies_of_delta}


@pytest.mark.parametrize("text", ["namesrv://nowhere/T", "namesrv://127.0.0.1:1", "http://a:1/T"])
def test_what_names_no_topic_is_said(text):
    with pytest.raises(ArgumentError, match="host:port"):
        arrow_dataset(text)


def test_an_address_with_credentials_is_refused_without_them():
    with pytest.raises(ArgumentError, match="accessKey") as caught:
        arrow_dataset("namesrv://name:a-secret-of-mine@127.0.0.1:1/T")
    assert "a-secret-of-mine" not in str(caught.value)


def test_the_page_names_every_option_of_a_cluster():
    from rmqcore.spark.cluster_options import _ACCESS, _ONLY_FILES
    from rmqcore.spark.options import _READ

    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text("utf-8")
    section = re.search(r"^## A running cluster\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)[1]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {*_ACCESS, "groupId", "sendTimeout"} <= named
    (refused,) = re.findall(r"Refused are (.*?)\.", section, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", refused)) == _ONLY_FILES.keys() - {"paths"}
    assert _READ.keys() >= named - {*_ACCESS, "groupId", "sendTimeout", "topic", "jobId"}
