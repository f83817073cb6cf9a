"""What RocketMQ's Java clients of 4.9 and 5 offer, once each, at our broker."""

import json
import shutil
import subprocess
from collections import Counter

import pytest
from broker.serving import serving

import rmqcore
from golden.check import check_store
from interop.cluster import PEM, TIMEOUT_S, java, name_server
from interop.peer import dump, missing
from interop.writers import BOTH
from rmqcore.client.blocking import Admin, Consumer
from rmqcore.remoting import AclSigner
from rmqcore.testing import running_broker

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]
TOPICS = ("Send", "Cast", "Orderly", "Delay", "Retry", "Transaction", "Request", "Pull")
#: delays and checks come soon, but not before a slow client has decided or consumed
SOON = {
    "messageDelayLevel": "1s 10s 1s 1s",
    "transactionTimeOut": 5000,
    "transactionCheckInterval": 5000,
}


def run_tour(release, home, *words, tls=False):
    """The lines that a run printed, by their first word."""
    options = ["-Drocketmq.client.rebalance.waitInterval=500", f"-Dtls.enable={str(tls).lower()}"]
    command, environment = java(release, home, "ClientTour", *words, heap="128m", options=options)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    lines = {}
    for line in done.stdout.splitlines():
        kind, *words = line.split("\t")
        lines.setdefault(kind, []).append(words)
    return lines


@pytest.fixture(scope="module", params=BOTH)
def toured(request, tmp_path_factory):
    """A release, the store in which its client has left its messages, and what it printed."""
    home = tmp_path_factory.mktemp("tour")
    with running_broker(home / "store", **SOON) as broker:
        with Admin(broker.namesrv_addr) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, queues=4)
        lines = run_tour(request.param, home / "java", "tour", broker.namesrv_addr)
        dead_letters = {"%DLQ%CG-retry": "*"}
        with Consumer(broker.namesrv_addr, "CG-dead", dead_letters, start="first") as consumer:
            dead = consumer.receive(60)
            lines["DEAD"] = [] if dead is None else [[bytes(dead.body).decode()]]
    return request.param, home / "store", lines


@pytest.fixture
def tour(toured):
    """What the client printed."""
    return toured[-1]


def got(tour, topic):
    """(who, body, attempts, queue, milliseconds later) of what came of a topic."""
    return [
        (who, body, int(attempts), int(queue_id), int(later))
        for of, who, body, attempts, queue_id, later in tour["GOT"]
        if of == topic
    ]


def test_all_that_was_sent_is_stored(tour):
    assert "FAILED" not in tour
    assert {status for _, status in tour["SENT"]} == {"SEND_OK"}
    sent = Counter(how for how, _ in tour["SENT"])
    assert sent["sync"] == sent["batch"] == sent["large"] == sent["chosen"] == 1
    assert sent["async"] == 2


def test_each_way_of_sending_arrives_once_in_a_shared_group(tour):
    came = got(tour, "Send")
    assert sorted(body[:7] for _, body, *_ in came) == sorted(
        ["sync", "async0", "async1", "oneway0", "oneway1", "largexx", "chosen"]
        + [f"batch{number}" for number in range(6)]
    )
    assert len({queue_id for _, body, _, queue_id, _ in came if body.startswith("batch")}) == 1
    assert [queue_id for _, body, _, queue_id, _ in came if body == "chosen"] == [3]
    assert [len(body) for _, body, *_ in came if body.startswith("large")] == [5005]


def test_broadcasting_gives_each_consumer_all(tour):
    came = sorted((who, body) for who, body, *_ in got(tour, "Cast"))
    assert came == [(who, f"c{number}") for who in ("one", "two") for number in range(4)]


def test_a_queue_is_consumed_in_order_and_goes_on_where_it_was_suspended(tour):
    came = [body for _, body, *_ in got(tour, "Orderly")]
    assert [body for body in came if body[0] == "0"] == ["0-0", "0-1", "0-2", "0-2", "0-3", "0-4"]
    assert [body for body in came if body[0] == "1"] == [f"1-{number}" for number in range(5)]


def test_a_delayed_message_comes_after_its_level(tour):
    later = {body: later for _, body, _, _, later in got(tour, "Delay")}
    assert set(later) == {"level 1", "level 2"}
    assert 1000 <= later["level 1"] < 10_000 <= later["level 2"]


