"""Each step that docs/architecture.md walks is where it says, and the walks go one way."""

import re
from pathlib import Path

import pytest
from meta.walks import PAGE, Place, places, renumbered, walks

pytestmark = pytest.mark.logic

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / PAGE).read_text("utf-8")


@pytest.mark.parametrize("place", places(TEXT), ids=lambda place: f"{place.path}:{place.line}")
def test_a_place_is_where_the_page_says(place):
    lines = place.lines_with_it(ROOT)
    assert place.line in lines, f"it is in {lines}: run scripts/renumber_walks"


def test_the_page_walks_a_body_a_key_and_a_setting():
    assert [title.partition(",")[0] for title in walks(TEXT)] == [
        "`body`",
        "`key`",
        "`flush_disk_type`",
    ]


def test_where_is_answers_eleven_questions_each_with_a_place():
    section = TEXT.partition("## Where is\n")[2].partition("\n## ")[0]
    answers = re.split(r"^(\d+)\. ", section, flags=re.MULTILINE)[1:]
    assert answers[::2] == [str(number) for number in range(1, 12)]
    assert [answer for answer in answers[1::2] if not places(answer)] == []


@pytest.mark.parametrize("steps", walks(TEXT).values(), ids=walks(TEXT))
def test_a_walk_has_eight_steps_at_most_and_never_comes_back(steps):
    assert 4 <= len(steps) <= 8
    files = [step.path for step in steps]
    runs = [path for number, path in enumerate(files) if number == 0 or path != files[number - 1]]
    assert len(runs) == len(set(runs)), "it comes back to a file that it has left"


def test_a_place_that_moved_is_found_again(tmp_path):
    file = tmp_path / "rmqcore" / "a.py"
    file.parent.mkdir()
    file.write_text("one\ndef f():\n    pass\n")
    moved = "1. `rmqcore/a.py:1` `def f(`: here"
    assert places(moved) == [Place("rmqcore/a.py", 1, "def f(")]
    assert renumbered(moved, tmp_path) == "1. `rmqcore/a.py:2` `def f(`: here"
