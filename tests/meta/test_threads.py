"""docs/threads.md names the threads that a store has, however it is opened."""

import re
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import until

import rmqcore
from rmqcore.client.blocking import Producer
from rmqcore.testing import running_broker

pytestmark = pytest.mark.engine

PAGE = (Path(__file__).parents[2] / "docs" / "threads.md").read_text("utf-8")
SMALL = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 64, "max_index_num": 256}
#: of asyncio, which starts as many as it needs
ASYNCIO = "asyncio_0"


def rows(title):
    """Return {first cell: the threads in the second} of a section's tables."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    cells = [re.split(r" *\| *", line)[1:3] for line in section.splitlines() if line[:2] == "| "]
    return {first: set(re.findall(r"`([\w-]+)`", second)) for first, second in cells}


THERE = rows("Who is there")
STORE = THERE["`open_store(path)`"]
OWNER = STORE | THERE["`open_shared(path)`, the owner"]
BROKER = STORE | THERE["a broker"] | THERE["`rmqcore.testing.running_broker`"]


@contextmanager
def started():
    """Give a function that tells which threads have come since."""
    before = set(threading.enumerate())

    def names():
        come = [thread.name for thread in threading.enumerate() if thread not in before]
        return {re.sub(r"_\d+$", "_0", name) for name in come}

    yield names
    until(lambda: names() <= {ASYNCIO}, "the end of all threads")


@pytest.mark.parametrize("row", [row for row in THERE if re.match(r"`(\w+=|open_store)", row)])
def test_a_store_has_the_threads_of_its_row(store_path, row):
    settings = eval(f"dict({row.split('`')[1].removeprefix('open_store(path)')})")
    there = STORE | THERE[row]
    if settings.get("broker_role") == "SLAVE":
        there = STORE
    if "mode" in settings:
        rmqcore.open_store(store_path, **SMALL).close()
        there = set()
    with started() as names, rmqcore.open_store(store_path, **SMALL, **settings) as store:
        if store.why_not_writable() is None:
            store.put("Orders", b"one")
            store.flush()
        assert names() == there


def test_an_owner_and_a_client_have_theirs(store_path):
    client_has = THERE["`open_shared(path)`, a client"]
    with started() as names, rmqcore.open_shared(store_path, **SMALL):
        assert names() == OWNER - {"ShareStoreCall"}
        with rmqcore.open_shared(store_path) as client:
            client.put("Orders", b"one")
            assert names() == OWNER - {"ShareStoreCall"} | client_has - {"TellArrivals"}
            client.flush()
            client.on_arrival(lambda _: None)
            assert names() == OWNER | client_has


def test_a_broker_and_a_client_at_it_have_theirs(store_path):
    with started() as names, running_broker(store_path) as broker:
        assert names() == BROKER
        with Producer(broker.namesrv_addr, group="shop") as producer:
            producer.send("Orders", b"one")
            assert names() == BROKER | THERE["`rmqcore.client.blocking`"]


@pytest.mark.logic
def test_of_each_thread_the_page_says_what_it_does():
    told = {name for cell in rows("What each does") for name in re.findall(r"`([\w-]+)`", cell)}
    assert told == set.union(*THERE.values()) - {ASYNCIO}
