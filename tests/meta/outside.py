"""Where code asks a clock, sleeps, syncs or draws by itself instead of asking the world or chance.

In some rooms also where it asks for a world that nobody has given it.

Python is looked at by its syntax tree, native code by the calls of C that it makes.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

#: the places that the rest asks
WORLD = {
    "rmqcore/chance.py",
    "rmqcore/world.py",
    "rmqcore/native/base/_world.pxd",
    "rmqcore/native/base/_world.pyx",
}
#: what of `time` only computes, and how many arguments it takes not to read the clock
COMPUTES = {"gmtime": 1, "localtime": 1, "mktime": 1, "strftime": 2, "struct_time": 1}
#: what reads the clock of a class of `datetime`
READS = {"now", "today", "utcnow"}
SYNCS = {"fdatasync", "fsync", "sync"}
#: what draws by chance; `Random` does not where it is told from what it follows
DRAWS = {"os": {"getrandom", "urandom"}, "uuid": {"uuid1", "uuid4"}}
#: whoever starts what stands in these rooms says whose clocks count, so that each process of a
#: simulation, and each broker or store of a test, may have its own
GIVEN = (
    "adapters",
    "broker",
    "client",
    "ha",
    "metaq",
    "namesrv",
    "proxy",
    "recovery",
    "remoting",
    "services",
    "store",
)
#: what a world gives, and a function of the same name reads for the whole process
OF_THE_WORLD = {"monotonic_s", "sleep", "wall_clock_ms", "wall_clock_ns"}
C_CALL = re.compile(
    r"\b(clock_gettime|clock_nanosleep|fdatasync|fsync|gettimeofday|msync|nanosleep|sync_file_range"
    r"|syncfs|time|usleep)\s*\("
)
C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|(?m:^\s*#[^\n]*$)", re.DOTALL)
CYTHON_IMPORT = re.compile(r"^\s*(?:import time\b|from time import\b)", re.MULTILINE)


def python_reads(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what) for each thing that Python code takes from outside by itself."""
    tree = ast.parse(text)
    names = imported(tree)
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
            elif called == "random.Random" and not node.args:
                yield node.lineno, f"{called}() of any seed"


def ungiven_worlds(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what) for each clock, or world, that Python code has without being given it.

    The world of the process may stand for a parameter ``world`` that is left out.
    """
    tree = ast.parse(text)
    names = imported(tree)
    defaults = {id(default) for node in ast.walk(tree) for default in world_defaults(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "rmqcore.world":
            for alias in node.names:
                if alias.name in OF_THE_WORLD:
                    yield node.lineno, f"rmqcore.world.{alias.name}"
        elif isinstance(node, ast.Attribute | ast.Name) and id(node) not in defaults:
            found = dotted(node, names)
            module, _, name = found.rpartition(".")
            if module == "rmqcore.world" and name in OF_THE_WORLD | {"REAL"}:
                yield node.lineno, found
        elif isinstance(node, ast.Call) and dotted(node.func, names) == "rmqcore.world.World":
            yield node.lineno, "a world of its own"


def world_defaults(node: ast.AST) -> Iterator[ast.AST]:
    """The default of a function's parameter ``world``."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        told = node.args.posonlyargs + node.args.args
        pairs = [*zip(reversed(told), reversed(node.args.defaults), strict=False)]
        pairs += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        yield from (default for arg, default in pairs if default and arg.arg == "world")


def imported(tree: ast.AST) -> dict[str, str]:
    """By the name that a file uses, what it has imported under it."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names |= {alias.asname: alias.name} if alias.asname else {first: first}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return names


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """Name what an expression stands for by its module, as far as imports tell; else ''."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def is_outside(name: str) -> bool:
    """Tell whether a name of the standard library reads a clock, sleeps, syncs or draws."""
    module, _, rest = name.partition(".")
    if module == "time":
        return bool(rest) and rest.partition(".")[0] not in COMPUTES
    if module in ("random", "secrets"):
        return bool(rest) and name != "random.Random"
    if rest in DRAWS.get(module, ()):
        return True
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
        text = path.read_text("utf-8")
        places = [*READERS[path.suffix](text)]
        if path.suffix == ".py" and path.relative_to(root / "rmqcore").parts[0] in GIVEN:
            places += ungiven_worlds(text)
        found += [f"{name}:{line}: {what}" for line, what in places]
    return found


READERS = {".py": python_reads, ".pyx": native_reads, ".pxd": native_reads, ".h": native_reads}
