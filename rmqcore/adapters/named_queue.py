"""One named queue: first in, first out, or last in, first out, over an append-only log."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol, Self

from rmqcore.errors import CorruptConsumeQueueError

if TYPE_CHECKING:
    from rmqcore.message import MessageExt
    from rmqcore.store.protocol import MessageStore

TOPIC: Final = "NAMED_QUEUES"
#: the property that says whose an element is, and where the next one lies
LINK: Final = "QUEUE_LINK"
#: the kind of an entry that no queue has
FREE: Final = 0
#: The kind in an element's link is larger by this when it was copied from another entry.
COPIED: Final = 2

_NO_TOP: Final = -1
_READ_AHEAD: Final = 64
_READ_AHEAD_BYTES: Final = 1 << 20


class ElementLink(NamedTuple):
    """What an element says of its queue; the property's text has the fields in this order.

    Attributes:
        kind: 1 of a queue, 2 of a stack; 2 more while a queue is being copied to another entry.
        at: queue offset of the queue's first element when this one came; of the element below it.
        depth: elements below it in a stack; 0 in a queue.
        bottom: queue offset of the stack's lowest element, if there was one; 0 in a queue.
        name: the queue's name.
    """

    kind: int
    at: int
    depth: int
    bottom: int
    name: str

    @classmethod
    def of(cls, message: MessageExt, path: Path) -> Self:
        """Read it from a message of the store at a path.

        Args:
            message: that an adapter has put.
            path: the store's, for the error.

        Raises:
            CorruptConsumeQueueError: the message has none, or one that cannot be.
        """
        text = message.properties.get(LINK, "")
        try:
            kind, at, depth, bottom, name = text.split(" ", 4)
            link = cls(int(kind), int(at), int(depth), int(bottom), name)
        except ValueError:
            pass
        else:
            if 1 <= link.kind <= 2 + COPIED and link.is_below(message.queue_offset):
                return link
        reason = f"{LINK}={text!r} is of no named queue"
        raise CorruptConsumeQueueError(path, message.phy_offset, reason)

    def is_below(self, offset: int) -> bool:
        """Whether it points back from an offset, or for a queue's only element to that itself."""
        return self.depth >= 0 and _NO_TOP <= self.at < offset + self.kind % 2


class Element(NamedTuple):
    """A body that lies in a queue, and where its record is in the log."""

    body: bytes
    phy_offset: int


class Home(Protocol):
    """What a queue is in: the store, and the queue's entry in the table."""

    path: Path
    store: MessageStore

    def at(self, entry: int) -> int:
        """Queue offset of an entry's first element, or of its top."""

    def end(self, entry: int) -> int:
        """The next queue offset when the entry was last written as a whole."""

    def set_at(self, entry: int, at: int) -> None:
        """Say where the first element, or the top, is now.

        Args:
            entry: number of the queue's entry.
            at: queue offset.
        """

    def set_end(self, entry: int, end: int) -> None:
        """Say that the table knows all messages below an offset.

        Args:
            entry: number of the queue's entry.
            end: the next message's queue offset.
        """

    def put(self, topic: str, body: bytes, queue_id: int, properties: dict[str, str]) -> int:
        """Put a message; its queue offset.

        Args:
            topic: where it goes.
            body: at most what the store's ``max_message_size`` allows.
            queue_id: number of the queue's entry; 0 in other topics.
            properties: of the message.

        Raises:
            OSError: the store takes nothing; nothing was put.
            MessageIllegalError: the body is too large.
        """

    def make_room(self) -> None:
        """Called before each push: a log file that nobody needs any more can go."""


