"""A client connects when it must, pairs answers with requests, and says what went wrong."""

import asyncio
import gc
import socket

import pytest
from patience import until_async
from remoting.ends import (
    ECHO,
    LATER,
    PATIENCE_MS,
    SLOW,
    Held,
    address_of,
    bounds,
    calling,
    narrow,
    raw,
    serving,
)

from rmqcore.remoting import (
    AclSigner,
    LanguageCode,
    RemotingClient,
    RemotingClosedError,
    RemotingCommand,
    RemotingConnectError,
    RemotingTimeoutError,
    ResponseCode,
    failure,
    signature_is_right,
    split_address,
    success,
)

pytestmark = pytest.mark.engine


def test_answers_find_their_requests_whatever_their_order(run):
    async def scene():
        held = Held()
        async with serving({SLOW: held.answer}) as server, calling(server) as (_, call):
            asked = {
                body: asyncio.ensure_future(call(SLOW, body=body))
                for body in (b"1", b"2", b"3", b"4")
            }
            for body in (b"2", b"4", b"3", b"1"):
                await held.release(body)
                answer = await asked.pop(body)
                assert answer.body == body
                assert not any(each.done() for each in asked.values())
            assert len(server.connections) == 1

    run(scene())


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_a_request_names_language_version_and_kind(run, serialize_type):
    seen = []

    async def scene():
        processors = {LATER: lambda _, request: seen.append(request) or success()}
        async with (
            serving(processors) as server,
            calling(server, serialize_type=serialize_type) as (_, call),
        ):
            answer = await call(LATER, {"a": "b"}, b"c")
            assert answer.serialize_type == serialize_type

    run(scene())
    (request,) = seen
    assert (request.language, request.version) == (LanguageCode.PYTHON, 479)
    assert (request.serialize_type, request.flag) == (serialize_type, 0)
    assert (request.ext_fields, request.body) == ({"a": "b"}, b"c")


def test_no_answer_in_time_is_an_error_and_the_late_one_goes_to_nobody(run):
    async def scene():
        held = Held()
        async with serving({SLOW: held.answer}) as server, calling(server) as (client, call):
            connection = await client.connection(address_of(server), PATIENCE_MS)
            with pytest.raises(RemotingTimeoutError) as failed:
                await connection.invoke(RemotingCommand(SLOW, body=b"late"), 10)
            assert (failed.value.code, failed.value.address) == (SLOW, address_of(server))
            await held.release(b"late")
            next_one = asyncio.ensure_future(call(SLOW, body=b"next"))
            await held.release(b"next")
            answers = await asyncio.gather(next_one, call(ECHO, body=b"x"))
            assert [answer.body for answer in answers] == [b"next", b"x"]
            assert len(server.connections) == 1

    run(scene())


def test_a_lost_connection_fails_what_waits_and_the_next_request_connects_again(run):
    async def scene():
        held = Held()
        async with serving({LATER: held.answer}) as server, calling(server) as (_, call):
            waiting = asyncio.ensure_future(call(LATER))
            await held.taken()
            for connection in server.connections:
                connection.abort()
            with pytest.raises(RemotingClosedError):
                await waiting
            assert (await call(ECHO)).code == 0

    run(scene())


def test_the_loss_of_a_connection_is_told(run):
    lost = []

    async def scene():
        async with (
            serving() as server,
            calling(server, on_close=lambda address, _: lost.append(address)) as (_, call),
        ):
            await call(ECHO)
            for connection in server.connections:
                connection.close()
            await until_async(lambda: lost, "the loss of the connection")
            assert lost == [address_of(server)]

    run(scene())


def test_requests_at_the_same_time_share_one_connection(run):
    opened = []

    async def scene():
        async with serving(on_open=opened.append) as server, calling(server) as (_, call):
            await asyncio.gather(*(call(ECHO) for _ in range(20)))

    run(scene())
    assert len(opened) == 1


def test_who_gives_up_connecting_does_not_end_it_for_others(run):
    async def scene():
        async with serving() as server, calling(server) as (_, call):
            first = asyncio.ensure_future(call(ECHO))
            second = asyncio.ensure_future(call(ECHO))
            await asyncio.sleep(0)
            first.cancel()
            assert (await second).code == 0

    run(scene())


def test_a_connection_that_nobody_waits_for_any_more_fails_in_silence(run, caplog):
    async def scene():
        client = RemotingClient()
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            address = "127.0.0.1:{1}".format(*bound.getsockname())
            asking = asyncio.create_task(client.invoke(address, RemotingCommand(ECHO)))
            await asyncio.sleep(0)
            asking.cancel()
            await until_async(
                lambda: not client._opening and asking.done(), "the end of the connecting"
            )
        await client.close()

    run(scene())
    gc.collect()
    assert not caplog.records


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:", ":1", "127.0.0.1:65536", "h:-1"])
def test_what_is_no_address_is_said_so(run, address):
    async def scene():
        client = RemotingClient()
        with pytest.raises(RemotingConnectError, match="not host:port"):
            await client.invoke(address, RemotingCommand(ECHO))
        await client.close()

    run(scene())


def test_addresses_are_split_at_their_last_colon():
    assert split_address("127.0.0.1:9876") == ("127.0.0.1", 9876)
    assert split_address("[::1]:9876") == ("::1", 9876)


