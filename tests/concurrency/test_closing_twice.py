"""Closing a handle that somebody else is closing."""

import threading

import pytest

from rmqcore import open_store


def test_a_second_close_leaves_the_next_handle_alone(tmp_path):
    first = open_store(tmp_path / "s")
    first.put("T", b"x")
    go, inside, stop_callers = threading.Event(), threading.Event(), first._stop_callers

    def held():
        stop_callers()
        if threading.current_thread() is slow:
            inside.set()
            go.wait(20)

    first._stop_callers = held
    slow = threading.Thread(target=first.close)
    slow.start()
    assert inside.wait(20)
    second = threading.Thread(target=first.close)
    second.start()
    second.join(0.2)
    go.set()
    slow.join(20)
    second.join(20)
    assert not slow.is_alive()
    assert not second.is_alive()
    with open_store(tmp_path / "s") as other:
        other.put("T", b"y")
        first.close()
        assert (tmp_path / "s" / "abort").exists()
    assert not (tmp_path / "s" / "abort").exists()


@pytest.mark.parametrize("callers", [8])
def test_all_who_close_return_when_it_is_closed(tmp_path, callers):
    store = open_store(tmp_path / "s")
    store.put("T", b"x")
    markers = []

    def close():
        store.close()
        markers.append((tmp_path / "s" / "abort").exists())

    threads = [threading.Thread(target=close) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert markers == [False] * callers
