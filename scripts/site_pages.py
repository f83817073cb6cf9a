"""Gather the pages of the site and build it: docs/, what the root has, the API from docstrings.

The site of a release lies in a folder of its version beside those of the releases before, and
`versions.json` lists them for the theme's choice of versions, as mike would write it.
Links to files that are no page lead to the project's repository where RMQCORE_HOME says where that
is; else they are their text.
"""

import json
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


def list_versions(site: Path) -> None:
    """Write which versions lie in a folder, newest first, and a page that leads to the newest."""
    found = [path.parent.name for path in site.glob("*/index.html")]
    found.sort(key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)
    listed = [
        {"version": name, "title": name, "aliases": ["latest"] if name == found[0] else []}
        for name in found
    ]
    (site / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", "utf-8")
    leads = f'<!doctype html><meta http-equiv="refresh" content="0; url={found[0]}/">'
    page = f'{leads}<title>rmqcore</title><a href="{found[0]}/">rmqcore {found[0]}</a>\n'
    (site / "index.html").write_text(page, "utf-8")


def main(site: Path) -> int:
    """Build the site of this version; 1 when there was a warning."""
    gather(ROOT / "build" / "site-pages")
    version = (ROOT / "rmqcore" / "version.py").read_text("utf-8").split('"')[-2]
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # docs/decisions/dependencies.md says it
    built = subprocess.run(
        [*command, "--site-dir", site / version], cwd=ROOT, env=quiet, check=False
    )
    if built.returncode == 0:
        list_versions(site)
    return built.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
