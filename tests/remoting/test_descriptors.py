"""Connections leave a process the descriptors that its stores need."""

import logging
import resource
from weakref import WeakSet

import pytest
from patience import until_async
from remoting.ends import ECHO, raw, request, serving

from rmqcore.files import mapped_file
from rmqcore.remoting import server
from rmqcore.world import connections_allowed, raise_limit

pytestmark = pytest.mark.engine


def test_all_servers_of_a_process_share_what_is_for_connections(run, monkeypatch, caplog):
    monkeypatch.setattr(server, "connections_allowed", lambda: 2)
    # those of other tests in this process are not counted
    monkeypatch.setattr(server.RemotingServer, "_all", WeakSet())

    async def answers(peer):
        peer.send(request(ECHO, 1))
        return (await peer.receive()).opaque == 1

    async def scene():
        async with serving() as first, serving() as second, raw(first) as one:
            assert await answers(one)
            async with raw(second) as two:
                assert await answers(two)
                for full in (first, second, first):
                    async with raw(full) as three:
                        assert await three.at_end()
            await until_async(lambda: not second.connections, "its end")
            async with raw(first) as four:
                assert await answers(four)

    with caplog.at_level(logging.WARNING):
        run(scene())
    assert caplog.text.count("ulimit -n") == 2


@pytest.mark.parametrize("soft", [64, 1024, 100_000])
def test_stores_and_connections_leave_descriptors_for_the_rest(monkeypatch, soft):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    files = mapped_file._descriptors_allowed()
    assert files + connections_allowed() <= soft * 7 // 8


def test_without_a_limit_there_is_none_for_connections(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 0))
    assert connections_allowed() is None


def test_a_server_takes_the_descriptors_that_it_may_have():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
