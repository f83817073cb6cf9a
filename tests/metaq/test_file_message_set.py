"""One segment file: append, flush, views, transfer, recovery."""

import asyncio
import os
import resource
import socket
import threading
from pathlib import Path

import pytest
from syncs import watched

from reference import metaq as reference
from rmqcore.errors import CorruptRecordError, DiskFullError, StoreClosedError
from rmqcore.metaq import (
    FileMessageSet,
    InvalidChecksumError,
    SegmentFile,
    Verdict,
    World,
    file_message_set,
)
from rmqcore.metaq.file_message_set import find_record

pytestmark = pytest.mark.logic

ROWS = [(i, b"message %d " % i * i, 0) for i in range(1, 20)]
CONTENT = b"".join(reference.encode(*row) for row in ROWS)


@pytest.fixture
def path(tmp_path):
    return tmp_path / f"{0:020d}.meta"


def grown(path, content=b"", **options):
    path.write_bytes(content)
    return FileMessageSet(SegmentFile(path, writable=True), mutable=True, **options)


def test_appends_follow_each_other_and_wait_for_the_flush(path):
    messages = grown(path, start=1000)
    locations = [messages.append(*row) for row in ROWS]
    assert path.read_bytes() == CONTENT
    assert locations[0].offset == 1000
    assert [location.offset + location.length for location in locations][-1] == 1000 + len(CONTENT)
    assert (messages.size_in_bytes, messages.high_water_mark) == (len(CONTENT), 0)
    assert messages.message_count == len(ROWS)
    messages.flush()
    assert messages.high_water_mark == len(CONTENT)


def test_many_messages_are_one_location(path):
    messages = grown(path)
    location = messages.append_many(ROWS)
    assert (location.offset, location.length) == (0, len(CONTENT))
    assert path.read_bytes() == CONTENT
    assert messages.message_count == len(ROWS)


