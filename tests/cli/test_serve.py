"""`rmqcore serve`: where it listens, and for whom."""

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from broker.serving import serving

from rmqcore import ArgumentError, open_store
from rmqcore.broker.admin.status_server import StatusServer
from rmqcore.cli import serve
from rmqcore.namesrv import NameServer
from rmqcore.remoting import RemotingServer

pytestmark = pytest.mark.logic

USER = {"accessKey": "producer", "secretKey": "secret-1"}


@pytest.mark.parametrize("command", [["serve", "STORE"], ["broker", "STORE"], ["namesrv"]])
def test_an_address_that_others_reach_takes_accounts_or_a_word(rmqcore, tmp_path, command):
    words = [tmp_path / "store" if word == "STORE" else word for word in command]
    done = rmqcore(*words, "--host", "0.0.0.0")
    assert done.exit_code != 0
    assert "--auth" in done.stderr
    assert "--insecure" in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_broker_needs_an_administrator_to_register(rmqcore, tmp_path):
    accounts = tmp_path / "acl.json"
    accounts.write_text(json.dumps({"accounts": [USER]}), "utf-8")
    done = rmqcore("serve", tmp_path / "store", "--auth", accounts)
    assert done.exit_code != 0
    assert "administrator" in done.stderr


def test_a_file_of_accounts_that_is_not_there_is_said(rmqcore, tmp_path):
    done = rmqcore("serve", tmp_path / "store", "--auth", tmp_path / "none.json")
    assert done.exit_code != 0
    assert "none.json" in done.stderr


@pytest.mark.engine
def test_a_port_that_is_taken_is_said_with_what_to_do(rmqcore, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = rmqcore("serve", tmp_path / "store", "--namesrv-port", taken.getsockname()[1])
        assert done.exit_code == 5
        assert f"127.0.0.1:{taken.getsockname()[1]} is taken" in done.stderr
        assert "give another port" in done.stderr
        ports = ("--namesrv-port", 0, "--port", taken.getsockname()[1])
        done = rmqcore("serve", tmp_path / "store", *ports, "--json")
        told = json.loads(done.stderr)
        assert (told["error"], told["exit_code"]) == ("PortTakenError", 5)
        assert "listenPort" in told["message"]
        assert "apart" in told["message"]


def test_a_name_server_that_its_own_broker_cannot_reach_is_refused(rmqcore, tmp_path):
    path = tmp_path / "tls.properties"
    pem = Path(__file__).parents[1] / "remoting" / "localhost.pem"
    path.write_text(f"tls.server.mode=enforcing\ntls.server.certPath={pem}\n", "utf-8")
    done = rmqcore("serve", tmp_path / "store", "--tls-config", path)
    assert done.exit_code == 2
    assert "tls.enable" in done.stderr


DUMPED = ("-c", "bindAddress=0.0.0.0")
OWN = ("-c", "brokerIP1=127.0.0.1")


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "reached"),
    [
        (DUMPED, False),
        ((*DUMPED, *OWN, "--insecure"), True),
        (("--host", "0.0.0.0", *OWN, "--insecure"), True),
        (("--host", "127.0.0.1", *DUMPED, "--insecure"), False),
    ],
)
def test_only_who_asks_for_it_is_reached_by_others(tmp_path, options, reached):
    with serving(tmp_path / "store", *options) as (_, facts):
        host, port = facts["broker"].split(":")
        assert host == "127.0.0.1"
        found = False
        # another address of this machine
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.2", int(port))):
            found = True
    assert found is reached


def test_an_address_of_the_settings_that_others_reach_takes_a_word(rmqcore, tmp_path):
    for command in ("serve", "broker"):
        done = rmqcore(command, tmp_path / "store", "-c", "brokerIP1=10.1.2.3")
        assert done.exit_code != 0
        assert "--insecure" in done.stderr


@pytest.mark.parametrize("port", ["-1", "65536", "99999"])
@pytest.mark.parametrize(
    "command",
    [
        ["serve", "STORE", "--namesrv-port"],
        ["serve", "STORE", "--port"],
        ["serve", "STORE", "--metrics-port"],
        ["serve", "STORE", "--web-port"],
        ["web", "STORE", "--port"],
        ["broker", "STORE", "--port"],
        ["broker", "STORE", "--metrics-port"],
        ["namesrv", "--port"],
    ],
)
def test_a_port_that_no_address_has_is_wrong_usage(rmqcore, tmp_path, command, port):
    words = [tmp_path / "store" if word == "STORE" else word for word in command]
    done = rmqcore(*words, port)
    assert done.exit_code == 2
    assert f"'{command[-1]}'" in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_server_on_a_port_that_no_address_has_is_refused(port):
    for server in (
        lambda: RemotingServer(port=port),
        lambda: NameServer("127.0.0.1", port),
        lambda: StatusServer("127.0.0.1", port, None, None),
    ):
        with pytest.raises(ArgumentError, match=f"port={port}"):
            server()


@pytest.mark.process
@pytest.mark.parametrize(("there", "size"), [(None, 64 << 20), (1 << 20, 1 << 20)])
def test_a_small_store_is_small_and_one_that_is_there_stays_as_it_is(tmp_path, there, size):
    store = tmp_path / "store"
    if there:
        open_store(store, mapped_file_size_commit_log=there).close()
    command = [sys.executable, "-m", "rmqcore", "serve", store, "--small", "--json"]
    ports = ["--port", "0", "--namesrv-port", "0"]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE) as process:
        try:
            assert json.loads(process.stdout.readline())["store"] == str(store)
            assert (store / "commitlog" / f"{0:020}").stat().st_size == size
        finally:
            process.kill()


class Opening:
    """A broker whose store takes long to open: until it was asked how far it is three times."""

    path = Path("orders.served")
    address = "127.0.0.1:1"
    told = ({}, *({"phase": "log", "done": done, "total": 4_000} for done in (0, 1_500)))

    def __init__(self):
        self.asked = 0
        self.is_open = asyncio.Event()

    async def start(self):
        await self.is_open.wait()

    def state(self):
        facts = self.told[self.asked]
        self.asked += 1
        if self.asked == len(self.told):
            self.is_open.set()
        return False, facts


@pytest.mark.engine
def test_who_waits_for_a_large_store_is_told_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(serve, "_TELL_EVERY_S", 0.001)

    async def start():
        await serve._start_broker(Opening(), None)

    asyncio.run(start())
    assert capsys.readouterr().err == (
        "rmqcore: opening orders.served: log, 0 of 4,000\n"
        "rmqcore: opening orders.served: log, 1,500 of 4,000\n"
    )
