"""What begins with an underscore is used in its own file only."""

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.logic

ROOT = Path(__file__).parents[2]
#: of other packages: public in all but their names, or what an adapter has to reach into
FOREIGN = {
    *("_exit", "_asdict", "_replace", "_fields", "_make", "_Hash"),
    # asyncio, for a loop of one's own
    *("_log_destroy_pending", "_get_running_loop", "_set_running_loop"),
    # kombu
    *("_callbacks", "_deliver"),
    # Scrapy
    *("_pickle_serialize", "_scrapy_serialization_queue", "_serializable_queue", "_slot"),
    *("_SIZE_BYTES", "_read_fingerprints", "_write_dqs_state"),
    # PySpark
    "_sc",
}
#: functions that are told a name, or a path of names, as a text
BY_TEXT = {"attrgetter", "delattr", "getattr", "hasattr", "methodcaller", "setattr"}


def own_names(tree):
    """Return the names with an underscore that a file defines: of functions, attributes, slots."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Assign) and "__slots__" in map(ast.unparse, node.targets):
            names.update(part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    return names


def names_by_text(node):
    """Return the names that a call is told as texts, by which it reaches into an object."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    if called not in BY_TEXT:
        return []
    texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
    return [name for text in texts if isinstance(text, str) for name in text.split(".")]


def is_private(name):
    """Tell whether a name is for its own file; enum's own names have underscores on both sides."""
    return name.startswith("_") and not name.endswith("_") and not name.startswith("__")


def private_uses(text):
    """Return (line, name) of each use of what another file keeps to itself."""
    tree = ast.parse(text)
    own, found = own_names(tree), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            held = node.value
            mine = isinstance(held, ast.Name) and held.id in ("self", "cls")
            mine = mine or (isinstance(held, ast.Call) and ast.unparse(held) == "super()")
            name = node.attr
            if is_private(name) and not mine and name not in own | FOREIGN:
                found.append((node.lineno, name))
        elif isinstance(node, ast.Call):
            told = [name for name in names_by_text(node) if is_private(name)]
            found += [(node.lineno, name) for name in told if name not in own | FOREIGN]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                native = ROOT.joinpath(*node.module.split("."), f"{each.name}.pyx")
                if is_private(each.name) and each.name not in FOREIGN and not native.exists():
                    found.append((node.lineno, each.name))
    return found


def test_nothing_private_is_used_across_files():
    found = []
    for path in sorted((ROOT / "rmqcore").rglob("*.py")):
        uses = private_uses(path.read_text("utf-8"))
        found += [f"{path.relative_to(ROOT)}:{line}: {name}" for line, name in uses]
    assert found == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("store._tail", ["_tail"]),
        ("self._tail = store.tail\nother._tail", []),
        ("self.log._queue", ["_queue"]),
        ("super()._close()", []),
        ("from rmqcore.files import _secret", ["_secret"]),
        ("os._exit(0)", []),
        ("Kind._value2member_map_", []),
        ("getattr(store, '_tail')", ["_tail"]),
        ("operator.attrgetter('parts._tail')", ["_tail"]),
        ("name = '_tail'\nstore._tail", ["_tail"]),
        ("class Store:\n    __slots__ = ('_tail',)\n    def is_as(self, other): other._tail", []),
    ],
)
def test_the_check_finds_what_it_should(text, names):
    assert [name for _, name in private_uses(text)] == names
