"""What operators ask of a MetaQ server, while clients are served."""

import asyncio
import threading

import pytest
from patience import TIMEOUT_S, until_async

from rmqcore.metaq import MessageStoreManager, MetaClient, ResultError

pytestmark = pytest.mark.engine


async def operate(path, words):
    """Send an operator's command; return what it is answered."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(words.encode() + b"\n")
    answer = (await reader.read(-1)).decode().strip()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize(
    ("words", "method"), [("delete", "run_delete_policies"), ("flush", "flush")]
)
def test_clients_are_served_while_an_operator_waits(serve, tmp_path, monkeypatch, words, method):
    path = tmp_path / "admin"
    begun, served = threading.Event(), threading.Event()
    answers = []

    def work(_manager):
        begun.set()
        answers.append(served.wait(TIMEOUT_S))
        return []

    async def test(_server, host, port):
        monkeypatch.setattr(MessageStoreManager, method, work)
        asked = asyncio.create_task(operate(path, words))
        async with MetaClient(host, port) as client:
            await until_async(begun.is_set, "the operator's command")
            await client.version()
            served.set()
        await asked
        assert answers == [True]

    serve(test, admin_socket=path)


def test_operators_close_open_and_reload(serve, tmp_path):
    path = tmp_path / "admin"
    for name in ("gone-3", "t-7"):
        (tmp_path / "meta" / name).mkdir(parents=True)

    async def admin(words):
        return await operate(path, words)

    async def test(server, host, port):
        assert path.stat().st_mode & 0o777 == 0o600
        async with MetaClient(host, port) as client:
            await client.put("t", b"x", partition=1)
            assert await admin("close t 1 1") == "closed"
            for request in (client.put("t", b"x", partition=1), client.get("t", 1, 0)):
                with pytest.raises(ResultError) as caught:
                    await request
                assert caught.value.code == 403
            assert await admin("open t") == "opened 1"
            await client.get("t", 1, 0)
        assert await admin("close x 0 1") == "error: no such topic or range"
        for topic, partition in (("gone", 3), ("t", 7)):  # open, whatever the configuration says
            assert await admin(f"close {topic} 2 {2**31 - 1}") == "closed"
            async with MetaClient(host, port) as client:
                with pytest.raises(ResultError) as caught:
                    await client.get(topic, partition, 0)
                assert caught.value.code == 403
            assert await admin(f"open {topic}") == f"opened {partition}"
        assert (await admin("reload")).startswith("error: path=None")
        assert await admin("flush") == "flushed"
        assert await admin("delete") == "deleted 0 segments"
        assert (await admin("what")).startswith("error: reload")
        assert server.processor.stats.connections == 0

    serve(test, admin_socket=path)
    assert not path.exists()
