"""A file imports only from floors below its own; there are no circles and no hidden imports."""

import re
from pathlib import Path

import pytest
from meta.layers import BESIDE, Layers, table_of
from meta.layers import ROWS as ROOMS

pytestmark = pytest.mark.logic

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def layers():
    return Layers(ROOT)


def test_every_file_has_a_floor(layers):
    assert not layers.without_floor(), "name the file in the table of tests/meta/layers.py"


def test_docstrings_name_the_floor_of_the_table(layers):
    assert not layers.misstated()


def test_only_the_table_says_what_a_file_imports(layers):
    claims = re.compile(r"^Floor: .*\bimports\b", re.MULTILINE)
    assert not [path for path, _ in layers.files if claims.search(path.read_text("utf-8"))]


def test_every_room_says_what_it_never_does_and_its_floor(layers):
    assert not layers.silent()


def test_the_page_has_the_same_rooms_and_no_empty_cell():
    rows, beside, empty = table_of((ROOT / "docs/architecture.md").read_text("utf-8"))
    assert rows == list(ROOMS)
    assert beside == BESIDE
    assert not empty


@pytest.mark.engine
def test_rooms_beside_import_all_that_they_may(layers):
    assert not layers.unneeded()


@pytest.mark.engine
def test_imports_go_down(layers):
    assert not layers.upward()


def test_there_are_no_circles(layers):
    assert not layers.circles()


@pytest.mark.engine
def test_only_what_is_optional_or_heavy_is_imported_inside_functions(layers):
    assert not layers.hidden()


# ---- the checks themselves can fail ----

ROWS = (
    ("F0", "errors"),
    ("F1", "_leaf _other"),
    ("F2", "files.queue"),
    ("F3", "scan/"),
    ("F4", "__init__"),
)


@pytest.fixture
def package(tmp_path):
    def build(**files):
        for name, text in {"errors.py": "", "__init__.py": "", **files}.items():
            path = tmp_path / "rmqcore" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        return Layers(tmp_path, ROWS, beside={"metaq/": {"errors"}})

    return build


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("errors.py", "import rmqcore._leaf\n"),
        ("errors.py", "from rmqcore import _leaf\n"),
        ("errors.py", "from . import _leaf\n"),
        ("errors.py", "if TYPE_CHECKING:\n    from rmqcore._leaf import Leaf\n"),
        ("errors.py", "from rmqcore import something\n"),
        ("_other.pyx", "from rmqcore._leaf cimport (\n    leaf,\n    twig,\n)\n"),
        ("_other.pyx", "cimport rmqcore._leaf\n"),
        ("_other.pxd", "from rmqcore._leaf cimport leaf\n"),
        ("_other.pyi", "from rmqcore.files.queue import Queue\n"),
        ("files/queue.py", "from ..scan import plan\n"),
        ("files/queue.py", "from rmqcore.scan.plan import Plan\n"),
        ("metaq/log.py", "from rmqcore._leaf import leaf\n"),
    ],
)
def test_an_import_upward_or_sideways_is_found(package, name, text):
    others = {"_leaf.pyx": "", "scan/plan.py": "", "files/queue.py": ""}
    assert len(package(**{**others, name: text}).upward()) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "_leaf.pyx",
            'from rmqcore.errors import Error\n"""\nfrom rmqcore.scan import plan\n"""\n',
        ),
        ("files/queue.py", "from rmqcore import errors\nfrom rmqcore._leaf import leaf\n"),
        ("scan/plan.py", "from .read import read\nfrom rmqcore.files import queue\nimport numpy\n"),
        ("metaq/log.py", "from rmqcore.errors import Error\nfrom . import files\n"),
    ],
)
def test_an_import_downward_is_not(package, name, text):
    others = {"_leaf.pyx": "", "scan/read.py": "", "files/queue.py": "", "metaq/files.py": ""}
    built = package(**{**others, name: text})
    assert not built.upward()
    assert not built.circles()


def test_a_circle_inside_a_room_is_found(package):
    built = package(
        **{
            "scan/a.py": "from rmqcore.scan.b import b\n",
            "scan/b.py": "from rmqcore.scan.a import a\n",
        }
    )
    assert not built.upward()
    assert built.circles() == ["scan.a -> scan.b -> scan.a"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("errors.py", "def f():\n    import json\n"),
        ("errors.py", "class A:\n    async def f(self):\n        from os import path\n"),
        ("_leaf.pyx", "def f():\n    import json\n"),
    ],
)
def test_an_import_inside_a_function_is_found(package, name, text):
    assert len(package(**{name: text}).hidden()) == 1


def test_an_optional_extra_may_be_imported_inside_a_function(package):
    assert not package(**{"errors.py": "def f():\n    import pyarrow.parquet\n"}).hidden()


def test_a_file_without_a_floor_is_found(package):
    built = package(**{"stray.py": "", "files/__init__.py": "", "files/queue.py": ""})
    assert built.without_floor() == ["stray"]


def test_a_misstated_floor_is_found(package):
    built = package(**{"_leaf.pyx": '"""A leaf.\n\nFloor: F7.\n"""\n'})
    assert built.misstated() == ["rmqcore/_leaf.pyx: says F7, is F1"]


def test_a_room_that_does_not_say_what_it_never_does_is_found(package):
    told = '"""A room. Never opens a file.\n\nFloor: F3.\n"""\n'
    built = package(**{"scan/__init__.py": told, "files/__init__.py": '"""A room."""\n'})
    assert built.silent() == ["rmqcore/files/__init__.py: no 'never' and no 'Floor:'"]


def test_a_permission_that_nobody_needs_is_found(package):
    assert package(**{"metaq/log.py": "import json\n"}).unneeded() == ["metaq/ imports no errors"]


def test_a_table_of_the_page_is_read():
    page = (
        "| floor | room | never |\n|---|---|---|\n| F1 | `a` `b/c/` | |\n\n"
        "| room | may import |\n|---|---|\n| `d/` | `a` `b/c` |\n## The native boundary\n"
    )
    rows, beside, empty = table_of(page)
    assert (rows, beside) == ([("F1", "a b.c/")], {"d/": {"a", "b.c"}})
    assert empty == ["| F1 | `a` `b/c/` | |"]


def test_the_package_opens_on_what_one_can_look_over():
    shown = [p for p in (ROOT / "rmqcore").iterdir() if not p.name.endswith((".so", ".c", "__"))]
    assert len(shown) <= 40
