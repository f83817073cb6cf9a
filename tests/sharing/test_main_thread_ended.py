"""An owner whose main thread has ended, and that goes on in another."""

from __future__ import annotations

import pytest
from children import Program

import rmqcore
from rmqcore.store.sharing.daemon_threads import DaemonThreads

pytestmark = pytest.mark.process

OWNER = """
import sys, threading, rmqcore
store = rmqcore.open_shared(sys.argv[1])
main = threading.current_thread()
def work():
    main.join()
    print("ready", flush=True)
    sys.stdin.read()
threading.Thread(target=work).start()
"""


def test_it_answers_what_it_works_on_in_threads(store_path):
    with Program("-c", OWNER, store_path) as owner:
        assert owner.line() == "ready"
        with rmqcore.open_shared(store_path) as store:
            assert store.owner == owner.pid
            store.kv_put("table", b"key", b"value")
            assert store.flush() > 0
            assert len(list(store.messages())) == 1
            assert store.put_messages([rmqcore.Message("T", b"0")], durability="disk").ok
        assert owner.end() == 0


def test_threads_do_all_before_they_end():
    threads, done = DaemonThreads(), []
    futures = [threads.submit(done.append, number) for number in range(100)]
    failed = threads.submit(int, "x")
    threads.shutdown()
    assert sorted(done) == list(range(100))
    assert all(future.done() for future in futures)
    assert isinstance(failed.exception(), ValueError)
