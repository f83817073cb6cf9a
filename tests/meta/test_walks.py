"""Every `file::symbol` that a page names is there; docs/architecture.md's walks go one way."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.logic

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
PLACE = re.compile(r"`([\w/]+\.(?:py|pyx|pxd|h))::([\w.]+)`")
PLACES = sorted({place for page in PAGES for place in PLACE.findall(page.read_text("utf-8"))})
#: How a line begins that defines a name: a function, a class, a struct, a field or a constant.
DEFINES = (
    r"^ *(?:(?:(?:async )?def|class|cdef|cpdef|static|#define)\b[^(=:\n]*\b{0} *[(:]|{0}(?: =|: ))"
)


def has(text, symbol):
    """Tell whether a source defines a symbol; of `Class.method` the one within the other."""
    name, _, within = symbol.partition(".")
    found = re.search(DEFINES.format(name), text, re.MULTILINE)
    body = text[found.end() :] if found else ""
    return bool(found) and (not within or has(re.split(r"\n(?=[^\s)])", body)[0], within))


def walks():
    """Return the files that each walk names, by its title."""
    section = TEXT.partition("## Walks\n")[2].partition("\n## ")[0]
    parts = (part.partition("\n") for part in section.split("\n### ")[1:])
    return {title: [file for file, _ in PLACE.findall(body)] for title, _, body in parts}


@pytest.mark.parametrize(("file", "symbol"), PLACES)
def test_a_file_has_the_symbol_that_a_page_names(file, symbol):
    assert has((ROOT / file).read_text("utf-8"), symbol)


@pytest.mark.parametrize(
    ("symbol", "is_there"),
    [("f", True), ("A.g", True), ("A.n", True), ("A.f", False), ("g.A", False), ("h", False)],
)
def test_a_symbol_is_found_in_its_class_only(symbol, is_there):
    text = (
        "h(1)\ncdef class A(B):\n    n: int = 1\n    cdef int g(self): ...\ndef f(\n    h\n): ...\n"
    )
    assert has(text, symbol) is is_there


#: where each walk begins, which parameter or task it follows
WALKED = ["`body`", "`key`", "`flush_disk_type`", "a task of Celery"]
#: a task goes into the log and comes back to the adapter that put it
THERE_AND_BACK = WALKED[-1]


def test_the_page_walks_a_body_a_key_a_setting_and_a_task():
    assert [title.partition(",")[0] for title in walks()] == WALKED


def test_a_task_goes_there_and_back_in_ten_steps_at_most():
    (files,) = [files for title, files in walks().items() if title.startswith(THERE_AND_BACK)]
    assert 4 <= len(files) <= 10


@pytest.mark.parametrize(
    "files", [files for title, files in walks().items() if not title.startswith(THERE_AND_BACK)]
)
def test_a_walk_has_eight_steps_at_most_and_never_comes_back(files):
    assert 4 <= len(files) <= 8
    runs = [file for number, file in enumerate(files) if number == 0 or file != files[number - 1]]
    assert len(runs) == len(set(runs)), "it comes back to a file that it has left"


def test_where_is_answers_thirteen_questions_each_with_a_place():
    section = TEXT.partition("## Where is\n")[2].partition("\n## ")[0]
    answers = re.split(r"^(\d+)\. ", section, flags=re.MULTILINE)[1:]
    assert answers[::2] == [str(number) for number in range(1, 14)]
    assert [answer for answer in answers[1::2] if not PLACE.search(answer)] == []
