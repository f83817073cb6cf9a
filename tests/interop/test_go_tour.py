"""What RocketMQ's Go client offers, once each, at our broker with accounts."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from broker.serving import serving

from interop.cluster import TIMEOUT_S
from interop.peer import go_program
from rmqcore.client.blocking import Admin
from rmqcore.remoting import AclSigner

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(shutil.which("go") is None, reason="not on this machine: go"),
]
TOUR = Path(__file__).parent / "go" / "tour.go"
TOPICS = ("Send", "Cast", "Orderly", "Delay", "Transaction")
KEY = ("operator", "secret-0")


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    """The lines that the program printed, by their first word."""
    home = tmp_path_factory.mktemp("go")
    program = go_program(TOUR.read_text("utf-8"), home)
    auth = home / "accounts.json"
    account = {"accessKey": KEY[0], "secretKey": KEY[1], "admin": True}
    auth.write_text(json.dumps({"accounts": [account]}), "utf-8")
    # a broker asks again for what is not answered until the next round
    soon = ("-c", "transactionTimeOut=5000", "-c", "transactionCheckInterval=5000")
    soon += ("-c", "messageDelayLevel=1s 2s 1s")
    with serving(home / "store", "--auth", str(auth), *soon) as (_, facts):
        with Admin(facts["namesrv"], acl=AclSigner(*KEY)) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, queues=4)
        done = subprocess.run(
            [program, facts["namesrv"], *KEY],
            env={**os.environ, "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    lines = {}
    for line in done.stdout.splitlines():
        kind, *words = line.split("\t")
        lines.setdefault(kind, []).append(words)
    assert "SENT" in lines, done.stdout + done.stderr
    return lines


def got(tour, topic):
    """(who, body) of what came of a topic, in the order in which it came."""
    return [(who, body) for of, who, body, *_ in tour["GOT"] if of == topic]


def test_all_that_go_sends_is_stored(tour):
    assert "FAILED" not in tour
    assert {status for _, status in tour["SENT"]} == {"0"}


def test_each_way_of_sending_arrives_once_in_a_shared_go_group(tour):
    batch = [f"batch{number}" for number in range(4)]
    assert sorted(body for _, body in got(tour, "Send")) == sorted(
        ["sync", "async", "oneway", *batch]
    )


def test_broadcasting_gives_each_go_consumer_all(tour):
    wanted = [(who, f"c{number}") for who in ("one", "two") for number in range(4)]
    assert sorted(got(tour, "Cast")) == wanted


def test_go_consumes_a_queue_in_order(tour):
    bodies = [body for _, body in got(tour, "Orderly")]
    for queue in "01":
        assert [body for body in bodies if body[0] == queue] == [f"{queue}-{n}" for n in range(3)]


def test_a_delayed_message_comes_after_its_level_in_go(tour):
    ((_, body, later),) = [(of, body, at) for of, _, body, _, _, at in tour["GOT"] if of == "Delay"]
    assert body == "level 2"
    assert int(later) >= 2000


def test_only_what_a_transaction_of_go_commits_comes(tour):
    assert sorted(body for _, body in got(tour, "Transaction")) == ["commit", "unknown"]
    assert tour["ASKED"] == [["unknown"]]
