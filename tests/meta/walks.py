"""The places that docs/architecture.md names: `path:line` with what stands there."""

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path("docs/architecture.md")
PLACE = re.compile(
    r"`(?P<path>rmqcore/[\w/]+\.\w+):(?P<line>\d+)` (?P<mark>`+)(?P<text>.+?)(?P=mark)(?!`)"
)
STEP = re.compile(r"^\d+\. ")


@dataclass(frozen=True, slots=True)
class Place:
    """One place that the page names."""

    path: str
    line: int
    text: str

    def lines_with_it(self, root: Path) -> list[int]:
        """Return the numbers of the file's lines that hold the text."""
        lines = (root / self.path).read_text("utf-8").splitlines()
        return [number for number, line in enumerate(lines, 1) if self.text in line]


def places(text: str) -> list[Place]:
    """Find every place in a text."""
    return [Place(m["path"], int(m["line"]), m["text"]) for m in PLACE.finditer(text)]


def walks(text: str) -> dict[str, list[Place]]:
    """Return the steps of each walk by its title."""
    found: dict[str, list[Place]] = {}
    section = text.partition("## Walks\n")[2].partition("\n## ")[0]
    for part in section.split("\n### ")[1:]:
        title, _, body = part.partition("\n")
        steps = [line for line in body.splitlines() if STEP.match(line)]
        found[title] = [place for step in steps for place in places(step)]
    return found


def renumbered(text: str, root: Path) -> str:
    """Return the text with the line at which each place is now, where that is one line only."""

    def put_right(match: re.Match[str]) -> str:
        place = Place(match["path"], int(match["line"]), match["text"])
        lines = place.lines_with_it(root)
        line = min(lines, key=lambda each: abs(each - place.line), default=place.line)
        return f"`{place.path}:{line}` `{place.text}`"

    return PLACE.sub(put_right, text)
