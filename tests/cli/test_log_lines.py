"""What a server writes to standard error: a line a record, whatever clients have named."""

import asyncio
import json
import logging
import subprocess
import sys

import pytest
from patience import TIMEOUT_S

from rmqcore.cli.log_lines import LogLines
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode

FORGED = "b\n2026-01-01 00:00:00,000 CRITICAL rmqcore.store: the disk is gone\x1b[31m\u202e"


@pytest.mark.logic
def test_a_record_is_one_line_and_its_traceback_is_indented():
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        raised = (type(error), error, error.__traceback__)
    of = ("rmqcore", logging.WARNING, "here.py", 1, "%s was silent", (FORGED,), raised)
    first, *others = LogLines().format(logging.LogRecord(*of)).splitlines()
    assert "b\\n2026-01-01 00:00:00,000 CRITICAL" in first
    assert "gone\\x1b[31m\\u202e was silent" in first
    assert others[0] == "    Traceback (most recent call last):"
    assert others[-1].endswith("the disk is gone\\x1b[31m\\u202e")
    assert all(line.startswith("    ") for line in others)


@pytest.mark.process
def test_a_broker_makes_up_no_line_of_a_name_servers_log(tmp_path):
    config = tmp_path / "namesrv.conf"
    config.write_text("scanNotActiveBrokerInterval=100\n", "utf-8")
    command = (sys.executable, "-m", "rmqcore", "namesrv", "--port", "0", "--json")

    async def main():
        server = await asyncio.create_subprocess_exec(
            *command, "--config", config, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                address = json.loads(await server.stdout.readline())["namesrv"]
                client = RemotingClient()
                fields = {"clusterName": "c", "brokerName": FORGED, "brokerAddr": "127.0.0.1:1"}
                fields |= {"brokerId": "0", "haServerAddr": "", "heartbeatTimeoutMillis": "1"}
                await client.invoke(address, RemotingCommand(RequestCode.REGISTER_BROKER, fields))
                line = (await server.stderr.readline()).decode()
                await client.close()
        finally:
            server.kill()
            await server.wait()
        assert line.endswith("was silent for 1 ms\n")

    asyncio.run(main())
