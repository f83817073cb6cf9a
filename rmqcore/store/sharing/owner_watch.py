"""The thread of a client's handle that waits for the end of the owner."""

from __future__ import annotations

import logging
import weakref

from rmqcore.errors import RmqCoreError, StoreClosedError, StoreNotFoundError
from rmqcore.store.sharing.channel import OwnerChannel
from rmqcore.store.sharing.listeners import LOOK_AGAIN_S, SharedHandle

_log = logging.getLogger("rmqcore")


def watch_owner(handle: weakref.ref[SharedHandle], channel: OwnerChannel) -> None:
    """Wait for the end of the owner, then see to the next, so that there always is one.

    Args:
        handle: of the client; when it is gone, so is the thread.
        channel: the connection with the owner of now.
    """
    channel.until_lost()
    told = ""
    while (store := handle()) is not None:
        try:
            store.reach_owner()
        except (StoreClosedError, StoreNotFoundError):
            return
        except (RmqCoreError, OSError) as error:
            # an owner that takes long to close still has the store; other obstacles may pass, too
            if told != str(error):
                told = str(error)
                _log.warning("%s: not to be owned, and tried again: %s", store.path, told)
        else:
            return
        sleep = store.world.sleep
        # this thread keeps neither the handle's other threads waiting nor a dropped handle alive
        del store
        sleep(LOOK_AGAIN_S)
