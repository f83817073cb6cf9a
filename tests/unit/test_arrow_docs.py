"""The examples of docs/arrow.md and the notebook without Spark show what is printed in them."""

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "arrow.md").read_text("utf-8")


BLOCK = re.compile(r"```python\n(.*?)```\n\nIt prints:\n\n```text\n(.*?)```", re.DOTALL)


def test_every_block_prints_what_is_below_it(tmp_path, monkeypatch, capsys):
    pytest.importorskip("duckdb")
    pytest.importorskip("polars")
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE)
    assert len(blocks) == PAGE.count("```python") == 2
    for code, said in blocks:
        exec(compile(code, "arrow.md", "exec"), {})
        assert capsys.readouterr().out.rstrip() == said.rstrip()


def test_the_cells_of_the_notebook(tmp_path, monkeypatch, capsys):
    for package in ("duckdb", "polars", "pandas"):
        pytest.importorskip(package)
    notebook = json.loads((ROOT / "examples" / "columns.ipynb").read_text("utf-8"))
    monkeypatch.chdir(tmp_path)
    names = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        # a name alone at the end is shown as a table
        lines = "".join(cell["source"]).rstrip().split("\n")
        tables = [out for out in cell["outputs"] if out["output_type"] == "execute_result"]
        exec(compile("\n".join(lines[:-1] if tables else lines), "cell", "exec"), names)
        for out in tables:
            shown = eval(lines[-1], names)._repr_html_().replace(f"{tmp_path}/", "/data/")
            assert shown == "".join(out["data"]["text/html"])
        printed = [
            "".join(out["text"]) for out in cell["outputs"] if out["output_type"] == "stream"
        ]
        assert [capsys.readouterr().out] == (printed or [""])
