"""Mutants still apply, name evidence that there is, and stand in docs/durability.md."""

import re
from pathlib import Path

import pytest
from mutants import EVIDENCE, mutants, parts

pytestmark = pytest.mark.logic

ROOT = Path(__file__).parents[2]
PARTS = (
    *("archive", "checkpoint", "config", "delivery", "flush", "found", "imports"),
    *("index", "leases", "lost", "metaq", "pool", "queue", "recovery"),
    *("repair", "replication", "roll", "staged", "tables", "tail"),
)
ALL = mutants()


def test_each_part_has_mutants_and_there_are_many():
    assert parts() == list(PARTS)
    assert {mutant.part for mutant in ALL} == set(PARTS)
    assert len(ALL) >= 40


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.full_name)
def test_a_mutant_applies_and_names_its_evidence(mutant):
    text = (ROOT / mutant.file).read_text("utf-8")
    assert mutant.apply(text) != text
    assert mutant.found_by
    for evidence in mutant.found_by:
        assert evidence in EVIDENCE or (ROOT / evidence).is_file(), evidence


def test_a_text_that_is_gone_is_an_error_that_names_the_mutant():
    mutant = ALL[0]
    with pytest.raises(LookupError, match=mutant.full_name):
        mutant.apply("other text")
    with pytest.raises(LookupError, match="2 times"):
        mutant.apply(2 * mutant.old)


def test_the_page_lists_each_with_what_has_found_it():
    page = (ROOT / "docs/durability.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([a-z]+/[a-z-]+)` \| [^|]* \| ([^|]*) \|$", page, re.M))
    assert rows.keys() == {mutant.full_name for mutant in ALL}
    for mutant in ALL:
        told = rows[mutant.full_name]
        if mutant.survives:
            assert told == f"nothing: {mutant.survives}"
        else:
            assert told.strip("`") in mutant.found_by
