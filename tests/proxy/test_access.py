"""Who is served over gRPC: accounts, their permissions, TLS and plain text on one port."""

import asyncio
import hmac
import os
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from proxy.conftest import serving
from proxy.wire import Wire

from rmqcore.proxy.certificate import CERTIFICATE, KEY, own_tls
from rmqcore.proxy.codes import Code
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode, Tls, TlsMode
from rmqcore.remoting.accounts import Account, Permission
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

ADMIN = Account("admin-1", "secret-admin", admin=True)
ORDERS = Account(
    "orders-1",
    "secret-orders",
    topics={"Orders": Permission.PUB | Permission.SUB, "Read": Permission.SUB},
    groups={"G": Permission.SUB, "Orders": Permission.PUB},
)
STRICT = Account("strict-1", "secret-strict", admin=True, strict=True)
ACCOUNTS = {each.access_key: each for each in (ADMIN, ORDERS, STRICT)}


def signed(account, secret=None, at=None):
    """The headers with which RocketMQ's clients show their credentials."""
    when = (at or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ").encode()
    mac = hmac.new((secret or account.secret_key).encode(), when, "sha1").hexdigest().encode()
    key = account.access_key.encode()
    credentials = b"MQv2-HMAC-SHA1 Credential=%b, SignedHeaders=x-mq-date-time, Signature=%b"
    return (
        (b"x-mq-date-time", when),
        (b"authorization", credentials % (key, mac.upper())),
    )


def test_an_account_may_what_it_may_over_the_other_protocol(with_grpc):
    async def scenario(served, plain):
        assert (await plain.call("Heartbeat")).status.code == Code.UNAUTHORIZED
        assert (await plain.send("Orders", b"x")).status.code == Code.UNAUTHORIZED
        wire = await served.connect(headers=signed(ORDERS))
        assert (await wire.send("Orders", b"x")).status.code == Code.OK
        assert (await wire.send("Others", b"x")).status.code == Code.FORBIDDEN
        assert served.broker.managers.topics.get("Others") is None
        assert (await wire.receive("Others"))[0].code == Code.FORBIDDEN
        assert (await wire.receive("Orders", "H"))[0].code == Code.FORBIDDEN
        _, (message,) = await wire.receive("Orders")
        assert (await wire.ack("Orders", message, "H")).status.code == Code.FORBIDDEN
        assert (await wire.ack("Orders", message)).status.code == Code.OK
        admin = await served.connect(headers=signed(ADMIN))
        assert (await admin.send("Read", b"x")).status.code == Code.OK
        assert (await wire.send("Read", b"x")).status.code == Code.FORBIDDEN
        assert len((await wire.receive("Read"))[1]) == 1

    with_grpc(scenario, accounts=ACCOUNTS)


@pytest.mark.parametrize("topic", ["%RETRY%Bills", "%DLQ%Bills", "%RETRY%G_Secret"])
def test_a_default_makes_no_retry_topic_of_a_group_or_topic_that_is_denied(with_grpc, topic):
    account = Account(
        "anybody-1",
        "secret-anybody",
        topics={"Secret": Permission.DENY},
        groups={"G": Permission.SUB, "G_Secret": Permission.SUB},
        default_topic=Permission.PUB | Permission.SUB,
    )

    async def scenario(served, _):
        wire = await served.connect(headers=signed(account))
        assert (await wire.send(topic, b"x")).status.code == Code.FORBIDDEN
        assert (await wire.receive(topic))[0].code == Code.FORBIDDEN
        assert served.broker.managers.topics.get(topic) is None

    with_grpc(scenario, accounts={each.access_key: each for each in (ADMIN, account)})


@pytest.mark.parametrize(
    "headers",
    [
        signed(ORDERS, secret="another"),
        signed(Account("unknown", "secret-orders")),
        signed(ORDERS, at=datetime(2020, 1, 1, tzinfo=UTC)),
        signed(STRICT),
        ((b"authorization", b"Basic abc"),),
        ((b"authorization", b"MQv2-HMAC-SHA1 Credential=orders-1"),),
    ],
)
def test_what_shows_no_right_credentials_is_refused(with_grpc, headers):
    async def scenario(served, _):
        wire = await served.connect(headers=headers)
        assert (await wire.call("Heartbeat")).status.code == Code.UNAUTHORIZED

    with_grpc(scenario, accounts=ACCOUNTS)


def test_plain_and_tls_clients_come_to_one_port_with_a_certificate_that_can_be_trusted(tmp_path):
    tls = own_tls(tmp_path / "kept", ("localhost", "127.0.0.1"), wall_clock_ms())
    made = (tmp_path / "kept" / CERTIFICATE).read_bytes()
    own_tls(tmp_path / "kept", ("localhost", "127.0.0.1"), wall_clock_ms())
    assert (tmp_path / "kept" / CERTIFICATE).read_bytes() == made
    assert (tmp_path / "kept" / "key.pem").stat().st_mode & 0o077 == 0
    trust = ssl.create_default_context(cafile=tmp_path / "kept" / CERTIFICATE)
    trust.set_alpn_protocols(["h2"])

    async def main():
        async with serving(tmp_path / "store", tls=tls) as served:
            broker_port = int(served.broker.address.rpartition(":")[2])
            for port in (served.port, broker_port):
                for context in (None, trust):
                    wire = await Wire.connect(port, tls=context)
                    assert (await wire.send("T", b"x")).status.code == Code.OK
                    await wire.close()
            client = RemotingClient()
            command = RemotingCommand(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
            answer = await client.invoke(served.broker.address, command)
            assert answer.ext_fields["offset"] == "1"
            await client.close()

    asyncio.run(main())


def test_a_certificate_without_a_name_that_is_called_is_made_anew(tmp_path):
    own_tls(tmp_path, ("localhost",), wall_clock_ms())
    made = (tmp_path / CERTIFICATE).read_bytes()
    own_tls(tmp_path, ("localhost", "10.1.2.3"), wall_clock_ms())
    assert (tmp_path / CERTIFICATE).read_bytes() != made
    (tmp_path / CERTIFICATE).write_bytes(b"damaged")
    assert own_tls(tmp_path, ("localhost",), wall_clock_ms()).mode is TlsMode.PERMISSIVE


@pytest.mark.parametrize("kept", [b"", b"damaged", "another's", "a pipe"])
@pytest.mark.parametrize("name", [CERTIFICATE, KEY])
def test_a_certificate_that_does_not_go_with_its_key_is_made_anew(tmp_path, name, kept):
    for folder in ("own", "other"):
        own_tls(tmp_path / folder, ("localhost",), wall_clock_ms())
    place = tmp_path / "own" / name
    place.unlink()
    if kept == "a pipe":
        os.mkfifo(place)
    else:
        place.write_bytes((tmp_path / "other" / name).read_bytes() if kept == "another's" else kept)
    for _ in range(2):
        assert own_tls(tmp_path / "own", ("localhost",), wall_clock_ms()).server is not None
    assert place.is_file()


def test_a_certificate_that_is_about_to_end_is_made_anew(tmp_path):
    now_ms, day_ms = wall_clock_ms(), 24 * 3_600_000
    own_tls(tmp_path, ("localhost",), now_ms)
    made = (tmp_path / CERTIFICATE).read_bytes()
    own_tls(tmp_path, ("localhost",), now_ms + 3600 * day_ms)
    assert (tmp_path / CERTIFICATE).read_bytes() == made
    own_tls(tmp_path, ("localhost",), now_ms + 3640 * day_ms)
    assert (tmp_path / CERTIFICATE).read_bytes() != made


def test_a_server_that_wants_tls_takes_no_plain_call(tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).parents[1] / "remoting" / "localhost.pem")

    async def main():
        tls = Tls(TlsMode.ENFORCING, context)
        async with serving(tmp_path / "store", tls=tls) as served:
            wire = await Wire.connect(served.port)
            await wire.lost

    asyncio.run(main())
