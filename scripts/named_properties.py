"""Write what the table of named properties says into the files that have to spell it out.

A region begins with a line ``named properties: WHAT`` and ends with ``named properties end``; in a
docstring it follows `IN_WORDS`.

Usage: python scripts/named_properties.py [--check]
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
#: alone, as what is written here may be needed to import the rest
TABLE = runpy.run_path(str(ROOT / "rmqcore/native/format/named_properties.py"))["NAMED"]
FILES: Final = (
    "rmqcore/native/format/_message.pyx",
    "rmqcore/native/format/_message.pyi",
    "rmqcore/native/format/_message_ext.pyx",
    "rmqcore/native/format/_message_ext.pyi",
    "rmqcore/native/log/_putter.pyx",
    "rmqcore/native/log/_putter.pyi",
    "rmqcore/message.py",
    "docs/api.md",
)
REGION: Final = re.compile(
    r"^( *)(\S+ )named properties: (\w+)(.*)\n(?:.*\n)*?( *\S+ named properties end.*\n)", re.M
)
IN_WORDS: Final = re.compile(
    r"^( *)(and properties that have names of their own, or None:\n)(?:\1\w+: .*\n)*", re.M
)


def sentence(words: str) -> str:
    """Words that stand alone."""
    return words[:1].upper() + words[1:]


def arguments() -> list[str]:
    """Of a native function."""
    return [f"{each.attribute}=None," for each in TABLE]


def typed_arguments() -> list[str]:
    """Of a stub's function."""
    return [f"{each.attribute}: {each.kind.__name__} | None = None," for each in TABLE]


def merged() -> list[str]:
    """What brings the arguments among the properties."""
    given = [f"{each.attribute} is not None" for each in TABLE]
    return [
        "if (",
        f"    {given[0]}",
        *(f"    or {each}" for each in given[1:]),
        "):",
        "    properties = with_named(",
        "        properties,",
        *(f"        {each.attribute}={each.attribute}," for each in TABLE),
        "    )",
    ]


def attributes() -> list[str]:
    """Of a native class."""
    readers = {int: "number_of", str: "text_of"}
    lines = [
        [
            "@property",
            f"def {each.attribute}(self):",
            f'    """{sentence(each.words)}"""',
            f'    return {readers[each.kind]}(self.properties, "{each.name}")',
        ]
        for each in TABLE
    ]
    return [line for first, *rest in lines for line in ("", first, *rest)][1:]


def typed_attributes() -> list[str]:
    """Of a stub's class."""
    return [
        line
        for each in TABLE
        for line in (
            "@property",
            f"def {each.attribute}(self) -> {each.kind.__name__} | None: ...",
        )
    ]


def settings() -> list[str]:
    """Of a typed dict."""
    return [f"{each.attribute}: {each.kind.__name__} | None" for each in TABLE]


def stored() -> list[str]:
    """Attributes that are those of the stored message."""
    return [f"{each.attribute} = Stored[{each.kind.__name__} | None]()" for each in TABLE]


def table() -> list[str]:
    """Of a page."""
    rows = [(f"`{a}`", f"`{name}`", kind.__name__, sentence(says)) for a, name, kind, says in TABLE]
    head = ["| argument and attribute | property | type | |", "|---|---|---|---|"]
    return ["", *head, *(f"| {' | '.join(cells)} |" for cells in rows), ""]


MAKERS: Final = {
    made.__name__: made
    for made in (
        arguments,
        typed_arguments,
        merged,
        attributes,
        typed_attributes,
        settings,
        stored,
        table,
    )
}


def written(text: str) -> str:
    """The text of a file with its regions as the table says."""

    def region(found: re.Match[str]) -> str:
        indent, mark, what, rest, end = found.groups()
        lines: list[Any] = [f"{indent}{line}".rstrip() for line in MAKERS[what]()]
        return "\n".join([f"{indent}{mark}named properties: {what}{rest}", *lines, end])

    def words(found: re.Match[str]) -> str:
        lines = [f"{found[1]}{each.attribute}: {each.words}\n" for each in TABLE]
        return "".join([found[1], found[2], *lines])

    return IN_WORDS.sub(words, REGION.sub(region, text))


def main() -> int:
    """Write the files, or with ``--check`` say which are not as the table says."""
    check, wrong = "--check" in sys.argv, []
    for name in FILES:
        text = (ROOT / name).read_text("utf-8")
        if written(text) != text:
            wrong.append(name)
            if not check:
                (ROOT / name).write_text(written(text), "utf-8")
    if check and wrong:
        print(f"named_properties: run it, {', '.join(wrong)} would change")
    return int(check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
