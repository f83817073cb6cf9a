"""Where code asks a clock, sleeps or syncs by itself instead of asking the world.

Python is looked at by its syntax tree, native code by the calls of C that it makes.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

#: the place that the rest asks
WORLD = {
    "rmqcore/world.py",
    "rmqcore/native/base/_world.pxd",
    "rmqcore/native/base/_world.pyx",
}
#: what of `time` only computes, and how many arguments it takes not to read the clock
COMPUTES = {"gmtime": 1, "localtime": 1, "mktime": 1, "strftime": 2, "struct_time": 1}
#: what reads the clock of a class of `datetime`
READS = {"now", "today", "utcnow"}
SYNCS = {"fdatasync", "fsync", "sync"}
C_CALL = re.compile(
    r"\b(clock_gettime|clock_nanosleep|fdatasync|fsync|gettimeofday|msync|nanosleep|sync_file_range"
    r"|syncfs|time|usleep)\s*\("
)
C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|(?m:^\s*#[^\n]*$)", re.DOTALL)
CYTHON_IMPORT = re.compile(r"^\s*(?:import time\b|from time import\b)", re.MULTILINE)


def python_reads(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what) for each thing that Python code takes from outside by itself."""
    tree = ast.parse(text)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                if is_outside(f"{node.module}.{alias.name}"):
                    yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute) and is_outside(found := dotted(node, names)):
            yield node.lineno, found
        elif isinstance(node, ast.Call):
            called = dotted(node.func, names)
            module, _, name = called.partition(".")
            if module == "time" and len(node.args) < COMPUTES.get(name, 0):
                yield node.lineno, f"{called}() of this moment"


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """Name what an expression stands for by its module, as far as imports tell; else ''."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def is_outside(name: str) -> bool:
    """Tell whether a name of the standard library reads a clock, sleeps or syncs."""
    module, _, rest = name.partition(".")
    if module == "time":
        return bool(rest) and rest.partition(".")[0] not in COMPUTES
    if module == "os":
        return rest in SYNCS
    return module == "datetime" and rest.rpartition(".")[2] in READS


def native_reads(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what) for each call of C, or import, by which native code does so."""
    text = C_COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)
    for pattern in (C_CALL, CYTHON_IMPORT):
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, match.group().strip()


def outside(root: Path) -> list[str]:
    """Return every place in the package that does not ask the world, as `path:line: what`."""
    found = []
    for path in sorted((root / "rmqcore").rglob("*")):
        name = path.relative_to(root).as_posix()
        if name in WORLD or path.suffix not in READERS:
            continue
        places = READERS[path.suffix](path.read_text("utf-8"))
        found += [f"{name}:{line}: {what}" for line, what in places]
    return found


READERS = {".py": python_reads, ".pyx": native_reads, ".pxd": native_reads, ".h": native_reads}
