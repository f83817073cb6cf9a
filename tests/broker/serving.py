"""A broker in a process of its own, and a producer that notes what was acknowledged."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import contextmanager

from rmqcore.clock import wall_clock_ms
from rmqcore.remoting import RemotingClient, RemotingCommand, RemotingError, RequestCode

TOPIC = "Traffic"


@contextmanager
def serving(store, *options):
    """`rmqcore serve` on free ports; yields the process and what it says of itself."""
    command = [
        *(sys.executable, "-m", "rmqcore", "serve", str(store), "--namesrv-port", "0"),
        *("--port", "0", "--json", "-c", "mappedFileSizeCommitLog=1048576", *options),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}
    )
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read().decode()
        yield process, json.loads(line)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


async def produce(address, prefix, enough, *, in_flight=32, group="PG"):
    """Send until the broker has gone; returns the bodies that were acknowledged.

    Args:
        address: of the broker.
        prefix: what the bodies begin with.
        enough: called with the number acknowledged so far, after each.
        in_flight: requests at a time.
        group: of the producer.
    """
    client, acknowledged, numbers = RemotingClient(), [], iter(range(10**9))
    gone = asyncio.Event()

    async def one_after_the_other():
        while not gone.is_set():
            body = f"{prefix}{next(numbers)}".encode()
            fields = {
                **{"a": group, "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0"},
                **{"g": str(wall_clock_ms()), "h": "0", "i": ""},
            }
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body)
            try:
                answer = await client.invoke(address, command, 5000)
            except RemotingError:
                gone.set()
                return
            if answer.code == 0:
                acknowledged.append(body)
                enough(len(acknowledged))

    await asyncio.gather(*(one_after_the_other() for _ in range(in_flight)))
    await client.close()
    return acknowledged
