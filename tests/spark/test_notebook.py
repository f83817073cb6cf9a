"""The notebook of examples/ runs, and shows what is written in it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rmqcore

pytestmark = pytest.mark.peers

pytest.importorskip("pyspark")

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "pipeline.ipynb"


def texts_of(path):
    """The printed text of each cell; None for a cell that has never been run."""
    cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if "outputs" in cell]
    return [
        ["".join(out["text"]) for out in cell["outputs"] if out["output_type"] == "stream"]
        if cell["execution_count"]
        else None
        for cell in cells
    ]


def test_it_holds_what_it_shows_and_nothing_of_a_machine():
    text = NOTEBOOK.read_text("utf-8")
    assert None not in texts_of(NOTEBOOK)
    assert '"text/html"' in text
    assert len(text) < 100_000
    assert not re.search(r"/(home|root|tmp|work|usr|var)/|127\.0\.0\.1|Traceback", text)


def test_it_runs_and_shows_the_same_again(spark, tmp_path):
    pytest.importorskip("nbclient", reason="needs: pip install 'rmqcore[notebook]'")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
    env["PYTHONPATH"] = str(Path(rmqcore.__file__).parents[1])
    command = [
        sys.executable,
        ROOT / "scripts" / "run_notebook.py",
        NOTEBOOK,
        tmp_path / "again.ipynb",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert texts_of(tmp_path / "again.ipynb") == texts_of(NOTEBOOK)
