"""A million leases take the memory of a million leases, and their journal stays in bounds."""

import json
import subprocess
import sys

import pytest

import rmqcore

PROGRAM = """
import json, sys, tempfile
from pathlib import Path

import rmqcore

def anonymous_kib():
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0])

count, size = int(sys.argv[1]), 256
with tempfile.TemporaryDirectory(prefix="leases") as folder, rmqcore.open_store(folder) as store:
    body = b"x" * size
    for _ in range(count // 1000):
        store.put_messages([rmqcore.Message("T", body)] * 1000)
    store.lease("g", {"T": "*"}, max_messages=1)
    before = anonymous_kib()
    leased = 1
    while found := store.lease("g", {"T": "*"}, max_messages=500):
        leased += len(found)
    del found
    used = anonymous_kib() - before
print(json.dumps([leased, used * 1024 / count]))
"""


@pytest.mark.measure
def test_many_leases_hold_no_messages(figure):
    count = 100_000
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(count)], capture_output=True, text=True, check=True
    )
    leased, each = json.loads(done.stdout)
    assert leased == count
    figure("memory of a lease", each, "bytes", at_most=200)


@pytest.mark.engine
def test_the_journal_of_many_leases_stays_small(store_path):
    count = 100_000
    with rmqcore.open_store(store_path) as store:
        for _ in range(count // 1000):
            store.put_messages([rmqcore.Message("T", b"x")] * 1000)
        leased = 0
        while found := store.lease("g", {"T": "*"}, max_messages=500):
            leased += len(found)
        journal = (store_path / "config" / "consumerLeases.log").stat().st_size
    assert leased == count
    assert journal / count < 2, "bytes of journal a lease, of messages that follow one another"
