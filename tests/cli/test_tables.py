"""Tables at any width: names and numbers stay whole, and no control character passes."""

import pytest

from rmqcore import open_store
from rmqcore.cli.tables import cell_text, facts_lines, table_lines

pytestmark = pytest.mark.logic

TOPIC, GROUP, BROKER = "Orders_of_the_webshop", "billing_service_eu", "broker-a"
LONG = "a-topic-whose-name-goes-on-and-on-" * 3
TIME, ADDRESS, COUNT = "2026-11-26 18:55:28.680", "10.250.130.140:10911", "12,345,678"
#: heads, a row, and how many of the heads, from the left, are names
TABLES = {
    "offsets": (
        "group|topic|queue id|queue offset|min queue offset|max queue offset|lag",
        (GROUP, TOPIC, "3", COUNT, "0", COUNT, "17"),
        2,
    ),
    "stat": ("topic|queues|messages", (TOPIC, "8", COUNT), 1),
    "stat --queues": (
        "topic|queue id|min queue offset|max queue offset|messages",
        (TOPIC, "3", "0", COUNT, COUNT),
        1,
    ),
    "stat --trace": (
        "time|thread|event|log end|flushed|dispatched|count|words",
        (TIME, "ReputMessageService", "dispatch", COUNT, COUNT, COUNT, "1", "the log went on"),
        3,
    ),
    "query --time": (
        "topic|queue|offset|stored|physical",
        (TOPIC, "3", COUNT, TIME, COUNT),
        1,
    ),
    "dump": ("file|kind|bytes", ("consumequeue/" + TOPIC + "/0/" + "0" * 20, "units", COUNT), 2),
    "admin clusterList": (
        "cluster|broker name|broker id|address|version|put tps|get tps",
        ("DefaultCluster", BROKER, "0", ADDRESS, "V5_5_0", "1234.56", "1234.56"),
        7,
    ),
    "admin consumerProgress": (
        "topic|broker name|queue id|broker offset|consumer offset|lag|last timestamp",
        (TOPIC, BROKER, "3", COUNT, COUNT, COUNT, TIME),
        2,
    ),
    "admin topicRoute": (
        "broker name|addresses|read queues|write queues|perm",
        (BROKER, f"{ADDRESS} {ADDRESS}", "8", "8", "6"),
        2,
    ),
    "admin consumerConnection": (
        "client id|address|language|version",
        (ADDRESS + "@12345#1234567890", ADDRESS, "PYTHON", "477"),
        3,
    ),
    "ha status": (
        "broker name|role|address|end|peer|lag bytes|lag ms",
        (BROKER, "master", ADDRESS, COUNT, ADDRESS, COUNT, "12"),
        3,
    ),
    "selftest": (
        "what|cases|acknowledged|broken|unprotected|holds|seconds",
        ("power cuts, replayed", "10,000", COUNT, "0", "0", "yes", "1234.5"),
        1,
    ),
}


def laid_out(name, width, *, long=False):
    heads, row, names = TABLES[name]
    heads = heads.split("|")
    if long:
        row = (LONG, *row[1:])
    return table_lines(heads, [row, row], right=heads[names:], width=width), row


@pytest.mark.parametrize("long", [False, True], ids=["usual", "long"])
@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_whole_in_a_narrow_terminal(name, width, long):
    lines, row = laid_out(name, width, long=long)
    for text in row:
        words = [text] if text != row[-1] or " " not in text else text.split()
        for word in words:
            assert sum(word in line for line in lines) >= 2, (word, lines)
    longest = max(map(len, row))
    assert max(map(len, lines)) <= max(width, longest + 4)


def test_offsets_of_names_of_twenty_letters_are_a_table_at_80_columns():
    heads = TABLES["offsets"][0].split("|")
    row = [GROUP, TOPIC, "3", "12,345", "0", "12,362", "17"]
    lines = table_lines(heads, [row], right=heads[2:], width=80)
    assert lines[0].split() == ["group", "topic", "queue", "queue", "min", "max", "lag"]
    assert lines[-1].split() == row


def test_without_a_width_each_row_is_a_line():
    lines, row = laid_out("stat --trace", None, long=True)
    assert len(lines) == 4
    assert all(text in lines[2] for text in row)


def test_a_last_column_of_sentences_is_wrapped_at_words():
    said = "the log is not what its master has, from here up to the end"
    lines = table_lines(["file", "what"], [["log", said]], width=30)
    assert " ".join(" ".join(line.split()) for line in lines[2:]) == f"log {said}"
    assert max(map(len, lines)) <= 30


def test_facts_go_on_below_themselves():
    lines = facts_lines({"log": "one two three four five six", "index": "none"}, width=28)
    assert lines == [" log    one two three four", "        five six", " index  none"]
    assert facts_lines({}) == []


def test_wide_letters_take_two_columns():
    lines = table_lines(["topic", "n"], [["\u8ba2\u5355", "1"], ["abcd", "2"]], right=["n"])
    assert [line[-1] for line in lines[2:]] == ["1", "2"]
    assert lines[2].index("1") + 2 == lines[3].index("2")


def test_no_control_character_passes():
    assert cell_text("a\x1b[2Jb\u202e\n") == "a\\x1b[2Jb\\u202e\\n"
    assert (cell_text(1234567), cell_text(True), cell_text(None)) == ("1,234,567", "yes", "None")


@pytest.mark.engine
def test_a_command_takes_the_width_of_its_terminal(rmqcore, tmp_path, monkeypatch):
    with open_store(tmp_path / "s") as store:
        store.put(TOPIC, b"x")
        store.consumer_offsets.commit(TOPIC, GROUP, 0, 1)
    for columns in ("80", "60"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = rmqcore("offsets", tmp_path / "s").stdout.splitlines()
        assert any(TOPIC in line for line in lines)
        assert max(map(len, lines)) <= int(columns)