def test_nobody_listening_is_an_error_and_so_is_a_closed_client(run):
    async def scene():
        client = RemotingClient()
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            address = "127.0.0.1:{1}".format(*bound.getsockname())
            with pytest.raises(RemotingConnectError) as failed:
                await client.invoke(address, RemotingCommand(ECHO))
        assert failed.value.address == address
        await client.close()
        with pytest.raises(RemotingClosedError):
            await client.invoke(address, RemotingCommand(ECHO))

    run(scene())


def test_closing_fails_what_waits(run):
    async def scene():
        held = Held()
        async with serving({LATER: held.answer}) as server, calling(server) as (client, call):
            waiting = asyncio.ensure_future(call(LATER))
            await held.taken()
            await client.close()
            with pytest.raises(RemotingClosedError):
                await waiting

    run(scene())


def test_a_server_asks_its_client(run):
    told = []

    async def ask_back(connection, request):
        question = RemotingCommand(307, {"topic": "T"})
        answer = await connection.invoke(question, PATIENCE_MS)
        connection.notify(RemotingCommand(40, {"consumerGroup": "G"}))
        return success({"it said": answer.remark}, answer.body)

    async def scene():
        processors = {
            307: lambda _, request: success(body=request.ext_fields["topic"].encode(), remark="hi"),
            40: lambda _, request: told.append(request.ext_fields),
        }
        async with (
            serving({SLOW: ask_back}) as server,
            calling(server, processors) as (_, call),
        ):
            answers = await asyncio.gather(*(call(SLOW) for _ in range(10)))
            assert {(each.body, each.ext_fields["it said"]) for each in answers} == {(b"T", "hi")}
            await until_async(lambda: len(told) == 10, "all ten of the server's own requests")
        assert told[0] == {"consumerGroup": "G"}

    run(scene())


def test_a_oneway_request_arrives_and_waits_for_nothing(run):
    seen = []

    async def scene():
        processors = {LATER: lambda _, request: seen.append(request.flag)}
        async with serving(processors) as server, calling(server) as (client, _):
            await client.invoke_oneway(address_of(server), RemotingCommand(LATER), PATIENCE_MS)
            await until_async(lambda: seen, "the request")
            assert seen == [2]

    run(scene())


def test_requests_are_signed(run):
    def check(connection, request):
        if signature_is_right(request, "secret"):
            return None
        return failure(ResponseCode.NO_PERMISSION, "sign")

    async def scene():
        signer = AclSigner("user", "secret")
        async with serving(gate=check) as server:
            async with calling(server, sign=signer.sign) as (_, call):
                assert (await call(ECHO, {"a": "b"}, b"c")).code == 0
            async with calling(server) as (_, call):
                assert (await call(ECHO)).code == ResponseCode.NO_PERMISSION

    run(scene())


def test_a_server_that_stops_is_asked_once_more_on_a_new_connection(run):
    asked = []

    def go_away(connection, request):
        asked.append(connection)
        if len(set(asked)) == 1:
            return failure(ResponseCode.GO_AWAY, "stopping")
        return success(body=request.body)

    async def scene():
        async with serving({LATER: go_away}) as server, calling(server) as (_, call):
            assert (await call(LATER, body=b"again")).body == b"again"
            assert len(asked) == 2

    run(scene())


def test_requests_wait_while_the_server_does_not_read(run):
    """Nothing is written above the bound, and what was waited for in vain was not sent."""

    async def scene():
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        async with calling(None, connection=bounds(write_high_size=1000)) as (client, _):
            connection = await client.connection(address, PATIENCE_MS)
            narrow(connection)
            body, sent = bytes(500_000), 0
            while connection.writable:
                connection.notify(RemotingCommand(LATER, body=body))
                sent += 1
                await asyncio.sleep(0)
            assert sent < 60
            # more than the system may still take meanwhile
            for _ in range(60):
                connection.notify(RemotingCommand(LATER, body=body))
            more = []
            connection._send = lambda *frame: more.append(frame)
            for ask in (client.invoke, client.invoke_oneway):
                with pytest.raises(RemotingTimeoutError):
                    await ask(address, RemotingCommand(LATER, body=body), 20)
            assert not more
            connection.abort()

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        run(scene())


def test_a_client_reads_on_while_it_cannot_write(run):
    """Else both ends could wait for each other for ever."""

    async def scene():
        settings = bounds(write_high_size=1000)
        async with (
            serving(connection=settings) as server,
            calling(server, connection=settings) as (_, call),
        ):
            body = bytes(300_000)
            answers = await asyncio.gather(*(call(ECHO, body=body) for _ in range(100)))
            assert {len(answer.body) for answer in answers} == {len(body)}

    run(scene())


def test_a_malformed_answer_ends_the_connection(run):
    async def scene():
        held = Held()
        async with serving({LATER: held.answer}) as server, calling(server) as (_, call):
            waiting = asyncio.ensure_future(call(LATER))
            await held.taken()
            for connection in server.connections:
                connection._transport.write(b"\xff" * 8)
            with pytest.raises(RemotingClosedError):
                await waiting

    run(scene())


def test_an_answer_to_nobody_is_dropped(run):
    async def scene():
        async with serving() as server, raw(server) as peer:
            peer.send(RemotingCommand(0, opaque=12345, flag=1))
            peer.send(RemotingCommand(ECHO, opaque=1))
            assert (await peer.receive()).opaque == 1

    run(scene())
