"""Who is let in: the token of the printed URL or an account, the right Host, the right Origin."""

from __future__ import annotations

import hmac
import ipaddress
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rmqcore.chance import token_hex
from rmqcore.remoting import Account
from rmqcore.remoting.host_header import LOOPBACK_NAMES, is_named
from rmqcore.world import monotonic_s

#: A session that is not used for this long is over.
_IDLE_S: Final = 12 * 3600.0
_SESSIONS_MAX: Final = 256
#: wrong keys that are answered in a minute; after so many nobody can log in for the rest of it
_WRONG_MAX: Final = 10
_MINUTE_S: Final = 60.0
#: Every page has these: nothing is loaded from elsewhere, no script or style stands in a page,
#: nobody frames it, and no address with a token is told to anybody.
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(slots=True)
class Session:
    """Somebody who has been let in.

    Attributes:
        name: of the account; empty for who has the token.
        seen_s: when it was used last, by the monotonic clock.
        form_token: has to come with each form.
        ended: nobody finds it any more.
    """

    name: str
    seen_s: float
    form_token: str = field(default_factory=lambda: token_hex(16))
    ended: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or was not used for too long: what is still being answered ends."""
        return self.ended or monotonic_s() - self.seen_s > _IDLE_S


class Entry:
    """Tokens, accounts and sessions.

    Args:
        accounts: administrators among these may log in; None lets in who has the token.
        names: further names and addresses under which the pages are asked for.

    Attributes:
        token: what the printed URL has; empty where accounts log in.
    """

    def __init__(
        self, accounts: Mapping[str, Account] | None = None, names: tuple[str, ...] = ()
    ) -> None:
        self.accounts = accounts
        self.token = "" if accounts is not None else token_hex(24)
        self._names = LOOPBACK_NAMES | frozenset(names)
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._wrong: list[float] = []

    def is_here(self, host: str) -> bool:
        """Tell whether the Host of a request is one of ours; any other is a rebound name."""
        return is_named(host, self._names)

    def begin(self, name: str = "") -> str:
        """Let somebody in; the value of the cookie."""
        key = token_hex(24)
        self._sessions[key] = Session(name, monotonic_s())
        while len(self._sessions) > _SESSIONS_MAX:
            self.end(next(iter(self._sessions)))
        return key

    def end(self, key: str) -> None:
        """Forget a session."""
        session = self._sessions.pop(key, None)
        if session is not None:
            session.ended = True

    def find(self, key: str) -> Session | None:
        """The session of a cookie; None when there is none, or it is over."""
        session = self._sessions.get(key)
        if session is None or session.is_over:
            self.end(key)
            return None
        session.seen_s = monotonic_s()
        self._sessions.move_to_end(key)
        return session

    def has_token(self, given: str) -> bool:
        """Tell whether this is the token of the printed URL."""
        return bool(self.token) and hmac.compare_digest(given.encode(), self.token.encode())

    def log_in(self, access_key: str, secret_key: str, address: str) -> str:
        """Let an administrator in; the value of the cookie, or an empty text.

        Args:
            access_key: name of the account.
            secret_key: its secret.
            address: where the request comes from, ``host:port``.
        """
        now_s = monotonic_s()
        self._wrong = [at_s for at_s in self._wrong if now_s - at_s < _MINUTE_S]
        account = (self.accounts or {}).get(access_key)
        right = hmac.compare_digest(
            secret_key.encode(), (account.secret_key if account else "").encode()
        )
        if len(self._wrong) >= _WRONG_MAX:
            return ""
        if account is None or not right or not account.admin or not account.may_come_from(address):
            self._wrong.append(now_s)
            return ""
        return self.begin(access_key)


def cookie_name(request: Request) -> str:
    """Cookies of a machine belong to all its ports, so the name has the port."""
    return f"rmqcore_{request.url.port or 80}"


class Gate:
    """Lets requests through to an application, or answers them itself; adds the headers.

    Args:
        app: what is behind it; finds the session in ``request.state.session``.
        entry: who may come in.
        refuse: makes the page for who may not: (request, status, words).
    """

    def __init__(self, app: ASGIApp, entry: Entry, refuse: Any) -> None:
        self._app = app
        self._entry = entry
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; whatever is no HTTP is not answered."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope, receive)
        answer = self._answer(request)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        """The answer for who is not let through; None lets him through."""
        host = request.headers.get("host", "")
        if not self._entry.is_here(host):
            words = "This server is asked for by its address or as localhost, and by no other name."
            return self._refuse(request, 403, words)
        if request.method not in ("GET", "HEAD") and not self._is_own(request, host):
            return self._refuse(request, 403, "The form was not on a page of this server.")
        request.state.session = None
        path = request.url.path
        if path.startswith("/static/"):
            return None
        if "token" in request.query_params and request.method == "GET":
            return self._accept_token(request)
        key = request.cookies.get(cookie_name(request), "")
        request.state.session = self._entry.find(key)
        if request.state.session is not None or path == "/login":
            return None
        if self._entry.accounts is not None:
            return RedirectResponse("/login", 303)
        words = "Open the address that was printed when the server was started: it has the token."
        return self._refuse(request, 403, words)

    def _accept_token(self, request: Request) -> Response:
        if not self._entry.has_token(request.query_params["token"]):
            words = "The token is not, or no longer, that of this server."
            return self._refuse(request, 403, words)
        rest = [pair for pair in parse_qsl(request.url.query) if pair[0] != "token"]
        place = request.url.path + (f"?{urlencode(rest)}" if rest else "")
        return let_in(request, self._entry.begin(), place)

    @staticmethod
    def _is_own(request: Request, host: str) -> bool:
        """Tell whether a form comes from a page of ours, as far as the browser tells."""
        return request.headers.get("origin", "") in (f"http://{host}", f"https://{host}")


def let_in(request: Request, key: str, place: str) -> Response:
    """Send somebody on with the cookie of a session.

    Args:
        request: whose host gives the cookie its name.
        key: of the session.
        place: path and query to go on to, of this server.
    """
    # one slash: two would name another server
    answer = RedirectResponse("/" + place.lstrip("/\\"), 303)
    answer.set_cookie(cookie_name(request), key, httponly=True, samesite="lax", path="/")
    return answer


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
