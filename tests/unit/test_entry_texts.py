"""A table that is formatted entry by entry stands in its file as one that is formatted whole."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqcore.files.entry_texts import EntryTexts
from rmqcore.java.json import format_java_json

pytestmark = pytest.mark.logic


@dataclass(frozen=True)
class Entry:
    size: int
    attributes: tuple[tuple[str, int], ...]

    def to_java(self):
        return {"attributes": dict(self.attributes), "size": self.size}


NAMES = st.text(max_size=3)
ENTRIES = st.builds(Entry, st.integers(), st.lists(st.tuples(NAMES, st.integers())).map(tuple))


@given(st.lists(st.dictionaries(NAMES, ENTRIES, max_size=5), min_size=1, max_size=4))
def test_what_changes_is_formatted_anew_and_all_of_it_stands_as_before(states):
    texts = EntryTexts(Entry.to_java)
    for state in states:
        whole = {name: state[name].to_java() for name in sorted(state)}
        file = format_java_json({"table": texts.table(state), "version": 1})
        assert file == format_java_json({"table": whole, "version": 1})


def test_what_stays_is_formatted_once():
    asked = []
    texts = EntryTexts(lambda entry: asked.append(entry.size) or entry.to_java())
    entries = {"b": Entry(1, ()), "a": Entry(2, ())}
    texts.table(entries)
    texts.table({**entries, "b": Entry(3, ())})
    assert asked == [2, 1, 3]
