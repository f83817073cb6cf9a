"""Iteration over a store that another handle writes."""

from rmqcore import open_store


def test_iterating_the_log_looks_for_more_only_where_it_knew_no_more(store_path, monkeypatch):
    with open_store(store_path) as writer:
        for number in range(200):
            writer.put("T", b"%d" % number)
        with open_store(store_path, mode="r") as reader:
            looks = []
            look = reader._see_log
            monkeypatch.setattr(reader, "_see_log", lambda: (looks.append(1), look()))
            assert [message.body for message in reader.messages()] == [
                b"%d" % number for number in range(200)
            ]
            assert 1 <= len(looks) <= 5


def test_iterating_the_log_sees_what_is_put_meanwhile(store_path):
    with open_store(store_path) as writer:
        writer.put("T", b"first")
        with open_store(store_path, mode="r") as reader:
            messages = reader.messages()
            assert next(messages).body == b"first"
            writer.put("T", b"second")
            assert [message.body for message in messages] == [b"second"]
