"""The pages of first steps: their programs run, their commands exist, their claims have tests."""

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from children import Program
from patience import TIMEOUT_S, until

import rmqcore

pytestmark = pytest.mark.logic

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted({*DOCS.rglob("*.md")} - {*DOCS.glob("format/*.md")})]
#: commands that have commands
GROUPS = {"admin", "doctor", "ha", "metaq", "rebuild", "selftest", "spark"}
#: the first numbers of addresses that no other test has
LOOPBACK = f"127.{os.getpid() % 200 + 1}.{os.getpid() // 200 % 250}"


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_lead_somewhere_and_the_site_shows_every_page(site, tmp_path):
    site.gather(tmp_path / "pages")
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"- (?:[^:\n]+: )?([\w./-]+)$", nav, re.MULTILINE)
    pages = {str(page) for page in site.pages().values() if page.suffix == ".md"}
    shown = {page for page in pages for name in named if page.startswith(name)}
    assert sorted(pages - shown) == []
    assert [name for name in named if not (tmp_path / "pages" / name).exists()] == []


def test_the_site_lists_its_versions_and_leads_to_the_newest(site, tmp_path):
    for name in ("0.9.0", "0.10.1", "0.10.0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
    site.list_versions(tmp_path)
    listed = json.loads((tmp_path / "versions.json").read_text("utf-8"))
    assert [each["version"] for each in listed] == ["0.10.1", "0.10.0", "0.9.0"]
    assert [each["aliases"] for each in listed] == [["latest"], [], []]
    assert "url=0.10.1/" in (tmp_path / "index.html").read_text("utf-8")


def test_what_clients_are_said_to_work_stands_in_the_tests_with_its_release():
    text = (DOCS / "clients.md").read_text("utf-8")
    rows = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    tried = 0
    for cells in (row.split(" | ") for row in rows):
        files = re.findall(r"`(\w+/test_\w+\.py)`", cells[-1])
        releases = re.findall(r"\d+\.\d+\.\d+", cells[1])
        if files:
            tried += 1
            assert [name for name in files if not (ROOT / "tests" / name).exists()] == []
            assert [one for one in releases if one not in proofs()] == [], cells
    assert tried > 15


def test_every_extra_stands_where_extras_are_listed_and_is_one():
    page = (DOCS / "install.md").read_text("utf-8").partition("\n## Extras\n")[2]
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert sorted(listed) == sorted(project["optional-dependencies"])
    paths = [*DOCS.rglob("*.md"), ROOT / "README.md", *(ROOT / "rmqcore").rglob("*.py")]
    text = "\n".join(path.read_text("utf-8") for path in paths)
    lines = re.findall(r"""pip install ['"](?:rmqcore|\.)\\?\[([\w, -]+)""", text)
    printed = {name for names in lines for name in names.split(",")}
    assert len(printed) > 10
    assert printed <= set(listed), printed - set(listed)


def proofs():
    """What says which releases the tests of other programs take."""
    names = ["interop/*.py", "interop/*/pom.xml", "adapters/suites.txt", "interop/java/README.md"]
    return "\n".join(
        path.read_text("utf-8") for name in names for path in (ROOT / "tests").glob(name)
    )


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_options_of_commands_that_pages_name_are_there(page, help_of):
    text = page.read_text("utf-8")
    for line in re.findall(r"`(rmqcore [^`\n]+)`", text):
        words = line.split()[1:]
        if not re.fullmatch(r"[a-z]+", words[0]):
            continue
        names = [word for word in words[:2] if re.fullmatch(r"[a-z][a-zA-Z]*", word)]
        names = names[: 2 if words[0] in GROUPS else 1]
        asked = [word for word in words if re.fullmatch(r"--[a-z-]+", word)]
        said = help_of(*names)
        assert said, f"{page}: {line}"
        assert [option for option in asked if option not in said] == [], f"{page}: {line}"


@pytest.fixture(scope="module")
def help_of():
    """The whole help of a command, empty where there is none."""
    import typer.main

    from rmqcore.cli.app import app

    command = typer.main.get_command(app)

    def found(*names):
        here = command
        for name in names:
            here = getattr(here, "commands", {}).get(name)
            if here is None:
                return ""
        options = [name for one in here.params for name in (*one.opts, *one.secondary_opts)]
        return " ".join(options) or "none"

    return found


def block(page, name):
    """The program that begins with a comment of its name."""
    text = (DOCS / page).read_text("utf-8")
    (code,) = re.findall(rf"```\w+\n((?:#|//) {name}.*?)```", text, re.DOTALL)
    return code


@pytest.mark.process
def test_the_web_application_and_its_worker_run_as_printed(tmp_path):
    (tmp_path / "app.py").write_text(block("recipes/web.md", "app.py"))
    (tmp_path / "worker.py").write_text(block("recipes/web.md", "worker.py"))
    ask = (
        "import io, app\n"
        "asked = {'REQUEST_METHOD': 'POST', 'CONTENT_LENGTH': '3'}\n"
        "asked['wsgi.input'] = io.BytesIO(b'tea')\n"
        "print(*app.app(asked, lambda status, headers: None))\n"
    )
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    said = subprocess.run(
        [sys.executable, "-c", ask], cwd=tmp_path, env=path, capture_output=True, check=True
    )
    assert json.loads(eval(said.stdout)) == {"waiting": 1}
    with Program("worker.py", cwd=tmp_path, env=path) as worker:
        assert worker.line() == "working on tea"
        worker.signal(15)
        assert worker.process.wait(TIMEOUT_S) == 0
    with rmqcore.Queue(tmp_path / "jobs.queue") as jobs:
        assert jobs.unfinished() == 0


@pytest.mark.process
def test_the_compose_file_makes_a_master_and_its_slave(tmp_path):
    text = (ROOT / "deploy" / "compose.yaml").read_text("utf-8")
    found = re.findall(r"^  (\w+):\n    <<.*?command: (\[.*?\])\n", text, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in found] == ["namesrv", "master", "slave"]
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with contextlib.ExitStack() as running:
        for number, (name, command) in enumerate(found, 10):
            words = command.replace("172.28.0", LOOPBACK).replace("/store", f"{tmp_path}/{name}")
            words = words.replace("0.0.0.0", f"{LOOPBACK}.{number}").replace("5557", "0")
            started = Program("-m", "rmqcore", *json.loads(words), env=path)
            assert "ready in" in running.enter_context(started).line()
        state = ["-m", "rmqcore", "ha", "status", "-n", f"{LOOPBACK}.10:9876", "--json"]

        def both():
            done = subprocess.run(
                [sys.executable, *state], env=path, capture_output=True, text=True, check=False
            )
            return done.returncode == 0 and f"{LOOPBACK}.12" in done.stdout

        assert until(both, "a slave that the master knows")
        # without it the page's consumers would get nothing once the master is gone
        assert '"slaveReadEnable=true"' in dict(found)["slave"]
