"""What a broker tells of itself over HTTP."""

import asyncio
import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
from broker.conftest import LONG_MS, SMALL, Peer, held
from patience import until_async
from prometheus_client.parser import text_string_to_metric_families

from rmqcore.broker import Broker
from rmqcore.broker.admin import status_server
from rmqcore.broker.admin.metrics import Metrics
from rmqcore.broker.admin.status_server import StatusServer
from rmqcore.recovery.report import RecoveryProgress
from rmqcore.remoting import RequestCode

pytestmark = pytest.mark.engine

#: of RocketMQ 5's page of metrics, what a broker without a proxy has
NAMES = {
    "rocketmq_messages_in_total",
    "rocketmq_messages_out_total",
    "rocketmq_throughput_in_total",
    "rocketmq_throughput_out_total",
    "rocketmq_message_size_bucket",
    "rocketmq_send_to_dlq_messages_total",
    "rocketmq_consumer_lag_messages",
    "rocketmq_consumer_lag_latency",
    "rocketmq_consumer_ready_messages",
    "rocketmq_topic_number",
    "rocketmq_consumer_group_number",
    "rocketmq_storage_size",
    "rocketmq_storage_flush_behind_bytes",
    "rocketmq_storage_dispatch_behind_bytes",
}
DEPLOY = Path(__file__).parents[2] / "deploy"


async def get(port, path, method="GET", head="Host: localhost\r\n"):
    """(status, body) of a page."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode())
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def run_with_status(tmp_path, scenario):
    async def main():
        broker = Broker(tmp_path / "store", {"listenPort": 0, **SMALL})
        status = StatusServer("127.0.0.1", 0, broker.state, Metrics(lambda: broker.managers))
        await status.start()
        peer = Peer(broker)
        try:
            await scenario(broker, peer, status.port)
        finally:
            await peer.client.close()
            await broker.stop()
            await status.stop()

    asyncio.run(main())


def test_connections_that_ask_for_nothing_keep_no_probe_out(tmp_path):
    async def scenario(_, __, port):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        for _ in range(3):
            assert await get(port, "/healthz") == (200, b"ok\n")
        for _, writer in idle:
            writer.close()

    run_with_status(tmp_path, scenario)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_a_page_elsewhere_reads_nothing_by_a_name_of_its_own(tmp_path, path):
    async def scenario(broker, _, port):
        await broker.start()
        rebound = ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "a b")
        for host in rebound:
            assert (await get(port, path, head=f"Host: {host}\r\n"))[0] == 403, host
        head = "Host: localhost\r\nhost : evil.example\r\n"
        assert (await get(port, path, head=head))[0] == 403
        for host in ("localhost", "LOCALHOST", f"127.0.0.1:{port}", f"[::1]:{port}"):
            assert (await get(port, path, head=f"Host: {host}\r\n"))[0] == 200, host
        # probes of HTTP 1.0
        assert (await get(port, path, head=""))[0] == 200

    run_with_status(tmp_path, scenario)


def test_a_connection_whose_time_is_just_over_makes_room_for_the_next_one(monkeypatch):
    monkeypatch.setattr(status_server, "_REQUEST_TIMEOUT_S", 0)
    served = []

    async def main():
        status, loop = StatusServer("127.0.0.1", 0, None, None), asyncio.get_running_loop()

        def come():
            served.append(loop.create_task(status._serve(asyncio.StreamReader(), Mock())))

        for _ in range(32):
            come()
        # behind the end of their time, and before they know of it
        loop.call_soon(come)
        await until_async(lambda: all(each.done() for each in served), "all are closed")
        assert [each.exception() for each in served] == [None] * 33

    asyncio.run(main())


def test_a_page_that_fails_says_so(caplog):
    async def main():
        status = StatusServer("127.0.0.1", 0, Mock(side_effect=OSError("no store")), None)
        await status.start()
        answers = [await get(status.port, path) for path in ("/readyz", "/healthz", "/metrics")]
        await status.stop()
        assert [code for code, _ in answers] == [500, 200, 500]
        assert answers[0][1] == b"this cannot be told now; the log says why\n"

    asyncio.run(main())
    assert [str(each.exc_info[1]) for each in caplog.records][:1] == ["no store"]


def samples(text):
    """Values by (name, labels in the order of their names, without the node's)."""
    return {
        (
            sample.name,
            *(value for name, value in sorted(sample.labels.items()) if "node" not in name),
        ): (sample.value)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_what_went_in_and_out_is_counted_under_rocketmqs_names(tmp_path):
    async def scenario(broker, peer, port):
        await broker.start()
        for body in (b"a", b"b", bytes(2000)):
            await peer.send("T", body, properties={"TAGS": "x" if len(body) > 1 else "y"})
        await peer.send("T", b"s", properties={"__SHARDINGKEY": "k"})
        await peer.send("T", b"d", properties={"DELAY": "1"})
        await peer.pull("T")
        await peer.pull("T", group="Tagged", subscription="y")
        sent = await peer.send("Bad", b"x")
        offset = int(sent.ext_fields["msgId"][16:], 16)
        dead = {"group": "CG", "offset": offset, "delayLevel": -1}
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, dead)).code == 0
        commit = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "commitOffset": 1}
        assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        status, text = await get(port, "/metrics")
        found = samples(text)
        assert status == 200
        assert {name for name, *_ in found} >= NAMES
        cluster = "DefaultCluster"
        assert found["rocketmq_messages_in_total", cluster, "normal", "T"] == 3
        assert found["rocketmq_messages_in_total", cluster, "fifo", "T"] == 1
        assert found["rocketmq_messages_in_total", cluster, "delay", "T"] == 1
        assert found["rocketmq_message_size_bucket", cluster, "1024", "normal", "T"] == 2
        assert found["rocketmq_message_size_bucket", cluster, "+Inf", "normal", "T"] == 3
        assert found["rocketmq_throughput_in_total", cluster, "normal", "T"] > 2000
        assert found["rocketmq_messages_out_total", cluster, "CG", "T"] == 4
        assert found["rocketmq_messages_out_total", cluster, "Tagged", "T"] == 2
        assert found["rocketmq_send_to_dlq_messages_total", cluster, "CG", "Bad"] == 1
        assert found["rocketmq_consumer_lag_messages", cluster, "CG", "T"] == 3
        assert found["rocketmq_consumer_lag_latency", cluster, "CG", "T"] >= 0

    run_with_status(tmp_path, scenario)


