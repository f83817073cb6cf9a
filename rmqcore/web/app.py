"""The application: every address, and what answers it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rmqcore.errors import RmqCoreError, StoreClosedError
from rmqcore.web import finding, groups, overview, store_page, topics
from rmqcore.web.dead_letters import put_again
from rmqcore.web.gate import Entry, Gate, cookie_name, let_in
from rmqcore.web.lags import AllLags
from rmqcore.web.live import Live
from rmqcore.web.pages import HERE, Pages, link
from rmqcore.web.shown import body_view, plain_body, preview
from rmqcore.web.source import BrokerSource, Source
from rmqcore.web.traced import trace_points

#: A form of more bytes is refused.
_FORM_MAX: Final = 64 << 10
#: A form may name at most this many dead letters.
_LETTERS_MAX: Final = 200
_PAGE_MAX: Final = 10_000_000


def web_app(source: Source, entry: Entry, *, write: bool = False) -> Gate:
    """The pages about a store as an ASGI application.

    Args:
        source: what they are about.
        entry: who is let in.
        write: whether dead letters may be put again; of a broker only.
    """
    return _Web(source, entry, write=write and isinstance(source, BrokerSource)).app


class _Web:
    """Answers requests; each page is made in a thread of the server's pool."""

    def __init__(self, source: Source, entry: Entry, *, write: bool) -> None:
        self._source, self._entry, self._write = source, entry, write
        self._pages = Pages(source.path, write=write)
        self._lags = AllLags(source)
        self._history = overview.History(source)
        self._picture = overview.kept_picture(source)
        self._live = Live(source)
        self._checking = threading.Lock()
        self._sampling: asyncio.Task[None] | None = None
        get, post = ["GET"], ["POST"]
        routes = [
            Route("/", self._overview, methods=get),
            Route("/topics", self._topics, methods=get),
            Route("/topic", self._topic, methods=get),
            Route("/groups", self._groups, methods=get),
            Route("/group", self._group, methods=get),
            Route("/messages", self._messages, methods=get),
            Route("/message", self._message, methods=get),
            Route("/message/body", self._body, methods=get),
            Route("/store", self._store, methods=get),
            Route("/store/verify", self._form(self._verify), methods=post),
            Route("/store/plan", self._form(self._plan), methods=post),
            Route("/store/explain", self._form(self._explain), methods=post),
            Route("/dead/put", self._form(self._put_again), methods=post),
            Route("/live", self._live_page, methods=get),
            Route("/live/events", self._live.events, methods=get),
            Route("/login", self._login_page, methods=get),
            Route("/login", self._log_in, methods=post),
            Route("/logout", self._form(self._log_out), methods=post),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ]
        handlers: dict[Any, Any] = {
            RmqCoreError: self._failed,
            OSError: self._failed,
            Exception: self._broken,
            404: self._not_found,
            405: self._not_found,
        }
        inner = Starlette(routes=routes, exception_handlers=handlers)
        self.app = Gate(self._sampled(inner), entry, self._refused)

    def _sampled(self, inner: Any) -> Any:
        """The application, which notes rates as soon as it is asked for the first time."""

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if self._sampling is None and self._source.managers is not None:
                self._sampling = asyncio.ensure_future(self._sample())
            await inner(scope, receive, send)

        return app

    async def _sample(self) -> None:
        while True:
            self._history.sample()
            await asyncio.sleep(overview.SAMPLE_S)

    # ---- what is not a page of facts

    def _refused(self, request: Request, status: int, words: str) -> Response:
        facts = {"heading": "Not let in", "words": words, "session": None}
        return self._pages.render(request, "error", facts, status)

    def _failed(self, request: Request, error: Exception) -> Response:
        status = 503 if isinstance(error, StoreClosedError) else 500
        facts = {"heading": "This cannot be shown", "words": f"{type(error).__name__}: {error}"}
        return self._pages.render(request, "error", facts, status)

    def _broken(self, request: Request, _: Exception) -> Response:
        facts = {"heading": "This page is broken", "words": "What went wrong is in the log."}
        return self._pages.render(request, "error", facts, 500)

    def _not_found(self, request: Request, _: Exception) -> Response:
        facts = {"heading": "No such page", "words": "There is nothing at this address."}
        return self._pages.render(request, "error", facts, 404)

    def _form(self, answer: Callable[[Request, dict[str, list[str]]], Response]) -> Any:
        """An endpoint for a form of ours: it has to bring the session's own token."""

        async def endpoint(request: Request) -> Response:
            fields = await read_form(request)
            session = request.state.session
            if fields is None or session is None or fields.get("form") != [session.form_token]:
                return self._refused(request, 403, "The form is too old; load its page again.")
            return await asyncio.to_thread(answer, request, fields)

        return endpoint

    # ---- who is there

    def _login_page(self, request: Request) -> Response:
        return self._pages.render(request, "login", {"trouble": "", "session": None})

    async def _log_in(self, request: Request) -> Response:
        fields = await read_form(request) or {}
        client = request.client
        address = f"{client.host}:{client.port}" if client else ""
        given = [fields.get(name, [""])[0] for name in ("access_key", "secret_key")]
        key = self._entry.log_in(given[0], given[1], address)
        if key:
            return let_in(request, key, "/")
        trouble = "No administrator has these keys, or too many wrong ones were given just now."
        return self._pages.render(request, "login", {"trouble": trouble, "session": None}, 403)

    def _log_out(self, request: Request, _: dict[str, list[str]]) -> Response:
        self._entry.end(request.cookies.get(cookie_name(request), ""))
        return RedirectResponse("/login" if self._entry.accounts is not None else "/", 303)

    # ---- pages

    def _overview(self, request: Request) -> Response:
        facts = overview.overview(self._source, self._history, self._lags, self._picture)
        return self._pages.render(request, "overview", facts)

    def _topics(self, request: Request) -> Response:
        asked = request.query_params
        find, kind = asked.get("find", ""), asked.get("kind", "")
        kind = kind if kind in topics.KINDS else ""
        facts = topics.topics(self._source, find, kind, _page(request))
        facts |= {"find": find, "kind": kind, "kinds": topics.KINDS}
        return self._pages.render(request, "topics", facts)

    def _topic(self, request: Request) -> Response:
        name = request.query_params.get("name", "")
        facts = topics.topic(self._source, name, _page(request))
        if facts is None:
            return self._missing(request, f"There is no topic {name!r}.")
        return self._pages.render(request, "topic", facts)

    def _groups(self, request: Request) -> Response:
        asked = request.query_params
        find, by_lag = asked.get("find", ""), asked.get("sort", "") == "lag"
        facts = groups.groups(self._source, self._lags, find, _page(request), by_lag=by_lag)
        facts |= {"find": find, "sort": "lag" if by_lag else ""}
        return self._pages.render(request, "groups", facts)

    def _group(self, request: Request) -> Response:
        name = request.query_params.get("name", "")
        facts = groups.group(self._source, name, _page(request))
        if facts is None:
            return self._missing(request, f"There is no group {name!r}.")
        return self._pages.render(request, "group", facts)

    def _missing(self, request: Request, words: str) -> Response:
        return self._pages.render(request, "error", {"heading": "Not found", "words": words}, 404)

    def _messages(self, request: Request) -> Response:
        asked = {
            name: value
            for name, value in request.query_params.items()
            if name in finding.Wanted.__dataclass_fields__
        }
        wanted = finding.Wanted(**asked)
        found = finding.find(self._source, wanted)
        here = {name: asked[name] for name in asked if name not in ("before", "after", "page")}
        facts = {
            "wanted": wanted,
            "found": found,
            "rows": [(message, preview(message)) for message in found.messages],
            "here": here,
            "said": request.query_params.get("said", ""),
            "is_dead": self._write and wanted.topic.startswith("%DLQ%"),
            "asked": any(here.get(name) for name in ("topic", "key", "message_id", "offset")),
        }
        return self._pages.render(request, "messages", facts)

    def _message(self, request: Request) -> Response:
        asked = request.query_params
        at, start = _whole(asked.get("at", "")), _whole(asked.get("from", "0")) or 0
        message = None if at is None else self._source.store.message_at(at)
        if message is None:
            return self._missing(request, "No record begins at this physical offset any more.")
        form = asked.get("as", "")
        facts = {
            "message": message,
            "body": body_view(message, form, start),
            "form": form,
            "crc": message.check_crc(),
            "trace": trace_points(self._source, message),
            "is_dead": self._write and message.topic.startswith("%DLQ%"),
        }
        return self._pages.render(request, "message", facts)

    def _body(self, request: Request) -> Response:
        at = _whole(request.query_params.get("at", ""))
        message = None if at is None else self._source.store.message_at(at)
        if message is None:
            return self._missing(request, "No record begins at this physical offset any more.")
        body, _ = plain_body(message)
        headers = {"content-disposition": f'attachment; filename="message-{at}.bin"'}
        return Response(body, media_type="application/octet-stream", headers=headers)

    def _store(self, request: Request) -> Response:
        facts = store_page.store_page(self._source, _page(request))
        return self._pages.render(request, "store", facts)

    def _verify(self, request: Request, _: dict[str, list[str]]) -> Response:
        return self._check(request, "verified", store_page.verified)

    def _plan(self, request: Request, _: dict[str, list[str]]) -> Response:
        return self._check(request, "plan", store_page.planned)

    def _explain(self, request: Request, _: dict[str, list[str]]) -> Response:
        return self._check(request, "explained", store_page.explained)

    def _check(self, request: Request, template: str, check: Callable[[Source], Any]) -> Response:
        """Let the doctor look at the store, for one reader at a time."""
        if not self._checking.acquire(blocking=False):
            words = "The store is being looked at already; try again when that has ended."
            return self._pages.render(request, "error", {"heading": "Busy", "words": words}, 409)
        try:
            return self._pages.render(request, template, {"report": check(self._source)})
        finally:
            self._checking.release()

    def _put_again(self, request: Request, fields: dict[str, list[str]]) -> Response:
        source = self._source
        if not self._write or not isinstance(source, BrokerSource):
            return self._refused(request, 403, "The pages are read only; serve with --web-write.")
        places = [_whole(text) for text in fields.get("at", ())][:_LETTERS_MAX]
        done, said = 0, "none was chosen"
        try:
            for place in places:
                if place is not None:
                    put_again(source, place)
                    done += 1
                    said = f"{done} put again"
        except RmqCoreError as error:
            if not done:
                raise
            # who chose them has to know which of them would come twice
            said = f"{done} put again, in the order of the page; the next one was not: {error}"
        back = {"topic": fields.get("topic", [""])[0], "said": said}
        return RedirectResponse(link("/messages", by="time", **back), 303)

    def _live_page(self, request: Request) -> Response:
        topic = request.query_params.get("topic", "")
        return self._pages.render(request, "live", self._live.facts(topic))


async def read_form(request: Request) -> dict[str, list[str]] | None:
    """The fields of a form; None when it is none, or too long, or does not come whole."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > _FORM_MAX:
                return None
        return parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=1000)
    except (ValueError, ClientDisconnect):
        return None


def _page(request: Request) -> int:
    return min(_whole(request.query_params.get("page", "")) or 1, _PAGE_MAX)


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
