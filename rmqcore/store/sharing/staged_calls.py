"""Staged records put into the log by whoever has the store open: the calls of who staged them.

An owner that shares its store takes these calls beside all others; one that does not, such as a
broker, listens for them alone (`append_server`). An append is known by its name and number, so a
call whose answer was lost is made again, of whoever has the store then.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from rmqcore.config import StoreConfig, load_config
from rmqcore.store.consume.holders import new_holder
from rmqcore.store.opening import open_store
from rmqcore.store.sharing.calls import method_of, request_of, result_of
from rmqcore.store.sharing.channel import ChannelLostError, OwnerChannel
from rmqcore.store.sharing.opening import open_handle
from rmqcore.store.sharing.place import SOCKET_NAME, AppendsPlace, MeetingPlace

if TYPE_CHECKING:
    from rmqcore.store.opening import ConfigSource
    from rmqcore.store.sharing.shared_handle import SharedStoreHandle

#: An owner that gives no sign of life for so long hangs.
_TIMEOUT_S: Final = 10.0


def call_owner(
    store_path: str | os.PathLike[str], config: ConfigSource, method: str, *args: Any
) -> Any:
    """Make a call of staged records: of the owner of a store, or here when there is none.

    Args:
        store_path: the store's directory; the store is made when missing.
        config: settings of the store, as for `open_store`.
        method: "append_staged" or "finish_staged".
        *args: its arguments.

    Raises:
        StoreLockedError: another process has the store, and takes no such calls.
        ChannelLostError: the owner has ended meanwhile: the call is to be made again.
        OwnerTimeoutError: the owner is stopped, or hangs.
        StoreError: the store refuses.
    """
    path = Path(store_path).absolute()
    channel = _connected(AppendsPlace(path))
    if channel is not None:
        try:
            return result_of(channel.call(request_of(method, args, {})))
        finally:
            channel.end()
    if (path / SOCKET_NAME).exists():
        with open_handle(
            path,
            config=config,
            profile=None,
            create=True,
            progress=None,
            owner_timeout_ms=_TIMEOUT_S * 1000,
            settings={},
        ) as shared:
            return cast("SharedStoreHandle", shared).call_by_name(method, *args)
    with open_store(path, config=_for_one_append(config)) as store:
        return method_of(store, method)(*args)


def owner_config(store_path: str | os.PathLike[str]) -> StoreConfig | None:
    """The settings of the process that has a store open and takes staged records.

    Returns:
        None when there is no such process.

    Raises:
        OwnerTimeoutError: it is stopped, or hangs.
    """
    path = Path(store_path).absolute()
    for place in (AppendsPlace(path), MeetingPlace(path)):
        try:
            channel = _connected(place)
            if channel is not None:
                try:
                    asked = request_of("config", (), {})
                    return cast("StoreConfig", result_of(channel.call(asked)))
                finally:
                    channel.end()
        except ChannelLostError:
            continue
    return None


def _for_one_append(config: ConfigSource) -> StoreConfig:
    """Settings of a store that is closed again behind one append.

    Its log's next file is not made resident ahead of need: nobody waits for a single put, and to
    fill pages that are then not written takes as much processor time as the append.
    """
    loaded = load_config(config)
    if "warm_mapped_file_enable" in loaded.explicit:
        return loaded
    return load_config(loaded, warm_mapped_file_enable=False)


def _connected(place: MeetingPlace) -> OwnerChannel | None:
    """A connection with the owner, or None when nobody listens."""
    connected = place.connect(_TIMEOUT_S)
    if connected is None:
        return None
    channel = OwnerChannel(connected, place, _TIMEOUT_S)
    try:
        channel.say_hello(new_holder())
    except BaseException:
        channel.end()
        raise
    return channel
