"""The whole log for a client, a page a request."""

from __future__ import annotations

from typing import Final

from rmqcore.errors import CorruptStoreError
from rmqcore.message import MessageExt
from rmqcore.store.message_store import DefaultMessageStore

_PAGE_MESSAGES: Final = 512
_PAGE_SIZE: Final = 4 << 20


def log_page(
    store: DefaultMessageStore, start: int | None, stop: int | None
) -> tuple[list[MessageExt | CorruptStoreError], int | None]:
    """Messages of the log in its order, and what is damaged between them.

    Args:
        store: the owner's.
        start: physical offset of the first record; None for the begin of the log.
        stop: end before this offset.

    Returns:
        the page, and where the next one begins; None when nothing follows.
    """
    page: list[MessageExt | CorruptStoreError] = []
    size = 0
    for message in store.messages(start=start, stop=stop, on_damage=page.append):
        page.append(message)
        size += message.store_size
        if len(page) >= _PAGE_MESSAGES or size >= _PAGE_SIZE:
            return page, message.phy_offset + message.store_size
    return page, None
