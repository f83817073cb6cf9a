"""Deliberate breaks of the code that keeps messages: what `make mutants` tries, one at a time.

A part has a file here, NAME.toml, with one table a mutant:

    [name]
    breaks = "what is wrong then, as a user would say it"
    file = "rmqcore/..."                # what is changed
    old = "..."                         # this text, which stands there once,
    new = "..."                         # becomes this one
    found_by = ["cuts", "tests/..."]    # what is tried, in this order, until one of it is red
    survives = "why nothing finds it"   # only where nothing can, or need

`EVIDENCE` has the words of `found_by` that are no file of tests.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
#: what finds mutants besides files of tests: arguments of the command `rmqcore`
EVIDENCE = {
    "cuts": "selftest crash --cuts 240 --kills 0 --mounted 0 --seed 1",
    "kills": "selftest crash --cuts 0 --kills 90 --mounted 0 --seed 1",
    "faults": "selftest faults --max 12 --seed 1",
}


@dataclass(frozen=True)
class Mutant:
    """One break, and what has to find it."""

    part: str
    name: str
    breaks: str
    file: str
    old: str
    new: str
    found_by: tuple[str, ...]
    survives: str = ""

    @property
    def full_name(self):
        return f"{self.part}/{self.name}"

    @property
    def is_native(self):
        """Whether a module has to be compiled for it."""
        return self.file.endswith(".pyx")

    def apply(self, text):
        """The file's text with the break.

        Raises:
            LookupError: the text that is to be changed does not stand there once.
        """
        count = text.count(self.old)
        if count != 1:
            raise LookupError(f"{self.full_name}: {self.file} has its text {count} times, not once")
        return text.replace(self.old, self.new)


def parts():
    """Names of the parts, in the order of the pages' tables."""
    return sorted(path.stem for path in HERE.glob("*.toml"))


def mutants():
    """All mutants, part by part."""
    found = []
    for part in parts():
        tables = tomllib.loads((HERE / f"{part}.toml").read_text("utf-8"))
        for name, table in tables.items():
            found_by = tuple(table.pop("found_by"))
            found.append(Mutant(part, name, found_by=found_by, **table))
    return found
