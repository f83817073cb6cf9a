"""A Scrapy crawl, the spider of the page as it is printed, killed again and again and resumed."""

import json
import math
import random
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from patience import TIMEOUT_S, until
from scrapy import Request

from rmqcore import open_store
from rmqcore.adapters.named_queues import DEAD_LETTERS
from rmqcore.adapters.scrapy import DupeFilter, FeedFile, Job, refusals

pytestmark = pytest.mark.peers

PAGE = Path(__file__).parents[2] / "docs/adapters/scrapy.md"
COUNT = 400
DELAY_S = 0.01


class Site(BaseHTTPRequestHandler):
    """Pages that link to two others each, and to one that is linked to already."""

    asked: ClassVar[list[int]] = []
    #: who asks for more than so many gets no answer before the crawl is killed
    most: ClassVar[float] = math.inf
    killed: ClassVar[threading.Event] = threading.Event()

    def do_GET(self):
        number = int(self.path.strip("/") or 0)
        time.sleep(DELAY_S)
        if len(self.asked) >= self.most:
            self.killed.wait()
            return
        self.asked.append(number)
        linked = [n for n in (2 * number + 1, 2 * number + 2, number // 3) if n < COUNT]
        body = "".join(f'<a href="/{n}">{n}</a>' for n in linked).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def site():
    Site.asked, Site.most, Site.killed = [], math.inf, threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    Site.killed.set()
    server.shutdown()
    thread.join()
    server.server_close()


def printed_spider(port):
    """Return the spider of the page, on another port."""
    code = re.search(r"```python\n(# spider\.py\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[1]
    assert "127.0.0.1:8000" in code
    return code.replace("127.0.0.1:8000", f"127.0.0.1:{port}")


def crawl(folder, *settings):
    """Start the line of the page."""
    command = [sys.executable, "-m", "scrapy", "runspider", "spider.py", "-o", "pages.jsonl"]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([*command, *settings], cwd=folder, stdout=log, stderr=log)


@pytest.mark.parametrize("priorities", ["DownloaderAwarePriorityQueue", "ScrapyPriorityQueue"])
def test_every_request_runs_whatever_is_killed(tmp_path, site, seed, priorities):
    chosen = random.Random(seed)
    (tmp_path / "spider.py").write_text(printed_spider(site), "utf-8")
    queue_class = f"SCHEDULER_PRIORITY_QUEUE=scrapy.pqueues.{priorities}"
    settings = ("-s", queue_class, "-s", "RETRY_TIMES=20")
    kills = 5
    for _ in range(kills):
        Site.most = len(Site.asked) + chosen.randrange(1, 75)
        process = crawl(tmp_path, *settings)
        until(lambda: len(Site.asked) >= Site.most, "enough requests")
        process.kill()
        process.wait()
        Site.killed.set()
        Site.killed = threading.Event()
    Site.most = math.inf
    process = crawl(tmp_path, *settings)
    process.wait(10 * TIMEOUT_S)
    log = (tmp_path / "log").read_text("utf-8", "replace")
    assert process.returncode == 0, log[-3000:]
    # that a busy machine refuses a connection is not what is tested here
    assert "Gave up retrying" not in log
    # what waits in memory is lost with the process
    assert "scheduler/enqueued/memory" not in log
    complaints = [line for line in log.splitlines() if "ERROR" in line or "Retrying" in line]
    assert set(Site.asked) == set(range(COUNT)), complaints[-40:]
    # what was on its way, what waited to be parsed, and the start page, once more for each kill
    assert len(Site.asked) - COUNT <= kills * 24
    items = (tmp_path / "pages.jsonl").read_text("utf-8").splitlines()
    pages = {
        int(json.loads(item)["url"].rpartition("/")[2] or 0) for item in items if item.endswith("}")
    }
    assert pages == set(range(COUNT))
    assert "Resuming crawl" in log
    assert not (tmp_path / "job/requests.queue/rmqcore").exists()


def test_a_request_that_cannot_be_read_is_a_dead_letter(tmp_path, site):
    spider = printed_spider(site).replace('(href)"', '(href)", callback=self.page')
    spider += "\n    def page(self, response):\n        yield from self.parse(response)\n"
    (tmp_path / "spider.py").write_text(spider, "utf-8")
    process = crawl(tmp_path)
    until(lambda: len(Site.asked) >= 30, "thirty requests")
    process.kill()
    process.wait()
    # the same without the method that waiting requests name
    renamed = spider.replace("page(", "other(").replace("self.page", "self.other")
    (tmp_path / "spider.py").write_text(renamed, "utf-8")
    assert crawl(tmp_path).wait(10 * TIMEOUT_S) == 0
    with open_store(tmp_path / "job/requests.queue/rmqcore", mode="r") as store:
        letters = list(store.messages(DEAD_LETTERS))
    assert letters
    assert all(b"page" in bytes(letter.body) for letter in letters)
    assert (tmp_path / "log").read_text("utf-8").count("a dead letter") == len(letters)


@pytest.mark.parametrize(
    ("name", "left", "then"),
    [
        ("a.jsonl", b"", b"{}\n"),
        ("a.jsonl", b"{}\n", b"{}\n{}\n"),
        ("a.jsonl", b'{"url', b'{"url\n{}\n'),
        ("a.csv", b"url\n", b"url\n{}\n"),
        ("a.json", b"[", b"[{}\n"),
    ],
)
def test_a_file_of_items_begins_another_line_and_has_each_write_at_once(tmp_path, name, left, then):
    path = tmp_path / name
    path.write_bytes(left)
    feed = FeedFile(str(path), feed_options={"format": path.suffix[1:]})
    file = feed.open(None)
    file.write(b"{}\n")
    assert path.read_bytes() == then
    feed.store(file)
    assert file.closed


def test_a_file_of_items_is_begun_anew_where_it_is_to_be(tmp_path):
    path = tmp_path / "new/a.jsonl"
    for _ in range(2):
        feed = FeedFile(f"file://{path}", feed_options={"format": "jsonl", "overwrite": True})
        feed.store(feed.open(None))
        assert path.read_bytes() == b""
        path.write_bytes(b"old")


#: makes the store refuse every put from one on, as a full disk does
REFUSING = """
from rmqcore.adapters.named_queues import NamedQueues
from rmqcore.errors import DiskFullError

puts, put = [], NamedQueues.put

def refuse(self, *message):
    puts.append(message)
    if len(puts) > {}:
        raise DiskFullError(self.path, "no room")
    return put(self, *message)

NamedQueues.put = refuse
"""


@pytest.mark.parametrize("method", ["put", "hold"])
def test_a_queue_that_refuses_ends_the_crawl_and_the_next_run_makes_the_rest(
    tmp_path, site, monkeypatch, method
):
    monkeypatch.setitem(globals(), "COUNT", 60)
    spider = printed_spider(site)
    refusing = REFUSING.replace("NamedQueues.put", f"NamedQueues.{method}").format(30)
    (tmp_path / "spider.py").write_text(spider + refusing, "utf-8")
    assert crawl(tmp_path).wait(10 * TIMEOUT_S) == 0
    log = (tmp_path / "log").read_text("utf-8")
    assert "the crawl ends, run it again" in log
    assert "Spider closed (queue_refused)" in log
    assert len(set(Site.asked)) < 60
    (tmp_path / "spider.py").write_text(spider, "utf-8")
    assert crawl(tmp_path).wait(10 * TIMEOUT_S) == 0
    assert set(Site.asked) == set(range(60))
    assert not (tmp_path / "job/requests.queue/rmqcore").exists()


#: makes a file take nothing from a write on, as a full disk does; Scrapy's way to write its list
#: leaves nothing of it then
FULL = """
from scrapy.core.scheduler import Scheduler
from rmqcore.adapters import scrapy as adapter

calls, call = [], adapter.{file}.{method}

def refuse(self, *given):
    calls.append(given)
    if len(calls) > 20:
        raise OSError(28, "no room")
    return call(self, *given)

def keep_list(self, queues, write=adapter.Job._write_list):
    if self._refused:
        raise OSError(28, "no room")
    write(self, queues)

def truncate(self, directory, state):
    open(directory + "/active.json", "w").close()
    raise OSError(28, "no room")

adapter.{file}.{method} = refuse
adapter.Job._write_list = keep_list
Scheduler._write_dqs_state = truncate
"""


@pytest.mark.parametrize(("file", "method"), [("SeenFile", "write"), ("WholeWrites", "flush")])
def test_a_full_disk_below_what_is_beside_the_queues_ends_the_crawl_and_the_next_run_makes_the_rest(
    tmp_path, site, monkeypatch, file, method
):
    monkeypatch.setitem(globals(), "COUNT", 60)
    spider = printed_spider(site)
    (tmp_path / "spider.py").write_text(spider + FULL.format(file=file, method=method), "utf-8")
    assert crawl(tmp_path).wait(10 * TIMEOUT_S) == 0
    log = (tmp_path / "log").read_text("utf-8")
    assert "Spider closed (queue_refused)" in log
    assert json.loads((tmp_path / "job/requests.queue/active.json").read_text("utf-8"))
    (tmp_path / "spider.py").write_text(spider, "utf-8")
    assert crawl(tmp_path).wait(10 * TIMEOUT_S) == 0
    assert set(Site.asked) == set(range(60))
    items = (tmp_path / "pages.jsonl").read_text("utf-8").splitlines()
    pages = {int(json.loads(item)["url"].rpartition("/")[2] or 0) for item in items}
    assert pages == set(range(60))
    assert not (tmp_path / "job/requests.queue/rmqcore").exists()


def test_half_a_record_of_what_was_seen_hides_none_behind_it(tmp_path):
    first, second = Request("http://a/1"), Request("http://a/2")
    for request, torn in ((first, b"\0\x14half"), (second, b"")):
        seen = DupeFilter(str(tmp_path))
        assert not seen.request_seen(request)
        seen.close("")
        with (tmp_path / "requests.seen").open("ab") as file:
            file.write(torn)
    seen = DupeFilter(str(tmp_path))
    assert seen.request_seen(first)
    assert seen.request_seen(second)
    seen.close("")


@pytest.mark.parametrize("of_request", [True, False])
def test_only_a_request_that_is_not_queued_is_made_again(tmp_path, of_request):
    """An item that is refused, or a queue that gives nothing more, says nothing of the last one."""
    request, seen = Request("http://a/1"), DupeFilter(str(tmp_path))
    assert not seen.request_seen(request)
    job = Job.__new__(Job)
    slot = SimpleNamespace(scheduler=SimpleNamespace(df=seen))
    job._crawler, job._refused = SimpleNamespace(engine=SimpleNamespace(_slot=slot)), True
    with pytest.raises(OSError, match="no room"), refusals(job, of_request=of_request):
        raise OSError(28, "no room")
    seen.close("")
    again = DupeFilter(str(tmp_path))
    assert again.request_seen(request) is not of_request
    again.close("")


def test_a_store_that_cannot_be_opened_is_no_reason_to_crawl_in_memory(tmp_path, site):
    foreign = tmp_path / "job/requests.queue/rmqcore/foreign"
    foreign.mkdir(parents=True)
    (tmp_path / "spider.py").write_text(printed_spider(site), "utf-8")
    crawl(tmp_path).wait(10 * TIMEOUT_S)
    assert "the directory of such a queue, or none yet" in (tmp_path / "log").read_text("utf-8")
    assert not Site.asked
    assert foreign.exists()


#: two crawls of one process with one JOBDIR, each of which has its own host
TWICE = """
from scrapy.crawler import CrawlerProcess

class Others(Pages):
    name = "others"
    start_urls = [Pages.start_urls[0].replace("127.0.0.1", "localhost")]
    custom_settings = {**Pages.custom_settings, "JOBDIR": "../" + Path.cwd().name + "/job"}

process = CrawlerProcess()
process.crawl(Pages)
process.crawl(Others)
process.start()
"""


def test_a_second_crawl_of_a_process_with_the_same_jobdir_is_refused_and_the_first_one_goes_on(
    tmp_path, site, monkeypatch
):
    monkeypatch.setitem(globals(), "COUNT", 60)
    program = f"from pathlib import Path\n{printed_spider(site)}{TWICE}"
    (tmp_path / "twice.py").write_text(program, "utf-8")
    with (tmp_path / "log").open("ab") as log:
        subprocess.run(
            [sys.executable, "twice.py"], cwd=tmp_path, stdout=log, stderr=log, check=True
        )
    log = (tmp_path / "log").read_text("utf-8")
    assert "StoreLockedError" in log
    assert "(queue_refused)" not in log
    # a start page is asked for once more where it is linked to
    assert sorted(Site.asked) == [0, *range(60)]


def test_a_crawl_that_is_refused_leaves_what_the_first_one_has_to_resume_with(tmp_path, site):
    """Started in the same moment: the list of queues, and what was seen, are the first one's."""
    spider = printed_spider(site)
    (tmp_path / "spider.py").write_text(spider, "utf-8")
    Site.most = 30
    first = crawl(tmp_path)
    until(lambda: len(Site.asked) >= 30, "thirty requests")
    listed = tmp_path / "job/requests.queue/active.json"
    # as it was when the other began
    listed.unlink()
    asks = "    async def start(self):\n        yield scrapy.Request(self.start_urls[0] + '999')\n"
    (tmp_path / "spider.py").write_text(f"{spider}\n{asks}", "utf-8")
    crawl(tmp_path).wait(10 * TIMEOUT_S)
    first.kill()
    first.wait()
    assert "StoreLockedError" in (tmp_path / "log").read_text("utf-8")
    assert not listed.exists()
    seen = DupeFilter(str(tmp_path / "job"))
    assert not seen.request_seen(Request(f"http://127.0.0.1:{site}/999"))
    seen.close("")


def test_a_list_of_queues_that_cannot_be_written_leaves_the_one_before(tmp_path, site, monkeypatch):
    """A crawl that is stopped while the disk is full is resumed with all that it has queued."""
    monkeypatch.setitem(globals(), "COUNT", 60)
    spider = printed_spider(site)
    full = """
from rmqcore.adapters import scrapy as adapter

def write_list(self, queues, write=adapter.Job._write_list):
    if self._list:
        raise OSError(28, "no room")
    write(self, queues)

adapter.Job._write_list = write_list
"""
    (tmp_path / "spider.py").write_text(spider + full, "utf-8")
    assert crawl(tmp_path, "-s", "CLOSESPIDER_PAGECOUNT=20").wait(10 * TIMEOUT_S) == 0
    log = (tmp_path / "log").read_text("utf-8")
    assert "the list of queues stays as it is" in log
    assert len(set(Site.asked)) < 60
    (tmp_path / "spider.py").write_text(spider, "utf-8")
    assert crawl(tmp_path).wait(10 * TIMEOUT_S) == 0
    assert set(Site.asked) == set(range(60))
