"""No parser of the wire looks at a text again and again: twice the text is twice the steps."""

import contextlib
import gc
import re
import re._constants as kinds
import re._parser as patterns
import sys
import zlib

import pytest

from rmqcore._codec import decode_properties
from rmqcore.broker.pop.receipts import Checkpoint, Receipt, read_ack
from rmqcore.broker.state.subscription import Subscription
from rmqcore.errors import RmqCoreError
from rmqcore.java import json
from rmqcore.java.json import parse_java_json
from rmqcore.java.properties import parse_properties
from rmqcore.message import tags_of
from rmqcore.namesrv.register_body import read_register_body
from rmqcore.remoting import (
    FrameDecoder,
    FrameLimits,
    RemotingCommand,
    RequestRefusedError,
    encode_command,
)
from rmqcore.remoting.codes import VERSION
from rmqcore.remoting.json_body import read_object
from rmqcore.store.consume import sql92
from rmqcore.store.consume.sql92 import compile_condition

pytestmark = pytest.mark.logic

LONG = 100_000
LIMITS = FrameLimits(header_size=1 << 22, field_count=1 << 22)


def body(text):
    return read_object(RemotingCommand(34, {}, text.encode()), 1 << 30)


def header(kind):
    def parse(text):
        decoder = FrameDecoder(LIMITS)
        head = text.encode()
        word = kind << 24 | len(head)
        decoder.feed((4 + len(head)).to_bytes(4) + word.to_bytes(4) + head)
        return decoder.next()

    return parse


def fields(text):
    """A text as the value of a field, in both kinds of header."""
    for kind in (0, 1):
        decoder = FrameDecoder(LIMITS)
        command = RemotingCommand(34, {"a": text[:200_000], "b": "1" * 100})
        decoder.feed(b"".join(encode_command(command, kind)[0]))
        command = decoder.next()
        with contextlib.suppress(RequestRefusedError):
            command.number("a")


def registration(text):
    return read_register_body(text.encode(), VERSION, compressed=False)


def packed_registration(text):
    piece = text.encode()
    plain = len(piece).to_bytes(4) + piece
    return read_register_body(zlib.compress(plain), VERSION, compressed=True)


def condition(text):
    return compile_condition(text[:16_384])


def matched(text):
    return compile_condition("a > 1.5 AND a = b OR a BETWEEN 1 AND 2")({"a": text, "b": "1"})


def checkpoint(text):
    return Checkpoint.from_java(text.encode(), 0, 0)


PARSERS = {
    "JSON": parse_java_json,
    "a body": body,
    "a JSON header": header(0),
    "a binary header": header(1),
    "header fields": fields,
    "a registration": registration,
    "a compressed registration": packed_registration,
    "properties of a broker": parse_properties,
    "properties of a message": lambda text: decode_properties(text.encode()),
    "tags": tags_of,
    "a subscription": lambda text: Subscription("T", text).to_java(),
    "an SQL92 condition": condition,
    "a property under SQL92": matched,
    "a receipt": Receipt.parse,
    "a checkpoint": checkpoint,
    "an acknowledgement": lambda text: read_ack(text.encode()),
}
PIECES = {
    "digits": "1",
    "signs": "-",
    "signed digits": "-1",
    "numbers": "1 ",
    "points": "1.",
    "quotes": '"',
    "apostrophes": "'",
    "escapes": '"\\\\',
    "objects": '{"a":',
    "bare keys": "{1:",
    "object keys": "{{1:1}:",
    "ends": "} ",
    "lists": "[",
    "blanks": " ",
    "bars": "a||",
    "comments": "/*",
    "parentheses": "(",
    "continued lines": "a\\\n",
    "properties": "a\x01b\x02",
    "open properties": "a\x02",
    "zeros": "\x00",
}


def steps(parse, text):
    """The lines and the calls of a parser, in Python."""
    counted = 0

    def count(_, event, __):
        nonlocal counted
        counted += event in ("line", "c_call")
        return count

    was_traced, was_profiled = sys.gettrace(), sys.getprofile()
    # finalizers of what others have left would be counted, too
    gc.disable()
    sys.setprofile(count)
    sys.settrace(count)
    try:
        attempt(parse, text)
    finally:
        sys.settrace(was_traced)
        sys.setprofile(was_profiled)
        gc.enable()
    return counted


def attempt(parse, text):
    """Parse it; what is said of nonsense is not asked here."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RmqCoreError):
        parse(text)


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
def test_twice_the_text_is_at_most_twice_the_steps(parse):
    for name, piece in PIECES.items():
        size = 2000 // len(piece)
        attempt(parse, piece)  # whatever is imported or compiled with the first text
        once, twice = (steps(parse, piece * count) for count in (size, 2 * size))
        assert twice <= 2 * once + 50, name


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
def test_a_long_text_comes_to_its_end(parse):
    # in quadratic time each would take minutes
    for piece in PIECES.values():
        attempt(parse, piece * (LONG // len(piece)))
        attempt(parse, "x" + piece * (LONG // len(piece)) + "x")


PATTERNS = {
    f"{module.__name__}.{name}": value
    for module in (json, sql92)
    for name, value in vars(module).items()
    if isinstance(value, re.Pattern)
}


def repeats_that_give_back(parsed):
    """The repeats without a bound that, when what follows fails, try all of it once more."""
    found = []
    for kind, argument in parsed:
        if kind is kinds.MAX_REPEAT and argument[1] is kinds.MAXREPEAT:
            found.append(argument)
        for part in argument if isinstance(argument, tuple | list) else ():
            inner = part if isinstance(part, list) else [part]
            for each in inner:
                if isinstance(each, patterns.SubPattern):
                    found += repeats_that_give_back(each)
    return found


def test_no_pattern_gives_back_what_it_has_taken():
    assert len(PATTERNS) >= 6
    assert repeats_that_give_back(patterns.parse(r"(?:a|-?[0-9]+)(?=:)"))
    for name, pattern in PATTERNS.items():
        assert not repeats_that_give_back(patterns.parse(pattern.pattern, pattern.flags)), name
