"""House rules that no linter knows: what is banned, what to write instead, how long things may be.

A rule that is not a test is a wish. Every ban has an example in `test_tidy.py` that it must find.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

FILE_LINES_MAX = 600
CYTHON_FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
LINE_COLUMNS_MAX = 100

CYTHON = ("*.pyx", "*.pxd")
PYTHON = ("*.py", "*.pyi")
NATIVE = (*CYTHON, "*.h")
ALL = (*PYTHON, *NATIVE)
#: Folders that are looked at, from the project's root.
FOLDERS = ("rmqcore", "tests", "bench", "scripts")

DOCSTRING = re.compile(r'"""[\s\S]*?"""')
CYTHON_FUNCTION = re.compile(
    r"^(?P<indent>[ ]*)(?:def|cdef(?! class)|cpdef)\b[^=\n]*\((?:[^()]|\([^()]*\))*\)[^:\n]*:", re.M
)
STATEMENT = re.compile(r"^#\s?(?P<code>.*)$")
#: What a line of code looks like and a sentence does not.
CODE = re.compile(
    r"^(?:(?:from\s+[\w.]+\s+)?c?import\s+[\w.]+|(?:return|raise|assert|del|yield)\s+[\w.]+[(\[.=]"
    r"|(?:if|elif|while|for|with|def|class|cdef|cpdef)\s.*:$|(?:try|else|finally):$"
    r"|[\w.\[\]]+\s*[-+*/|&]?=\s*[\w.\"'\[({-]+.*[)\]\w\"'};]$|[\w.]+\(.*\);?$)"
)


@dataclass(frozen=True, slots=True)
class Ban:
    """Something that must not be written: where, and what to write instead."""

    name: str
    find: Callable[[str], Iterator[int]]
    instead: str
    files: tuple[str, ...] = ALL
    below: tuple[str, ...] = FOLDERS
    but_not: tuple[str, ...] = field(default=())

    def covers(self, path: str) -> bool:
        """Tell whether a file (path from the root, with `/`) has to keep to this ban."""
        return (
            path.startswith(tuple(f"{folder}/" for folder in self.below))
            and any(fnmatch(path, pattern) for pattern in self.files)
            and not any(fnmatch(path, pattern) for pattern in self.but_not)
        )


def pattern(expression: str, *, comments: bool = False) -> Callable[[str], Iterator[int]]:
    """Find a regular expression; docstrings, and comments unless asked for, are left out."""
    compiled = re.compile(expression, re.MULTILINE)

    def find(text: str) -> Iterator[int]:
        if not comments:
            text = re.sub(r"(?m)(?:^|(?<=\s))(?:#|//).*$", "", without_docstrings(text))
        for match in compiled.finditer(text):
            yield line_of(text, match.start())

    return find


def without_docstrings(text: str) -> str:
    """Blank every triple-quoted string, keeping the number of lines."""
    return DOCSTRING.sub(lambda match: "\n" * match.group().count("\n"), text)


def line_of(text: str, at: int) -> int:
    """Return the 1-based line of a position in a text."""
    return text.count("\n", 0, at) + 1


def cython_functions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, signature, body) of every function of a Cython file."""
    text = without_docstrings(text)
    for match in CYTHON_FUNCTION.finditer(text):
        depth = len(match["indent"])
        body = []
        for line in text[match.end() :].split("\n"):
            if line.strip() and len(line) - len(line.lstrip(" ")) <= depth and body:
                break
            body.append(line)
        yield line_of(text, match.start()), match.group(), "\n".join(body).rstrip()


def raise_in_noexcept(text: str) -> Iterator[int]:
    """Find functions that may not raise, and do: the exception would be dropped in silence."""
    for line, signature, body in cython_functions(text):
        raising = re.search(r"^\s+raise\b", body, re.MULTILINE)
        if raising and re.search(r"\bnoexcept\b", signature):
            yield line + signature.count("\n") + body.count("\n", 0, raising.end())


def commented_out(text: str) -> Iterator[int]:
    """Find comments that are code: what is not needed is deleted, git keeps it."""
    for number, line in enumerate(without_docstrings(text).split("\n"), 1):
        comment = STATEMENT.match(line.strip())
        if comment and CODE.match(comment["code"].strip()):
            yield number


def subjectless(text: str) -> Iterator[int]:
    """Find comments on constants that begin with a genitive, whose noun is the name below."""
    before = ""
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"#: (?:of|for|so|to|by)\b", line) and not before.startswith("#:"):
            yield number
        before = line


