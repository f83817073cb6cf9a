"""The thread of a client's handle that waits for the end of the owner."""

from __future__ import annotations

import logging
import weakref
from pathlib import Path
from typing import Protocol

from rmqcore.errors import RmqCoreError, StoreClosedError, StoreNotFoundError
from rmqcore.store.sharing.channel import Channel
from rmqcore.store.sharing.listeners import LOOK_AGAIN_S
from rmqcore.world import sleep

_log = logging.getLogger("rmqcore")


class Handle(Protocol):
    """What is asked of a handle on a shared store."""

    path: Path

    def settled(self) -> object:
        """The store, when this process owns it; else a channel to the owner."""
        ...


def watch_owner(handle: weakref.ref[Handle], channel: Channel) -> None:
    """Wait for the end of the owner, then see to the next, so that there always is one."""
    channel.until_lost()
    told = ""
    while (store := handle()) is not None:
        try:
            store.settled()
        except (StoreClosedError, StoreNotFoundError):
            return
        except (RmqCoreError, OSError) as error:
            # who takes long to close is not gone yet; what else keeps the store shut may pass, too
            if told != str(error):
                told = str(error)
                _log.warning("%s: not to be owned, and tried again: %s", store.path, told)
        else:
            return
        # neither in the way of the handle's other threads, nor what keeps one that is dropped
        del store
        sleep(LOOK_AGAIN_S)
