"""The commands as `spark-submit` runs them: with its session, and with their exit codes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rmqcore
from rmqcore import open_store

pytestmark = pytest.mark.peers

pytest.importorskip("pyspark")


def test_an_audit_that_is_submitted_ends_with_its_verdict(spark, store_path):
    import pyspark

    with open_store(store_path) as store:
        for number in range(100):
            store.put("T", b"%d" % number)
    shutil.rmtree(store_path / "consumequeue")
    package = Path(rmqcore.__file__).parent
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
    env |= {"PYTHONPATH": str(package.parent), "PYSPARK_PYTHON": sys.executable}
    command = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", "local[1]"]
    command += ["--name", "submitted", "--conf", "spark.ui.enabled=false"]
    command += [package / "__main__.py", "spark", "audit", store_path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["records"] == 100
    assert {finding["part"] for finding in report["findings"]} == {"consume queue"}
    assert "Running Spark version" in done.stderr
