"""The tables in docs/format/ say what the code does, byte for byte."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
from meta.format_docs import all_tables, differences, tables

from rmqcore._codec import LAYOUT
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.config.store_config import SETTINGS
from rmqcore.ha.settings import HAConfig

pytestmark = pytest.mark.logic

ROOT = Path(__file__).parents[2]
FORMAT = ROOT / "docs" / "format"

PAGE = """
# A unit

<!-- layout: unit -->

| offset | size | type | field | meaning |
|-------:|-----:|------|-------|---------|
| 0 | 8 | int64 | `phy_offset` | where the record lies |
| 8 | 4 | int32 | `size` | its size |
| … | `size` | bytes | `rest` | at no fixed place |

Text.
"""
UNIT = {"phy_offset": (0, 8), "size": (8, 4)}


def test_documents_and_code_agree():
    assert not differences(all_tables(FORMAT), LAYOUT)


def test_the_record_at_the_head_of_its_kernels_is_that_of_the_page():
    page = (FORMAT / "commit-log.md").read_text("utf-8")
    row = r"^\| (\d+|…) \| [^|]* \| (\w+(?:-8)?)(?:, \w+)? \| (\w+) \|"
    section = page.split("\n## Record\n")[1].split("\n### ")[0]
    told = [(at.replace("…", "."), *rest) for at, *rest in re.findall(row, section, re.MULTILINE)]
    kernels = (ROOT / "rmqcore/native/format/_record.pxd").read_text("utf-8")
    drawn = re.findall(r"^# +(\d+|\.)  ([\w-]+) +(\w+)", kernels, re.MULTILINE)
    assert len(told) == 20
    # the first field at no fixed place is drawn where the last fixed one ends
    assert drawn == [*told[:9], ("48", *told[9][1:]), *told[10:]]


@pytest.mark.process
def test_the_page_of_settings_is_that_of_the_source():
    check = [sys.executable, ROOT / "scripts" / "settings_page.py", "--check"]
    stale = subprocess.run(check, capture_output=True, text=True, check=False)
    assert stale.stdout == "", "run python scripts/settings_page.py"
    assert stale.returncode == 0, stale.stderr


def test_every_setting_has_its_row_with_a_sentence():
    page = (ROOT / "docs" / "settings.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", page, re.MULTILINE))
    fields = (*dataclasses.fields(BrokerConfig), *dataclasses.fields(HAConfig))
    names = [*SETTINGS, *(each.metadata["java"] or each.name for each in fields)]
    assert [name for name in names if len(rows.get(name, "")) < 10] == []


def test_the_map_of_the_tests_names_every_file_and_no_other():
    page = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+/(?:test_\w+\.py)?)`", page))
    assert not [name for name in sorted(named) if not (ROOT / "tests" / name).exists()]
    files = sorted((ROOT / "tests").glob("*/test_*.py"))
    assert {f"{path.parent.name}/" for path in files} <= named
    assert [path for path in files if f"{path.parent.name}/{path.name}" not in named] == []


def test_each_loss_in_the_field_names_tests_that_exist():
    page = (ROOT / "docs" / "durability.md").read_text("utf-8")
    _, section = page.split("## Data that was lost in the field")
    rows = re.findall(r"^\| .* \| ([^|]*) \|$", section.split("\n## ")[0], re.MULTILINE)
    guards = [re.findall(r"(\w+/test_\w+)(?:: (\w+))?", last) for last in rows[1:]]
    assert len(guards) > 20
    assert all(guards), "a loss that no test guards"
    for file, name in (guard for row in guards for guard in row):
        source = (ROOT / "tests" / f"{file}.py").read_text("utf-8")
        assert re.search(rf"^(def |class )?{name}\b", source, re.MULTILINE), (file, name)


def test_a_table_is_read():
    assert tables(PAGE) == {"unit": UNIT}
    assert not differences(tables(PAGE), {"unit": UNIT})


@pytest.mark.parametrize(
    ("layout", "complaint"),
    [
        (
            {"unit": {**UNIT, "size": (8, 8)}},
            "unit.size: code says (8, 8), docs/format says (8, 4)",
        ),
        ({"unit": {**UNIT, "tags_code": (12, 8)}}, "unit.tags_code: code says (12, 8), "),
        ({"unit": {"phy_offset": (0, 8)}}, "unit.size: code says None, docs/format says (8, 4)"),
        ({"unit": UNIT, "slot": {}}, "slot: no table in docs/format"),
    ],
)
def test_a_difference_is_found(layout, complaint):
    (found,) = differences(tables(PAGE), layout)
    assert found.startswith(complaint)


def test_a_table_that_the_code_does_not_know_is_found():
    assert differences(tables(PAGE), {}) == ["unit: not in LAYOUT"]


@pytest.mark.parametrize(
    "page",
    [
        PAGE + PAGE,
        PAGE.replace("field", "name"),
        PAGE.replace("`size`", "`phy_offset`"),
        "<!-- layout: unit -->\nno table\n",
        PAGE.replace("| 8 | 4 |", "| 8 | 4 or 8 |"),
    ],
)
def test_a_table_that_cannot_be_compared_is_an_error(page):
    with pytest.raises(ValueError, match=r"unit|4 or 8"):
        tables(page)
