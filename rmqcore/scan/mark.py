"""`Mark`: tells a message from another one that has its number in a queue of the same name."""

from __future__ import annotations

from typing import Final, NamedTuple


class Mark(NamedTuple):
    """Where and when a message was stored.

    A topic that is deleted and made again counts from 0 again, and a broker that begins with an
    empty store, too: then another message has the number, but never at this place at this time.

    Attributes:
        store_timestamp_ms: Unix time.
        phy_offset: of its record.
    """

    store_timestamp_ms: int
    phy_offset: int


#: No message has it: it stands for one of which only is known that it is another.
ANOTHER: Final = Mark(-1, -1)