def test_ready_is_said_when_requests_are_served_and_not_before_nor_after(tmp_path):
    async def scenario(broker, _, port):
        async def ready():
            status, body = await get(port, "/readyz")
            return status, json.loads(body)

        assert await ready() == (503, {"state": "stopped"})
        starting = asyncio.create_task(broker.start())
        await asyncio.sleep(0)
        assert broker.state()[1]["state"] == "recovering"
        await starting
        assert await ready() == (200, {"state": "serving"})
        assert await get(port, "/healthz") == (200, b"ok\n")
        await broker.stop()
        assert await ready() == (503, {"state": "stopped"})
        assert (await get(port, "/healthz"))[0] == 200

    run_with_status(tmp_path, scenario)


def test_how_far_the_recovery_is_is_told(tmp_path):
    async def main():
        broker = Broker(tmp_path / "store", SMALL)
        broker._state = "recovering"
        broker._progressed(RecoveryProgress("log", 5, 10))
        facts = {"state": "recovering", "phase": "log", "done": 5, "total": 10}
        assert broker.state() == (False, facts)

    asyncio.run(main())


def test_a_store_that_refuses_puts_is_not_ready(tmp_path):
    async def scenario(broker, _, port):
        await broker.start()
        broker.store.close()
        status, body = await get(port, "/readyz")
        assert status == 503
        assert "closed" in json.loads(body)["refuses_puts"]

    run_with_status(tmp_path, scenario)


def test_other_pages_and_methods_are_refused(tmp_path):
    async def scenario(_, __, port):
        assert (await get(port, "/"))[0] == 404
        assert (await get(port, "/healthz", "POST"))[0] == 405
        assert await get(port, "/healthz?x=1", "HEAD") == (200, b"")
        assert (await get(port, "/metrics"))[1] == b""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /" + bytes(20_000))
        assert await reader.read() == b""
        writer.close()

    run_with_status(tmp_path, scenario)


@pytest.mark.usefixtures("long_hold")
def test_pulls_that_wait_are_answered_before_the_broker_stops(tmp_path):
    async def scenario(broker, peer, _):
        await broker.start()
        await peer.send("T", b"first")
        waiting = [
            asyncio.ensure_future(peer.pull("T", offset=1, suspend_ms=LONG_MS)) for _ in range(3)
        ]
        await held(broker.managers.waiting_pulls, 3)
        await broker.stop()
        assert [(await each).code for each in waiting] == [19, 19, 19]

    run_with_status(tmp_path, scenario)


@pytest.mark.parametrize("name", ["prometheus-alerts.yaml", "grafana-dashboard.json"])
def test_what_rules_and_boards_ask_for_is_told(tmp_path, name):
    text = (DEPLOY / name).read_text("utf-8")
    asked = set(re.findall(r"\brocketmq_\w+", text))
    assert len(asked) > 8
    if name.endswith(".json"):
        panels = json.loads(text)["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)

    async def scenario(broker, peer, port):
        await broker.start()
        _, page = await get(port, "/metrics")
        told = set()
        for family in text_string_to_metric_families(page.decode()):
            suffixes = {"counter": ["_total"], "histogram": ["_bucket"]}.get(family.type, [""])
            told |= {family.name + suffix for suffix in suffixes}
        assert asked - told == set()

    run_with_status(tmp_path, scenario)
