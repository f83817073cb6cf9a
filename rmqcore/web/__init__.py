"""Pages about a broker or a store for a browser: rendered here, read without JavaScript.

Never changes anything that it was not allowed to change, never runs what a producer has sent, and
knows no store's files: it asks a store that is open, a broker's parts and the doctor.
Floor: F9. Needs the extra `web`.
"""

from rmqcore.web.app import web_app
from rmqcore.web.gate import Entry
from rmqcore.web.serving import WebServer
from rmqcore.web.source import BrokerSource, ColdSource, Source

__all__ = ["BrokerSource", "ColdSource", "Entry", "Source", "WebServer", "web_app"]
