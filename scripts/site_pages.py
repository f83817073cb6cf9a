"""Gather the pages of the site and build it: docs/, what the root has, the API from docstrings.

Links to files that are no page lead to the project's repository where RMQCORE_HOME says where that
is; else they are their text.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = os.environ.get("RMQCORE_HOME", "").rstrip("/")
#: pages that lie outside of docs/, at their places in the site
BESIDE = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "RELEASING.md",
    "SECURITY.md",
    "examples/README.md",
    "tests/README.md",
]
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
#: the pages of the API: title and what they show
REFERENCE = {
    "index.md": ("rmqcore", ["rmqcore"]),
    "client.md": (
        "rmqcore.client",
        ["rmqcore.client", "rmqcore.client.blocking", "rmqcore.client.tracing"],
    ),
    "others.md": (
        "Other modules",
        [
            "rmqcore.scan",
            "rmqcore.doctor",
            "rmqcore.testing",
            "rmqcore.adapters.celery",
            "rmqcore.adapters.huey",
            "rmqcore.adapters.kombu",
        ],
    ),
}


def pages() -> dict[Path, Path]:
    """The page of each source: path in the project -> path in the site."""
    docs = ROOT / "docs"
    found = {path: path.relative_to(docs) for path in docs.rglob("*") if path.is_file()}
    return found | {ROOT / name: Path(name) for name in BESIDE}


def text_of(source: Path, known: dict[Path, Path]) -> str:
    """A page's text, with links to where things are in the site."""
    here = known[source].parent

    def link(match: re.Match[str]) -> str:
        image, label, target, anchor = match[1], match[2], match[3], match[4] or ""
        path = Path(os.path.normpath(source.parent / target))
        page = known.get(path / "README.md") if path.is_dir() else known.get(path)
        if page is not None:
            return f"{image}[{label}]({os.path.relpath(page, here)}{anchor})"
        if not path.exists():
            raise SystemExit(f"{source.relative_to(ROOT)}: {target} is not there")
        if HOME:
            return f"[{label}]({HOME}/blob/main/{path.relative_to(ROOT)}{anchor})"
        return label

    return LINK.sub(link, source.read_text("utf-8"))


def gather(into: Path) -> None:
    """Write all pages into a folder, anew."""
    shutil.rmtree(into, ignore_errors=True)
    known = pages()
    for source, page in known.items():
        (into / page).parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            (into / page).write_text(text_of(source, known), "utf-8")
        else:
            shutil.copy2(source, into / page)
    (into / "reference").mkdir()
    for name, (title, modules) in REFERENCE.items():
        blocks = "\n".join(f"::: {module}\n" for module in modules)
        (into / "reference" / name).write_text(f"# {title}\n\n{blocks}", "utf-8")


def main(site: str) -> int:
    """Build the site; 1 when there was a warning."""
    gather(ROOT / "build" / "site-pages")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", site]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # docs/decisions/dependencies.md says it
    return subprocess.run(command, cwd=ROOT, env=quiet, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(str(Path(sys.argv[1]).absolute())))
