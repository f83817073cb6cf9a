"""A broker that is asked to end, or killed, in the middle of traffic."""

import asyncio
import signal

import pytest
from broker.serving import TOPIC, produce, serving
from patience import TIMEOUT_S

import rmqcore

pytestmark = pytest.mark.process


def stored(path):
    """The bodies in the store, in their order."""
    with rmqcore.open_store(path) as store:
        return [bytes(message.body) for message in store.messages(TOPIC)]


def once_at(count, act):
    """A callback for `produce` that acts once, when so many are acknowledged."""
    acted = []

    def enough(acknowledged):
        if acknowledged >= count and not acted:
            acted.append(act())

    return enough


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_is_asked_to_end_loses_nothing_and_ends_well(tmp_path, flush, number):
    with serving(tmp_path / "store", "-c", f"flushDiskType={flush}") as (process, facts):
        ask = once_at(500, lambda: process.send_signal(number))
        acknowledged = asyncio.run(produce(facts["broker"], "m", ask))
        output, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert (output, errors) == (b"", b"")
    assert len(acknowledged) >= 500
    assert not (tmp_path / "store" / "abort").exists()
    bodies = stored(tmp_path / "store")
    assert set(acknowledged) <= set(bodies)
    assert len(bodies) == len(set(bodies))


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.storm)])
def test_a_broker_that_is_killed_loses_nothing_that_was_acknowledged(tmp_path, times, seed):
    acknowledged = []
    for round_number in range(times):
        with serving(tmp_path / "store") as (process, facts):
            count = 100 + (seed + round_number * 7919) % 2000
            kill = once_at(count, process.kill)
            acknowledged += asyncio.run(produce(facts["broker"], f"{round_number}-", kill))
            assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    assert len(acknowledged) >= 100 * times
    bodies = stored(tmp_path / "store")
    assert set(acknowledged) <= set(bodies)
    assert len(bodies) == len(set(bodies))
