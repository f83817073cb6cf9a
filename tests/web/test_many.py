"""How long pages take where there are 10,000 topics and 1,000 groups."""

import time

import pytest
from web.conftest import reader_of

from rmqcore import open_store
from rmqcore.web import ColdSource

pytestmark = pytest.mark.measure

TOPICS, GROUPS = 10_000, 1000
PAGES = (
    "/",
    "/topics",
    "/topics?page=150",
    "/topics?find=99",
    "/topic?name=topic-00500",
    "/groups",
    "/groups?sort=lag",
    "/group?name=group-0500",
    "/messages?by=time&topic=topic-00400",
    "/messages?by=key&topic=topic-00077&key=k77",
    "/store",
    "/live?topic=topic-00001",
)


def test_a_page_of_a_store_with_many_topics(tmp_path, figure):
    with open_store(tmp_path / "many", mapped_file_size_consume_queue=6000) as store:
        for number in range(2 * TOPICS):
            topic = f"topic-{number % TOPICS:05d}"
            store.put(topic, b"x" * 40, keys=f"k{number % TOPICS}")
        for number in range(TOPICS):
            group = f"group-{number % GROUPS:04d}"
            store.consumer_offsets.commit(f"topic-{number:05d}", group, 0, number % 2)
    with open_store(tmp_path / "many", mode="r") as store:
        read = reader_of(ColdSource(store))
        for path in PAGES:
            # the first look at all is aside from then on
            read.text(path)
            began = time.process_time()
            read.text(path)
            figure(path, 1000 * (time.process_time() - began), "ms", at_most=200)
