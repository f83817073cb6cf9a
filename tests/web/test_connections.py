"""Connections that ask for nothing keep the pages from nobody."""

import asyncio
import contextlib
from urllib.parse import urlencode

import pytest
from patience import TIMEOUT_S

from rmqcore import open_store
from rmqcore.remoting import Account
from rmqcore.web import ColdSource, Entry, serving, web_app
from rmqcore.web.serving import CONNECTIONS_MAX, WebServer

pytestmark = pytest.mark.engine


@pytest.fixture
def with_pages(store_path):
    """Run a coroutine function with the port of the pages of a store."""

    def run(scenario, accounts=None):
        async def main():
            with open_store(store_path, mode="r") as store:
                entry = Entry(accounts)
                server = WebServer(web_app(ColdSource(store), entry), "127.0.0.1", 0)
                await asyncio.to_thread(server.start)
                try:
                    await scenario(server.port)
                finally:
                    await asyncio.to_thread(server.stop)

        asyncio.run(main())

    return run


async def begin(port, *lines, body=b""):
    """Open a connection, and send a request as far as it is given."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join(lines).encode() + body)
    return reader, writer


async def status(port, path="/login"):
    """The status of a whole request."""
    lines = (f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: close", "", "")
    reader, writer = await begin(port, *lines)
    try:
        return (await reader.read()).partition(b"\r\n")[0]
    finally:
        writer.close()


async def ended(reader):
    """Wait until the server has closed a connection."""
    async with asyncio.timeout(TIMEOUT_S):
        with contextlib.suppress(ConnectionResetError):
            await reader.read()


@pytest.mark.parametrize("lines", [(), ("GET / HTTP/1.1", "Host: ")])
def test_more_idle_connections_than_there_may_be_leave_room(with_pages, lines):
    async def scenario(port):
        idle = [await begin(port, *lines) for _ in range(CONNECTIONS_MAX + 20)]
        assert await status(port) == b"HTTP/1.1 200 OK"
        for reader, _ in idle[:20]:
            await ended(reader)
        for _, writer in idle:
            writer.close()

    with_pages(scenario)


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("GET / HTTP/1.1", "Host: "),
        ("POST /login HTTP/1.1", "Host: {here}", "Origin: {here}", "Content-Length: 9", "", "a"),
        ("GET /login HTTP/1.1", "Host: {here}", "", "GET "),
    ],
)
def test_a_connection_over_which_nothing_comes_is_closed(with_pages, monkeypatch, lines):
    monkeypatch.setattr(serving, "PATIENCE_S", 0.05)

    async def scenario(port):
        here = f"127.0.0.1:{port}"
        reader, writer = await begin(port, *(line.format(here=here) for line in lines))
        await ended(reader)
        writer.close()

    with_pages(scenario)


def test_a_form_that_does_not_come_whole_is_no_error_of_the_server(with_pages, caplog):
    accounts = {"admin": Account("admin", "1234567", admin=True)}

    async def scenario(port):
        form = urlencode({"access_key": "admin", "secret_key": "1234567"}).encode()
        here = f"127.0.0.1:{port}"
        lines = ("POST /login HTTP/1.1", f"Host: {here}", f"Origin: http://{here}")
        reader, writer = await begin(port, *lines, "Content-Length: 1000", "", "", body=form)
        writer.close()
        await ended(reader)
        assert await status(port) == b"HTTP/1.1 200 OK"

    with_pages(scenario, accounts)
    assert not [record for record in caplog.records if record.exc_info]
