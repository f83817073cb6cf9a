"""A wrong argument is refused by its name before anything happens."""

from __future__ import annotations

import asyncio

import pytest

from rmqcore import ArgumentError, Message, MessageIllegalError, Queue, open_shared, open_store
from rmqcore.adapters.opened import OpenedStore
from rmqcore.adapters.queuelib import FifoQueue
from rmqcore.broker import Broker
from rmqcore.doctor import verify
from rmqcore.lake.sources import open_source
from rmqcore.rebuild import rebuild_consume_queues
from rmqcore.testing import running_broker

pytestmark = pytest.mark.engine


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "s") as opened:
        yield opened


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keys", 5),
        ("keys", b"bytes"),
        ("queue_id", 1.5),
        ("queue_id", "1"),
        ("queue_id", 10**12),
        ("queue_id", None),
        ("flag", 1.5),
        ("sys_flag", 1 << 31),
        ("reconsume_times", object()),
        ("delay_level", "1"),
        ("born_timestamp_ms", 1e12),
        ("born_timestamp_ms", 1 << 63),
        ("prepared_transaction_offset", "0"),
        ("properties", 5),
    ],
)
def test_a_put_names_what_is_wrong(store, name, value):
    calls = [
        lambda: store.put("T", b"x", **{name: value}),
        lambda: Message("T", b"x", **{name: value}),
        lambda: asyncio.run(store.put_async("T", b"x", **{name: value})),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match=f"^{name}=.*: expected ") as error:
            call()
        assert error.value.argument == name
        assert isinstance(error.value, MessageIllegalError)
        assert isinstance(error.value, TypeError)
    assert store.max_phy_offset == 0


def test_what_is_a_number_without_being_an_int_counts(store):
    class Number:
        def __index__(self):
            return 3

    assert store.put("T", b"x", queue_id=Number(), flag=True).ok
    assert store.message_at(0).queue_id == 3
    assert store.message_at(0).flag == 1


def test_a_range_is_told_as_far_as_it_goes(store):
    for call, rule in (
        (
            lambda: store.get_message("T", 0, 0, max_messages=0),
            "max_messages=0: expected 1 or more",
        ),
        (
            lambda: store.get_message("T", 1 << 40, 0),
            "expected a whole number from -2147483648 to ",
        ),
        (lambda: store.message_at(10**70), "expected a whole number of fewer digits"),
    ):
        with pytest.raises(ArgumentError, match=rule):
            call()


def test_what_is_no_message_is_named(store):
    with pytest.raises(ArgumentError, match=r"^message=\('T', b'x'\): expected a Message"):
        store.put_message(("T", b"x"))
    with pytest.raises(ArgumentError, match=r"^messages\[1\]="):
        store.put_messages([Message("T", b"x"), ("T", b"x")])
    for nothing in (5, "text", Message("T")):
        with pytest.raises(ArgumentError, match=r"^messages="):
            store.put_messages(nothing)


def test_a_wrong_name_is_named(store):
    for call in (store.put, Message):
        with pytest.raises(TypeError, match="tagz"):
            call("T", b"x", tagz="a")
    with pytest.raises(ArgumentError, match=r"^tagz is no argument.* did you mean tags\?"):
        asyncio.run(store.put_async("T", b"x", tagz="a"))
    with pytest.raises(ArgumentError, match=r"^topi is no argument.* did you mean topic\?"):
        asyncio.run(store.put_messages_async(b"", topi="T"))


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_read_names_what_is_wrong(tmp_path, mode):
    with open_store(tmp_path / "s") as store:
        store.put("T", b"x", keys="k")
    with open_store(tmp_path / "s", mode=mode) as store:
        wrong = {
            "max_messages": [
                lambda: store.get_message("T", 0, 0, max_messages=0),
                lambda: store.get_message("T", 0, 0, max_messages=-1, tags="a"),
                lambda: store.query_message("T", "k", max_messages=0),
                lambda: store.query_message("T", "k", max_messages=1.5),
            ],
            "queue_id": [
                lambda: store.get_message("T", 0.0, 0),
                lambda: store.get_message("T", 10**12, 0),
                lambda: store.min_queue_offset("T", "0"),
                lambda: store.max_queue_offset("T", 1.5),
                lambda: store.messages("T", 1.5),
            ],
            "queue_offset": [lambda: store.get_message("T", 0, 0.5)],
            "max_bytes": [lambda: store.get_message("T", 0, 0, max_bytes="1")],
            "topic": [
                lambda: store.get_message(5, 0, 0),
                lambda: store.query_message(5, "k"),
                lambda: store.messages(5),
            ],
            "tags": [lambda: store.get_message("T", 0, 0, tags=5)],
            "key": [lambda: store.query_message("T", 5)],
            "end_ms": [lambda: store.query_message("T", "k", end_ms="now")],
            "timestamp_ms": [lambda: store.queue_offset_by_time("T", 0, 1.5)],
            "boundary": [lambda: store.queue_offset_by_time("T", 0, 1, boundary="mid")],
            "phy_offset": [lambda: store.message_at("0")],
            "message_id": [lambda: store.message_by_id(5)],
            "start": [lambda: store.messages("T", start="0")],
        }
        for name, calls in wrong.items():
            for call in calls:
                with pytest.raises(ArgumentError, match=f"^{name}="):
                    call()
        assert len(store.get_message("T", False, 0).messages) == 1
        assert len(store.get_message("T", 0, 10**30).messages) == 0


@pytest.mark.parametrize(
    "opened",
    [
        open_store,
        lambda path: open_store(path, mode="r"),
        open_shared,
        Queue,
        Broker,
        lambda path: running_broker(path).__enter__(),
        verify,
        rebuild_consume_queues,
        lambda path: OpenedStore(path, {}),
        FifoQueue,
        lambda path: open_source(path, "T"),
    ],
)
def test_an_empty_path_is_not_the_current_directory(tmp_path, monkeypatch, opened):
    """As that of a setting that is missing: nothing is opened or made wherever the process is."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"'\.' is the current one"):
        opened("")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [None, 5, b"bytes"])
@pytest.mark.parametrize("opened", [open_store, open_shared, Queue, Broker])
def test_what_is_no_path_is_refused_by_its_name(opened, path):
    with pytest.raises(ArgumentError, match="the path of a directory"):
        opened(path)
