"""Answers of any size: the owner sends a long one as several frames, the client joins them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rmqcore.remoting import RemotingCommand

if TYPE_CHECKING:
    from rmqcore.remoting.command import Buffer

#: One frame holds this many bytes of an answer's body; the next one is sent when the client has
#: read these.
PIECE_SIZE: Final = 4 << 20
#: The header field of a piece that is followed by another.
MORE: Final = "more"


def body_size(command: RemotingCommand) -> int:
    """Bytes of a body, its parts among them."""
    return len(command.body) + sum(map(len, command.parts))


def pieces_of(answer: RemotingCommand) -> Iterator[RemotingCommand]:
    """An answer as frames that hold a piece of its body each, in order; nothing is copied."""
    if body_size(answer) <= PIECE_SIZE:
        yield answer
        return
    piece: list[Buffer] = []
    room = PIECE_SIZE
    for each in (answer.body, *answer.parts):
        rest = memoryview(each)
        while len(rest) > room:
            yield RemotingCommand(answer.code, {MORE: "1"}, parts=[*piece, rest[:room]])
            rest = rest[room:]
            piece, room = [], PIECE_SIZE
        if len(rest):
            piece.append(rest)
            room -= len(rest)
    yield RemotingCommand(answer.code, parts=piece)


def joined(pieces: list[bytes], last: RemotingCommand) -> RemotingCommand:
    """The answer of which these pieces and then the last one have come.

    Args:
        pieces: in the order in which they came; none for an answer of one frame.
        last: the answer with its code and fields; its body becomes the whole one.
    """
    if pieces:
        last.body = b"".join((*pieces, last.body))
    return last
