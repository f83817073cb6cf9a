"""Finding messages: by topic and time, key, id, physical offset and queue offset; or why not."""

from __future__ import annotations

import bisect
import difflib
from dataclasses import dataclass, field
from typing import Any, Final

from rmqcore.doctor.explain import explain
from rmqcore.errors import CorruptStoreError, RmqCoreError
from rmqcore.message import MessageExt, decode_message_id
from rmqcore.web.log_pages import log_page
from rmqcore.web.shown import parse_time, time_text
from rmqcore.web.source import Source, Store, bounds

MESSAGES_SHOWN: Final = 50
#: When no topic is named, a key is looked up in at most this many.
_TOPICS_ASKED: Final = 200
#: A name that is unknown is compared with so many to both sides of it in the order of the alphabet.
_NEAR: Final = 100


@dataclass(slots=True)
class Found:
    """What was found, and what helps to understand it.

    Attributes:
        messages: on this page.
        damaged: by place, why a message that belongs here cannot be read.
        why: what was looked at, in words; said when there are none.
        trouble: what is wrong with the question; empty when nothing is.
        older, newer: names and values of the links to other pages; None without.
    """

    messages: list[MessageExt] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)
    why: list[str] = field(default_factory=list)
    trouble: str = ""
    older: dict[str, Any] | None = None
    newer: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the form says, as text.

    Attributes:
        by: "time", "key", "id", "offset" or "queue".
        topic, queue, key, message_id, offset: as they were typed.
        since, until: times.
        before, after, page: where to go on.
    """

    by: str = "time"
    topic: str = ""
    queue: str = ""
    key: str = ""
    message_id: str = ""
    offset: str = ""
    since: str = ""
    until: str = ""
    before: str = ""
    after: str = ""
    page: str = ""


def find(source: Source, wanted: Wanted) -> Found:
    """Look for what a form asks; never raises for what was typed.

    Args:
        source: of the store.
        wanted: as it was typed.

    Returns:
        ``trouble`` says what was typed wrong, or what the store refuses.
    """
    ways = {"key": _by_key, "id": _by_id, "offset": _by_offset, "queue": _by_queue}
    found = Found()
    try:
        ways.get(wanted.by, _by_time)(source, wanted, found)
    except (ValueError, RmqCoreError) as error:
        found.trouble = str(error)
    return found


def _number(text: str, what: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError(f"{what} {text!r} is no number from 0 on")
    return int(text)


def _by_time(source: Source, wanted: Wanted, found: Found) -> None:
    if not wanted.topic:
        return
    queues = source.queues().get(wanted.topic, [])
    queue = _number(wanted.queue, "queue")
    begin_ms, end_ms = parse_time(wanted.since) or 0, parse_time(wanted.until)
    page = log_page(
        source,
        wanted.topic,
        queue,
        MESSAGES_SHOWN,
        before=_number(wanted.before, "offset"),
        after=_number(wanted.after, "offset"),
        begin_ms=begin_ms,
        end_ms=end_ms,
    )
    found.messages, found.damaged = page.messages, page.damaged
    if page.older is not None:
        found.older = {"before": page.older}
    if page.newer is not None:
        found.newer = {"after": page.newer}
    if page.messages or page.damaged:
        return
    if not queues:
        found.why.append(_unknown(wanted.topic, source))
    elif queue is not None and queue not in queues:
        found.why.append(f"{wanted.topic} has no queue {queue}; its queues are {_some(queues)}.")
    else:
        found.why += _span_of(source, wanted.topic, queues if queue is None else [queue])
        if begin_ms or end_ms is not None:
            until = "now" if end_ms is None else time_text(end_ms)
            found.why.append(f"Asked for were {time_text(begin_ms)} to {until}, in local time.")


def _unknown(topic: str, source: Source) -> str:
    """That a topic is not there, and which may have been meant."""
    names = sorted(source.queues())
    at = bisect.bisect(names, topic)
    near = difflib.get_close_matches(topic, names[max(0, at - _NEAR) : at + _NEAR], n=1)
    meant = f"; was {near[0]!r} meant?" if near else "."
    return f"The store has no queue of a topic {topic!r}{meant}"


def _span_of(source: Source, topic: str, queues: list[int]) -> list[str]:
    """From when to when the messages of some queues are."""
    times = []
    for number in queues:
        low, high = bounds(source.store, topic, number)
        for offset in (low, high - 1) if high > low else ():
            stored = source.store.get_message(topic, number, offset, max_messages=1).messages
            times += [message.store_timestamp_ms for message in stored]
    if not times:
        return ["Its queues have no messages, or none any more: retention has deleted them."]
    return [f"Its messages were stored from {time_text(min(times))} to {time_text(max(times))}."]


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")


def _by_key(source: Source, wanted: Wanted, found: Found) -> None:
    key = wanted.key.strip()
    if not key:
        return
    topics = [wanted.topic] if wanted.topic else sorted(source.queues())[:_TOPICS_ASKED]
    begin_ms, end_ms = parse_time(wanted.since) or 0, parse_time(wanted.until)
    page, explanations = _number(wanted.page, "page"), list[str]()
    for topic in topics:
        result = source.store.query_message(
            topic,
            key,
            max_messages=MESSAGES_SHOWN,
            begin_ms=begin_ms,
            end_ms=end_ms,
            page=page if wanted.topic else None,
            explain=True,
        )
        found.messages += reversed(result.messages)
        for place, reason in result.explanation.damaged:
            found.damaged[place] = f"the record at {place}: {reason}"
        if wanted.topic and result.next_page is not None:
            found.older = {"page": result.next_page}
        if begin_ms or end_ms is not None:
            explanations += str(result.explanation).splitlines() if wanted.topic else []
    found.messages = found.messages[: 4 * MESSAGES_SHOWN]
    if not found.messages and not wanted.topic:
        asked = f"the first {len(topics)} topics" if len(topics) == _TOPICS_ASKED else "all topics"
        found.why.append(f"No message of {asked} has it; name the topic, and see what was probed.")
    elif not found.messages and wanted.topic not in source.queues():
        found.why.append(_unknown(wanted.topic, source))
    elif not found.messages:
        found.why += [*_explained(source, topic=wanted.topic, key=key), *explanations]


def _by_id(source: Source, wanted: Wanted, found: Found) -> None:
    message_id = wanted.message_id.strip()
    if not message_id:
        return
    try:
        host, phy_offset = decode_message_id(message_id)
    except ValueError:
        found.why.append("It is no offset id (32 or 56 hex digits), so it is looked up as a key.")
        _by_key(source, Wanted("key", wanted.topic, key=message_id), found)
        return
    message = source.store.message_by_id(message_id)
    if message is not None:
        found.messages.append(message)
        return
    found.why.append(f"It names physical offset {phy_offset} of the store at {host}.")
    _by_key(source, Wanted("key", wanted.topic, key=message_id), found)
    if not found.messages:
        found.why += _explained(source, message_id=message_id)


def _by_offset(source: Source, wanted: Wanted, found: Found) -> None:
    phy_offset = _number(wanted.offset, "physical offset")
    if phy_offset is None:
        return
    message = source.store.message_at(phy_offset)
    if message is not None:
        found.messages.append(message)
    else:
        found.why += _explained(source, phy_offset=phy_offset)


def _by_queue(source: Source, wanted: Wanted, found: Found) -> None:
    offset, queue = _number(wanted.offset, "queue offset"), _number(wanted.queue, "queue") or 0
    if offset is None or not wanted.topic:
        return
    try:
        result = source.store.get_message(wanted.topic, queue, offset, max_messages=MESSAGES_SHOWN)
        found.messages = list(result.messages)
    except CorruptStoreError:
        _one_by_one(source.store, wanted.topic, queue, offset, found)
        return
    if not found.messages:
        low, high = result.min_queue_offset, result.max_queue_offset
        found.why.append(f"{result.status.name}: the queue has offsets {low} to {high - 1}.")
        found.why += _explained(source, topic=wanted.topic, queue_id=queue, queue_offset=offset)


def _one_by_one(store: Store, topic: str, queue: int, offset: int, found: Found) -> None:
    """Messages from a queue offset on, of which some are damaged."""
    end = min(offset + MESSAGES_SHOWN, store.max_queue_offset(topic, queue))
    while offset < end:
        try:
            result = store.get_message(topic, queue, offset, max_messages=1)
            found.messages += result.messages
            offset = max(offset + 1, result.next_queue_offset)
        except CorruptStoreError as error:
            found.damaged[offset] = str(error)
            offset += 1


def _explained(source: Source, **asked: Any) -> list[str]:
    """What the doctor says to it, from the bytes of the store."""
    said = explain(source.path, config=source.store.config, **asked)
    advice = [f"what helps: {said.advice}"] if said.advice else []
    return [said.reason, *(f"{what}: {there}" for what, there in said.facts), *advice]