BANS = (
    Ban(
        "mmap",
        pattern(r"^\s*(?:import mmap|from mmap import)|\bmmap\.flush\("),
        "MappedRegion.sync(): mmap.flush() keeps the GIL while the disk works",
        files=PYTHON,
        below=("rmqcore",),
    ),
    Ban("raise in noexcept", raise_in_noexcept, "return a status, the boundary raises", CYTHON),
    Ban(
        "void with nogil",
        pattern(r"\bvoid\s+\w+\s*\([^\n]*\)\s*(?:nogil|with nogil)\b"),
        "an int result or `noexcept nogil`: else each call takes the GIL to look for an exception",
        CYTHON,
    ),
    Ban("except *", pattern(r"\bexcept\s*\*"), "`except -1` or `noexcept`", CYTHON),
    Ban(
        "DEF, IF, include",
        pattern(r"^\s*(?:DEF\s+\w|IF\s+\w.*:|ELIF\s+\w.*:|ELSE\s*:|include\s+[\"'])"),
        "an enum in _layout.pxd, a C macro in a header, or a cimport",
        CYTHON,
    ),
    Ban("bare except", pattern(r"\bexcept\s*:"), "name the exceptions", (*PYTHON, *CYTHON)),
    Ban(
        "print(",
        pattern(r"(?<![\w.])print\("),
        "logging, or a value that the command line prints",
        (*PYTHON, *CYTHON),
        below=("rmqcore",),
        but_not=("rmqcore/cli/*",),
    ),
    Ban(
        "assert",
        pattern(r"^\s*assert\b"),
        "an exception that says what is wrong: `python -O` takes asserts out",
        (*PYTHON, *CYTHON),
        below=("rmqcore",),
    ),
    Ban(
        "slice of a head",
        pattern(
            r"\bfrom_bytes\(\s*[\w.]+\[(?=[^\]]*:)(?=[^\]]*\d)[^\]]*\]"
            r"|\bunpack(?:_from)?\(\s*[\"']>(?:ii|iI|iiiii)"
        ),
        "next_record, CommitLog.record_head, record_layout or LAYOUT: native code knows where the "
        "fields of a record lie",
        PYTHON,
        below=("rmqcore",),
        but_not=(
            "rmqcore/native/*",
            "rmqcore/metaq/*",
            "rmqcore/java/*",
            "rmqcore/remoting/*",
        ),
    ),
    Ban(
        "unfinished",
        pattern(r"\b(?:FIX" r"ME|TO" r"DO|XX" r"X)\b", comments=True),
        "finish it, or open an issue",
        but_not=("tests/meta/test_tidy.py",),
    ),
    Ban("commented-out code", commented_out, "delete it", CYTHON),
    Ban(
        "a constant's comment without a subject",
        subjectless,
        "a sentence that says what happens at the limit",
        PYTHON,
        below=("rmqcore",),
        but_not=("rmqcore/broker/*", "rmqcore/remoting/permissions.py"),
    ),
    Ban(
        "typed memoryview",
        pattern(r"\b(?:char|int|long|float|double|u?int(?:8|16|32|64)_t)\s*\[::?1?\]"),
        "a Py_buffer: smaller code, and safe in sub-interpreters",
        CYTHON,
    ),
)


def python_functions(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield (line, name, lines without the docstring) of every function of a Python file."""
    nodes: list[ast.AST] = [ast.parse(text)]
    for node in nodes:
        # no expression holds one
        nodes += [kid for kid in ast.iter_child_nodes(node) if not isinstance(kid, ast.expr)]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node) is not None:
                first = node.body[0]
                lines -= (first.end_lineno or first.lineno) - first.lineno + 1
            yield node.lineno, node.name, lines


def functions(path: str, text: str) -> Iterator[tuple[int, str, int]]:
    """Yield (line, name, lines without the docstring) of every function of a file."""
    if fnmatch(path, "*.py"):
        yield from python_functions(text)
    elif fnmatch(path, "*.pyx") or fnmatch(path, "*.pxd"):
        for line, signature, body in cython_functions(text):
            name = re.search(r"(\w+)\s*\(", signature)
            lines = [part for part in f"{signature}{body}".split("\n") if part.strip()]
            yield line, name[1] if name else "?", len(lines)


def complaints(path: str, text: str) -> list[str]:
    """Return all that is wrong with one file; `path` is from the project's root, with `/`."""
    found = [
        f"{path}:{line}: {ban.name} is banned; write {ban.instead}"
        for ban in BANS
        if ban.covers(path)
        for line in ban.find(text)
    ]
    lines = text.split("\n")
    limit = CYTHON_FILE_LINES_MAX if path.endswith(".pyx") else FILE_LINES_MAX
    if len(lines) - 1 > limit:
        found.append(f"{path}: {len(lines) - 1} lines, {limit} at most; make it two files")
    found += [
        f"{path}:{number}: {len(line)} columns, {LINE_COLUMNS_MAX} at most"
        for number, line in enumerate(lines, 1)
        if len(line) > LINE_COLUMNS_MAX
    ]
    found += [
        f"{path}:{line}: {name} has {count} lines, {FUNCTION_LINES_MAX} at most; make it two"
        for line, name, count in functions(path, text)
        if count > FUNCTION_LINES_MAX
    ]
    return found


def project_files(root: Path) -> Iterator[str]:
    """Yield the path from the root of every file that has to be tidy."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and any(fnmatch(path.name, kind) for kind in ALL):
                yield path.relative_to(root).as_posix()
