"""A damaged record hides no good one, and what verify advises works when it is followed."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from rmqcore import CorruptStoreError, Message, open_store
from rmqcore.cli.exit_codes import ExitCode
from rmqcore.doctor import verify
from rmqcore.transfer import export_store

pytestmark = pytest.mark.engine

COUNT = 20
DAMAGED = 9
GOOD = [number for number in range(COUNT) if number != DAMAGED]


@pytest.fixture(params=["body", "magic", "size"])
def damaged(request, store_path):
    """A store of T/0 and T/1, in turn, whose tenth message is damaged: (path, its offset)."""
    with open_store(store_path, mapped_file_size_commit_log=1 << 16) as store:
        for number in range(COUNT):
            store.put("T", b"%d" % number * 3000, queue_id=number % 2, keys=f"k{number}")
        offset = [message.phy_offset for message in store.messages()][DAMAGED]
    at, wrong = {"body": (100, b"X"), "magic": (4, bytes(4)), "size": (0, b"\x7f")}[request.param]
    with (store_path / "commitlog" / f"{offset - offset % 65536:020d}").open("r+b") as log:
        log.seek(offset % 65536 + at)
        log.write(wrong)
    return store_path, offset


def numbers(bodies):
    return [int(body[: len(body) // 3000]) for body in bodies]


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize(
    ("queue", "wanted"),
    [
        ((), range(COUNT)),
        (("T",), [*range(0, COUNT, 2), *range(1, COUNT, 2)]),
        (("T", 1), range(1, COUNT, 2)),
    ],
)
def test_iteration_comes_up_to_the_damage_and_goes_on_behind_it(damaged, mode, queue, wanted):
    path, offset = damaged
    settings = {"on_corruption": "skip"} if mode == "a" else {}
    wanted = list(wanted)
    with open_store(path, mode=mode, **settings) as store:
        met = []
        found = numbers(m.body for m in store.messages(*queue, on_damage=met.append))
        assert found == [number for number in wanted if number != DAMAGED]
        if mode == "a" and queue and not met:
            return  # the queues were derived without it
        assert [error.phy_offset for error in met] == [offset]
        before = []
        with pytest.raises(CorruptStoreError) as error:
            before.extend(message.body for message in store.messages(*queue))
        assert numbers(before) == wanted[: wanted.index(DAMAGED)]
        assert error.value.phy_offset == offset


@pytest.mark.parametrize("command", [["cat"], ["cat", "T"], ["tail", "-n", "100"], ["tail", "T"]])
def test_a_command_goes_on_and_counts(rmqcore, damaged, command):
    path, offset = damaged
    name, *rest = command
    rest = [*rest, "-n", "100"] if rest == ["T"] and name == "tail" else rest
    stopped = rmqcore(name, path, *rest)
    assert stopped.exit_code == ExitCode.DAMAGED
    assert stopped.stdout
    assert "--skip-damaged" in stopped.stderr
    outcome = rmqcore(name, path, *rest, "--skip-damaged")
    assert outcome.exit_code == ExitCode.FINDINGS
    assert sorted(numbers(outcome.stdout.splitlines())) == GOOD
    first, last = outcome.stderr.splitlines()
    assert f" at {offset}: " in first
    assert last == "rmqcore: warning: damaged places that were passed over: 1"
    quiet = rmqcore(name, path, *rest, "--skip-damaged", "--json")
    assert [set(json.loads(line)) for line in quiet.stderr.splitlines()] == [{"warning"}] * 2


@pytest.mark.parametrize("table", ["T", "messages", "T a join T b using (phy_offset)"])
def test_sql_goes_on_and_counts(rmqcore, damaged, table):
    pytest.importorskip("duckdb")
    path, offset = damaged
    body = "a.text" if "join" in table else "text"
    query = f"select {body} as text from {table}"
    stopped = rmqcore("sql", path, query)
    assert stopped.exit_code == ExitCode.DAMAGED
    line = f"rmqcore: error: {path}/commitlog/[0-9]+ at {offset}: .*; --skip-damaged goes on .*\n"
    assert re.fullmatch(line, stopped.stderr)
    outcome = rmqcore("sql", path, query, "--skip-damaged", "--json")
    assert outcome.exit_code == ExitCode.FINDINGS
    assert sorted(numbers(row["text"] for row in outcome.json_lines)) == GOOD
    first, last = (json.loads(line)["warning"] for line in outcome.stderr.splitlines())
    assert f" at {offset}: " in first
    assert last == "damaged places that were passed over: 1"
    unknown = rmqcore("sql", path, "select nothing from T", "--skip-damaged")
    assert (unknown.exit_code, "nothing" in unknown.stderr) == (ExitCode.USAGE, True)


def test_a_dataset_goes_on_behind_a_damaged_record(damaged):
    pytest.importorskip("pyarrow")
    path, offset = damaged
    met = []
    with open_store(path, mode="r") as store:
        with pytest.raises(CorruptStoreError):
            store.arrow_dataset().to_table()
        dataset = store.arrow_dataset(on_damage=met.append)
    for part in (dataset, dataset.filter(None), *dataset.get_fragments()):
        assert numbers(part.to_table()["body"].to_pylist()) == GOOD
    assert [damage.phy_offset for damage in met] == [offset] * 3


def test_a_damaged_record_hides_no_message_with_its_key(rmqcore, store_path):
    with open_store(store_path, mapped_file_size_commit_log=1 << 16) as store:
        for number in range(COUNT):
            store.put("T", b"%d" % number, keys="all")
        offsets = [message.phy_offset for message in store.messages()]
    whole = rmqcore("query", store_path, "--key", "all", "--json")
    assert (whole.exit_code, len(whole.json["messages"])) == (ExitCode.DONE, COUNT)
    path = store_path / "commitlog" / f"{0:020d}"
    with path.open("r+b") as log:
        for number, at, wrong in ((3, 0, b"\x7f"), (5, 0, bytes(40)), (DAMAGED, 4, bytes(4))):
            log.seek(offsets[number] + at)
            log.write(wrong)
    asked = rmqcore("query", store_path, "--key", "all", "--json", "--explain")
    assert asked.exit_code == ExitCode.FINDINGS
    good = [number for number in range(COUNT) if number not in (3, 5, DAMAGED)]
    assert [int(message["body"]) for message in asked.json["messages"]] == good
    said = [json.loads(line)["warning"] for line in asked.stderr.splitlines()]
    places = [f"passed over: {path} at {offsets[number]}: " for number in (3, 5, DAMAGED)]
    assert [line.startswith(place) for line, place in zip(said, places, strict=False)] == [True] * 3
    assert said[3:] == ["damaged places that were passed over: 3"]
    damaged = asked.json["explanations"][0]["damaged"]
    assert [one["phy_offset"] for one in damaged] == [offsets[n] for n in (3, 5, DAMAGED)]
    with open_store(store_path, mode="r") as reader, pytest.raises(CorruptStoreError):
        reader.query_message("T", "all")


def test_a_damaged_record_hides_no_queue_from_a_time(rmqcore, store_path):
    with open_store(store_path, mapped_file_size_commit_log=1 << 16) as store:
        for number in range(2):
            store.put("T", b"body of some bytes", queue_id=number)
    with (store_path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.write(b"\x7f")
    asked = rmqcore("query", store_path, "--time", "2020-01-01", "--json")
    assert asked.exit_code == ExitCode.FINDINGS
    assert [(row["queue_id"], row["queue_offset"]) for row in asked.json] == [(0, 0), (1, 0)]
    assert [row["store_timestamp_ms"] is None for row in asked.json] == [True, False]
    assert asked.json[0]["phy_offset"] == 0
    assert "at 0: " in asked.stderr
    assert "(damaged)" in rmqcore("query", store_path, "--time", "2020-01-01").stdout


def emptied(folder):
    """Cut the last file of a folder to nothing."""
    sorted(folder.iterdir())[-1].write_bytes(b"")


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("commitlog", r"the log ends at 65536, and has ended at \d+"),
        ("consumequeue/T/1", r"queue T/1 ends at 0, and has ended at 10"),
        ("consumequeue/STORE/0", r"queue STORE/0 ends at 0, and has ended at 1"),
    ],
)
def test_a_command_says_that_a_log_or_a_queue_ends_sooner_than_it_has(
    rmqcore, store_path, tmp_path, folder, said
):
    with open_store(store_path, mapped_file_size_commit_log=1 << 16) as store:
        store.put("STORE", b"x")
        for number in range(COUNT):
            store.put("T", b"%d" % number * 4000, queue_id=number % 2)
        with open_store(store_path, mode="r") as reader:
            assert reader.missing() == []
    with open_store(store_path, mode="r") as reader:
        assert reader.missing() == []
    assert rmqcore("cat", store_path).stderr == ""
    emptied(store_path / folder)
    for words in (["cat", "T"], ["tail"], ["stat"], ["export", tmp_path / "out"]):
        outcome = rmqcore(words[0], store_path, *words[1:])
        assert outcome.exit_code == 0
        advice = f"; rmqcore doctor {store_path} says what can be had again\n"
        line = f"rmqcore: warning: {store_path}: {said}{re.escape(advice)}"
        assert re.fullmatch(line, outcome.stderr)
    with open_store(store_path, on_corruption="truncate") as store:
        assert open_store(store_path, mode="r").missing() == []
        store.put("T", b"new", queue_id=1)
    with open_store(store_path, mode="r") as reader:
        assert reader.missing() == []


def test_a_store_whose_deleted_topics_cannot_be_read_is_read_and_that_is_said(
    rmqcore, store_path, tmp_path
):
    with open_store(store_path) as store:
        store.put("T", b"x")
        store.put("Gone", b"x")
        store.delete_topic("Gone")
    deleted = store_path / "config" / "deletedTopics.json"
    for file in (deleted, deleted.with_name(f"{deleted.name}.bak")):
        file.write_bytes(b"{")
    for words in (["cat", "T"], ["tail"], ["stat"], ["export", tmp_path / "out"]):
        outcome = rmqcore(words[0], store_path, *words[1:])
        assert outcome.exit_code == 0
        assert outcome.stderr.startswith(f"rmqcore: warning: {store_path}: {deleted}: ")


def test_offsets_are_listed_beside_a_queue_that_cannot_be_read(rmqcore, store_path):
    with open_store(store_path) as store:
        for topic in ("A", "B", "C"):
            for _ in range(5):
                store.put(topic, b"x")
            store.consumer_offsets.commit(topic, "g", 0, 2)
    with (store_path / "consumequeue/B/0" / f"{0:020d}").open("r+b") as queue:
        queue.write(b"\xff" * 100)
    result = rmqcore("offsets", store_path, "--json")
    assert result.exit_code == ExitCode.DONE
    rows = json.loads(result.stdout)
    assert [(row["topic"], row["queue_offset"], row["lag"]) for row in rows] == [
        ("A", 2, 3),
        ("B", 2, None),
        ("C", 2, 3),
    ]
    assert "queue B/0 cannot be read" in result.stderr
    (line,) = [each for each in rmqcore("offsets", store_path).stdout.splitlines() if " B " in each]
    assert line.split() == ["g", "B", "0", "2", "-", "-", "-"]


def test_a_store_is_read_by_who_may_not_read_its_lock(rmqcore, store_path, monkeypatch):
    with open_store(store_path) as store:
        store.put("T", b"x")
    really = os.open

    def refusing(path, *more, **named):
        if Path(os.fsdecode(path)).name == "lock":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return really(path, *more, **named)

    monkeypatch.setattr(os, "open", refusing)
    outcome = rmqcore("cat", store_path, "T")
    assert (outcome.exit_code, outcome.stdout) == (0, "x\n")
    assert f"rmqcore: warning: {store_path}: [Errno 13] Permission denied: " in outcome.stderr


def test_a_table_command_says_that_a_queue_ends_sooner_than_it_has(rmqcore, store_path, tmp_path):
    pytest.importorskip("deltalake")
    with open_store(store_path, mapped_file_size_commit_log=1 << 16) as store:
        for number in range(COUNT):
            store.put("T", b"%d" % number, queue_id=number % 2)
    words = ("table", store_path, tmp_path / "table", "--topic", "T", "--once")
    queue = next((store_path / "consumequeue" / "T" / "1").iterdir())
    whole = queue.read_bytes()
    queue.write_bytes(bytes(len(whole)))
    advice = f"; rmqcore doctor {store_path} says what can be had again"
    assert f"warning: {store_path}: queue T/1 ends at 0, and has ended at 10{advice}\n" in (
        rmqcore(*words).stderr
    )
    queue.write_bytes(whole)
    assert "warning" not in rmqcore(*words).stderr


def test_a_command_says_that_a_log_begins_later_than_it_has(rmqcore, store_path):
    with open_store(store_path, mapped_file_size_commit_log=1 << 16) as store:
        for number in range(COUNT):
            store.put("T", b"%d" % number * 4000)
    (store_path / "commitlog" / f"{0:020d}").unlink()
    advice = f"; rmqcore doctor {store_path} says what can be had again\n"
    line = f"rmqcore: warning: {store_path}: the log begins at 65536, and has begun at 0{advice}"
    for words in (["cat", "T"], ["stat"], ["offsets"]):
        assert rmqcore(words[0], store_path, *words[1:]).stderr == line
    with open_store(store_path) as store:
        store.put("T", b"new")
    assert rmqcore("stat", store_path).stderr == ""


def test_a_command_says_that_a_queue_begins_later_than_it_has(rmqcore, store_path, tmp_path):
    with open_store(store_path, mapped_file_size_consume_queue=100) as store:
        for number in range(COUNT):
            store.put("T", b"%d" % number, queue_id=number % 2)
    (store_path / "consumequeue" / "T" / "1" / f"{0:020d}").unlink()
    advice = f"; rmqcore doctor {store_path} says what can be had again\n"
    said = "queue T/1 begins at 5, and has begun sooner"
    line = f"rmqcore: warning: {store_path}: {said}{advice}"
    for words in (["cat", "T"], ["tail"], ["stat"], ["offsets"], ["export", tmp_path / "out"]):
        assert rmqcore(words[0], store_path, *words[1:]).stderr == line
    exported = "".join(file.read_text() for file in (tmp_path / "out").glob("*.jsonl"))
    assert exported.count('"body"') == COUNT
    assert "rebuild-queues" in rmqcore("doctor", store_path).stdout
    with open_store(store_path) as store:
        assert store.min_queue_offset("T", 1) == 0
    assert rmqcore("stat", store_path).stderr == ""


def test_a_command_says_nothing_of_what_retention_has_deleted(rmqcore, store_path):
    with open_store(store_path, mapped_file_size_commit_log=1 << 16) as store:
        for number in range(COUNT):
            store.put("T", b"%d" % number * 4000)
    with open_store(store_path, retention_bytes=1 << 16) as store:
        store.delete_expired_files()
        assert store.min_phy_offset == 65536
    assert rmqcore("stat", store_path).stderr == ""


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_an_export_goes_on_and_counts(rmqcore, damaged, tmp_path, file_format):
    path, offset = damaged
    words = ["export", path, tmp_path / "out", "--format", file_format]
    stopped = rmqcore(*words)
    assert stopped.exit_code == ExitCode.DAMAGED
    assert "--skip-damaged" in stopped.stderr
    refused = rmqcore("import", tmp_path / "before", tmp_path / "out")
    assert refused.exit_code == ExitCode.USAGE
    assert "did not come to its end" in refused.stderr
    for file in sorted((tmp_path / "out").glob(f"*.{file_format}*")):
        assert rmqcore("import", tmp_path / "before", file).exit_code == 0
    with open_store(tmp_path / "before", mode="r") as store:
        assert numbers(m.body for m in store.messages()) == GOOD[:DAMAGED]
    outcome = rmqcore(*words, "--skip-damaged", "--json")
    assert outcome.exit_code == ExitCode.FINDINGS
    parts = outcome.json["parts"]
    assert (sum(part["rows"] for part in parts), sum(part["damaged"] for part in parts)) == (19, 1)
    (place,) = (place for part in parts for place in part["passed_over"])
    assert place["phy_offset"] == offset < place["next_offset"]
    assert f"passed over: {path}" in outcome.stderr
    assert rmqcore("import", tmp_path / "new", tmp_path / "out").exit_code == 0
    with open_store(tmp_path / "new", mode="r") as store:
        assert sorted(numbers(m.body for m in store.messages())) == GOOD


def test_an_export_without_queues_names_a_misspelt_topic(rmqcore, store, tmp_path):
    (topic, *_), *_ = open_store(store, mode="r").queues()
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "config")
    wrong = rmqcore("export", store, tmp_path / "out", "--topic", f"{topic}x")
    assert wrong.exit_code == ExitCode.USAGE
    assert f"did you mean {topic}?" in wrong.stderr
    right = rmqcore("export", store, tmp_path / "out", "--topic", topic, "--json")
    assert right.exit_code == 0
    assert right.json["parts"][0]["rows"] > 0


def test_an_export_finds_a_topic_whose_queues_are_lost(store_path, tmp_path):
    with open_store(store_path) as store:
        for topic in ("Lost", "There"):
            store.put(topic, b"x")
    shutil.rmtree(store_path / "consumequeue/Lost")
    parts = export_store(store_path, tmp_path / "out", file_format="jsonl", topics=["Lost"])
    assert [part.rows for part in parts] == [1]


def test_a_whole_store_is_not_said_to_be_damaged(rmqcore, store):
    for words in (["cat", store], ["tail", store, "-n", "100"]):
        assert rmqcore(*words, "--skip-damaged").exit_code == 0


def test_what_verify_advises_works(damaged):
    path, _ = damaged
    findings = verify(path).findings
    (log,) = [finding for finding in findings if finding.part == "log"]
    for words in ("--skip-damaged", 'on_corruption="skip"', "rmqcore doctor repair STORE"):
        assert words in log.how
    derived = [finding for finding in findings if finding.part != "log"]
    assert derived
    assert {finding.how.split(",")[0] for finding in derived} == {
        "rmqcore doctor repair STORE derives it again"
    }


def printed_commands(outcome, path):
    """The commands on this store that a command's output names, as words."""
    text = outcome.stdout + outcome.stderr
    verbs = "doctor plan|doctor repair|doctor undo|rebuild cq|rebuild index|cat"
    found = re.findall(rf"rmqcore ({verbs}) {re.escape(str(path))}( --skip-damaged)?", text)
    return {(*verb.split(), *option.split()) for verb, option in found}


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        ("size", ("put", "{}", "T")),
        ("magic", ("doctor", "explain", "{}")),
        ("body", ("verify", "{}")),
        ("size", ("verify", "{}")),
        ("body", ("doctor", "{}")),
    ],
    indirect=["damaged"],
)
def test_where_damage_is_met_the_doctor_is_named_and_what_is_printed_works(
    rmqcore, damaged, tmp_path, words
):
    path, _ = damaged
    met = rmqcore(*(word.format(path) for word in words), stdin="x\n")
    assert "STORE" not in met.stdout + met.stderr
    assert "mode=" not in met.stdout + met.stderr
    named = printed_commands(met, path)
    assert ("doctor", "plan") in named
    assert met.exit_code == {"put": 4, "verify": 1, "doctor": 4}[words[0]]
    codes = {"plan": 4, "repair": 1, "cat": 1}
    for verb in named:
        copy = tmp_path / "-".join(verb)
        shutil.copytree(path, copy)
        name, *options = verb[1:] if verb[0] == "doctor" else verb
        answers = ["--yes"] if name == "repair" else []
        group = ["doctor"] if verb[0] == "doctor" else []
        assert rmqcore(*group, name, copy, *options, *answers).exit_code == codes[name], verb
        if name == "repair":
            assert verify(copy).clean
            assert rmqcore("put", copy, "T", stdin="x\n").exit_code == 0


