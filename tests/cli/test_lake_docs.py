"""The parts of docs/lake.md about archives and tables show what is printed in them."""

import re
from pathlib import Path

import pytest
from s3_server import s3_server

pytestmark = pytest.mark.peers

PAGE = (Path(__file__).parents[2] / "docs" / "lake.md").read_text("utf-8")
PARTS = {
    "an archive": PAGE.partition("## Archive and object stores")[2].partition("Spark takes the")[0],
    "tables": PAGE.partition("## Tables that follow a topic")[2],
}


@pytest.mark.parametrize("part", PARTS)
def test_the_walk_through(rmqcore, tmp_path, monkeypatch, capsys, part):
    boto3 = pytest.importorskip("boto3")
    Config = pytest.importorskip("pyiceberg.utils.config").Config
    for package in ("duckdb", "deltalake", "pyiceberg"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    printed = ""
    with s3_server() as port:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "any")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        client = boto3.client("s3")
        client.create_bucket(Bucket="lake")
        client.close()
        for kind, text in re.findall(r"```(\w*)\n(.*?)```", PARTS[part], re.DOTALL):
            if kind == "python":
                exec(compile(text, "lake.md", "exec"), {})
                printed = capsys.readouterr().out
            elif kind == "text":
                assert printed.rstrip() == text.rstrip()
            elif kind == "console":
                for command, said in re.findall(r"\$ rmqcore (.*)\n((?:(?!\$ ).*\n)*)", text):
                    done = rmqcore(*command.split())
                    assert done.stdout == said, (command, done)
            elif part == "tables":
                for name, value in re.findall(r"^export (\w+)=(.*)$", text, re.MULTILINE):
                    monkeypatch.setenv(name, value)
                # which PyIceberg reads when it is imported
                monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
