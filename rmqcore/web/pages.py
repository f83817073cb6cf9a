"""Templates, and what every page has: navigation, links that keep what was asked, escapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from rmqcore.version import __version__
from rmqcore.web.shown import count_text, rates_text, size_text, span_text, time_text, visible
from rmqcore.web.sparkline import sparkline

HERE: Final = Path(__file__).parent
NAVIGATION: Final = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/messages", "Messages"),
    ("/store", "Store"),
    ("/live", "Live"),
)
#: what stands for the store in a command that is advised
_STORE: Final = re.compile(r"\bSTORE\b")


def _seen(value: Any) -> Any:
    """What a template writes: texts in which everything can be seen, whoever has sent them."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return value


def link(path: str, **named: Any) -> str:
    """An address with arguments; those that are empty are left out.

    Args:
        path: from the server's root, escaped already.
        named: arguments; None and empty ones are left out.
    """
    wanted = {name: value for name, value in named.items() if value not in (None, "")}
    return f"{path}?{urlencode(wanted)}" if wanted else path


class Pages:
    """Renders templates.

    Args:
        store: its directory, whose name is on every page.
        write: whether forms that change something are shown.
    """

    def __init__(self, store: Path, *, write: bool) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            finalize=_seen,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "size": size_text,
            "count": count_text,
            "time": time_text,
            "span": span_text,
            "rates": rates_text,
            "typed": lambda text: _STORE.sub(lambda _: quote(str(store)), text),
        }
        self._environment.globals |= {
            "link": link,
            "sparkline": sparkline,
            "navigation": NAVIGATION,
            "version": __version__,
            "title": store.name or str(store),
            "write": write,
        }

    def render(
        self, request: Request, template: str, facts: Mapping[str, Any], status: int = 200
    ) -> HTMLResponse:
        """A page.

        Args:
            request: what is answered.
            template: name of the file, without its ending.
            facts: what the template names.
            status: of the answer.
        """
        here = {
            "session": getattr(request.state, "session", None),
            "path": request.url.path,
            "section": "/" + request.url.path.strip("/").partition("/")[0],
        }
        text = self._environment.get_template(f"{template}.html").render({**here, **facts})
        return HTMLResponse(text, status)
