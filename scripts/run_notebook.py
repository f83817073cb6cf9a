"""run_notebook.py SOURCE [TARGET]: run a notebook here and write it with what it shows.

Kept are the text and the pictures of its cells; not what goes to the standard error, and no times.
The directory that it is run in is called /data.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def shown(outputs: list) -> list:
    """What a cell shows; text that came in pieces is one piece."""
    kept = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if kept and output.get("name") == kept[-1].get("name") == "stdout":
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def main(source: str, target: str) -> None:
    """Run `source`, write `target`; raises where a cell does."""
    notebook = nbformat.read(source, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.metadata.clear()
            cell.outputs = shown(cell.outputs)
    notebook.metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "language_info": {"name": "python"},
    }
    text = nbformat.writes(notebook).replace(f"{Path.cwd()}/", "/data/")
    Path(target).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[-1])