@pytest.mark.parametrize("size", [1, 65_515, 65_516, 65_517, 300_000])
def test_records_around_the_scratch_buffer(path, size):
    messages = grown(path)
    data = bytes(range(256)) * (size // 256 + 1)
    messages.append(5, data[:size])
    assert path.read_bytes() == reference.encode(5, data[:size])


def test_a_wrong_checksum_stores_nothing(path):
    messages = grown(path)
    with pytest.raises(InvalidChecksumError) as caught:
        messages.append(1, b"hello", 0, 7)
    assert (caught.value.expected, caught.value.actual) == (7, 0x3610A686)
    messages.append(1, b"hello", 0, 0x3610A686)
    assert path.read_bytes() == reference.encode(1, b"hello")


def test_a_view_is_a_range_and_reads_are_absolute(path):
    messages = grown(path, CONTENT)
    view = messages.slice(30, 70)
    assert (view.size_in_bytes, view.high_water_mark, view.mutable) == (40, 40, False)
    assert view.read() == CONTENT[30:70]
    assert view.read(10, at=0) == CONTENT[:10]
    assert messages.slice(0, 10**9).size_in_bytes == len(CONTENT)
    assert messages.slice(10**9, 10**9 + 1).size_in_bytes == 0
    with pytest.raises(StoreClosedError):
        view.append(1, b"x")


def test_a_view_never_shows_what_is_not_on_disk(path):
    messages = grown(path)
    messages.append(1, b"first")
    messages.flush()
    messages.append(2, b"second")
    assert messages.slice(0, 10**6).read() == reference.encode(1, b"first")


def test_a_view_outlives_the_file(path):
    messages = grown(path, CONTENT)
    view = messages.slice(0, len(CONTENT))
    messages.close()
    path.unlink()
    del messages
    assert view.read() == CONTENT


@pytest.mark.engine
def test_transfer_to_a_socket(path):
    content = CONTENT * 2000
    messages = grown(path, content)
    ours, theirs = socket.socketpair()
    received = bytearray()

    def drain():
        while part := theirs.recv(1 << 16):
            received.extend(part)

    reader = threading.Thread(target=drain)
    reader.start()
    view = messages.slice(len(CONTENT), len(content))
    assert view.write_header(77) == b"value %d 77\r\n" % len(content[len(CONTENT) :])
    assert view.send(ours) == view.size_in_bytes
    ours.close()
    reader.join()
    theirs.close()
    assert bytes(received) == content[len(CONTENT) :]


@pytest.mark.engine
def test_transfer_to_an_asyncio_transport(path):
    content = CONTENT * 500
    view = grown(path, content).slice(0, len(content))

    async def run():
        received = asyncio.Future()

        async def serve(reader, writer):
            received.set_result(await reader.read(-1))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await view.send_async(writer.transport) == len(content)
        writer.close()
        await writer.wait_closed()
        got = await received
        server.close()
        await server.wait_closed()
        return got

    assert asyncio.run(run()) == content


@pytest.mark.engine
def test_a_file_cut_short_while_it_is_sent_is_an_error(path):
    messages = grown(path, CONTENT * 100)
    view = messages.slice(0, len(CONTENT) * 100)
    os.truncate(path, 100)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(CorruptRecordError, match="shorter"):
        view.send(ours)


@pytest.mark.parametrize(
    ("tail", "verdict"),
    [
        (b"", Verdict.END),
        (b"\0" * 7, Verdict.TORN_HEADER),
        (b"\0" * 20, Verdict.ZEROS),
        (b"\0" * 4000, Verdict.ZEROS),
        (reference.encode(99, b"torn")[:-1], Verdict.TORN_DATA),
        (reference.encode(99, b"tore")[:-1] + b"!", Verdict.WRONG_CHECKSUM),
        (b"\xff" * 25, Verdict.NEGATIVE_LENGTH),
    ],
)
def test_recovery_cuts_the_tail(path, tail, verdict):
    messages = grown(path, CONTENT + tail)
    assert path.read_bytes() == CONTENT
    recovery = messages.recovery
    assert (recovery.valid_up_to, recovery.truncated) == (len(CONTENT), len(tail))
    assert (recovery.message_count, recovery.verdict) == (len(ROWS), verdict)
    assert recovery.saved is None
    messages.append(50, b"goes on")
    assert path.read_bytes() == CONTENT + reference.encode(50, b"goes on")


def test_messages_behind_the_damage_are_kept_beside(path):
    damaged = bytearray(CONTENT)
    damaged[25] ^= 1
    messages = grown(path, damaged)
    _, valid = reference.walk(damaged)
    assert path.read_bytes() == damaged[:valid]
    assert messages.recovery.saved.read_bytes() == damaged[valid:]
    assert not messages.recovery.saved.name.endswith(".meta")


def test_what_a_killed_process_has_left_is_on_the_disk_before_it_counts(path):
    synced = []
    with watched(lambda _call, fd: synced.append(Path(f"/proc/self/fd/{fd}").resolve())):
        messages = grown(path, CONTENT)
    assert synced == [path]
    assert messages.high_water_mark == len(CONTENT)


def test_the_copy_and_its_name_are_on_the_disk_before_the_segment_is_cut(path):
    damaged, synced = bytearray(CONTENT), []
    damaged[25] ^= 1

    def note(_call, fd):
        synced.append((Path(f"/proc/self/fd/{fd}").resolve(), path.stat().st_size))

    with watched(note):
        saved = grown(path, damaged).recovery.saved
    whole = len(CONTENT)
    assert synced == [(saved, whole), (path.parent, whole), (path, path.stat().st_size)]


def test_what_was_cut_twice_in_one_place_is_kept_twice(path):
    def cut(at):
        damaged = bytearray(CONTENT)
        damaged[at] ^= 1
        return grown(path, damaged).recovery.saved, damaged[reference.walk(damaged)[1] :]

    first, lost = cut(25)
    second, other = cut(26)
    # a kill has left the beginning of the second copy
    second.write_bytes(other[:40])
    third, again = cut(26)
    assert [each.name for each in (first, second, third)] == [
        f"{path.name}.0.cut",
        f"{path.name}.0-2.cut",
        f"{path.name}.0-2.cut",
    ]
    assert (first.read_bytes(), third.read_bytes()) == (lost, other)
    assert again == other


def test_the_hole_of_a_file_that_was_made_far_too_long_is_not_searched(path, monkeypatch):
    searched = []

    def find(fd, at, stop):
        searched.append(stop)
        return find_record(fd, at, min(stop, 4 << 20))

    monkeypatch.setattr(file_message_set, "find_record", find)
    damaged = bytearray(CONTENT)
    damaged[25] ^= 1
    path.write_bytes(damaged)
    os.truncate(path, 1 << 40)
    messages = FileMessageSet(SegmentFile(path, writable=True), mutable=True)
    _, valid = reference.walk(damaged)
    assert path.read_bytes() == damaged[:valid]
    assert messages.recovery.saved.read_bytes().rstrip(b"\0") == damaged[valid:].rstrip(b"\0")
    assert max(searched) <= 4 << 20


def flipped(at):
    damaged = bytearray(CONTENT)
    damaged[at] ^= 0x80
    return bytes(damaged)


#: ids and flags (bytes 8 to 19 of a record) have no checksum
NOTICED = [at for at in range(len(CONTENT)) if reference.walk(flipped(at))[1] < len(CONTENT)]


@pytest.mark.parametrize("at", NOTICED[::29])
def test_damage_below_the_mark_is_an_error_and_changes_nothing(path, at):
    damaged = flipped(at)
    _, valid = reference.walk(damaged)
    with pytest.raises(CorruptRecordError) as caught:
        grown(path, damaged, acknowledged=len(CONTENT), start=500)
    assert (caught.value.path, caught.value.phy_offset) == (path, 500 + valid)
    assert path.read_bytes() == damaged
    repaired = FileMessageSet(
        SegmentFile(path, writable=True), mutable=True, acknowledged=len(CONTENT), repair=True
    )
    assert repaired.size_in_bytes == valid


def test_a_segment_shorter_than_its_mark_is_an_error(path):
    with pytest.raises(CorruptRecordError, match="confirmed to be on disk"):
        grown(path, CONTENT[:100], acknowledged=len(CONTENT))


def test_fast_boot_reads_only_what_is_above_the_mark(path):
    damaged = bytearray(CONTENT)
    damaged[25] ^= 1
    messages = grown(path, damaged + b"torn", acknowledged=len(CONTENT), fast_boot=True)
    assert messages.size_in_bytes == len(CONTENT)
    assert messages.message_count == 0
    assert messages.recovery.truncated == 4


def test_a_refused_flush_leaves_the_mark(path):
    def refuse(_fd):
        raise OSError(5, "Input/output error")

    messages = FileMessageSet(
        SegmentFile(path, writable=True, create=True), mutable=True, world=World(sync=refuse)
    )
    messages.append(1, b"x")
    with pytest.raises(OSError, match="Input/output"):
        messages.flush()
    assert messages.high_water_mark == 0


def in_child_with_file_limit(path, limit, size):
    """Fork, limit the size of files, append until it fails, report through the exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    messages = FileMessageSet(SegmentFile(path, writable=True, create=True), mutable=True)
    written = 0
    try:
        while True:
            messages.append(1, b"x" * size)
            written += 20 + size
    except OSError:
        os._exit(0 if path.stat().st_size == messages.size_in_bytes == written else 1)


@pytest.mark.process
@pytest.mark.parametrize("size", [100, 70_000])
def test_a_write_that_fails_half_way_leaves_no_half_record(path, size):
    assert in_child_with_file_limit(path, 200_001, size) == 0
    assert reference.walk(path.read_bytes())[1] == path.stat().st_size


def test_a_full_disk_has_its_own_error(path, monkeypatch):
    messages = grown(path)

    class Full:
        size = message_count = 0

        def append(self, *_):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(messages, "_tail", Full())
    with pytest.raises(DiskFullError):
        messages.append(1, b"x")


@pytest.mark.engine
def test_threads_append_one_after_the_other(path):
    messages = grown(path)

    def work():
        for _ in range(200):
            messages.append(1, b"x" * 50_000)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows, valid = reference.walk(path.read_bytes())
    assert valid == path.stat().st_size
    assert len(rows) == messages.message_count == 800
