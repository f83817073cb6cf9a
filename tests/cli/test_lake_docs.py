"""The parts of docs/lake.md about archives and tables show what is printed in them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import TIMEOUT_S
from s3_server import s3_server

pytestmark = pytest.mark.peers

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "lake.md").read_text("utf-8")
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


def test_one_command_starts_a_whole_lake(tmp_path):
    for package in ("boto3", "duckdb", "deltalake", "moto", "pyiceberg"):
        pytest.importorskip(package)
    command = [sys.executable, ROOT / "examples" / "lake.py", tmp_path / "lake"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=4 * TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for kind in ("delta", "iceberg"):
        assert f"{kind}: 6000 orders, as DuckDB has them [(6000, 266100)]" in done.stdout
    assert "the archive has the first of them: True" in done.stdout
