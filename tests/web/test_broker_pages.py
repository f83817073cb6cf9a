"""The pages over a broker that runs: who consumes, what is handed out, dead letters, the tail."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from broker.conftest import LONG_MS, held, records
from patience import TIMEOUT_S, until_async
from web.conftest import ORIGIN, Reader
from web.test_pages import ROWS, words_of

from rmqcore.errors import ArgumentError
from rmqcore.remoting import RequestCode
from rmqcore.web import BrokerSource, Entry, WebServer, web_app
from rmqcore.web.overview import History

pytestmark = pytest.mark.engine

DEAD = "%DLQ%CG"
BEAT = {
    "clientID": "client-1",
    "consumerDataSet": [
        {
            "groupName": "CG",
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [
                {"topic": topic, "subString": "*"} for topic in ("T", "%RETRY%CG")
            ],
        }
    ],
}


async def reader_of(broker, **settings):
    entry = Entry()
    reader = Reader(web_app(BrokerSource(broker), entry, **settings))
    assert (await reader.ask("GET", f"/?token={entry.token}")).status == 303
    return reader


async def words(reader, path):
    answer = await reader.ask("GET", path)
    assert answer.status == 200, answer.text
    return words_of(answer.text)


async def dead_letter(peer, **properties):
    """Let the group CG have a dead letter, and a client, whose beat makes its retry topic."""
    await peer.send("T", b"x", properties={"KEYS": "k", **properties})
    await peer.ask(RequestCode.HEART_BEAT, body=json.dumps(BEAT).encode())
    back = {"group": "CG", "offset": 0, "delayLevel": -1}
    assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0


@pytest.mark.usefixtures("long_hold")
def test_a_group_says_who_holds_which_queue_and_what_is_handed_out(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"x")
        await peer.send("T", b"y", queue_id=1)
        await peer.ask(RequestCode.HEART_BEAT, body=json.dumps(BEAT).encode())
        waiting = asyncio.create_task(peer.pull("T", offset=1, suspend_ms=LONG_MS))
        await held(broker.managers.waiting_pulls)
        fields = {"consumerGroup": "CG", "topic": "T", "commitOffset": 0}
        for queue_id in (0, 1):
            asked = fields | {"queueId": queue_id}
            await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, asked)
        queue = {"brokerName": "b", "queueId": 1, "topic": "T"}
        lock = {"clientId": "client-2", "consumerGroup": "CG", "mqSet": [queue]}
        await peer.ask(RequestCode.LOCK_BATCH_MQ, body=json.dumps(lock).encode())
        popped = {"queueId": 1, "maxMsgNums": 8, "invisibleTime": 60_000, "pollTime": 0}
        popped |= {"consumerGroup": "CG", "topic": "T", "bornTime": 0, "initMode": 0}
        assert (await peer.ask(RequestCode.POP_MESSAGE, popped)).code == 0
        shown = await words(await reader_of(broker), "/group?name=CG")
        assert "client-1 waits for its next message" in shown
        assert "client-2 has locked it, to consume in order" in shown
        assert "T 1 0 1" in shown.partition("not acknowledged")[2]
        waiting.cancel()

    with_broker(scenario)


def test_what_is_leased_of_the_store_is_shown_with_its_group(with_broker):
    async def scenario(broker, peer):
        for _ in range(3):
            await peer.send("T", b"x")
        leased = await asyncio.to_thread(broker.store.lease, "LG", {"T": "*"}, max_messages=2)
        await asyncio.to_thread(broker.store.acknowledge, "LG", [leased[0].place])
        shown = await words(await reader_of(broker), "/group?name=LG")
        assert "Ready Leased T 0 1 1" in shown

    with_broker(scenario)


def test_the_first_page_tells_of_rates_and_the_store_of_its_replication(with_broker):
    async def scenario(broker, peer):
        await dead_letter(peer)
        reader = await reader_of(broker)
        shown = await words(reader, "/")
        for said in ("Store serving", "Puts accepted", "Dead letters CG 1"):
            assert said in shown
        # of what was not counted yet no rate is told
        assert "In \N{EN DASH} messages a second counted from now on" in shown
        shown = await words(reader, "/store")
        assert "Role master" in shown
        assert "no slave is connected" in shown
        assert "Retention deletes no log file" in shown
        assert "1 clustering" in await words(reader, "/group?name=CG")

    with_broker(scenario)


def test_a_dead_letter_is_put_again_for_its_own_group_only(with_broker):
    async def scenario(broker, peer):
        await dead_letter(peer)
        reader = await reader_of(broker, write=True)
        page = (await reader.ask("GET", f"/messages?by=time&topic={DEAD.replace('%', '%25')}")).text
        fields = {"form": reader.form_token(page), "topic": DEAD, "at": ROWS.findall(page)}
        assert len(fields["at"]) == 1
        answer = await reader.ask("POST", "/dead/put", fields, origin=ORIGIN)
        assert (answer.status, answer.headers["location"][-16:]) == (303, "said=1+put+again")
        found = broker.store.get_message("%RETRY%CG", 0, 0).messages
        assert [(each.body, each.keys, each.reconsume_times) for each in found] == [
            (b"x", ("k",), 0)
        ]
        assert found[0].properties["RETRY_TOPIC"] == "T"
        assert broker.store.max_queue_offset("T", 0) == 1
        fields["at"] = "0"
        answer = await reader.ask("POST", "/dead/put", fields, origin=ORIGIN)
        assert answer.status == 500
        assert ArgumentError.__name__ in answer.text
        assert broker.store.max_queue_offset("%RETRY%CG", 0) == 1
        fields["at"] = [*ROWS.findall(page), "0"]
        answer = await reader.ask("POST", "/dead/put", fields, origin=ORIGIN)
        assert answer.status == 303
        assert "said=1+put+again%2C" in answer.headers["location"]
        assert broker.store.max_queue_offset("%RETRY%CG", 0) == 2

    with_broker(scenario)


async def put_all_again(broker):
    reader = await reader_of(broker, write=True)
    page = (await reader.ask("GET", f"/messages?by=time&topic={DEAD.replace('%', '%25')}")).text
    fields = {"form": reader.form_token(page), "topic": DEAD, "at": ROWS.findall(page)}
    answer = await reader.ask("POST", "/dead/put", fields, origin=ORIGIN)
    assert answer.headers["location"][-16:] == "said=1+put+again"


async def make_retry_topic(peer, group):
    fields = {"group": group, "offset": 0, "delayLevel": 0}
    assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0


@pytest.mark.parametrize("origin", [{}, {"ORIGIN_GROUP": "CG_T"}], ids=["plain", "foreign"])
def test_a_dead_letter_of_who_pulls_is_not_put_where_another_group_reads(with_broker, origin):
    async def scenario(broker, peer):
        await dead_letter(peer, **origin)
        await make_retry_topic(peer, "CG_T")
        await put_all_again(broker)
        found = broker.store.get_message("%RETRY%CG", 0, 0).messages
        assert [each.body for each in found] == [b"x"]
        assert broker.store.max_queue_offset("%RETRY%CG_T", 0) == 0

    with_broker(scenario, messageDelayLevel="1d")


@pytest.mark.parametrize("origin", [{}, {"ORIGIN_GROUP": "Elsewhere"}], ids=["plain", "foreign"])
def test_a_dead_letter_of_who_pops_is_handed_out_again(with_broker, origin):
    async def scenario(broker, peer):
        await dead_letter(peer, **origin)
        await make_retry_topic(peer, "CG_T")
        commit = {"consumerGroup": "CG", "topic": "%RETRY%CG_T", "queueId": 0, "commitOffset": 0}
        assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        commit = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "commitOffset": 1}
        assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        await put_all_again(broker)
        pop = {"consumerGroup": "CG", "topic": "T", "queueId": -1, "maxMsgNums": 8}
        pop |= {"invisibleTime": 60_000, "pollTime": 0, "bornTime": 0, "initMode": 0}
        # one pop in five looks into the retry topic first, and each where there is nothing else
        answer = await peer.ask(RequestCode.POP_MESSAGE, pop)
        assert (answer.code, [each.body for each in records(answer.body)]) == (0, [b"x"])

    with_broker(scenario, messageDelayLevel="1d")


def test_without_leave_nothing_is_put_again(with_broker):
    async def scenario(broker, peer):
        await dead_letter(peer)
        reader = await reader_of(broker)
        page = (await reader.ask("GET", f"/messages?by=time&topic={DEAD.replace('%', '%25')}")).text
        assert "/dead/put" not in page
        store = (await reader.ask("GET", "/store")).text
        fields = {"form": reader.form_token(store), "topic": DEAD, "at": ROWS.findall(page)}
        answer = await reader.ask("POST", "/dead/put", fields, origin=ORIGIN)
        assert answer.status == 403
        assert broker.store.max_queue_offset("%RETRY%CG", 0) == 0

    with_broker(scenario)


def test_the_trace_that_clients_tell_is_a_line_of_time(with_broker):
    def told(*fields):
        return "\x01".join(fields) + "\x02"

    async def scenario(broker, peer):
        await peer.send("T", b"x", properties={"UNIQ_KEY": "U1"})
        sent = ("Pub", "1000", "r", "PG", "T", "U1", "", "k", "h", "1", "3", "0", "id", "true")
        got = ("SubBefore", "1010", "r", "CG", "R1", "U1", "0", "k")
        other = ("SubBefore", "1011", "r", "CG", "R1", "U2", "0", "k")
        done = ("SubAfter", "R1", "U1", "41", "false", "k", "0", "1051")
        body = "".join(told(*each) for each in (done, got, other, sent, ("Pub",), ("?", "\x00")))
        names = {"KEYS": "U1", "UNIQ_KEY": "T1"}
        await peer.send("RMQ_SYS_TRACE_TOPIC", body.encode(), properties=names)
        shown = await words(await reader_of(broker), "/message?at=0")
        trace = shown.partition("Trace ")[2]
        assert "sent PG" in trace.partition("received")[0]
        assert "received, try 1 CG" in trace.partition("consumed")[0]
        assert "consumed failed" in trace
        assert "41 ms" in trace
        assert trace.count("received") == 1

    with_broker(scenario)


@asynccontextmanager
async def tail_of(broker, entry, key):
    """The events of the topic T as the session of a key gets them, over a real port."""
    server = WebServer(web_app(BrokerSource(broker), entry), "127.0.0.1", 0)
    await asyncio.to_thread(server.start)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        lines = ["GET /live/events?topic=T&after=0 HTTP/1.1"]
        lines += [f"Cookie: rmqcore_{server.port}={key}", f"Host: 127.0.0.1:{server.port}", "", ""]
        writer.write("\r\n".join(lines).encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await reader.readuntil(b"retry: 2000")
        yield reader
        writer.close()
    finally:
        await asyncio.to_thread(server.stop)


def test_the_tail_tells_of_each_message_that_comes_over_a_real_port(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"before")
        entry = Entry()
        async with tail_of(broker, entry, entry.begin()) as reader:
            await peer.send("T", b"<b>after</b>")
            found = await reader.readuntil(b"}")
            assert json.loads(found.partition(b"data: ")[2])["body"] == "<b>after</b>"

    with_broker(scenario)


@pytest.mark.parametrize("how", ["logged out", "not used for a day", "one of too many"])
def test_the_tail_ends_with_the_session_of_its_reader(with_broker, monkeypatch, how):
    monkeypatch.setattr("rmqcore.web.gate._SESSIONS_MAX", 2)

    async def scenario(broker, peer):
        await peer.send("T", b"before")
        entry = Entry()
        key = entry.begin()
        async with tail_of(broker, entry, key) as reader:
            if how == "logged out":
                entry.end(key)
            elif how == "one of too many":
                entry.begin()
                entry.begin()
            else:
                entry.find(key).seen_s -= 86_400
            async with asyncio.timeout(TIMEOUT_S):
                # an answer in chunks has this end
                await reader.readuntil(b"\r\n0\r\n\r\n")

    with_broker(scenario)


def test_while_the_broker_does_not_serve_the_pages_say_so(with_broker):
    async def scenario(broker, _):
        reader = await reader_of(broker)
        await broker.stop()
        answer = await reader.ask("GET", "/")
        assert answer.status == 503
        assert "the broker is stopped" in answer.text

    with_broker(scenario)


def test_rates_are_the_differences_of_samples(with_broker):
    async def scenario(broker, peer):
        history = History(BrokerSource(broker))
        history.sample()
        await peer.send("T", b"x")
        await until_async(lambda: broker.managers.traffic.stored, "the send is counted")
        history.sample()
        (into,), (out,) = history.rates()
        assert into > 0
        assert out == 0

    with_broker(scenario)
