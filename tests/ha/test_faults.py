"""Partitions, slow and torn connections, kills and power cuts: what was replicated is not lost."""

import asyncio

import pytest
from ha.faults import Namespaces, Proxy, Scenario

from interop.cluster import broker_ports, free_port
from rmqcore.ha import resync

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def no_master_is_slow(monkeypatch):
    monkeypatch.setattr(resync, "QUIET_S", 0.5)
    monkeypatch.setattr(resync, "_GROWS_S", 0.5)


def befall(path, seed, network, count):
    scenario = Scenario(path, seed, network, free_port(), broker_ports(), broker_ports())
    try:
        asyncio.run(scenario.run(count))
    except BaseException:
        print(scenario.told("not well"))
        raise
    return scenario


def test_what_was_replicated_survives(tmp_path, seed):
    befall(tmp_path, seed, Proxy, 4)


@pytest.mark.storm
def test_what_was_replicated_survives_for_long(tmp_path, seed):
    befall(tmp_path, seed, Proxy, 14)


@pytest.mark.storm
def test_what_was_replicated_survives_between_namespaces(tmp_path, seed):
    if (reason := Namespaces.missing()) is not None:
        pytest.skip(reason)
    befall(tmp_path, seed, Namespaces, 12)