class NamedQueue:
    """What both orders have in common; made by `NamedQueues.open`.

    A change begins with `_begin` and ends with its last assignments. Where a signal handler raises
    in between, or the store refuses, the next call is what table and log say, as an opening is.
    """

    kind: ClassVar[int]

    def __init__(self, home: Home, entry: int, name: str) -> None:
        self.home = home
        self.name = name
        #: the kind that a put writes into the link: the queue's, or that of a copy
        self.put_kind = self.kind
        #: what elements that are pushed have besides their link
        self.properties: dict[str, str] = {}
        self.move_to(entry)

    def move_to(self, entry: int) -> None:
        """Be what an entry of the table says."""
        self.entry = entry
        self._changing = True
        self._next = self.home.store.max_queue_offset(TOPIC, entry)

    def _finish_change(self) -> None:
        """Be what table and log say, where a change has not come to its end."""
        if self._changing:
            self.move_to(self.entry)

    def _begin(self) -> None:
        """Begin a change; whoever ends it sets `_changing` to False."""
        self._finish_change()
        self._changing = True

    # ---- what the table says of a queue of this kind

    @classmethod
    def nothing(cls, end: int) -> int:
        """The offset in the table when the queue is empty; `end` is the next message's."""
        raise NotImplementedError

    @classmethod
    def can_be(cls, at: int, end: int) -> bool:
        """Whether the table can hold this offset.

        Args:
            at: what the table says.
            end: the next message's queue offset.
        """
        raise NotImplementedError

    @classmethod
    def at_after(cls, last: int, link: ElementLink) -> int:
        """The offset in the table after the last message, by what that says.

        Args:
            last: queue offset of the last message.
            link: what that message says of the queue.
        """
        raise NotImplementedError

    @classmethod
    def newer(cls, by_log: int, by_table: int, end: int) -> int:
        """Which of two offsets holds when the table is of this queue, but older than the log.

        Args:
            by_log: the offset that the log's last message leads to.
            by_table: the offset that the table has.
            end: the next message's queue offset.
        """
        raise NotImplementedError

    # ---- elements

    def __len__(self) -> int:
        """How many elements there are."""
        raise NotImplementedError

    def push(self, body: bytes) -> None:
        """Add an element.

        Raises:
            OSError: the store takes nothing; nothing was added.
            MessageIllegalError: the body is too large.
        """
        raise NotImplementedError

    def first(self) -> Element | None:
        """The element that is to be taken next; None when there is none."""
        raise NotImplementedError

    def drop_first(self) -> None:
        """Let that element go; for good, also after a kill."""
        raise NotImplementedError

    def clear(self) -> None:
        """Let every element go."""
        raise NotImplementedError

    def save(self) -> None:
        """Bring the table in line with this object, as it need not be after pushes."""
        raise NotImplementedError

    def holds(self, offset: int) -> bool:
        """Whether an element that was about to be taken is still in."""
        raise NotImplementedError

    def at(self) -> int:
        """What the table is to hold of this object."""
        raise NotImplementedError

    def oldest(self) -> int:
        """Queue offset of the oldest message that is still needed."""
        raise NotImplementedError

    def copy_to(self, other: Self) -> None:
        """Push every element to another queue, so that it gives what this one would."""
        raise NotImplementedError

    def _put(self, body: bytes, at: int, depth: int, bottom: int) -> int:
        link = f"{self.put_kind} {at} {depth} {bottom} {self.name}"
        return self.home.put(TOPIC, body, self.entry, {LINK: link, **self.properties})

    def _read(self, offset: int, count: int = 1) -> list[MessageExt]:
        found = self.home.store.get_message(
            TOPIC, self.entry, offset, max_messages=count, max_bytes=_READ_AHEAD_BYTES
        )
        if not found.messages:
            raise CorruptConsumeQueueError(
                self.home.path, -1, f"element {offset} of {self.name!r} is gone: {found.status}"
            )
        return list(found.messages)


class NamedFifo(NamedQueue):
    """First in, first out: the table holds the queue offset of the first element."""

    kind = 1

    @classmethod
    def nothing(cls, end: int) -> int:
        """The next message's offset: all before it has been taken."""
        return end

    @classmethod
    def can_be(cls, at: int, end: int) -> bool:
        """An offset of the queue, or the next message's; see `NamedQueue.can_be`."""
        return 0 <= at <= end

    @classmethod
    def at_after(cls, last: int, link: ElementLink) -> int:
        """Where the queue began when the last message came; see `NamedQueue.at_after`."""
        return min(link.at, last)

    @classmethod
    def newer(cls, by_log: int, by_table: int, end: int) -> int:
        """The later one, since the table knows of more that was taken; see `NamedQueue.newer`."""
        return min(max(by_log, by_table), end)

    def move_to(self, entry: int) -> None:
        """Be what an entry of the table says."""
        super().move_to(entry)
        self._head = self.home.at(entry)
        self._ahead: deque[Element] = deque()
        self._changing = False

    def __len__(self) -> int:
        self._finish_change()
        return self._next - self._head

    def push(self, body: bytes) -> None:
        """Add an element at the end."""
        self.home.make_room()
        self._begin()
        offset = self._put(body, self._head, 0, 0)
        self._next, self._changing = offset + 1, False

    def first(self) -> Element | None:
        """The oldest element."""
        self._finish_change()
        if not self._ahead:
            if self._head == self._next:
                return None
            messages = self._read(self._head, _READ_AHEAD)
            self._ahead = deque([Element(bytes(each.body), each.phy_offset) for each in messages])
        return self._ahead[0]

    def drop_first(self) -> None:
        """Let the oldest element go."""
        self._begin()
        self.home.set_at(self.entry, self._head + 1)
        self._ahead.popleft()
        self._head, self._changing = self._head + 1, False

    def clear(self) -> None:
        """Let every element go."""
        self._begin()
        self.home.set_at(self.entry, self._next)
        self._ahead.clear()
        self._head, self._changing = self._next, False

    def save(self) -> None:
        """The table knows all but the end."""
        self._finish_change()
        self.home.set_end(self.entry, self._next)

    def at(self) -> int:
        """The first element's offset."""
        self._finish_change()
        return self._head

    def oldest(self) -> int:
        """The first element's offset."""
        self._finish_change()
        return self._head

    def copy_to(self, other: Self) -> None:
        """Push every element to another queue, the first one first."""
        self._finish_change()
        at = self._head
        while at < self._next:
            messages = self._read(at, _READ_AHEAD)
            for message in messages:
                other.push(bytes(message.body))
            at += len(messages)

    def holds(self, offset: int) -> bool:
        """Whether the offset is not before the first element's."""
        self._finish_change()
        return offset >= self._head


