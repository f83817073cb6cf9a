"""The pages over a store that nobody serves say what it holds, and find every message."""

import re

import pytest
from web.conftest import TOPIC, fill, reader_of

from golden.stores import unpack
from rmqcore import Message, open_store
from rmqcore._codec import encode_batch
from rmqcore.web import ColdSource
from rmqcore.web.log_pages import log_page

pytestmark = pytest.mark.engine

ROWS = re.compile(r'href="/message\?at=(\d+)">')
NUMBER = re.compile(r"&#34;number&#34;: (\d+)")


def words_of(page):
    """The words of a page, without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/", ["Store closed", "20 messages, all groups", "billing"]),
        ("/topics", ["Orders normal 3 60 not configured"]),
        ("/topic?name=Orders", ["billing 20", "0 0 20 20"]),
        ("/groups", ["billing 20"]),
        ("/groups?sort=lag&find=BILL", ["billing 20"]),
        ("/group?name=billing", ["20 messages", "Orders 0 0 20 20"]),
        ("/messages", ["Name what is wanted"]),
        ("/store", ["00000000000000000000", "Last events", "in order"]),
        ("/live", ["Name a topic"]),
        ("/live?topic=Orders", ["key-59", "key-40"]),
    ],
)
def test_a_page_says_what_the_store_holds(read, path, said):
    words = words_of(read.text(path))
    for each in said:
        assert each in words


@pytest.mark.parametrize("path", ["/topic?name=none", "/group?name=none", "/message?at=1", "/else"])
def test_what_is_not_there_is_not_found(read, path):
    assert "<h1>No" in read.text(path, 404)


def test_every_message_of_a_topic_is_on_one_page_and_pages_go_both_ways(read):
    first = read.text("/messages", by="time", topic=TOPIC)
    older = read.text(re.search(r'rel="next" href="([^"]+)', first)[1].replace("&amp;", "&"))
    numbers = [int(each) for each in NUMBER.findall(first) + NUMBER.findall(older)]
    assert numbers == list(range(59, -1, -1))
    assert 'rel="next"' not in older
    newer = read.text(re.search(r'rel="prev" href="([^"]+)', older)[1].replace("&amp;", "&"))
    assert ROWS.findall(newer) == ROWS.findall(first)


def test_messages_are_found_between_two_times_and_in_one_queue(store_path):
    with open_store(store_path, mode="r") as store:
        read = reader_of(ColdSource(store))
        stored = [message.store_timestamp_ms for message in store.messages()]
        since, until = stored[10], stored[-1]
        wanted = sum(since <= each <= until for each in stored)
        page = read.text("/messages", by="time", topic=TOPIC, since=since, until=until)
        assert len(ROWS.findall(page)) == min(50, wanted)
        page = read.text("/messages", by="time", topic=TOPIC, queue=2)
        assert {int(each) % 3 for each in NUMBER.findall(page)} == {2}
        page = words_of(read.text("/messages", by="time", topic=TOPIC, until=stored[0] - 1000))
        assert "Its messages were stored from" in page


@pytest.mark.parametrize(
    ("asked", "number"),
    [
        ({"by": "key", "topic": TOPIC, "key": "key-7"}, 7),
        ({"by": "key", "key": "key-8"}, 8),
        ({"by": "queue", "topic": TOPIC, "queue": "1", "offset": "19"}, 58),
        ({"by": "offset", "offset": "0"}, 0),
    ],
)
def test_a_message_is_found_by_what_is_known_of_it(read, asked, number):
    assert NUMBER.findall(read.text("/messages", **asked)) == [str(number)]


def test_a_message_is_found_by_its_id_and_shown_whole(read):
    at = ROWS.findall(read.text("/messages", by="key", key="key-5"))[0]
    page = read.text("/message", at=at)
    message_id = re.search(r"<dt>Message id</dt><dd>(\w+)", page)[1]
    assert ROWS.findall(read.text("/messages", by="id", message_id=message_id)) == [at]
    assert "{\n  &#34;number&#34;: 5\n}" in page
    in_hex = read.text("/message", at=at, **{"as": "hex"})
    assert "7b 22 6e 75" in in_hex
    assert '<pre class="body hex"' in in_hex
    assert read.get("/message/body", at=at).body == b'{"number": 5}'


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"by": "key", "topic": TOPIC, "key": "none"}, "no entry of the slot"),
        ({"by": "key", "topic": TOPIC[:-1], "key": "key-7"}, f"was &#39;{TOPIC}&#39; meant?"),
        ({"by": "key", "key": "none"}, "No message of all topics has it"),
        ({"by": "queue", "topic": TOPIC, "offset": "99"}, "the queue has offsets 0 to 19"),
        ({"by": "offset", "offset": "1"}, "no record begins"),
        ({"by": "time", "topic": "none"}, "no queue of a topic"),
        ({"by": "time", "topic": TOPIC, "queue": "9"}, "its queues are 0, 1, 2"),
        ({"by": "time", "topic": TOPIC, "since": "then"}, "is no time"),
        ({"by": "offset", "offset": "-1"}, "is no number from 0 on"),
    ],
)
def test_where_nothing_is_found_the_page_says_why(read, asked, why):
    page = read.text("/messages", **asked)
    assert why in words_of(page)
    assert not ROWS.findall(page)


def test_an_advised_command_is_of_this_store_as_it_is_typed(read, store_path):
    nothing = read.text("/messages", by="key", topic=TOPIC, key="none")
    assert f"<li>what helps: rmqcore verify {store_path} compares" in nothing
    assert f"<p>What helps: rmqcore verify {store_path} says" in read.submit("/store/explain").text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/store/verify", "Nothing is wrong."),
        ("/store/plan", "There is nothing to repair."),
        ("/store/explain", "nothing is against opening it for writing"),
    ],
)
def test_the_doctor_looks_when_it_is_asked(read, path, said):
    answer = read.submit(path)
    assert answer.status == 200
    assert said in words_of(answer.text)


def test_a_cold_store_has_no_form_that_writes(read):
    answer = read.submit("/dead/put", at="0", topic="%DLQ%billing")
    assert answer.status == 403
    assert "read only" in answer.text


def test_a_damaged_table_is_said_and_the_rest_is_shown(tmp_path):
    store_path = fill(tmp_path / "orders")
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (store_path / "config" / name).write_text("{")
    with open_store(store_path, mode="r") as store:
        read = reader_of(ColdSource(store))
        words = words_of(read.text("/"))
        assert "Files" in words
        assert "consumerOffset.json" in words
        assert "Orders" in read.text("/topics")


def test_a_queue_that_ends_sooner_than_it_has_is_said(tmp_path):
    store_path = fill(tmp_path / "orders")
    next((store_path / "consumequeue" / TOPIC / "2").iterdir()).write_bytes(b"")
    with open_store(store_path, mode="r") as store:
        words = words_of(reader_of(ColdSource(store)).text("/"))
        assert "queue Orders/2 ends at 0, and has ended at 20" in words


def test_a_damaged_message_is_said_and_the_others_are_shown(tmp_path):
    store_path = fill(tmp_path / "orders")
    with open_store(store_path, mode="r") as store:
        (message,) = store.get_message(TOPIC, 1, 5, max_messages=1).messages
        place = message.phy_offset
    log = next((store_path / "commitlog").iterdir())
    whole = log.read_bytes()
    # size, magic code, body
    for at in (0, 4, 90):
        harmed = bytearray(whole)
        harmed[place + at] ^= 0x55
        log.write_bytes(harmed)
        with open_store(store_path, mode="r") as store:
            read = reader_of(ColdSource(store))
            for asked, number in (
                ({"topic": TOPIC}, 49),
                ({"topic": TOPIC, "by": "queue", "queue": 1, "offset": 0}, 19),
            ):
                page = read.text("/messages", **asked)
                assert page.count('href="/message?at=') == number
                assert re.search(rf"Not shown: [^<]* at {place}\b", page), page
            assert 'href="/messages?' in page
            assert "Older" in read.text("/messages", topic=TOPIC)


def test_a_damaged_message_with_a_key_is_said_and_the_others_are_shown(tmp_path):
    store_path = tmp_path / "orders"
    with open_store(store_path, mapped_file_size_commit_log=1 << 20) as store:
        places = [store.put(TOPIC, b"text", keys="all").phy_offset for _ in range(5)]
    log = next((store_path / "commitlog").iterdir())
    whole = log.read_bytes()
    # size, magic code
    for at in (0, 4):
        harmed = bytearray(whole)
        harmed[places[2] + at] ^= 0x55
        log.write_bytes(harmed)
        with open_store(store_path, mode="r") as store:
            page = reader_of(ColdSource(store)).text("/messages", topic=TOPIC, by="key", key="all")
            assert page.count('href="/message?at=') == 4
            assert re.search(rf"Not shown: [^<]* at {places[2]}\b", page), page


def test_pages_are_shown_of_a_store_whose_first_and_last_record_and_index_are_damaged(tmp_path):
    store_path = fill(tmp_path / "orders")
    (index,) = (store_path / "index").iterdir()
    index.write_bytes(b"")
    log = next((store_path / "commitlog").iterdir())
    harmed = bytearray(log.read_bytes())
    for at in (0, len(bytes(harmed).rstrip(b"\0")) - 50):
        harmed[at] ^= 0x55
    log.write_bytes(harmed)
    with open_store(store_path, mode="r") as store:
        read = reader_of(ColdSource(store))
        for path in ("/", "/topic?name=Orders", "/groups?sort=lag", "/group?name=billing"):
            read.text(path)
        for path in ("/", "/store"):
            assert f"{index.name} at 0: the file was cut short" in words_of(read.text(path))


@pytest.mark.parametrize(("release", "name"), [("5.5.0", "batches"), ("4.9.7", "basic")])
def test_every_page_opens_on_a_store_of_rocketmq(release, name, tmp_path):
    golden = unpack(release, name, tmp_path / "golden")
    with open_store(golden.path, mode="r", config=golden.conf) as store:
        source = ColdSource(store)
        read = reader_of(source)
        for path in ("/", "/topics", "/groups", "/store"):
            read.text(path)
        for topic in list(source.queues())[:3]:
            read.text("/topic", name=topic)
            for at in ROWS.findall(read.text("/messages", by="time", topic=topic))[:3]:
                read.text("/message", at=at)


def put_numbers(store, topic, count):
    """Put so many records: a batch of three messages each where the topic has such queues."""
    batched = topic == "B"
    body = encode_batch([Message(topic, b"x")] * 3) if batched else b"x"
    flags = {"sys_flag": 0x80 | 0x40, "properties": {"INNER_NUM": "3"}} if batched else {}
    return [store.put(topic, body, queue_id=n % 2, **flags).phy_offset for n in range(count)]


@pytest.mark.parametrize("topic", ["A", "B"])
def test_pages_leave_out_nothing_also_where_a_unit_holds_several_messages(topic, tmp_path):
    kinds = (("B", "BatchCQ"),)
    with open_store(tmp_path / "store", topic_queue_types=kinds) as store:
        wanted = put_numbers(store, topic, 40)
    with open_store(tmp_path / "store", mode="r", config=store.config) as store:
        source = ColdSource(store)
        page = log_page(source, topic, None, 6)
        found = [message.phy_offset for message in page.messages]
        while page.older is not None:
            page = log_page(source, topic, None, 6, before=page.older)
            found += [message.phy_offset for message in page.messages]
        assert found == wanted[::-1]
        back = found[-1:]
        while page.newer is not None:
            page = log_page(source, topic, None, 6, after=page.newer)
            back += [message.phy_offset for message in reversed(page.messages)]
        assert back[-34:] == wanted[6:]


def pages(source, count, **where):
    """The places of topic T from its newest message on, page by page, and back again."""
    page = log_page(source, "T", None, count, **where)
    there, damaged = [message.phy_offset for message in page.messages], dict(page.damaged)
    while page.older is not None:
        page = log_page(source, "T", None, count, before=page.older, **where)
        there += [message.phy_offset for message in page.messages]
        damaged |= page.damaged
    back = there[-len(page.messages) :][::-1]
    while page.newer is not None:
        page = log_page(source, "T", None, count, after=page.newer, **where)
        back += [message.phy_offset for message in reversed(page.messages)]
        damaged |= page.damaged
    return there[::-1], back, damaged


@pytest.mark.parametrize("count", [1, 6])
def test_places_of_a_queue_that_have_no_message_are_on_no_page(tmp_path, count):
    store_path = tmp_path / "store"
    with open_store(store_path, mapped_file_size_commit_log=1 << 16) as store:
        store.put("Other", b"x")
        put = [store.put("T", b"x" * 2000).phy_offset for _ in range(100)]
    lost = {*range(10), *range(40, 60), 99}
    for number in lost:
        log = store_path / "commitlog" / f"{put[number] - put[number] % (1 << 16):020d}"
        harmed = bytearray(log.read_bytes())
        harmed[put[number] % (1 << 16) + 4] ^= 0x55
        log.write_bytes(harmed)
    with open_store(store_path, on_corruption="skip"):
        pass
    wanted = [place for number, place in enumerate(put) if number not in lost]
    with open_store(store_path, mode="r") as store:
        assert pages(ColdSource(store), count) == (wanted, wanted, {})


def test_a_queue_that_cannot_be_read_is_named_and_the_others_are_shown(tmp_path):
    path = fill(tmp_path / "orders")
    with (path / "consumequeue" / TOPIC / "1" / f"{0:020d}").open("r+b") as queue:
        queue.write(b"\xff" * 100)
    with open_store(path, mode="r") as store:
        read = reader_of(ColdSource(store))
        assert "Orders normal 3 40 not configured" in words_of(read.text("/topics"))
        for page in ("/", "/topic?name=Orders", "/groups", "/group?name=billing", "/store"):
            assert "20" in words_of(read.text(page))
        assert "queue Orders/1 cannot be read" in words_of(read.text("/"))
        assert "key-59" in read.text("/messages?topic=Orders&queue=2&offset=19")
