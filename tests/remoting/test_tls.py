"""TLS and plain clients on the same port."""

import asyncio
import gc
import ssl
from asyncio.sslproto import SSLProtocol
from pathlib import Path

import pytest
from patience import TIMEOUT_S, until_async
from remoting.ends import ECHO, calling, raw, serving

from rmqcore.proxy.certificate import CERTIFICATE, KEY, own_tls
from rmqcore.remoting import RemotingCommand, RemotingConnectError, TlsMode, load_tls
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

PEM = Path(__file__).parent / "localhost.pem"


def certificate():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    return context


def trust():
    return ssl.create_default_context(cafile=PEM)


def test_both_kinds_of_clients_are_served_on_one_port(run):
    async def scene():
        async with (
            serving(tls=certificate()) as server,
            calling(server, tls=trust()) as (_, call_tls),
            calling(server) as (_, call_plain),
        ):
            body = bytes(range(256)) * 1000
            for call in (call_tls, call_plain, call_tls, call_plain):
                assert (await call(ECHO, {"a": "b"}, body)).body == body
            assert len(server.connections) == 2

    run(scene())


def test_a_certificate_is_checked_for_its_name(run):
    async def scene():
        async with serving(tls=certificate()) as server:
            async with calling(server, tls=trust(), tls_name="localhost") as (_, call):
                assert (await call(ECHO)).code == 0
            async with calling(server, tls=trust(), tls_name="elsewhere") as (_, call):
                with pytest.raises(RemotingConnectError):
                    await call(ECHO)

    run(scene())


def renewed(folder, tmp_path):
    """Have certificate and key be others; a client that trusts and shows these."""
    own_tls(tmp_path / folder, ("localhost", "127.0.0.1"), wall_clock_ms())
    for name in (KEY, CERTIFICATE):
        (tmp_path / folder / name).replace(tmp_path / name)
    context = ssl.create_default_context(cafile=tmp_path / CERTIFICATE)
    context.load_cert_chain(tmp_path / CERTIFICATE, tmp_path / KEY)
    return context


def test_a_certificate_that_is_renewed_is_shown_to_the_next_client(run, tmp_path, caplog):
    config = tmp_path / "tls.properties"
    config.write_text(
        f"tls.server.certPath={CERTIFICATE}\ntls.server.keyPath={KEY}\n"
        f"tls.server.authClient=true\ntls.server.trustCertPath={CERTIFICATE}\n"
        f"tls.enable=true\ntls.client.authServer=true\ntls.client.trustCertPath={CERTIFICATE}\n"
        f"tls.client.certPath={CERTIFICATE}\ntls.client.keyPath={KEY}\n",
        "utf-8",
    )
    former = renewed("first", tmp_path)
    tls = load_tls(config)

    async def scene():
        async with serving(tls=tls.server) as server:
            async with calling(server, tls=former) as (_, call):
                assert (await call(ECHO)).code == 0
                now = renewed("second", tmp_path)
                # who is connected stays
                assert (await call(ECHO)).code == 0
            for context in (now, tls.client):
                async with calling(server, tls=context) as (_, call):
                    assert (await call(ECHO)).code == 0
            async with calling(server, tls=former) as (_, call):
                with pytest.raises(RemotingConnectError):
                    await call(ECHO)
            # half of one
            (tmp_path / CERTIFICATE).write_bytes((tmp_path / CERTIFICATE).read_bytes()[:200])
            for context in (now, tls.client) * 2:
                async with calling(server, tls=context) as (_, call):
                    assert (await call(ECHO)).code == 0

    run(scene())
    told = [each.getMessage() for each in caplog.records]
    # once for the server, and for its own calls
    assert len([each for each in told if "stay as they were" in each]) == 2


def test_only_tls_is_served_where_it_is_enforced(run):
    async def scene():
        async with serving(tls=certificate(), tls_mode=TlsMode.ENFORCING) as server:
            async with calling(server, tls=trust()) as (_, call):
                assert (await call(ECHO)).code == 0
            async with raw(server) as peer:
                peer.send(RemotingCommand(ECHO, opaque=1))
                assert await peer.at_end()

    run(scene())


def test_a_tls_client_is_disconnected_where_it_is_disabled(run):
    async def scene():
        async with serving(tls=certificate(), tls_mode=TlsMode.DISABLED) as server:
            async with calling(server) as (_, call):
                assert (await call(ECHO)).code == 0
            async with calling(server, tls=trust()) as (_, call):
                with pytest.raises(RemotingConnectError):
                    await call(ECHO)

    run(scene())


def test_clients_that_say_nothing_or_nonsense_keep_nobody_waiting(run):
    async def scene():
        async with (
            serving(tls=certificate()) as server,
            raw(server),
            raw(server) as nonsense,
            calling(server, tls=trust()) as (_, call),
        ):
            nonsense.writer.write(b"\x16" + b"nonsense" * 10)
            assert (await call(ECHO)).code == 0
            # what TLS says of it is not a frame, so it is not looked at
            await asyncio.wait_for(nonsense.reader.read(), TIMEOUT_S)

    run(scene())


@pytest.mark.parametrize("http2", [None, lambda on_close: None])
def test_handshakes_that_fail_leave_nothing_that_is_counted(run, http2):
    async def scene():
        async with serving(tls=certificate(), connection_max=4, http2=http2) as server:
            for _ in range(8):
                async with raw(server) as peer:
                    peer.writer.write(b"\x16" + b"nonsense" * 10)
                    await peer.reader.read()
                await until_async(lambda: not server._greetings, "the end of the handshake")
            assert not server._kept._shares
            async with calling(server, tls=trust()) as (_, call):
                assert (await call(ECHO)).code == 0

    run(scene())


def test_a_handshake_that_breaks_off_leaves_no_buffers(run):
    def handshakes():
        return sum(isinstance(each, SSLProtocol) for each in gc.get_objects())

    async def scene():
        async with serving(tls=certificate()) as server:
            for _ in range(5):
                async with raw(server) as peer:
                    peer.writer.write(b"\x16\x03")
                    await peer.writer.drain()
            # who comes behind them is served after the greeting of each has begun
            async with raw(server) as last:
                last.send(RemotingCommand(ECHO, opaque=1))
                assert (await last.receive()).opaque == 1
            await until_async(
                lambda: not server._greetings and not handshakes(), "the end of the handshakes"
            )

    gc.collect()
    gc.disable()
    try:
        run(scene())
    finally:
        gc.enable()
