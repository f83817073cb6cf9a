"""cat and tail: the right messages, in order, in each form."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from patience import TIMEOUT_S

from rmqcore import ReadOnlyMessageStore, open_store
from rmqcore.cli import read

from .conftest import COMMAND

pytestmark = pytest.mark.process


def test_cat_prints_the_bodies_of_the_log_in_its_order(rmqcore, store):
    outcome = rmqcore("cat", store, "-n", 10)
    assert outcome.stdout == "a\nA\nb\nB\nc\nC\nd\nD\ne\nE\n"
    assert (outcome.exit_code, outcome.stderr) == (0, "")


def test_cat_prints_the_queues_of_a_topic_one_after_the_other(rmqcore, store):
    assert rmqcore("cat", store, "Letters").stdout == "a\nb\nc\nd\ne\nA\nB\nC\nD\nE\n"


def test_cat_prints_one_queue_between_two_offsets(rmqcore, store):
    words = ("Letters", "--queue", 1, "--start", 1, "--stop", 3)
    assert rmqcore("cat", store, *words).stdout == "B\nC\n"


def test_cat_prints_the_log_from_a_physical_offset(rmqcore, store):
    offsets = [line["phy_offset"] for line in rmqcore("cat", store, "--json").json_lines]
    assert rmqcore("cat", store, "--start", offsets[8], "--stop", offsets[10]).stdout == "e\nE\n"


def test_cat_selects_by_tags(rmqcore, store):
    assert rmqcore("cat", store, "Letters", "--tags", "t1").stdout == "b\nd\n"
    assert rmqcore("cat", store, "--tags", "t0 || t1").stdout == "a\nb\nc\nd\ne\n"


def test_cat_selects_by_store_time(rmqcore, store):
    times = [line["store_timestamp_ms"] for line in rmqcore("cat", store, "--json").json_lines]
    assert rmqcore("cat", store, "--since", times[0], "--until", times[-1]).stdout.count("\n") == 11
    assert rmqcore("cat", store, "--since", times[-1] + 1).stdout == ""
    assert rmqcore("cat", store, "--until", times[0] - 1).stdout == ""
    assert rmqcore("cat", store, "--until", "1d").stdout == ""


def test_cat_long_says_where_each_message_lies(rmqcore, store):
    line = rmqcore("cat", store, "-l", "-n", 1).stdout
    assert "  Letters/0@0  phy=0  tags=t0  keys=letter,a  a\n" in line


def test_cat_long_is_one_line_a_message_whatever_its_body(rmqcore, store_path):
    with open_store(store_path) as opened:
        opened.put("T", b"two\nlines\x1b[31m \xff \xc3\xa9")
    line = rmqcore("cat", store_path, "-l").stdout
    assert line.endswith("  two\\nlines\\x1b[31m \\xff é\n")
    assert line.count("\n") == 1


def test_cat_json_has_the_attributes_of_a_message(rmqcore, store):
    with open_store(store, mode="r") as opened:
        first = next(opened.messages())
        line = rmqcore("cat", store, "--json", "-n", 1).json
        for name, value in line.items():
            if name == "body":
                assert value.encode() == first.body
            elif name == "keys":
                assert tuple(value) == first.keys
            else:
                assert value == getattr(first, name), name


def test_cat_json_writes_a_body_that_is_no_text_as_base64(rmqcore, store):
    line = rmqcore("cat", store, "Bytes", "--json").json
    assert line["body_base64"] == "/wA="
    assert "body" not in line


def test_cat_writes_the_bytes_of_a_body_unchanged(store):
    done = subprocess.run([*COMMAND, "cat", store, "Bytes"], capture_output=True, check=True)
    assert done.stdout == b"\xff\x00\n"


def test_cat_into_a_pipe_that_closes_says_nothing(tmp_path):
    with open_store(tmp_path / "s") as opened:
        for _ in range(20_000):
            opened.put("T", b"x" * 100)
    command = [*COMMAND, "cat", str(tmp_path / "s")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"x" * 100 + b"\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT_S) == 141


@pytest.mark.parametrize("words", [["--help"], ["cat", "--help"]])
def test_help_into_a_pipe_that_closes_says_nothing(words):
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run([*COMMAND, *words], stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_tail_prints_the_last_messages_of_the_log(rmqcore, store):
    assert rmqcore("tail", store, "-n", 3, "--json").json_lines[-1]["topic"] == "Bytes"
    assert [line["topic"] for line in rmqcore("tail", store, "-n", 3, "--json").json_lines] == [
        "Letters",
        "Letters",
        "Bytes",
    ]


def test_tail_prints_the_last_messages_of_a_topic_in_the_order_of_the_log(rmqcore, store):
    assert rmqcore("tail", store, "Letters", "-n", 3).stdout == "D\ne\nE\n"


def test_tail_prints_the_last_messages_of_a_queue(rmqcore, store):
    assert rmqcore("tail", store, "Letters", "--queue", 0, "-n", 2).stdout == "d\ne\n"


def test_tail_of_an_empty_store_and_of_no_messages_prints_nothing(rmqcore, store, tmp_path):
    open_store(tmp_path / "empty").close()
    assert rmqcore("tail", tmp_path / "empty").stdout == ""
    assert rmqcore("tail", store, "-n", 0).stdout == ""


@contextlib.contextmanager
def follow(store, *words):
    """Let `tail -f` run beside the test, some minutes at most."""
    process = subprocess.Popen(
        [*COMMAND, "tail", str(store), "-f", "--interval", "10", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - alone
    )
    watchdog = threading.Timer(3 * TIMEOUT_S, process.kill)
    watchdog.start()
    with process:
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def test_tail_follows_a_live_writer_through_rolled_files(store):
    with open_store(store) as opened:
        opened.put("Live", b"0x", tags="live")
        with follow(store, "-n", "1", "--tags", "live") as process:
            assert process.stdout.readline() == "0x\n"
            for number in range(1, 60):
                body = b"%d" % number + b"x" * 50_000
                opened.put("Live", body, tags="live" if number % 2 else "dead", queue_id=number % 3)
            for number in range(1, 60, 2):
                assert process.stdout.readline().startswith(f"{number}x")


def test_tail_follows_a_topic_with_queues_that_appear_later(store):
    with open_store(store) as opened, follow(store, "Letters", "-n", "1") as process:
        assert process.stdout.readline() == "E\n"
        opened.put("Other", b"no")
        for queue_id in (0, 7):
            opened.put("Letters", f"queue {queue_id}".encode(), queue_id=queue_id)
            assert process.stdout.readline() == f"queue {queue_id}\n"


def test_tail_follows_a_queue_that_cannot_be_read_and_repeats_nothing(store):
    with open_store(store) as opened:
        for number in range(24):
            opened.put("Torn", b"%d" % number, queue_id=number % 2)
    with (store / "consumequeue" / "Torn" / "0" / f"{0:020d}").open("r+b") as units:
        units.seek(60)
        units.write(bytes(20))
    with follow(store, "Torn", "-n", "2", "--skip-damaged") as process:
        assert [process.stdout.readline() for _ in range(2)] == ["22\n", "23\n"]
        with open_store(store) as opened:
            for number in range(24, 30):
                opened.put("Torn", b"%d" % number, queue_id=number % 2)
                assert process.stdout.readline() == f"{number}\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().count("passed over") == 1


def test_tail_follows_a_writer_in_another_process(store):
    script = (
        "import sys, rmqcore\n"
        "with rmqcore.open_store(sys.argv[1]) as s:\n"
        "    for n in range(1000): s.put('Far', b'%d' % n)\n"
    )
    with open_store(store) as opened:
        opened.put("Far", b"first")
    with follow(store, "Far", "-n", "1") as process:
        assert process.stdout.readline() == "first\n"
        subprocess.run([sys.executable, "-c", script, str(store)], check=True)
        assert [process.stdout.readline() for _ in range(1000)] == [f"{n}\n" for n in range(1000)]


def test_interrupting_tail_ends_it_with_130_and_one_line(store):
    with follow(store, "Letters", "-n", "1") as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130
        assert process.stderr.read() == "rmqcore: interrupted\n"


@pytest.mark.parametrize("gone", ["Letters/0", "Letters"])
def test_messages_of_a_queue_whose_files_are_lost_are_shown_of_the_log(rmqcore, store, gone):
    with open_store(store) as opened:
        opened.put("Other", b"other")
    shutil.rmtree(store / "consumequeue" / gone)
    for words in (["cat", store, "Letters"], ["tail", store, "Letters", "-n", 100]):
        shown = rmqcore(*words, "--skip-damaged")
        assert sorted(shown.stdout) == sorted("a\nb\nc\nd\ne\nA\nB\nC\nD\nE\n")
        assert "queue Letters/0 ends at 0, and has ended at 5" in shown.stderr
    one = rmqcore("cat", store, "Letters", "--queue", 0, "--start", 1, "--skip-damaged")
    assert one.stdout == "b\nc\nd\ne\n"


@pytest.mark.parametrize("told_by", ["the mark", "the log"])
def test_a_store_whose_queues_are_all_lost_shows_what_its_log_has(rmqcore, store, told_by):
    with open_store(store) as opened:
        opened.put("Other", b"other")
    shutil.rmtree(store / "consumequeue")
    if told_by == "the log":
        # as in a store that RocketMQ has written
        (store / "config" / "storeMark.json").unlink()
    for words in (["cat", store, "Letters"], ["tail", store, "Letters", "-n", 100]):
        assert "rebuild cq" in rmqcore(*words).stderr
        shown = rmqcore(*words, "--skip-damaged")
        assert sorted(shown.stdout) == sorted("a\nb\nc\nd\ne\nA\nB\nC\nD\nE\n")
    one = rmqcore("cat", store, "Letters", "--queue", 0, "--start", 1, "--skip-damaged")
    assert one.stdout == "b\nc\nd\ne\n"
    assert "rebuild cq" in rmqcore("cat", store, "Nothing", "--skip-damaged").stderr


@pytest.mark.parametrize("gone", ["Letters", ""])
def test_a_tail_reads_a_lost_queue_that_a_writer_has_derived_anew(store, monkeypatch, gone):
    real, looks = ReadOnlyMessageStore.messages, []

    def messages(reader, *args, **settings):
        looks.append(args)
        return real(reader, *args, **settings)

    monkeypatch.setattr(ReadOnlyMessageStore, "messages", messages)
    shutil.rmtree(store / "consumequeue" / gone)
    with open_store(store, mode="r") as opened:
        lost = read._lost_queues(opened, "Letters")
        tail = read._Tail(opened, "Letters", 0, lambda _: None, lost)
        assert [bytes(each.body) for each in tail.from_end(9)] == [b"a", b"b", b"c", b"d", b"e"]
        looks.clear()
        with open_store(store) as writer:
            writer.put("Letters", b"f", queue_id=0)
            assert writer.max_queue_offset("Letters", 0) == 6
            assert [bytes(each.body) for each in tail.new()] == [b"f"]
    # not of the whole log
    assert looks == [("Letters", 0)]
