"""The commands and the program of docs/ha.md do what the page says."""

import asyncio
import json
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from patience import TIMEOUT_S, until

from rmqcore.client.blocking import Consumer, Producer
from rmqcore.java.json import parse_java_json
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "ha.md").read_text("utf-8")
COMMANDS = re.findall(r"^\$ rmqcore (.*?)( &)?$", PAGE, re.MULTILINE)
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SMALL = "-c mappedFileSizeCommitLog=1048576 -c maxIndexNum=4000 -c maxHashSlotNum=1000"


def command(line, places):
    for printed, mine in places.items():
        line = line.replace(printed, mine)
    return [sys.executable, "-m", "rmqcore", *line.split()]


def topics_of(address):
    """The topics that a broker has."""

    async def ask():
        client = RemotingClient()
        try:
            command = RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG)
            return (await client.invoke(address, command, 1000 * TIMEOUT_S)).body
        finally:
            await client.close()

    return parse_java_json(bytes(asyncio.run(ask())).decode())["topicConfigTable"]


def test_two_commands_make_a_pair_and_a_consumer_goes_on_without_the_master(tmp_path):
    namesrv, master, slave, status, resync, _ = (line for line, _ in COMMANDS)
    places = {"/tmp": str(tmp_path)}
    with ExitStack() as stack:

        def start(line):
            process = stack.enter_context(
                subprocess.Popen(command(line, places), stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            return process, json.loads(process.stdout.readline())

        _, facts = start(f"{namesrv} --port 0 --json")
        places["127.0.0.1:9876"] = facts["namesrv"]
        served, _ = start(f"{master} {SMALL} --port 0 --json")
        _, copy = start(f"{slave.replace('--port 10921', '--port 0')} {SMALL} --json")

        def rows():
            done = subprocess.run(
                command(f"{status} -n 127.0.0.1:9876 --json", places),
                capture_output=True,
                text=True,
                check=True,
            )
            return json.loads(done.stdout)

        def in_step():
            told = rows()
            return len(told) == 2 and told[0]["lag_bytes"] == 0 and told

        until(in_step, "the slave is in step")
        with Producer(facts["namesrv"]) as producer:
            for number in range(10):
                assert producer.send("T", b"%d" % number).status.name == "SEND_OK"
        told = until(in_step, "the slave is in step again")
        assert told[0]["end"] == told[1]["end"] > 0
        until(lambda: "T" in topics_of(copy["broker"]), "the slave has the topics")
        served.kill()
        served.wait(TIMEOUT_S)
        with Consumer(facts["namesrv"], "CG", {"T": "*"}, start="first") as consumer:
            got = set()
            for message in consumer:
                got.add(int(bytes(message.body)))
                consumer.ack(message)
                if len(got) == 10:
                    break
        assert resync.startswith("ha resync")


def test_the_program_prints_what_it_should():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("replicated True\n", "")
