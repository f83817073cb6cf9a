"""The tail of a topic: the newest messages, and those that come, as server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from rmqcore.errors import RmqCoreError
from rmqcore.message import MessageExt
from rmqcore.web.gate import Session
from rmqcore.web.log_pages import log_page
from rmqcore.web.shown import preview, time_text, visible
from rmqcore.web.source import Source

logger = logging.getLogger(__name__)

_SHOWN: Final = 20
#: The topic is asked for new messages this often. After this many times without one the reader is
#: sent a comment, which shows that the connection is alive.
_POLL_S: Final = 0.5
_QUIET_POLLS: Final = 30
#: Of more new messages than this only the newest are shown.
_MOST: Final = 50
_READERS_MAX: Final = 16


class Live:
    """Follows topics for readers.

    Args:
        source: where they are.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._readers = 0

    def facts(self, topic: str) -> dict[str, Any]:
        """The page: the newest messages now, and from where the events go on."""
        found: list[MessageExt] = []
        if topic:
            found = log_page(self._source, topic, None, _SHOWN).messages
        return {
            "topic": topic,
            "rows": [(message, preview(message)) for message in found],
            "after": found[0].phy_offset if found else self._source.store.max_phy_offset - 1,
        }

    async def events(self, request: Request) -> Response:
        """What comes, one event a message, while the reader's session lasts."""
        topic, after = request.query_params.get("topic", ""), request.query_params.get("after", "")
        after = request.headers.get("last-event-id", after)
        if self._readers >= _READERS_MAX:
            return Response("too many readers", 503)
        if not topic or not after.isdigit() or len(after) > 18:
            return Response("a topic, and where to go on", 400)
        stream = self._stream(request, topic, int(after))
        return StreamingResponse(stream, media_type="text/event-stream")

    async def _stream(self, request: Request, topic: str, after: int) -> AsyncIterator[str]:
        self._readers += 1
        quiet, end = 0, -1
        session: Session = request.state.session
        try:
            yield "retry: 2000\n\n"
            while not (session.is_over or await request.is_disconnected()):
                found, end = await asyncio.to_thread(self._new, topic, after, end)
                for message in found:
                    after = message.phy_offset
                    yield event_of(message)
                quiet = 0 if found else quiet + 1
                if quiet >= _QUIET_POLLS:
                    quiet = 0
                    yield ": nothing yet\n\n"
                await asyncio.sleep(_POLL_S)
        except (RmqCoreError, OSError) as error:
            # the reader asks again, and is told then
            logger.info("the tail of %s has ended: %s", topic, error)
        finally:
            self._readers -= 1

    def _new(self, topic: str, after: int, end: int) -> tuple[list[MessageExt], int]:
        """What came behind a physical offset, the oldest first; of very much the newest.

        Args:
            topic: which.
            after: where the last one begins that is known.
            end: where the log ended at the last look; while it ends there nothing is read.

        Returns:
            the messages, and where the log ends.
        """
        now = self._source.store.max_phy_offset
        if now == end:
            return [], now
        newest = log_page(self._source, topic, None, _MOST).messages
        return [message for message in reversed(newest) if message.phy_offset > after], now


def event_of(message: MessageExt) -> str:
    """A message as an event: plain texts, which the page sets as texts and never as HTML."""
    told = {
        "time": time_text(message.store_timestamp_ms),
        "place": f"{message.queue_id}@{message.queue_offset}",
        "tags": visible(message.tags or ""),
        "keys": visible(" ".join(message.keys)),
        "body": preview(message),
        "at": message.phy_offset,
    }
    return f"id: {message.phy_offset}\ndata: {json.dumps(told)}\n\n"
