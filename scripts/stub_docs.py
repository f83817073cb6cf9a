"""Write the docstrings of native modules into a wheel's stubs, for editors, which read only these.

The stubs of the sources have none, so that no docstring stands twice.

Usage: python scripts/stub_docs.py build/lib [FROM]: build/lib has the stubs and the compiled
modules, or FROM has the modules, where this Python cannot load those of build/lib
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

#: native modules whose classes a user of the library meets
MODULES = (
    "rmqcore.native.base._descriptor",
    "rmqcore.native.format._message",
    "rmqcore.native.format._message_ext",
    "rmqcore.native.format._receipt",
    "rmqcore.native.format._wire_message",
    "rmqcore.native.log._putter",
    "rmqcore.native.read._get_result",
    "rmqcore.native.read._key_query",
)


def with_docstrings(module: str, stub: Path) -> str:
    """The text of a native module's stub with the docstrings that the module has.

    Args:
        module: its name.
        stub: its stub without docstrings.
    """
    lines = stub.read_text("utf-8").splitlines()
    tree = ast.parse("\n".join(lines))
    runtime = import_module(module)
    for node, owner in reversed(list(_documented(tree, runtime))):
        _write(lines, node, owner)
    return "\n".join(lines) + "\n"


def _documented(
    tree: ast.AST, owner: object
) -> Iterator[tuple[ast.ClassDef | ast.FunctionDef, str]]:
    """Classes and functions of a stub whose runtime twin has a docstring, in file order."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        twin = inspect.getattr_static(owner, node.name, None)
        if text := docstring(twin, node.name):
            yield node, text
        if isinstance(node, ast.ClassDef) and twin is not None:
            yield from _documented(node, twin)


def docstring(twin: object, name: str) -> str:
    """A docstring without the signature that the compiler writes above it."""
    text = inspect.getdoc(twin) or ""
    first, _, rest = text.partition("\n")
    if re.match(rf"(\w+\.)?{name}[(:]", first):
        text = rest
    return text.strip()


def _write(lines: list[str], node: ast.ClassDef | ast.FunctionDef, text: str) -> None:
    """Put a docstring where the body of a class or function begins."""
    indent = " " * (node.col_offset + 4)
    quoted = f'r"""{text}' if "\\" in text else f'"""{text}'
    quoted += '\n"""' if "\n" in text else '"""'
    doc = textwrap.indent(quoted, indent).splitlines()
    body = node.body[0]
    if isinstance(body, ast.Expr):  # the three dots of a body without anything
        kept = lines[body.lineno - 1][: body.col_offset].rstrip()
        lines[body.lineno - 1 : body.end_lineno] = [kept, *doc]
    else:
        lines[body.lineno - 1 : body.lineno - 1] = [*doc, ""]


def main() -> None:
    """Write the stubs below a directory."""
    root = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(Path(sys.argv[-1]).resolve()))
    for module in MODULES:
        stub = root / (module.replace(".", "/") + ".pyi")
        stub.write_text(with_docstrings(module, stub), "utf-8")


if __name__ == "__main__":
    main()
