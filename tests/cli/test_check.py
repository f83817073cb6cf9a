"""verify and dump: clean is 0, every damage is named, any file can be shown."""

import pytest

from rmqcore.cli.exit_codes import ExitCode

pytestmark = pytest.mark.engine


@pytest.fixture
def log(store):
    """The only file of the store's log."""
    return store / "commitlog" / f"{0:020d}"


def overwrite(path, at, data):
    with path.open("r+b") as stream:
        stream.seek(at)
        stream.write(data)


def test_a_store_in_order_is_clean(rmqcore, store):
    outcome = rmqcore("verify", store, "--json")
    assert outcome.exit_code == 0
    assert outcome.json["clean"] is True
    assert (outcome.json["records"], outcome.json["units"]) == (11, 11)
    assert "verdict: clean" in rmqcore("verify", store).stdout


def test_a_flipped_bit_of_a_body_is_named_with_its_place(rmqcore, store, log):
    overwrite(log, 88, b"!")
    outcome = rmqcore("verify", store)
    assert outcome.exit_code == ExitCode.FINDINGS
    assert f"error: {log} at 0: " in outcome.stdout
    assert "verdict: NOT clean" in outcome.stdout
    assert rmqcore("verify", store, "--no-crc").exit_code == 0


def test_a_wrong_unit_and_a_lost_index_are_named(rmqcore, store):
    overwrite(store / "consumequeue" / "Letters" / "0" / f"{0:020d}", 0, b"\0" * 7 + b"\7")
    for file in (store / "index").iterdir():
        file.unlink()
    findings = rmqcore("verify", store, "--jobs", 2, "--json").json["findings"]
    assert {finding["part"] for finding in findings} >= {"consume queue", "index"}


@pytest.mark.parametrize("name", ["basic", "aged", "transactions"])
def test_a_store_that_rocketmq_closed_is_clean(rmqcore, golden_store, name):
    golden = golden_store("5.5.0", name)
    outcome = rmqcore("verify", golden.path, "--config", golden.conf)
    assert outcome.exit_code == 0, outcome.stdout


def test_a_store_that_rocketmq_left_by_a_crash_is_not(rmqcore, golden_store):
    golden = golden_store("5.5.0", "crashed")
    outcome = rmqcore("verify", golden.path, "--config", golden.conf, "--json")
    assert outcome.exit_code == ExitCode.FINDINGS
    parts = {finding["part"] for finding in outcome.json["findings"]}
    assert parts >= {"log", "consume queue", "index"}


def test_dump_lists_the_files_that_it_can_show(rmqcore, store):
    rows = rmqcore("dump", store, "--json").json
    kinds = {row["kind"] for row in rows}
    assert kinds >= {"commitlog", "consumequeue", "index", "checkpoint"}
    for row in rows:
        assert rmqcore("dump", store, row["file"], "-n", 3).exit_code == 0, row


def test_dump_shows_the_fields_of_a_record_with_their_places(rmqcore, store, log):
    (item,) = rmqcore("dump", store, "commitlog/" + log.name, "-n", 1, "--json").json_lines
    assert (item["kind"], item["at"], item["problem"]) == ("record", 0, "")
    fields = {field["name"]: field for field in item["fields"]}
    assert (fields["body"]["at"], fields["body"]["hex"]) == (88, "61")
    assert fields["topic"]["value"] == "Letters"
    text = rmqcore("dump", store, "commitlog/" + log.name, "-n", 1).stdout
    assert "        88  body                         61 " in text


def test_dump_begins_where_it_is_told(rmqcore, store):
    words = ("dump", store, f"consumequeue/Letters/0/{0:020d}", "--start", 40, "-n", 1, "--json")
    assert rmqcore(*words).json["at"] == 40


def test_dump_ends_with_1_at_damage(rmqcore, store, log):
    overwrite(log, 88, b"!")
    outcome = rmqcore("dump", store, "commitlog/" + log.name)
    assert outcome.exit_code == ExitCode.FINDINGS
    assert "PROBLEM" in outcome.stdout


def test_dump_of_a_file_that_is_missing_or_of_no_kind(rmqcore, store):
    assert rmqcore("dump", store, "commitlog/none").exit_code == ExitCode.SYSTEM
    outcome = rmqcore("dump", store, "lock")
    assert outcome.exit_code == ExitCode.USAGE
    assert "say which kind" in outcome.stderr


def test_a_file_in_the_place_of_the_store_is_named_as_one(rmqcore, log):
    outcome = rmqcore("dump", log)
    assert outcome.exit_code == ExitCode.STORE
    assert "a file; give the directory of the store" in outcome.stderr
