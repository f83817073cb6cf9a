"""docs/metaq.md agrees with the code and names tests that exist."""

import re
from pathlib import Path

import pytest
from meta.format_docs import tables

from rmqcore.metaq import Location, encode_locations
from rmqcore.metaq._message_set import LAYOUT
from rmqcore.metaq.segments import HighWaterMark
from rmqcore.metaq.transaction import AddMsgLocation

pytestmark = pytest.mark.logic

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metaq.md").read_text("utf-8")
TABLES = tables(PAGE)


def ends(name):
    """Each field begins where the one before it ends; return where the last one does."""
    at = 0
    for offset, size in TABLES[name].values():
        assert offset == at
        at += size
    return at


def test_the_record_table_is_the_codes_layout():
    fields = TABLES["metaq-record"]
    offsets = {f"{name.upper()}_AT": offset for name, (offset, _) in fields.items()}
    assert offsets == {name: at for name, at in LAYOUT.items() if name.endswith("_AT")}
    assert ends("metaq-record") == LAYOUT["HEADER_SIZE"]


def test_the_other_tables_have_the_sizes_that_are_written(tmp_path):
    mark = HighWaterMark(tmp_path, writable=True)
    mark.note(7)
    mark.close()
    assert ends("metaq-high-water-mark") == mark.path.stat().st_size
    entry = AddMsgLocation.of(Location(0, 21), [(1, b"x", 0)], "t-0")
    assert ends("metaq-transaction-entry") == len(encode_locations([entry])) - len("t-0")


def test_each_difference_names_a_test_that_exists():
    section = PAGE.partition("## Differences from MetaQ")[2].partition("\n## ")[0]
    rows = [row.split("|")[1:-1] for row in section.splitlines() if re.match(r"\| M\d", row)]
    assert [row[0].strip() for row in rows] == [f"M{n}" for n in range(1, len(rows) + 1)]
    for row in rows:
        file, _, names = row[-1].partition(":")
        text = (Path(__file__).parent / f"{file.strip()}.py").read_text("utf-8")
        for name in names.split(","):
            assert f"def {name.strip()}(" in text, name


@pytest.mark.engine
def test_the_example_runs(tmp_path, capsys):
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    exec(code.replace("/var/meta", str(tmp_path)), {})
    assert capsys.readouterr().out.split()[1:] == ["urgent", "b'payload'"]
