"""The tables of docs/format/: a line `<!-- layout: NAME -->`, then the columns named below.

A row whose offset is `…` stands behind the row above it, at no fixed place: it is not compared.
"""

import re
from pathlib import Path

MARKER = re.compile(r"^<!-- layout: (?P<name>[\w.-]+) -->$")
COLUMNS = ("offset", "size", "type", "field", "meaning")
RULE = re.compile(r"^:?-+:?$")

FLOATING = "…"

Table = dict[str, tuple[int, int]]


def cells_of(line: str) -> list[str]:
    """Split a row of a Markdown table into its cells, without backticks."""
    return [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]


def tables(text: str) -> dict[str, Table]:
    """Return NAME -> field -> (offset, size) for every marked table of one document."""
    found: dict[str, Table] = {}
    lines = iter(text.splitlines())
    for line in lines:
        marker = MARKER.match(line.strip())
        if not marker:
            continue
        name = marker["name"]
        if name in found:
            raise ValueError(f"two tables are marked {name}")
        head = next((row for row in lines if row.strip()), "")
        if tuple(cells_of(head)) != COLUMNS:
            raise ValueError(f"{name}: the marker stands before {head!r}, not before {COLUMNS}")
        found[name] = table = {}
        for row in lines:
            if not row.startswith("|"):
                break
            cells = cells_of(row)
            if RULE.match(cells[0]):
                continue
            field = cells[COLUMNS.index("field")]
            if field in table:
                raise ValueError(f"{name}: two rows for {field}")
            if cells[0] != FLOATING:
                table[field] = (int(cells[0]), int(cells[1]))
    return found


def all_tables(folder: Path) -> dict[str, Table]:
    """Return the marked tables of every document of a folder."""
    found: dict[str, Table] = {}
    for path in sorted(folder.glob("*.md")):
        for name, table in tables(path.read_text("utf-8")).items():
            if name in found:
                raise ValueError(f"{path.name}: {name} is marked in another document, too")
            found[name] = table
    return found


def differences(documented: dict[str, Table], layout: dict[str, Table]) -> list[str]:
    """Say where the documents and the code disagree, in both directions."""
    found = [
        f"{name}: no table in docs/format" for name in sorted(layout.keys() - documented.keys())
    ]
    found += [f"{name}: not in LAYOUT" for name in sorted(documented.keys() - layout.keys())]
    for name in sorted(layout.keys() & documented.keys()):
        for field in sorted(layout[name].keys() | documented[name].keys()):
            code, page = layout[name].get(field), documented[name].get(field)
            if code is None or page is None or tuple(code) != page:
                found.append(f"{name}.{field}: code says {code}, docs/format says {page}")
    return found
