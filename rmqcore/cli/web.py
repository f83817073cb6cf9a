"""``rmqcore web``, and the port for the pages that ``rmqcore serve --web-port`` opens."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmqcore.broker import Broker
from rmqcore.cli.log_lines import write_log_lines
from rmqcore.cli.options import AsJson, ConfigFile, Settings, StorePath, open_for_reading
from rmqcore.errors import ConfigError
from rmqcore.remoting import Account

if TYPE_CHECKING:
    from rmqcore.web import Entry, WebServer

_PORTS: Final[dict[str, Any]] = {"min": 0, "max": 65535}
_HOST: Final = "127.0.0.1"
_WITHOUT: Final = "not without the extra: pip install 'rmqcore[web]'"

WebPort = Annotated[
    int | None,
    typer.Option(
        "--web-port",
        help="port of this machine for pages in a browser; needs the extra [web]; 0: any that is "
        "free",
        **_PORTS,
    ),
]
WebWrite = Annotated[bool, typer.Option("--web-write", help="let the pages put dead letters again")]


def web(
    store: StorePath,
    port: Annotated[
        int, typer.Option("--port", help="the port; 0: any that is free", **_PORTS)
    ] = 0,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show a store in a browser, opened for reading only, until Ctrl-C; needs the extra [web]."""
    try:
        from rmqcore.web import ColdSource, Entry, WebServer, web_app  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError("web", "", _WITHOUT) from error
    write_log_lines()
    ended = threading.Event()
    with open_for_reading(store, config, settings) as opened:
        entry, source = Entry(), ColdSource(opened)
        source.queues()
        server = WebServer(web_app(source, entry), _HOST, port)
        server.start()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        place = address(server, entry)
        facts = json.dumps({"web": place, "store": str(store)})
        typer.echo(facts if as_json else f"{place} on {store}: Ctrl-C ends it")
        ended.wait()
        server.stop()


class BrokerPages:
    """The pages about a broker, beside it.

    Args:
        broker: may be started later.
        port: where; 0 is any that is free.
        accounts: administrators among these log in; None prints an address with a token.
        write: whether dead letters may be put again.

    Raises:
        ConfigError: the extra is not installed.
        OSError: the port is taken.
    """

    def __init__(
        self, broker: Broker, port: int, accounts: Mapping[str, Account] | None, *, write: bool
    ) -> None:
        try:
            from rmqcore.web import (  # noqa: PLC0415 - an extra
                BrokerSource,
                Entry,
                WebServer,
                web_app,
            )
        except ImportError as error:
            raise ConfigError("web-port", port, _WITHOUT) from error
        self._entry = Entry(accounts)
        self._server = WebServer(
            web_app(BrokerSource(broker), self._entry, write=write), _HOST, port
        )

    def start(self) -> str:
        """Serve; returns the address to be printed."""
        self._server.start()
        return address(self._server, self._entry)

    async def stop(self) -> None:
        """Let the port go."""
        self._server.stop()


def pages_beside(
    port: int | None, accounts: Mapping[str, Account] | None, *, write: bool
) -> Callable[[Broker], BrokerPages | None]:
    """What makes the pages about a broker, or None without a port; see `BrokerPages`.

    Args:
        port: for the pages; 0 for any that is free, None for no pages.
        accounts: who may see them; None for everybody with the token.
        write: let the pages change things.
    """
    return lambda broker: None if port is None else BrokerPages(broker, port, accounts, write=write)


def address(server: WebServer, entry: Entry) -> str:
    """What a browser is given: the token lets in who has it.

    Args:
        server: started.
        entry: of the pages; one without a token lets everybody in.
    """
    token = f"?token={entry.token}" if entry.token else ""
    return f"http://{_HOST}:{server.port}/{token}"
