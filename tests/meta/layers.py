"""The floors of rmqcore: one row a room, and the check that a file imports only from rows above.

Type-only imports and cimports count like any other. A room is a folder, written with a slash; its
files may import each other as long as there is no circle.
"""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "rmqcore"

#: Lowest first. A row may be used by every row below it here, also where both are of one floor.
ROWS = (
    ("F0", "errors status version chance"),
    ("F0", "arguments"),
    ("F0", "native.base/"),
    ("F0", "world"),
    ("F0", "native.format/"),
    ("F1", "native.columns/"),
    ("F1", "native.read/"),
    ("F1", "native.log/"),
    ("F1", "native.derive/"),
    ("F1", "_codec _index"),
    ("F1", "message"),
    ("F1", "java/"),
    ("F2", "config/"),
    ("F3", "files/"),
    ("F3", "files.objects/"),
    ("F4", "derived/"),
    ("F4", "services/"),
    ("F5", "recovery/"),
    ("F5", "store.consume/"),
    ("F6", "scan/"),
    ("F6", "scan.cluster/"),
    ("F6", "store.parts/"),
    ("F6", "store/"),
    ("F7", "store.sharing/"),
    ("F7", "__init__"),
    ("F7", "rebuild/"),
    ("F7", "transfer/"),
    ("F7", "lake/"),
    ("F7", "transfer.archive/"),
    ("F8", "doctor/"),
    ("F8", "doctor.selftest/"),
    ("F8", "ha/"),
    ("F8", "spark/"),
    ("F8", "broker._direct"),
    ("F8", "broker.state/"),
    ("F8", "broker.timer/"),
    ("F8", "broker.pull/"),
    ("F8", "broker.pop/"),
    ("F8", "broker.send/"),
    ("F8", "broker.admin/"),
    ("F8", "broker.parts"),
    ("F8", "broker.replication/"),
    ("F8", "broker/"),
    ("F9", "adapters/"),
    ("F9", "web/"),
    ("F9", "testing"),
    ("F9", "simulation/"),
    ("F10", "cli/"),
    ("F10", "__main__"),
)
#: Rooms beside the floors, with all that they may import.
BESIDE = {
    "metaq/": {
        "errors",
        "status",
        "version",
        "chance",
        "native.base",
        "native.format",
        "remoting.acceptor",
        "world",
    },
    "remoting/": {"errors", "java", "chance", "world"},
    "namesrv/": {"errors", "java", "remoting", "config.setting", "files.config_file", "world"},
    "client/": {
        "errors",
        "arguments",
        "chance",
        "version",
        "world",
        "message",
        "_codec",
        "native.format",
        "native.columns",
        "java",
        "remoting",
    },
    "proxy/": {
        "chance",
        "errors",
        "world",
        "message",
        "native.format",
        "java",
        "remoting",
    },
}
#: What may be imported inside a function: packages that only an extra brings.
OPTIONAL = {
    "azure",
    "boto3",
    "botocore",
    "celery",
    "coilmq",
    "cronsim",
    "cryptography",
    "deltalake",
    "fastavro",
    "fsspec",
    "google",
    "duckdb",
    "huey",
    "kazoo",
    "kombu",
    "lz4",
    "orjson",
    "matplotlib",
    "opentelemetry",
    "pandas",
    "polars",
    "prometheus_client",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "queuelib",
    "rich",
    "typer",
    "uvloop",
    "zstandard",
}
#: Also: what is too heavy for a process that puts, gets and queries, and does without it.
HEAVY = {
    "asyncio",
    "difflib",
    "html",
    "numpy",
    "random",
    "rmqcore.adapters.huey",
    "rmqcore.cli.cluster",
    "rmqcore.client.spans",
    "rmqcore.client.table_batches",
    "rmqcore.scan.cluster.dataset",
    "rmqcore.files.archive_note",
    "rmqcore.scan.dataset",
    "rmqcore.scan.polars_source",
    "rmqcore.lake.delta_target",
    "rmqcore.lake.iceberg_target",
    "rmqcore.proxy",
    "rmqcore.proxy.certificate",
    "rmqcore.web",
    "rmqcore.store.consume.lease_request",
    "rmqcore.store.message_store",
    "rmqcore.transfer.export",
    "rmqcore.store.sharing.queue",
    "rmqcore.store.consume.leases",
    "rmqcore.store.parts.column_puts",
    "rmqcore.store.sharing.column_calls",
    "rmqcore.store.sharing.opening",
    "shutil",
}