class NamedLifo(NamedQueue):
    """Last in, first out: the table holds the queue offset of the top, each element that below.

    A push is the put alone. The table is older than the log then, which means that the last message
    is the top.
    """

    kind = 2

    @classmethod
    def nothing(cls, end: int) -> int:
        """No message's offset."""
        return _NO_TOP

    @classmethod
    def can_be(cls, at: int, end: int) -> bool:
        """An offset of the queue, or none; see `NamedQueue.can_be`."""
        return _NO_TOP <= at < end

    @classmethod
    def at_after(cls, last: int, link: ElementLink) -> int:
        """The last message, which is the top; see `NamedQueue.at_after`."""
        return last

    @classmethod
    def newer(cls, by_log: int, by_table: int, end: int) -> int:
        """What the log says, since a push leaves the table as it is; see `NamedQueue.newer`."""
        return by_log

    def move_to(self, entry: int) -> None:
        """Be what an entry of the table says."""
        super().move_to(entry)
        # the table is older than the log: the last message is the top
        older = self.home.end(entry) != self._next
        self._top = self._next - 1 if older else self.home.at(entry)
        self._cached: tuple[Element, ElementLink] | None = None
        self._depth = self._bottom = 0
        if self._top != _NO_TOP:
            link = self._read_top()[1]
            self._depth = link.depth + 1
            self._bottom = link.bottom if link.depth else self._top
        self._changing = False

    def _read_top(self) -> tuple[Element, ElementLink]:
        if self._cached is None:
            message = self._read(self._top)[0]
            link = ElementLink.of(message, self.home.path)
            self._cached = Element(bytes(message.body), message.phy_offset), link
        return self._cached

    def __len__(self) -> int:
        self._finish_change()
        return self._depth

    def push(self, body: bytes) -> None:
        """Add an element on top."""
        self.home.make_room()
        self._begin()
        offset = self._put(body, self._top, self._depth, self._bottom)
        self._top, self._next, self._cached = offset, offset + 1, None
        if not self._depth:
            self._bottom = offset
        self._depth, self._changing = self._depth + 1, False

    def first(self) -> Element | None:
        """The top."""
        self._finish_change()
        return self._read_top()[0] if self._depth else None

    def drop_first(self) -> None:
        """Let the top go."""
        below = self._read_top()[1].at
        self._set_top(below, self._depth - 1)

    def clear(self) -> None:
        """Let every element go."""
        self._set_top(_NO_TOP, 0)

    def _set_top(self, top: int, depth: int) -> None:
        self._begin()
        self._write(top)
        self._top, self._depth, self._cached, self._changing = top, depth, None, False

    def save(self) -> None:
        """Say which element is the top."""
        self._finish_change()
        self._write(self._top)

    def at(self) -> int:
        """The top's offset."""
        self._finish_change()
        return self._top

    def oldest(self) -> int:
        """The lowest element's offset."""
        self._finish_change()
        return self._bottom if self._depth else self._next

    def copy_to(self, other: Self) -> None:
        """Push every element to another stack, the lowest one first."""
        self._finish_change()
        offsets, at = [], self._top
        for _ in range(self._depth):
            offsets.append(at)
            at = ElementLink.of(self._read(at)[0], self.home.path).at
        for offset in reversed(offsets):
            other.push(bytes(self._read(offset)[0].body))

    def _write(self, top: int) -> None:
        # in this order: killed between the two, the last message still is the top
        self.home.set_at(self.entry, top)
        if self.home.end(self.entry) != self._next:
            self.home.set_end(self.entry, self._next)

    def holds(self, offset: int) -> bool:
        """Whether the offset is the top's."""
        self._finish_change()
        return bool(self._depth) and offset == self._top
