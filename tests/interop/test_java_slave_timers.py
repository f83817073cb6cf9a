"""A slave of RocketMQ's behind our master delivers, made master, what waits and nothing else."""

import struct
import time

import pytest
from broker.conftest import records
from patience import until

from interop.cluster import asker, broker_ports, java_broker, name_server
from interop.peer import missing
from interop.test_ha import NAME, SHARED, in_step, our_broker, registered
from rmqcore._codec import encode_properties
from rmqcore.java.json import parse_java_json
from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.world import wall_clock_ms

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]
#: a slave asks for the counts a minute after its start; what is due later is left for it to deliver
LATER_MS = 100_000


def send(ask, body, due_ms):
    properties = encode_properties({"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": body}).decode()
    fields = {
        **{"a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0"},
        **{"g": str(wall_clock_ms()), "h": "0", "i": properties},
    }
    assert ask(RequestCode.SEND_MESSAGE_V2, fields, body.encode()).code == ResponseCode.SUCCESS


def progress(ask):
    """Read time and queue offset, as a broker tells them."""
    told = bytes(ask(RequestCode.GET_TIMER_CHECK_POINT).body)
    read_ms, _, _, master_offset, *_ = struct.unpack(">7q", told)
    return read_ms, master_offset


def counts(ask):
    """How many messages wait, by topic, as a broker tells it."""
    told = parse_java_json(bytes(ask(RequestCode.GET_TIMER_METRICS).body).decode())
    return {topic: entry["count"] for topic, entry in told["timingCount"].items()}


def bodies(ask):
    fields = {
        **{"consumerGroup": "CG", "topic": "T", "queueId": "0", "queueOffset": "0"},
        **{"maxMsgNums": "9", "sysFlag": "4", "commitOffset": "0", "subscription": "*"},
        **{"suspendTimeoutMillis": "0", "subVersion": "0"},
    }
    answer = ask(RequestCode.PULL_MESSAGE, fields)
    if answer.code != ResponseCode.SUCCESS:
        return []
    return [bytes(message.body) for message in records(bytes(answer.body))]


def test_a_java_slave_that_is_made_master_goes_on_where_our_master_was(tmp_path):
    home = tmp_path / "java"
    as_slave = {**SHARED, "brokerRole": "SLAVE", "brokerId": 1}
    with name_server() as (address, ask):
        with our_broker(tmp_path / "ours", address, broker_ports()) as (_, master):
            at = asker(master)
            due_ms = wall_clock_ms() + LATER_MS
            soon_ms = wall_clock_ms() + 50
            send(at, "soon", soon_ms)
            send(at, "later", due_ms)
            with java_broker("5.5.0", home, address, NAME, **as_slave) as (process, slave):
                registered(ask, 2)
                in_step(master, slave)
                until(lambda: progress(asker(slave))[0] > soon_ms, "the slave knows of the first")
                assert progress(asker(slave))[1] == 2
                assert progress(asker(slave))[0] <= wall_clock_ms()
                # a slave of RocketMQ asks for that once a minute
                time.sleep(45)
                until(lambda: counts(asker(slave)) == {"T": 1}, "the slave knows what waits")
                assert (counts(at), len(bodies(at))) == ({"T": 1}, 1)
                process.terminate()
                process.wait(60)
        log = (home / "logs" / "rocketmqlogs" / "broker.log").read_text("utf-8")
        assert [line for line in log.splitlines() if " ERROR " in line] == []
        as_master = {
            "storePathRootDir": home / "store",
            "storePathCommitLog": home / "store" / "commitlog",
        }
        again = tmp_path / "again"
        with java_broker("5.5.0", again, address, NAME, **as_master) as (_, broker):
            registered(ask, 1)
            time.sleep(max(0, due_ms - wall_clock_ms()) / 1000)
            until(lambda: len(bodies(asker(broker))) > 1, "the second is delivered")
            assert wall_clock_ms() >= due_ms
            assert bodies(asker(broker)) == [b"soon", b"later"]
