"""The README's lines of Java and Go, as they are printed, exchange a message with our broker."""

import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from interop.cluster import TIMEOUT_S, java
from interop.peer import go_program, missing
from rmqcore.testing import rocketmq_broker  # noqa: F401 - a fixture

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")

pytestmark = pytest.mark.peers

JAVA = """
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.message.*;

class Lines {
    public static void main(String[] words) throws Exception {
        %s
        consumer.shutdown();
        producer.shutdown();
    }
}
"""
GO = """
package main

import (
    "context"
    "fmt"
    "os"

    "github.com/apache/rocketmq-client-go/v2"
    "github.com/apache/rocketmq-client-go/v2/consumer"
    "github.com/apache/rocketmq-client-go/v2/primitive"
    "github.com/apache/rocketmq-client-go/v2/producer"
)

func main() {
    %s
    os.Stdin.Read(make([]byte, 1))
    c.Shutdown()
    p.Shutdown()
}
"""


def lines_of(language, broker):
    (code,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    # a slow machine may take longer until the first message comes
    return code.replace("127.0.0.1:9876", broker.namesrv_addr).replace("10_000", "100_000")


@pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}")
def test_the_lines_of_java_send_and_consume(rocketmq_broker, tmp_path):  # noqa: F811
    source = tmp_path / "Lines.java"
    source.write_text(JAVA % lines_of("java", rocketmq_broker), "utf-8")
    command, environment = java("5.5.0", tmp_path / "java", source)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert "sendStatus=SEND_OK" in done.stdout, done.stdout + done.stderr
    assert "from Java" in done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("go") is None, reason="not on this machine: go")
def test_the_lines_of_go_send_and_consume(rocketmq_broker, tmp_path):  # noqa: F811
    program = go_program(GO % lines_of("go", rocketmq_broker), tmp_path)
    errors = tmp_path / "errors.txt"
    with (
        errors.open("w") as error_file,
        subprocess.Popen(
            [program],
            env={**os.environ, "HOME": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=error_file,
            text=True,
        ) as running,
    ):
        # its output ends with it
        too_late = threading.Timer(100, running.kill)
        too_late.start()
        lines = []
        for line in running.stdout:
            lines.append(line.rstrip("\n"))
            if lines[-1] == "from Go":
                # it goes on until its input ends
                running.stdin.close()
        too_late.cancel()
    told = "\n".join(lines)
    assert "sendStatus=0" in told or "SEND_OK" in told, told + errors.read_text("utf-8")
    assert "from Go" in lines
