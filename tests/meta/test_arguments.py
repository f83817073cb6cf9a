"""Each public function with two arguments or more says what they are, and any what it raises.

Public is a function, or a method of a class, whose name and whose class's name begin with no
underscore; of the classes that `rmqcore` and the rooms below export, inherited methods too. An
argument is described where its name stands in ``Args:``, in the function whose name the docstring
gives as the one to see, or, of a command, in the help of its option.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import NamedTuple

import pytest

import rmqcore.message

pytestmark = pytest.mark.logic

ROOT = Path(__file__).parents[2]
_spec = spec_from_file_location("stub_docs", ROOT / "scripts" / "stub_docs.py")
stub_docs = module_from_spec(_spec)
_spec.loader.exec_module(stub_docs)
ROOMS = (
    ".",
    "broker",
    "client",
    "config",
    "doctor",
    "ha",
    "metaq",
    "namesrv",
    "proxy",
    "rebuild",
    "remoting",
    "scan",
    "spark",
    "transfer",
)
#: Ends of a program, of an iteration or of a thought, and another package's error by another name.
NOT_TO_SAY = {"NotImplementedError", "AssertionError", "SystemExit", "Exit", "CeleryTimeoutError"}
#: Types of what a command gets beside its options: from typer, and from `rmqcore admin`.
HANDED = ("typer.Context", "Admin")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """A function, its module and its class."""

    module: str
    owner: str
    node: Function


#: The names of these say all that there is to say.
PLAIN = ("has_key", "refusal_of")
#: "See `Class.method`", "As `method`", "Arguments as those of `method`"
SAME_AS = re.compile(r"\b(?:see|as|as those of)\s+(`[\w.]+`)", re.IGNORECASE)


@cache
def tree(module: str) -> ast.Module:
    """Parse a module, its stub where it is native."""
    base = ROOT / module.replace(".", "/")
    sources = (base.with_suffix(".py"), base.with_suffix(".pyi"), base / "__init__.py")
    source = next(source for source in sources if source.exists())
    text = source.read_text("utf-8")
    if module in stub_docs.MODULES:
        text = stub_docs.with_docstrings(module, source)
    return ast.parse(text)


@cache
def imported(module: str) -> dict[str, tuple[str, str]]:
    """Map each name that a module has from another module of rmqcore to its place there."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rmqcore")
        for alias in node.names
    }


def exported(module: str) -> list[str]:
    """List the names in a module's `__all__`; Spark's are the keys of its lazy table."""
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
    return []


def found(module: str, name: str) -> tuple[str, ast.ClassDef | Function] | None:
    """Find a class or function by the name that it has in a module, with the module it is from."""
    for node in tree(module).body:
        named = isinstance(node, (ast.ClassDef, *Function.__args__)) and node.name == name
        if named and not (isinstance(node, Function) and is_overload(node)):
            return module, node
    origin = imported(module).get(name)
    return None if origin is None or origin == (module, name) else found(*origin)


def is_overload(node: Function) -> bool:
    """Tell the further signatures of a function from the function."""
    return any("overload" in ast.unparse(each) for each in node.decorator_list)


def methods(module: str, node: ast.ClassDef) -> dict[str, Place]:
    """Collect the public methods of a class by name, inherited ones too; its own come last."""
    collected: dict[str, Place] = {}
    for base in node.bases:
        name = ast.unparse(base).split("[")[0]
        origin = found(module, name)
        if origin is not None and isinstance(origin[1], ast.ClassDef):
            collected |= methods(origin[0], origin[1])
    for each in node.body:
        if isinstance(each, Function) and not each.name.startswith("_") and not is_overload(each):
            collected[each.name] = Place(module, node.name, each)
    return collected


def arguments(node: Function) -> list[str]:
    """List the arguments that a caller gives; those of `rmqcore.message`'s typed dicts by name."""
    spec = node.args
    several = [each for each in (spec.vararg, spec.kwarg) if each is not None]
    named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *several]
    names = [each.arg for each in named if each.arg not in ("self", "cls") and each.arg[0] != "_"]
    if spec.kwarg and spec.kwarg.annotation:
        typed = re.fullmatch(r"Unpack\[(\w+)\]", ast.unparse(spec.kwarg.annotation))
        if typed and hasattr(rmqcore.message, typed[1]):
            names.remove(spec.kwarg.arg)
            names += getattr(rmqcore.message, typed[1]).__annotations__
    return names


def described(place: Place) -> set[str]:
    """List the names that a docstring describes, or the docstrings that it says to see."""
    text = ast.get_docstring(place.node) or ""
    names: set[str] = set()
    for line in re.findall(r"^ {4}((?:\*{0,2}\w+(?:, )?)+): ", text, re.MULTILINE):
        names |= set(re.findall(r"\w+", line))
    for reference in SAME_AS.findall(text):
        for other in referred(reference.strip("`"), place):
            names |= described(other)
    return names


def referred(name: str, place: Place) -> list[Place]:
    """Find the function that a docstring names: of its own class, of another, or of a module."""
    owner, _, method = name.rpartition(".")
    if not owner or owner == "rmqcore":
        function = found(owner or place.module, method)
        if function is not None and isinstance(function[1], Function):
            other = Place(function[0], "", function[1])
            return [other] if other.node is not place.node else []
    own_class = found(place.module, owner or place.owner)
    if own_class is not None and isinstance(own_class[1], ast.ClassDef):
        other = methods(*own_class).get(method)
        return [other] if other is not None and other.node is not place.node else []
    classes = every_class().get(owner, [])
    places = [methods(*each).get(method) for each in classes]
    return [each for each in places if each is not None and each.node is not place.node]