CYTHON_IMPORT = re.compile(
    r"^(?P<indent>[ \t]*)(?:from[ \t]+(?P<source>[\w.]+)[ \t]+c?import[ \t]+"
    r"(?P<names>\([^)]*\)|[^\n#]+)|c?import[ \t]+(?P<plain>[\w. \t,]+))",
    re.MULTILINE,
)
DOCSTRING = re.compile(r'"""[\s\S]*?"""')
STATED_FLOOR = re.compile(r"^Floor: (F\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Import:
    """One import: `source` as written (empty for a plain one), the names taken, where."""

    line: int
    source: str
    names: tuple[str, ...]
    inside_function: bool


def python_imports(text: str) -> list[Import]:
    """Find every import of a Python file or stub."""
    found = []

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(node.lineno, "", (a.name,), inside) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            found.append(Import(node.lineno, source, tuple(a.name for a in node.names), inside))
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            # no expression holds an import
            if not isinstance(child, ast.expr):
                visit(child, inside)

    visit(ast.parse(text), False)
    return found


def cython_imports(text: str) -> list[Import]:
    """Find every import and cimport of a Cython file."""
    text = DOCSTRING.sub(lambda match: "\n" * match.group().count("\n"), text)
    found = []
    for match in CYTHON_IMPORT.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        taken = (match["names"] or match["plain"]).strip("() \t\n")
        names = tuple(n.split()[0] for n in re.split(r"[,\n]", taken) if n.strip())
        inside = bool(match["indent"])
        if match["source"]:
            found.append(Import(line, match["source"], names, inside))
        else:
            found.extend(Import(line, "", (name,), inside) for name in names)
    return found


def module_name(path: Path, root: Path) -> str:
    """Name a file inside the package: `files.commit_log`; `__init__` for the package itself."""
    parts = list(path.relative_to(root / PACKAGE).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


class Layers:
    """The package as it is: modules, what each imports, and what is wrong with that."""

    def __init__(self, root: Path, rows=ROWS, beside=None):
        self.root = root
        self.rows = rows
        self.beside = BESIDE if beside is None else beside
        paths = (p for p in sorted((root / PACKAGE).rglob("*")) if p.suffix in SUFFIXES)
        self.files = [(path, module_name(path, root)) for path in paths]
        self.modules = {module for _, module in self.files}

    def row_of(self, module: str) -> int | None:
        """Return the index of a module's row, or None when the table does not know it."""
        wanted = {module, self.room_of(module)}
        for index, (_, names) in enumerate(self.rows):
            if wanted & set(names.split()):
                return index
        return None

    def room_of(self, module: str) -> str | None:
        """Return the room (`scan/`, `native.log/`) of a module, None for one that has none."""
        rooms = {name for _, names in self.rows for name in names.split()} | self.beside.keys()
        parts = module.split(".")
        prefixes = (".".join(parts[:count]) + "/" for count in range(len(parts), 0, -1))
        return next((prefix for prefix in prefixes if prefix in rooms), None)

    def is_empty_package(self, module: str) -> bool:
        """Tell whether a module is the `__init__` of a folder whose files have their own floors."""
        return (self.root / PACKAGE / module.replace(".", "/") / "__init__.py").exists()

    def targets(self, module: str, is_package: bool, imported: Import) -> set[str]:
        """Return the modules of the package that one import reaches."""
        source = imported.source
        if source.startswith("."):
            base = [] if module == "__init__" else module.split(".")
            up = len(source) - len(source.lstrip(".")) - (1 if is_package else 0)
            base = base[: len(base) - up] if up else base
            source = ".".join([PACKAGE, *base, *filter(None, [source.lstrip(".")])])
        if not source:
            return {inner(imported.names[0])} - {None}
        if inner(source) is None:
            return set()
        below = {f"{source}.{name}" for name in imported.names}
        modules = {inner(name) for name in below} & self.modules
        if len(modules) < len(below):
            modules.add(inner(source))
        return modules

    def edges(self):
        """Yield (path, module, import, target) for every import within the package."""
        for path, module in self.files:
            for imported in read_imports(path):
                for target in self.targets(module, path.name == "__init__.py", imported):
                    if target != module:
                        yield path, module, imported, target

    def complaint(self, module: str, target: str) -> str | None:
        """Say what is wrong with one import, None when it goes down."""
        room = self.room_of(module)
        if room is not None and room == self.room_of(target):
            return None
        if room in self.beside:
            known = {target, (self.room_of(target) or "").rstrip("/")}
            return None if known & self.beside[room] else f"{room} may import {self.beside[room]}"
        here, there = self.row_of(module), self.row_of(target)
        if here is None or there is None or there < here:
            return None
        return f"{self.rows[there][0]} is not below {self.rows[here][0]}"

    def upward(self) -> list[str]:
        """Return every import that does not go down."""
        return [
            f"{path.relative_to(self.root)}:{imported.line}: imports {target}: {why}"
            for path, module, imported, target in self.edges()
            if (why := self.complaint(module, target))
        ]

    def without_floor(self) -> list[str]:
        """Return the modules that the table does not know."""
        return sorted(
            module
            for module in self.modules
            if self.row_of(module) is None
            and self.room_of(module) not in self.beside
            and not self.is_empty_package(module)
        )

    def misstated(self) -> list[str]:
        """Return the files whose docstring names another floor than the table."""
        found = []
        for path, module in self.files:
            stated = STATED_FLOOR.search(path.read_text("utf-8"))
            row = self.row_of(module)
            if stated and row is not None and stated[1] != self.rows[row][0]:
                found.append(
                    f"{path.relative_to(self.root)}: says {stated[1]}, is {self.rows[row][0]}"
                )
        return found

    def silent(self) -> list[str]:
        """Return the rooms whose first lines do not say what they never do, and their floor."""
        found = []
        for path in sorted((self.root / PACKAGE).glob("*/**/__init__.py")):
            lines = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
            missing = [
                what
                for what, pattern in (("'never'", r"(?i)\bnever\b"), ("'Floor:'", r"(?m)^Floor: "))
                if not re.search(pattern, lines)
            ]
            if missing:
                found.append(f"{path.relative_to(self.root)}: no {' and no '.join(missing)}")
        return found

    def unneeded(self) -> list[str]:
        """Return what rooms beside the floors may import and do not."""
        used: dict[str, set[str]] = {room: set() for room in self.beside}
        for _, module, _, target in self.edges():
            if (room := self.room_of(module)) in used:
                used[room] |= {target, (self.room_of(target) or "").rstrip("/")}
        return sorted(
            f"{room} imports no {name}" for room in used for name in self.beside[room] - used[room]
        )

    def circles(self) -> list[str]:
        """Return one path through each circle of imports."""
        graph: dict[str, set[str]] = {module: set() for module in self.modules}
        for _, module, _, target in self.edges():
            graph[module].add(target)
        found, done = [], set()

        def walk(module: str, trail: list[str]) -> None:
            if module in trail:
                found.append(" -> ".join([*trail[trail.index(module) :], module]))
            elif module not in done:
                for target in sorted(graph.get(module, ())):
                    walk(target, [*trail, module])
                done.add(module)

        for module in sorted(graph):
            walk(module, [])
        return found

    def hidden(self) -> list[str]:
        """Return the imports inside functions of what is neither an optional extra nor heavy."""
        return [
            f"{path.relative_to(self.root)}:{imported.line}: import it at the top of the file"
            for path, _ in self.files
            for imported in read_imports(path)
            if imported.inside_function
            and (imported.source or imported.names[0]) not in HEAVY
            and (imported.source or imported.names[0]).partition(".")[0] not in OPTIONAL
        ]


SUFFIXES = {
    ".py": python_imports,
    ".pyi": python_imports,
    ".pyx": cython_imports,
    ".pxd": cython_imports,
}


def read_imports(path: Path) -> list[Import]:
    """Find the imports of one file by its kind."""
    return _imports_of(path.suffix, path.read_text("utf-8"))


@cache
def _imports_of(suffix: str, text: str) -> list[Import]:
    return SUFFIXES[suffix](text)


def table_of(text: str) -> tuple[list[tuple[str, str]], dict[str, set[str]], list[str]]:
    """Read the rows and the rooms beside them from docs/architecture.md; and all empty cells."""
    rows, beside, empty = [], {}, []
    for line in text.partition("## The native boundary")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        first, second = (
            re.findall(r"`([^`]+)`", cell.replace("/", ".").replace(".`", "/`"))
            for cell in (*cells, "", "")[:2]
        )
        if first and second:
            beside[first[0]] = {name.rstrip("/") for name in second}
        elif second:
            rows.append((cells[0], " ".join(second)))
        empty += [line for cell in cells if not cell]
    return rows, beside, empty


def inner(name: str) -> str | None:
    """Return a dotted name without the package's, `__init__` for the package, None for others."""
    if name == PACKAGE:
        return "__init__"
    return name.removeprefix(PACKAGE + ".") if name.startswith(PACKAGE + ".") else None
