"""The public names are the same for the interpreter, for type checkers and in the documents."""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rmqcore

pytestmark = pytest.mark.logic

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rmqcore"
EXTENSIONS = sorted(path.relative_to(ROOT).with_suffix("") for path in PACKAGE.rglob("*.pyx"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def names_bound_in(source: Path) -> set[str]:
    """Return the public names that a module binds at its top level, `as name` included.

    Those that only type checkers see are among them: the module makes them when they are asked for.
    """
    bound = set()
    body = ast.parse(source.read_text("utf-8")).body
    nodes = [
        inner for node in body for inner in (node.body if isinstance(node, ast.If) else [node])
    ]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module not in {
            "__future__",
            "importlib",
            "typing",
        }:
            bound |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            bound.add(node.name)
    return {name for name in bound if not name.startswith("_")}


def test_all_names_exist_and_are_listed_once():
    assert len(set(rmqcore.__all__)) == len(rmqcore.__all__)
    assert [name for name in rmqcore.__all__ if not hasattr(rmqcore, name)] == []


def test_all_is_what_the_package_binds():
    public = {name for name in rmqcore.__all__ if not name.startswith("__")}
    assert names_bound_in(PACKAGE / "__init__.py") == public


@pytest.mark.process
def test_a_name_is_imported_when_it_is_asked_for():
    program = """
import sys, rmqcore
early = [name for name in sys.modules if name.startswith(("rmqcore.store", "rmqcore.config"))]
print(early, set(rmqcore.__all__) <= set(dir(rmqcore)))
print(rmqcore.open_store.__module__, rmqcore.open_store is rmqcore.open_store)
try:
    rmqcore.nonsense
except AttributeError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "[] True",
        "rmqcore.store.opening True",
        "module 'rmqcore' has no attribute 'nonsense'",
    ]


def test_sources_that_are_not_compiled_say_what_helps(monkeypatch):
    monkeypatch.setitem(rmqcore._PLACES, "Nothing", "_not_compiled")
    with pytest.raises(ModuleNotFoundError) as raised:
        _ = rmqcore.Nothing
    assert "pip install ." in raised.value.__notes__[0]


def test_every_public_name_is_documented():
    text = "\n".join(path.read_text("utf-8") for path in DOCUMENTS)
    words = set(re.findall(r"\w+", text))
    assert [name for name in rmqcore.__all__ if name not in words] == []


def test_every_public_object_has_a_docstring():
    objects = {name: getattr(rmqcore, name) for name in rmqcore.__all__}
    assert [n for n, o in objects.items() if callable(o) and not (o.__doc__ or "").strip()] == []


@pytest.mark.process
def test_a_wheels_stubs_have_the_docstrings_of_native_modules(tmp_path):
    stubs = [path.relative_to(ROOT) for path in (ROOT / "rmqcore").rglob("*.pyi")]
    for stub in stubs:
        assert '"""' not in (ROOT / stub).read_text("utf-8"), "it stands in the module"
        (tmp_path / stub).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / stub, tmp_path / stub)
    write = [sys.executable, ROOT / "scripts" / "stub_docs.py", tmp_path]
    # the directory has the stubs alone, the modules are the checkout's
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(write, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    written = ast.parse((tmp_path / "rmqcore/native/log/_putter.pyi").read_text("utf-8"))
    docstrings = {
        node.name: ast.get_docstring(node)
        for node in ast.walk(written)
        if isinstance(node, ast.FunctionDef)
    }
    assert docstrings["put"].startswith("Store one message.\n\nArgs:\n    topic: ")


def test_documents_import_only_what_exists():
    missing = []
    for path in DOCUMENTS:
        for block in CODE_BLOCK.findall(path.read_text("utf-8")):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "rmqcore":
                    module = importlib.import_module(node.module)
                    missing += [
                        f"{path.name}: {node.module}.{alias.name}"
                        for alias in node.names
                        if not hasattr(module, alias.name)
                    ]
    assert missing == []


@pytest.mark.parametrize("extension", EXTENSIONS, ids=str)
def test_every_extension_has_a_stub_with_its_public_names(extension):
    module = importlib.import_module(".".join(extension.parts))
    stub = ast.parse((ROOT / extension).with_suffix(".pyi").read_text("utf-8"))
    stubbed = {
        target.id
        for node in stub.body
        for target in ([node.target] if isinstance(node, ast.AnnAssign) else [])
        if isinstance(target, ast.Name)
    }
    stubbed |= {n.name for n in stub.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    defined = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }
    assert defined <= stubbed
    assert [name for name in stubbed if name[0] != "_" and not hasattr(module, name)] == []


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()