@cache
def every_class() -> dict[str, list[tuple[str, ast.ClassDef]]]:
    """Map each class of rmqcore to the places where one of its name is."""
    classes: dict[str, list[tuple[str, ast.ClassDef]]] = {}
    for source in [*ROOT.glob("rmqcore/**/*.py"), *ROOT.glob("rmqcore/**/*.pyi")]:
        module = ".".join(source.relative_to(ROOT).with_suffix("").parts)
        for node in tree(module).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append((module, node))
    return classes


@cache
def has_help(module: str, annotation: str) -> bool:
    """Tell whether a type is that of a command's option with a help, also by its name."""
    if "help=" in annotation:
        return True
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == annotation:
            return "help=" in ast.unparse(node.value)
    origin = imported(module).get(annotation)
    return origin is not None and has_help(*origin)


def helped(place: Place) -> set[str]:
    """List a command's options that have a help, and what the command line hands over beside."""
    spec = place.node.args
    types = {
        each.arg: ast.unparse(each.annotation)
        for each in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)
        if each.annotation
    }
    options = {name for name, annotation in types.items() if has_help(place.module, annotation)}
    handed = {name for name, annotation in types.items() if annotation in HANDED}
    return options | handed if options else set()


def lacks(place: Place) -> str:
    """Name the arguments of a function that nobody describes; nothing where one is enough."""
    names = arguments(place.node) if place.node.name not in PLAIN else []
    missing = set(names) - described(place) - helped(place) if len(names) > 1 else ()
    return ", ".join(sorted(missing))


def strangers(place: Place) -> set[str]:
    """List what ``Args:`` names and the function has not got."""
    text = ast.get_docstring(place.node) or ""
    args = re.search(r"^Args:\n((?: {4}.*\n?|\n)+)", text, re.MULTILINE)
    lines = re.findall(r"^ {4}((?:\*{0,2}\w+(?:, )?)+): ", args[1], re.MULTILINE) if args else []
    own = {each.arg for each in ast.walk(place.node.args) if isinstance(each, ast.arg)}
    return set(re.findall(r"\w+", " ".join(lines))) - own - set(arguments(place.node))


def unsaid_errors(place: Place) -> set[str]:
    """List the classes of errors that a function itself raises, and its docstring does not name.

    A command says in its help what is accepted; what a function refers to is looked at there.
    """
    text = ast.get_docstring(place.node) or ""
    if helped(place) or SAME_AS.search(text):
        return set()
    made = {each.exc for each in ast.walk(place.node) if isinstance(each, ast.Raise) and each.exc}
    names = {ast.unparse(each.func if isinstance(each, ast.Call) else each) for each in made}
    classes = {each.rpartition(".")[2] for each in names}
    return {each for each in classes if each[0].isupper() and each not in text} - NOT_TO_SAY


def name_of(place: Place) -> str:
    """Name a function as imports do."""
    return ".".join(filter(None, (place.module, place.owner, place.node.name)))


def written() -> list[Place]:
    """List the public functions and methods of every module."""
    places = []
    for source in sorted(ROOT.glob("rmqcore/**/*.py")):
        module = ".".join(source.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in tree(module).body:
            owner = node.name if isinstance(node, ast.ClassDef) else ""
            for each in node.body if owner and owner[0] != "_" else [node]:
                public = isinstance(each, Function) and not each.name.startswith("_")
                if public and not is_overload(each):
                    places.append(Place(module, owner, each))
    return places


def undescribed(module: str) -> list[str]:
    """List the exported functions with arguments that nobody describes."""
    lacking = []
    for name in exported(module):
        origin = found(module, name)
        if origin is None:
            continue
        if isinstance(origin[1], ast.ClassDef):
            places = {f"{name}.{key}": place for key, place in methods(*origin).items()}
        else:
            places = {name: Place(origin[0], "", origin[1])}
        for whole, place in places.items():
            if missing := lacks(place):
                lacking.append(f"{whole}: {missing}")
    return lacking


@pytest.mark.parametrize("room", ROOMS)
def test_arguments_of_public_functions_are_described(room):
    assert undescribed("rmqcore" if room == "." else f"rmqcore.{room}") == []


def test_arguments_of_every_function_are_described():
    lacking = {name_of(place): missing for place in written() if (missing := lacks(place))}
    assert lacking == {}


def test_what_is_described_is_an_argument():
    strange = {name_of(place): names for place in written() if (names := strangers(place))}
    assert strange == {}


def test_what_a_function_raises_is_said():
    silent = {name_of(place): errors for place in written() if (errors := unsaid_errors(place))}
    assert silent == {}


def test_an_error_without_a_word_is_found():
    source = 'def move(here):\n    """Move."""\n    raise StoreError("no")'
    assert unsaid_errors(Place("rmqcore", "", ast.parse(source).body[0])) == {"StoreError"}


def test_a_command_s_option_is_described_by_its_help():
    source = "def look(admin: Admin, store: Annotated[str, Option(help='which')], deep: bool): ..."
    place = Place("rmqcore", "", ast.parse(source).body[0])
    assert helped(place) == {"admin", "store"}
    assert lacks(place) == "deep"


def test_a_description_of_no_argument_is_found():
    source = 'def move(here):\n    """Move.\n\n    Args:\n        there: whither.\n    """'
    assert strangers(Place("rmqcore", "", ast.parse(source).body[0])) == {"there"}


def test_an_argument_without_a_word_is_found():
    source = 'def move(here, there):\n    """Move.\n\n    Args:\n        here: whence.\n    """'
    node = ast.parse(source).body[0]
    assert described(Place("rmqcore", "", node)) == {"here"}
    assert arguments(node) == ["here", "there"]
