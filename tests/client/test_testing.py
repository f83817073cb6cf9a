"""The pytest plugin: a broker that is there soon, and topics that nobody else has."""

import importlib
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from client.patient import PATIENT
from patience import TIMEOUT_S

from rmqcore.testing import running_broker

pytestmark = pytest.mark.process

START_S_MAX = 0.3
PROJECT = """
from rmqcore.client.blocking import Consumer, Producer

topics = set()

def send_and_receive(broker, topic):
    topics.add(topic)
    with Producer(broker.namesrv_addr) as producer:
        producer.send(topic, b"one")
    with Consumer(broker.namesrv_addr, "G-" + topic, {topic: "*"}, start="first") as consumer:
        message = consumer.receive(60)
        assert message.body == b"one"
        consumer.ack(message)

def test_one(rocketmq_broker, rocketmq_topic):
    assert rocketmq_broker.store_path.joinpath("commitlog").is_dir()
    send_and_receive(rocketmq_broker, rocketmq_topic)

def test_two(rocketmq_broker, rocketmq_topic):
    send_and_receive(rocketmq_broker, rocketmq_topic)
    assert len(topics) == 2
"""


@pytest.mark.measure
def test_it_starts_within_300_ms(tmp_path, figure):
    took_s = []
    for number in range(5):
        began = time.monotonic()
        with running_broker(tmp_path / f"store{number}"):
            took_s.append(time.monotonic() - began)
    figure("the fastest of five starts", min(took_s), "s", at_most=START_S_MAX)


def test_another_project_uses_the_fixtures(tmp_path):
    (tmp_path / "test_orders.py").write_text(PATIENT + PROJECT, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_rmqcore", "-W", "error"]
    done = subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)],
        # as in an environment without others' plugins; an installed rmqcore brings its own
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT_S,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_run_that_asks_for_no_broker_imports_none():
    code = "import sys, pytest_rmqcore; print([n for n in sys.modules if n.startswith('rmqcore')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_installed_package_brings_the_plugin():
    with (Path(__file__).parents[2] / "pyproject.toml").open("rb") as file:
        entries = tomllib.load(file)["project"]["entry-points"]["pytest11"]
    (module,) = entries.values()
    assert hasattr(importlib.import_module(module), "rocketmq_broker")
