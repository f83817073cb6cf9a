"""The part of docs/lake.md about archives shows what is printed in it."""

import re
from pathlib import Path

import pytest
from s3_server import s3_server

pytestmark = pytest.mark.peers

PAGE = (Path(__file__).parents[2] / "docs" / "lake.md").read_text("utf-8")
PART = PAGE.partition("## Archive and object stores")[2].partition("Spark takes the same URL")[0]


def test_the_walk_through_an_archive(rmqcore, tmp_path, monkeypatch, capsys):
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("duckdb")
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
        for kind, text in re.findall(r"```(python|text|console)\n(.*?)```", PART, re.DOTALL):
            if kind == "python":
                exec(compile(text, "lake.md", "exec"), {})
                printed = capsys.readouterr().out
            elif kind == "text":
                assert printed.rstrip() == text.rstrip()
            else:
                for command, said in re.findall(r"\$ rmqcore (.*)\n((?:(?!\$ ).*\n)*)", text):
                    assert rmqcore(*command.split()).stdout == said
