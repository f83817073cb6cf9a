"""Who is let in: by the token of the printed address, or as an administrator; by our name only."""

import asyncio

import pytest
from web.conftest import ORIGIN, Reader

from rmqcore import open_store
from rmqcore.remoting import Account
from rmqcore.web import ColdSource, Entry, web_app

pytestmark = pytest.mark.engine

ACCOUNTS = {
    "admin": Account("admin", "1234567", admin=True),
    "orders": Account("orders", "7654321"),
}


@pytest.fixture
def pages(store_path):
    """Makes the pages of a closed store for an `Entry`."""
    with open_store(store_path, mode="r") as store:
        yield lambda entry: web_app(ColdSource(store), entry)


class Clock:
    """A clock that stands until it is moved."""

    now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    """The clock that entries are told."""
    clock = Clock()
    monkeypatch.setattr("rmqcore.web.gate.monotonic_s", clock)
    return clock


def post(reader, path, fields, **headers):
    return asyncio.run(reader.ask("POST", path, fields, **headers))


@pytest.mark.parametrize("path", ["/", "/message/body?at=0", "/live/events?topic=Orders&after=0"])
def test_nothing_is_told_without_the_token(pages, path):
    answer = Reader(pages(Entry())).get(path)
    assert answer.status == 403
    assert "Orders" not in answer.text


def test_the_token_becomes_a_cookie_that_scripts_do_not_see_and_leaves_the_address(pages):
    entry = Entry()
    reader = Reader(pages(entry))
    answer = reader.get("/topics", find="or", token=entry.token)
    assert (answer.status, answer.headers["location"]) == (303, "/topics?find=or")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert entry.token not in cookie
    assert reader.get("/topics").status == 200


def test_a_wrong_token_and_a_cookie_of_another_server_let_nobody_in(pages):
    entry = Entry()
    reader = Reader(pages(entry))
    assert reader.get("/", token=entry.token[:-1]).status == 403
    reader.cookies["rmqcore_8000"] = Entry().begin()
    assert reader.get("/").status == 403


@pytest.mark.parametrize("place", ["//evil.example/", "/\\evil.example/"])
def test_the_address_behind_the_token_stays_here(pages, place):
    entry = Entry()
    answer = Reader(pages(entry)).get(f"http://x{place}", token=entry.token)
    assert answer.headers["location"] in ("/evil.example/", "/%5Cevil.example/")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example:8000",
        "",
        "localhost:65536",
        "localhost:",
        "[::2]:8000",
    ],
)
def test_a_name_that_was_bound_to_this_address_is_refused(read, host):
    answer = read.get("/", headers={"host": host})
    assert answer.status == 403
    assert "by no other name" in answer.text


@pytest.mark.parametrize("host", ["localhost:9000", "LOCALHOST", "[::1]:8000"])
def test_the_names_of_this_machine_are_taken_with_any_port(pages, host):
    entry = Entry()
    assert Reader(pages(entry)).get("/", headers={"host": host}, token=entry.token).status == 303


@pytest.mark.parametrize("origin", ["", "null", "http://evil.example", "http://127.0.0.1:8001"])
def test_a_form_of_another_page_is_refused(read, origin):
    token = read.form_token(read.text("/store"))
    answer = post(read, "/store/plan", {"form": token}, origin=origin)
    assert answer.status == 403


@pytest.mark.parametrize("fields", [{}, {"form": "0"}, {"form": "x" * 70_000}])
def test_a_form_without_the_sessions_own_token_is_refused(read, fields):
    assert post(read, "/store/plan", fields, origin=ORIGIN).status == 403


def test_a_session_that_was_not_used_for_a_day_is_over(pages, clock):
    entry = Entry()
    reader = Reader(pages(entry), entry.token)
    clock.now_s += 13 * 3600
    assert reader.get("/").status == 403


def test_where_there_are_accounts_only_administrators_log_in(pages):
    entry = Entry(ACCOUNTS)
    reader = Reader(pages(entry))
    assert entry.token == ""
    assert reader.get("/", token="").status == 403
    assert reader.get("/").headers["location"] == "/login"
    for wrong in (("admin", "7654321"), ("orders", "7654321"), ("none", ""), ("", "")):
        fields = dict(zip(("access_key", "secret_key"), wrong, strict=True))
        assert post(reader, "/login", fields, origin=ORIGIN).status == 403
    assert reader.get("/").status == 303
    right = {"access_key": "admin", "secret_key": "1234567"}
    assert post(reader, "/login", right).status == 403
    assert post(reader, "/login", right, origin=ORIGIN).status == 303
    page = reader.text("/")
    assert "Log out" in page
    post(reader, "/logout", {"form": reader.form_token(page)}, origin=ORIGIN)
    assert reader.get("/").status == 303


def test_after_ten_wrong_keys_nobody_logs_in_for_a_minute(clock):
    entry = Entry(ACCOUNTS)
    for _ in range(10):
        assert not entry.log_in("admin", "wrong-key", "127.0.0.1:1")
    assert not entry.log_in("admin", "1234567", "127.0.0.1:1")
    clock.now_s += 61
    assert entry.log_in("admin", "1234567", "127.0.0.1:1")
