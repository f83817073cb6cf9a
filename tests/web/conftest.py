"""Pages over a store, and a browser's side of them: cookie, Origin, forms."""

import asyncio
import re
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

import pytest
from broker.conftest import long_hold, with_broker  # noqa: F401 - fixtures

from rmqcore import open_store
from rmqcore.web import ColdSource, Entry, web_app

HOST = "127.0.0.1:8000"
ORIGIN = f"http://{HOST}"
TOPIC = "Orders"


@dataclass
class Answer:
    """What came for a request."""

    status: int
    headers: dict
    body: bytes

    @property
    def text(self):
        return self.body.decode()


class Reader:
    """A browser that speaks ASGI; it has opened the printed address, unless told otherwise."""

    def __init__(self, app, token=""):
        self.app = app
        self.cookies = {}
        if token:
            assert self.get("/", token=token).status == 303

    async def ask(self, method, path, fields=None, **headers):
        """Send one request; headers are named with _ for -."""
        parts = urlsplit(path)
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        named = {"host": HOST, "cookie": cookie, **headers}
        body = urlencode(fields or {}, doseq=True).encode()
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": "",
            "headers": [
                (name.replace("_", "-").encode(), value.encode())
                for name, value in named.items()
                if value
            ],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8000),
        }
        sent, gone = [], asyncio.Event()

        async def receive():
            if gone.is_set():
                return {"type": "http.disconnect"}
            gone.set()
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            sent.append(message)

        await self.app(scope, receive, send)
        raw = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
        for name, value in raw:
            if name == "set-cookie":
                key, _, rest = value.partition("=")
                self.cookies[key] = rest.partition(";")[0]
        return Answer(sent[0]["status"], dict(raw), b"".join(m.get("body", b"") for m in sent[1:]))

    def get(self, path, *, headers=None, **params):
        query = urlencode(params)
        path += ("&" if "?" in path else "?") + query if query else ""
        return asyncio.run(self.ask("GET", path, **(headers or {})))

    def text(self, path, status=200, **params):
        answer = self.get(path, **params)
        assert answer.status == status, answer.text
        return answer.text

    def form_token(self, page):
        return re.search(r'name="form" value="(\w+)"', page)[1]

    def submit(self, path, page="/store", **fields):
        """Send a form of a page; its own token comes from there."""
        fields["form"] = self.form_token(self.text(page))
        return asyncio.run(self.ask("POST", path, fields, origin=ORIGIN))


def reader_of(source, **settings):
    """A reader of the pages over a source."""
    entry = Entry()
    return Reader(web_app(source, entry, **settings), entry.token)


def fill(path):
    """Make a closed store: 60 messages in three queues, and a group that has 20 before it."""
    with open_store(path, mapped_file_size_commit_log=1 << 20) as store:
        for number in range(60):
            body = b'{"number": %d}' % number
            store.put(TOPIC, body, queue_id=number % 3, keys=f"key-{number}", tags="paid")
        for queue_id in range(3):
            store.consumer_offsets.commit(TOPIC, "billing", queue_id, 20 if queue_id else 0)
    return path


@pytest.fixture(scope="module")
def store_path(tmp_path_factory):
    """The directory of a store that `fill` has made; nobody changes it."""
    return fill(tmp_path_factory.mktemp("web") / "orders")


@pytest.fixture(scope="module")
def read(store_path):
    """A reader of the pages over that store."""
    with open_store(store_path, mode="r") as store:
        yield reader_of(ColdSource(store))
