"""The text protocol over real sockets, and what hostile clients get."""

import asyncio
import contextlib
import os
import resource
import socket
from random import Random

import pytest
from patience import TIMEOUT_S, until_async

from reference import metaq as reference
from rmqcore.chance import follow
from rmqcore.metaq import (
    FileMessageSet,
    MessageStore,
    MessageStoreManager,
    MetaClient,
    ResultError,
    World,
    encode_data,
)
from rmqcore.metaq.broker import BrokerProcessor
from rmqcore.metaq.protocol import RANDOM_PARTITION
from rmqcore.remoting.acceptor import Acceptor

pytestmark = pytest.mark.engine


async def talk(host, port, *parts):
    """Send raw bytes and read until the server ends the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    writer.write_eof()
    answer = await reader.read(-1)
    writer.close()
    await writer.wait_closed()
    return answer


def test_put_and_get_byte_for_byte(serve):
    data, flag = encode_data(b"hello", "attr")

    async def test(_server, host, port):
        put = b"put t 1 %d %d %d 7\r\n" % (len(data), flag, reference.checksum(data)) + data
        first = await talk(host, port, put)
        line, _, text = first.partition(b"\r\n")
        assert line == b"result 200 %d 7" % len(text)
        message_id, partition, offset = text.split()
        assert (partition, offset) == (b"1", b"0")
        record = reference.encode(int(message_id), data, flag)
        second = await talk(host, port, b"get t g 1 0 1000 8\r\nquit\r\n")
        assert second == b"value %d 8\r\n" % len(record) + record

    serve(test)


def result(code, text, opaque):
    return f"result {code} {len(text)} {opaque}\r\n{text}".encode()


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("get t g 5 0 9 1", result(404, "The topic `t` in partition `5` is not exists", 1)),
        ("get t g 0 0 0 2", result(400, "Bad request,invalid max size:0", 2)),
        ("get t g 0 25 9 3", result(404, "Could not find message at position 25", 3)),
        ("get t g 0 9223372036854775807 9 4", result(301, "25", 4)),
        ("get t g 0 -3 9 5", result(301, "0", 5)),
        ("offset t g 0 24 6", result(200, "0", 6)),
        ("offset t g 0 99 7", result(200, "25", 7)),
        ("offset t g 7 99 8", result(404, "The topic `t` in partition `7` is not exists", 8)),
        ("get t g 0 20 3 9", b"value 3 9\r\nhel"),
    ],
)
def test_answers(serve, line, answer):
    async def test(server, host, port):
        server.processor.manager.get_or_create("t", 0).append(1, b"hello")
        assert await talk(host, port, line.encode() + b"\r\n") == answer

    serve(test)


def test_consumers_beyond_the_end_are_told_where_it_is_when_asked_for(serve):
    async def test(server, host, port):
        server.processor.manager.get_or_create("t", 0).append(1, b"hello")
        assert await talk(host, port, b"get t g 0 26 100 3\r\n") == b"result 301 2 3\r\n25"

    serve(test, settings={"update_consumer_offsets": True})


def test_pipelined_puts_share_flushes_and_answer_in_order(serve):
    syncs = []

    async def test(_server, host, port):
        requests = b"".join(b"put t 0 5 0 -1 %d\r\nhello" % i for i in range(500))
        requests += b"version 500\r\n"
        answer = await talk(host, port, requests)
        opaques = [
            int(line.split()[3])
            for line in answer.replace(b"result", b"\nresult").splitlines()
            if line.startswith(b"result")
        ]
        assert opaques == list(range(501))

    serve(test, world=World(sync=syncs.append))
    assert 0 < len(syncs) < 250


def test_large_values_leave_by_sendfile_between_small_answers(serve):
    async def test(server, host, port):
        store = server.processor.manager.get_or_create("t", 0)
        store.append_many([(1, bytes(range(256)) * 1000, 0)])
        record = store.read(0, 300_000)
        answer = await talk(host, port, b"get t g 0 0 1000000 1\r\nversion 2\r\n" * 5)
        assert answer.count(b"value 256020 1\r\n" + record + b"result 200") == 5

    serve(test)


def test_a_record_above_the_transfer_size_is_sent_whole_if_the_client_takes_it(serve):
    async def test(server, host, port):
        store = server.processor.manager.get_or_create("t", 0)
        store.append_many([(1, b"x" * 5000, 0), (2, b"y", 0)])
        async with MetaClient(host, port) as client:
            assert len(await client.get("t", 0, 0, max_size=10_000)) == 5020
            assert len(await client.get("t", 0, 0, max_size=3000)) == 1000
            assert [m.message_id async for m in client.messages("t", 0)] == [1, 2]

    serve(test, settings={"max_transfer_size": 1000})


def test_client_follows_deleted_offsets_and_holes(serve, tmp_path):
    folder = tmp_path / "meta" / "t-0"
    folder.mkdir(parents=True)
    for start, message_id in ((100, 1), (200, 2)):
        record = reference.encode(message_id, b"x" * 10)
        (folder / f"{start:020d}.meta").write_bytes(record)

    async def test(_server, host, port):
        async with MetaClient(host, port) as client:
            assert [m.message_id async for m in client.messages("t", 0)] == [1, 2]
            assert await client.offset("t", 0, 150) == 200

    serve(test)


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (b"put x 0 5 0 -1 1\r\nhello", 400, "no configured topic"),
        (b"put t 9 5 0 -1 1\r\nhello", 400, "which has 2"),
        (b"put t 0 5 0 123 1\r\nhello", 400, "checksum 123"),
        (b"put t 0 0 0 -1 1\r\n", 400, "checksum of zeros"),
        (b"put t 0 5 1 -1 1\r\nhello", 400, "attribute"),
        (b"put t 0 5 0 TX:1 1\r\nhello", 400, "transactions"),
        (b"put ../t 0 5 0 -1 1\r\nhello", 400, "no topic"),
    ],
)
def test_puts_that_are_refused_store_nothing(serve, command, code, words):
    async def test(server, host, port):
        answer = (await talk(host, port, command)).decode()
        assert answer.startswith(f"result {code} ")
        assert words in answer
        assert all(s.max_offset == 0 for s in server.processor.manager.all_stores())

    serve(test)


@pytest.mark.parametrize(
    "junk",
    [
        b"\r\n",
        b"nonsense\r\n",
        b"put t 0 -5 0 -1 1\r\n",
        b"put t 0 99999999 0 -1 1\r\n",
        b"get t\r\n",
        b"x" * 100_000,
        b"\xff\xfe\r\n",
        b"put t 0 5 0 -1 1\r\nhel",
        b"get t g 0 99999999999999999999 1 1\r\n",
        b"transaction k s COMMIT 1\r\n",
    ],
)
def test_junk_ends_its_own_connection_and_no_other(serve, junk):
    async def test(_server, host, port):
        async with MetaClient(host, port) as client:
            with contextlib.suppress(ConnectionError):
                answer = await talk(host, port, junk)
                assert answer == b"" or answer.startswith(b"result 400 ")
            assert (await client.put("t", b"still here", partition=0)).offset == 0

    serve(test)


@pytest.mark.parametrize(
    "refused",
    [
        "transaction TX:a:1 s BEGIN 77\r\n",
        "transaction TX:a:1 s PREPARE 30 77\r\n",
        "transaction XID:1:x s COMMIT_ONE_PHASE 30 unique 77\r\n",
        "sync t 0 9 0 12345 77\r\nput t 0 9",
        "sync t 0 9 0 12345 -1 77\r\nput t 0 9",
        "put t 0 9 0 -1 TX:a:1 77\r\nput t 0 9",
        "put t 0 1001 0 -1 77\r\n" + "x" * 1001,
        "put t 0 3000000 0 -1 77\r\n" + "x" * 3_000_000,
    ],
)
def test_what_is_not_served_is_answered_by_its_number_and_the_connection_goes_on(serve, refused):
    async def test(_server, host, port):
        put = b"put t 0 5 0 -1 %d\r\nhello"
        answer = await talk(host, port, put % 76, refused.encode(), put % 78)
        lines = [line for line in answer.decode().split("result ") if line]
        heads = [line.split("\r\n")[0].split() for line in lines]
        codes = [(code, opaque) for code, _, opaque in heads]
        code = "503" if refused.startswith("sync") else "400"
        assert codes == [("200", "76"), (code, "77"), ("200", "78")]

    serve(test, max_message_size=1000)


def test_the_largest_put_is_a_setting_with_the_default_of_metaq(serve):
    async def test(_server, host, port):
        async with MetaClient(host, port) as client:
            limit = 2_097_152
            await client.put("t", b"x" * limit, partition=0)
            with pytest.raises(ResultError, match=f"at most {limit}"):
                await client.put("t", b"x" * (limit + 1), partition=0)

    serve(test)


@pytest.mark.parametrize("chunk", [1, 7, 64, 5000, 1 << 20])
def test_answers_do_not_depend_on_how_the_bytes_arrive(serve, chunk):
    data, flag = encode_data(b"payload", "attribute")
    put = b"put t %d %d %d %d %d\r\n"
    parts = []
    for n in range(0, 600, 6):
        parts += [
            put % (0, 5, 0, -1, n) + b"hello",
            put % (1, len(data), flag, reference.checksum(data), n + 1) + data,
            put % (0, 5, 0, 123, n + 2) + b"wrong",
            b"put t 0 5 0 %d\r\nolder" % (n + 3),
            b"version %d\r\n" % (n + 4),
            b"get t g 9 0 10 %d\r\n" % (n + 5),
        ]
    stream = b"".join([*parts, b"quit\r\n"])

    async def test(server, host, port):
        pieces = [stream[at : at + chunk] for at in range(0, len(stream), chunk)]
        answer = await talk(host, port, *pieces)
        heads = [line.split() for line in answer.split(b"\r\n") if b"result" in line]
        numbers = [int(words[-1]) for words in heads]
        assert numbers == list(range(600))
        assert [words[-3] for words in heads] == 100 * [
            b"200", b"200", b"400", b"200", b"200", b"404",
        ]  # fmt: skip
        stores = server.processor.manager.stores["t"]
        stored = [m.data for m in stores[0].messages()]
        assert stored == [b"hello", b"older"] * 100
        assert {(m.data, m.attribute) for m in stores[1].messages()} == {(b"payload", "attribute")}
        ids = [m.message_id for store in stores.values() for m in store.messages()]
        assert len(set(ids)) == 300

    serve(test)


def test_puts_that_arrive_together_are_written_together_and_share_flushes(serve, monkeypatch):
    written, flushed = [], []
    append = MessageStore.append_many_async

    def counted(store, rows):
        written.append(len(rows))
        return append(store, rows)

    monkeypatch.setattr(MessageStore, "append_many_async", counted)

    async def test(_server, host, port):
        puts = b"".join(b"put t %d 5 0 -1 %d\r\nhello" % (n % 2, n) for n in range(2000))
        answer = await talk(host, port, puts)
        assert answer.count(b"result 200 ") == 2000

    serve(test, world=World(sync=lambda fd: (flushed.append(fd), os.fdatasync(fd))))
    assert sum(written) == 2000
    assert len(written) < 100
    assert len(flushed) < 100


def test_a_random_partition_is_one_that_is_open(serve):
    async def test(server, host, port):
        server.processor.manager.config.close_partitions("t", 1, 1)
        async with MetaClient(host, port) as client:
            assert {(await client.put("t", b"x")).partition for _ in range(20)} == {0}
            server.processor.manager.config.close_partitions("t", 0, 0)
            with pytest.raises(ResultError) as caught:
                await client.put("t", b"x")
            assert caught.value.code == 403

    serve(test)


def test_puts_to_any_partition_go_round_all_of_them_from_where_chance_says(config):
    def places():
        puts = processor.put_many(rows)
        for group in puts.waiting:
            group.stored.result(TIMEOUT_S)
            processor.answer_puts(puts, group)
        return [int(reply.split(b" ")[-2]) for reply in puts.replies]

    rows = [("t", RANDOM_PARTITION, 0, -1, number, b"x") for number in range(8)]
    with MessageStoreManager(config(unflush_threshold=0, num_partitions=4)) as manager:
        processor = BrokerProcessor(manager)
        told = []
        for seed in (1, 1, 2, 3):
            follow(Random(seed))
            try:
                told.append(places())
            finally:
                follow(None)
    assert told[0] == told[1]
    assert len({each[0] for each in told}) > 1
    assert all(sorted(each) == [0, 0, 1, 1, 2, 2, 3, 3] for each in told)


def test_a_process_without_descriptors_says_so_once_and_goes_on(serve, caplog, monkeypatch):
    monkeypatch.setattr("rmqcore.remoting.acceptor.ACCEPT_PAUSE_S", 0.01)
    tried, accept = [], Acceptor._accept

    def watched(acceptor):
        tried.append(acceptor)
        accept(acceptor)

    monkeypatch.setattr(Acceptor, "_accept", watched)

    async def test(_server, host, port):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        reader, writer = await asyncio.open_connection(host, port)
        waiting = socket.socket()
        resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
        try:
            held = []
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.dup(0))
            tried.clear()
            waiting.connect((host, port))
            await until_async(lambda: len(tried) > 2, "three refusals of the system")
            writer.write(b"version 1\r\n")
            assert (await reader.readuntil(b"\r\n")).startswith(b"result 200 ")
            for fd in held:
                os.close(fd)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        async with MetaClient(host, port) as client:
            await client.version()
        waiting.close()
        writer.close()

    serve(test)
    said = [(r.levelname, r.exc_info) for r in caplog.records]
    assert said == [("WARNING", None), ("WARNING", None)]
    assert "Too many open files" in caplog.text


def test_a_file_system_without_sendfile_is_copied_from(serve, monkeypatch):
    def refuses(*_):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sendfile", refuses)

    async def test(_server, host, port):
        async with MetaClient(host, port) as client:
            for n in range(3):
                await client.put("t", b"%d" % n * 100_000, partition=0)
            found = [m.data for m in [m async for m in client.messages("t", 0)]]
            assert found == [b"%d" % n * 100_000 for n in range(3)]

    serve(test)


def test_a_reply_that_is_cut_off_ends_its_connection(serve, monkeypatch, caplog):
    async def breaks(_records, _transport):
        raise AttributeError("surprise")

    monkeypatch.setattr(FileMessageSet, "send_async", breaks)

    async def test(server, host, port):
        async with MetaClient(host, port) as client:
            await client.put("t", b"x" * 100_000, partition=0)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"get t g 0 0 1000000 1\r\nversion 2\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"result 200 5 2" not in await reader.read(-1)
        writer.close()
        await until_async(
            lambda: not server.processor.stats.connections, "the end of the connection"
        )

    serve(test)
    assert "a reply was cut off: AttributeError('surprise')" in caplog.text


def test_a_get_that_fails_is_an_answer_and_one_line(serve, caplog, monkeypatch):
    def fails(_store, _offset, _size):
        raise OSError(24, "Too many open files")

    async def test(server, host, port):
        async with MetaClient(host, port) as client:
            await client.put("t", b"x", partition=0)
            monkeypatch.setattr(MessageStore, "slice", fails)
            with pytest.raises(ResultError) as caught:
                await client.get("t", 0, 0)
            assert caught.value.code == 500

    serve(test)
    assert [(r.levelname, r.exc_info) for r in caplog.records] == [("ERROR", None)]
    assert "Too many open files" in caplog.text


def test_a_disk_that_refuses_is_an_answer(serve):
    broken = []

    def sync(_fd):
        if broken:
            raise OSError(5, "Input/output error")

    async def test(_server, host, port):
        async with MetaClient(host, port) as client:
            await client.put("t", b"x", partition=0)
            broken.append(1)
            for _ in range(2):
                with pytest.raises(ResultError) as caught:
                    await client.put("t", b"x", partition=0)
                assert caught.value.code == 500

    serve(test, world=World(sync=sync))


def test_topics_that_take_no_puts_or_gets(serve):
    async def test(server, host, port):
        server.processor.manager.get_or_create("t", 0).append(1, b"x")
        async with MetaClient(host, port) as client:
            for request in (client.put("t", b"x"), client.get("t", 0, 0)):
                with pytest.raises(ResultError) as caught:
                    await request
                assert caught.value.code == 403

    serve(test, settings={"accept_publish": False, "accept_subscribe": False})


def test_statistics(serve):
    async def test(_server, host, port):
        async with MetaClient(host, port) as client:
            for _ in range(3):
                await client.put("t", b"12345", partition=0)
            await client.get("t", 0, 0)
            broker = await client.stats()
            assert broker.startswith("STATS\r\n")
            assert broker.endswith("END\r\n")
            assert "cmd_put 3\r\n" in broker
            assert "cmd_get 1\r\n" in broker
            assert "total_messages 3\r\n" in broker
            assert "t partitions 1 message_count 3 message_bytes 75" in await client.stats("topics")
            assert "t part 0 min_offset 0 max_offset 75\r\n" in await client.stats("offsets")
            assert "resultCode 1\r\n" in await client.stats("nowhere")

    serve(test)


@pytest.mark.parametrize("setting", ["its own", "a pattern's"])
def test_realtime_statistics_and_help_have_the_form_of_metaq(serve, setting):
    now = [1000.0]
    topic = "t" if setting == "its own" else "other"

    async def test(_server, host, port):
        async with MetaClient(host, port) as client:
            none = await client.stats("realtime")
            assert (
                none
                == "STATS\r\n"
                + "".join(
                    f"realtime_{what} null\r\n"
                    for what in ("put", "get", "offset", "get_miss", "put_failed", "message_size")
                )
                + "END\r\n"
            )
            for size in (5, 5, 6):
                await client.put(topic, b"x" * size, partition=0)
            now[0] += 2
            one = await client.stats(topic)
            size = "Count=3,Value=16,Value/Count=5.33,Count/Duration=1.5,Duration=2"
            assert f"topic_realtime_message_size {size}\r\n" in one
            put = "Count=3,Value=3,Value/Count=1,Count/Duration=1.5,Duration=2"
            assert f"topic_realtime_put {put}\r\n" in one
            assert "topic_realtime_get null\r\n" in one
            assert "topic_realtime_put Invalid keyTwo:x\r\n" in await client.stats("x")
            assert await client.stats("reset") == "STATS\r\nreset ok\r\nEND\r\n"
            zero = "Count=0,Value=0,Value/Count=invalid,Count/Duration=invalid,Duration=0"
            assert f"realtime_put {zero}\r\n" in await client.stats("realtime")
            await client.put(topic, b"x", partition=0)
            now[0] += 1801  # MetaQ begins anew every half an hour
            assert f"realtime_put {zero}\r\n" in await client.stats("realtime")
            words = [line.partition(" ")[0] for line in (await client.stats("help")).split("\r\n")]
            known = ["*EMPTY*", "help", "topics", "offsets", "realtime", "config"]
            assert words == ["STATS", *known, "END", ""]
            names = [line.partition(" ")[0] for line in (await client.stats()).split("\r\n")]
            at = names.index("cmd_offset")
            transactions = ["tx_begin", "tx_xa_begin", "tx_commit", "tx_rollback"]
            assert names[at + 1 : at + 6] == [*transactions, "get_miss"]

    topics = ("t",) if setting == "its own" else ("oth*",)
    serve(
        test,
        world=World(monotonic_s=lambda: now[0]),
        settings={"topics": topics, "own": {"stat": True}},
    )