def test_what_fails_comes_again_and_dies_at_last(tour):
    came = sorted((body, attempts) for _, body, attempts, *_ in got(tour, "Retry"))
    assert came == [("fails", 0), ("fails", 1), ("holds", 0)]
    assert tour["DEAD"] == [["fails"]]


def test_only_what_a_transaction_commits_comes(tour):
    assert sorted(body for _, body, *_ in got(tour, "Transaction")) == ["commit", "unknown"]
    assert ["unknown"] in tour["ASKED"]
    assert ["rollback"] not in tour["ASKED"]


def test_a_request_gets_its_reply(tour):
    assert tour["REPLIED"] == [["answer to question"]]


def test_lite_pull_gets_all(tour):
    assert sorted(body for _, body, *_ in got(tour, "Pull")) == [
        f"p{number}" for number in range(8)
    ]


def test_rocketmq_reads_all_that_its_client_has_sent(toured, tmp_path):
    release, store, _ = toured
    theirs, conf = tmp_path / "theirs", tmp_path / "store.conf"
    with rmqcore.open_store(store, mode="r") as opened:
        conf.write_text(opened.broker_conf(), "utf-8")
        count = sum(1 for _ in opened.messages())
    shutil.copytree(store, theirs)
    manifest = dump(release, theirs, conf, [("Send", "sync"), ("Send", "batch0")])
    assert sum(len(queue["messages"]) for queue in manifest["queues"]) == count
    assert [len(query["phyOffsets"]) for query in manifest["keyQueries"]] == [1, 1]
    assert not check_store(store, manifest, conf, read_only=True).lines()


@pytest.mark.parametrize("release", BOTH)
def test_a_signed_request_is_served_and_another_gets_code_16(tmp_path, release):
    billing = {"accessKey": "billing", "secretKey": "secret-1", "topicPerms": ["Orders=PUB|SUB"]}
    billing |= {"groupPerms": ["CG=SUB"]}
    operator = {"accessKey": "operator", "secretKey": "secret-0", "admin": True}
    auth = tmp_path / "accounts.json"
    auth.write_text(json.dumps({"accounts": [operator, billing]}), "utf-8")
    # the clients ask a name server for everybody, so that it is the broker who answers them
    with (
        name_server() as (namesrv, _),
        serving(tmp_path / "store", "--auth", str(auth), "-c", f"namesrvAddr={namesrv}"),
    ):
        with Admin(namesrv, acl=AclSigner("operator", "secret-0")) as admin:
            admin.create_topic("Orders")
            admin.create_topic("Others")
        lines = run_tour(
            release,
            tmp_path / "java",
            "keys",
            namesrv,
            *("billing", "secret-1", "Orders", "CG"),
            *("billing", "another-secret", "Orders", "CG"),
            *("nobody", "secret-1", "Orders", "CG"),
            *("billing", "secret-1", "Others", "CG-others"),
            *("operator", "secret-0", "Others", "CG-operator"),
        )
    assert lines["SENT"] == [["0", "SEND_OK"], ["4", "SEND_OK"]]
    assert {who: "CODE: 16" in cause for who, cause in lines["REFUSED"]} == dict.fromkeys(
        ("1", "2", "3"), True
    )
    assert {(of, who, body) for of, who, body, *_ in lines["GOT"]} == {
        ("Orders", "0", "by 0"),
        ("Others", "4", "by 4"),
    }


@pytest.mark.parametrize("release", BOTH)
def test_a_client_that_speaks_tls_is_served_where_nothing_else_is(tmp_path, release):
    tls = tmp_path / "tls.properties"
    tls.write_text(
        f"tls.server.mode=enforcing\ntls.server.certPath={PEM}\ntls.server.keyPath={PEM}\n"
        "tls.enable=true\n",
        "utf-8",
    )
    with serving(tmp_path / "store", "--tls-config", str(tls)) as (_, facts):
        client = ("keys", facts["namesrv"], "any", "secret-1", "Orders", "CG")
        lines = run_tour(release, tmp_path / "java", *client, tls=True)
    assert lines["SENT"] == [["0", "SEND_OK"]]
    assert [body for _, _, body, *_ in lines["GOT"]] == ["by 0"]