@pytest.mark.parametrize("damaged", ["size"], indirect=True)
def test_the_settings_that_an_error_names_work(rmqcore, damaged):
    path, _ = damaged
    refused = rmqcore("put", path, "T", stdin="x\n")
    settings = re.findall(r"-c (\w+=\w+)", refused.stderr)
    assert settings == ["on_corruption=skip", "on_corruption=truncate"]
    for setting in settings:
        assert rmqcore("put", path, "T", "-c", setting, stdin="x\n").exit_code == 0


@pytest.mark.parametrize("url", ["s3://bucket/messages", "hdfs:///messages", "file:///tmp/x"])
def test_an_export_to_a_url_is_refused(rmqcore, store, tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    outcome = rmqcore("export", store, url)
    assert outcome.exit_code == ExitCode.USAGE
    assert "no URL" in outcome.stderr
    assert set(tmp_path.iterdir()) == before


def two_files(path):
    """A closed store of one queue whose log has two files: the physical offset of each message."""
    with open_store(path, mapped_file_size_commit_log=1 << 16) as store:
        for number in range(COUNT):
            store.put("T", b"%d" % number * 3000)
        offsets = [message.phy_offset for message in store.messages()]
    assert offsets[-3] > 1 << 16
    return offsets


def overwrite(path, offset, wrong):
    with (path / "commitlog" / f"{offset - offset % 65536:020d}").open("r+b") as log:
        log.seek(offset % 65536)
        log.write(wrong)


@pytest.mark.parametrize("wrong", [b"\x7f" * 8, bytes(100)], ids=["garbage", "zeros"])
@pytest.mark.parametrize("lost", [(DAMAGED, COUNT - 1), (0, 1, COUNT - 2, COUNT - 1)])
def test_a_damaged_end_hides_nothing_between_it_and_other_damage(store_path, lost, wrong):
    offsets = two_files(store_path)
    for number in lost:
        overwrite(store_path, offsets[number], wrong)
    wanted = [number for number in range(COUNT) if number not in lost]
    with open_store(store_path, mode="r") as store:
        for queue in ((), ("T",)):
            found = store.messages(*queue, on_damage=lambda _: None)
            assert numbers(message.body for message in found) == wanted
    rows = [message["queue_offset"] for message in exported(store_path)]
    assert rows == wanted


def test_behind_what_a_kill_has_left_nothing_is_shown(store_path):
    offsets = two_files(store_path)
    for number in (DAMAGED, COUNT - 1):
        overwrite(store_path, offsets[number], b"\x7f" * 8)
    (store_path / "abort").touch()
    with open_store(store_path, mode="r") as store:
        assert store.max_phy_offset == offsets[DAMAGED]


@pytest.mark.parametrize("wrong", [b"\x7f" * 8, bytes(100)], ids=["garbage", "zeros"])
def test_an_export_has_the_last_file_though_it_begins_with_damage(store_path, wrong):
    offsets = two_files(store_path)
    first = next(number for number, offset in enumerate(offsets) if offset >= 65536)
    overwrite(store_path, offsets[first], wrong)
    with pytest.raises(CorruptStoreError):
        export_store(store_path, store_path / "out", file_format="jsonl")
    wanted = [number for number in range(COUNT) if number != first]
    assert [message["queue_offset"] for message in exported(store_path)] == wanted


def exported(path):
    """The messages of an export that passes over damage."""
    out = path / "export"
    parts = export_store(path, out, file_format="jsonl", skip_damaged=True)
    lines = [line for part in parts for line in (out / part.file).read_text().splitlines()]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "unit",
    [bytes(20), (1 << 40).to_bytes(8) + (99).to_bytes(4) + bytes(8)],
    ids=["zeros", "far away"],
)
@pytest.mark.parametrize("lost", ["First", "Last"])
def test_a_damaged_queue_hides_no_message_from_the_end_of_the_log(rmqcore, store_path, lost, unit):
    """It is the log whose end is asked for."""
    with open_store(store_path, mapped_file_size_consume_queue=60) as store:
        for number in range(COUNT):
            store.put("First" if number < COUNT // 2 else "Last", b"%d" % number)
    for path in (store_path / "consumequeue" / lost / "0").iterdir():
        path.write_bytes(unit * 3)
    for count in (5, COUNT - 3, 100):
        outcome = rmqcore("tail", store_path, "-n", count)
        assert [int(line) for line in outcome.stdout.split()] == [*range(COUNT)][-count:]
        assert f"queue {lost}/0" in outcome.stderr


@pytest.mark.parametrize("unit", [bytes(20), b"\xff" * 20], ids=["zeros", "ones"])
@pytest.mark.parametrize("files", [[0], [1], [3], [0, 1, 2, 3]], ids=str)
def test_a_topic_is_shown_whole_past_damaged_files_of_its_queues(rmqcore, store_path, files, unit):
    """What the units do not lead to is in the log."""
    with open_store(store_path, mapped_file_size_consume_queue=60) as store:
        for number in range(24):
            store.put("T", b"%d" % number, queue_id=number % 2)
        store.put("Other", b"99")
    queue = store_path / "consumequeue" / "T" / "0"
    for file in [sorted(queue.iterdir())[number] for number in files]:
        file.write_bytes(unit * 3)
    for command, ordered in (("cat", False), ("tail", True)):
        more = () if command == "cat" else ("-n", 100)
        outcome = rmqcore(command, store_path, "T", "--skip-damaged", *more)
        shown = [int(line) for line in outcome.stdout.split()]
        assert (shown if ordered else sorted(shown)) == [*range(24)]
        assert "T/0" in outcome.stderr
    place = ("--queue", 0, "--start", 2, "--stop", 11)
    part = rmqcore("cat", store_path, "T", *place, "--skip-damaged")
    assert [int(line) for line in part.stdout.split()] == [*range(4, 22, 2)]


@pytest.mark.parametrize("files", [[0], [2], [0, 1, 2, 3]], ids=str)
def test_a_light_queue_is_shown_whole_past_damaged_files(rmqcore, store_path, files):
    """Its numbers are others than those that its messages have in their own queue."""
    light = {"enable_lmq": True, "enable_multi_dispatch": True}
    named = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
    with open_store(store_path, mapped_file_size_consume_queue=60, **light) as store:
        for number in range(-6, 12):
            properties = named if number >= 0 else {}
            store.put_message(Message("T", b"%d" % number, properties=properties))
    queue = store_path / "consumequeue" / "%LMQ%a" / "0"
    for file in [sorted(queue.iterdir())[number] for number in files]:
        file.write_bytes(bytes(60))
    for more in ((), ("--queue", 0, "--start", 1, "--stop", 11)):
        outcome = rmqcore("cat", store_path, "%LMQ%a", "--skip-damaged", *more)
        wanted = range(1, 11) if more else range(12)
        assert [int(line) for line in outcome.stdout.split()] == [*wanted]


@pytest.mark.parametrize("size", [0, 3])
def test_an_index_that_nothing_tells_about_hides_no_message(rmqcore, store_path, tmp_path, size):
    with open_store(store_path, max_hash_slot_num=16, max_index_num=64) as store:
        for number in range(COUNT):
            store.put("T", b"%d" % number, keys=f"k{number}")
    for file in (store_path / "index").iterdir():
        file.write_bytes(b"\x5a" * (file.stat().st_size - size))
    for command in ("cat", "tail"):
        more = () if command == "cat" else ("-n", 100)
        outcome = rmqcore(command, store_path, *more, "T")
        assert (outcome.exit_code, outcome.stdout.split()) == (0, [str(n) for n in range(COUNT)])
        assert "no key is looked up" in outcome.stderr
    assert rmqcore("export", store_path, tmp_path / "out", "--format", "jsonl").exit_code == 0
    assert rmqcore("query", store_path, "--key", "k3").exit_code == ExitCode.USAGE
