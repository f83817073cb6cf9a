"""Celery's result backend ``rmqcore:///path``: results in a table of a store, beside the tasks.

It may be the directory of the broker, or another; see docs/adapters/celery.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.states import READY_STATES

from rmqcore.adapters.addresses import address_of, path_of
from rmqcore.adapters.celery_chords import ChordBackend
from rmqcore.adapters.opened import DELETE_CONSUMED_EVERY_S, OpenedStore, opened_again
from rmqcore.errors import StoreError
from rmqcore.store.parts.key_values import TOPIC_PREFIX
from rmqcore.store.protocol import MessageStore

#: The table that has all results, groups and counters of chords.
TABLE: Final = "celery-results"
#: The table's topic, in which each change is a record.
_TOPIC: Final = f"{TOPIC_PREFIX}{TABLE}"
#: A waiter looks this often, in milliseconds, whether it is to go on.
_LOOK_MS: Final = 500.0


class RmqBackend(ChordBackend):
    """Results in a store that the program's processes share.

    ``result_backend_transport_options``: ``store`` (settings of `open_shared`),
    ``delete_consumed_every`` (seconds, 60).

    Threads: any. Processes: any number; forked children too.
    """

    implements_incr = True
    supports_autoexpire = True
    supports_native_join = True
    persistent = True

    def __init__(
        self, app: Any = None, url: str | None = None, expires: Any = None, **kwargs: Any
    ) -> None:
        """A backend; its store is opened at the first use.

        Args:
            app: the Celery application.
            url: ``rmqcore:///path`` or ``rmqcore://./path``.
            expires: seconds that a result is kept; None takes ``result_expires``.
            kwargs: of `KeyValueStoreBackend`.

        Raises:
            ConfigError: the address names no directory.
        """
        super().__init__(app=app, url=url, expires=expires, **kwargs)
        self.expires = self.prepare_expires(expires, type=int)
        self._path = path_of(url or "")
        self._options = self.app.conf.get("result_backend_transport_options") or {}
        self._opened: OpenedStore | None = None

    def __reduce__(self, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": address_of(self._path)})

    def as_uri(self, include_password: bool = False) -> str:
        """The address, with the whole path."""
        return address_of(self._path)

    @property
    def store(self) -> MessageStore:
        """The store, opened at the first use, and anew when its directory has been removed.

        Other users of it in this process share it.
        """
        return self._open.store

    @property
    def _open(self) -> OpenedStore:
        settings = self._options.get("store") or {}
        opened = self._opened = opened_again(self._opened, self._path, settings)
        return opened

    def close(self) -> None:
        """Let the store go; the next use opens it again. Idempotent."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    # ---- keys and values

    def get(self, key: bytes | str) -> bytes | None:
        """The value of a key; None when it has none."""
        return self.mget([key])[0]

    def mget(self, keys: Iterable[bytes | str]) -> list[bytes | None]:
        """The values of keys."""
        return self.store.kv_get(TABLE, [_bytes(key) for key in keys])

    def set(self, key: bytes | str, value: bytes | str) -> None:
        """Set the value of a key, for as long as results are kept.

        Args:
            key: of the table of results.
            value: text is stored as UTF-8.
        """
        self.store.kv_put(TABLE, _bytes(key), _bytes(value), ttl_ms=_ms(self.expires))
        every_s = self._options.get("delete_consumed_every", DELETE_CONSUMED_EVERY_S)
        self._open.delete_consumed(every_s)

    def delete_key(self, key: bytes | str) -> None:
        """As `delete`, whatever the key is of."""
        self.store.kv_put(TABLE, _bytes(key), None)

    def add_one(self, key: bytes | str) -> int:
        """As `incr`, of whatever counter."""
        name = _bytes(key)
        while True:
            (old,) = self.store.kv_get(TABLE, [name])
            value = int(old or 0) + 1
            if self.store.kv_swap(TABLE, name, old, b"%d" % value, ttl_ms=_ms(self.chord_expires)):
                return value

    def expire(self, key: bytes | str, value: float | None) -> None:
        """Let a key go after so many seconds from now; 0 or None: never.

        Args:
            key: of the table of results; nothing is done when it has no value.
            value: seconds.
        """
        name = _bytes(key)
        (old,) = self.store.kv_get(TABLE, [name])
        while old is not None and not self.store.kv_swap(TABLE, name, old, old, ttl_ms=_ms(value)):
            (old,) = self.store.kv_get(TABLE, [name])

    # ---- waiting

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Callable[[], object] | None = None,
    ) -> Any:
        """Wait for the result of a task; the next change of the table wakes, no interval.

        Args:
            task_id: of the task.
            timeout: seconds; None without end.
            interval: without meaning here, as `no_ack`.
            no_ack: without meaning here.
            on_interval: called each time before it sleeps.

        Raises:
            celery.exceptions.TimeoutError: it has not come in time.
        """
        self._ensure_not_eager()
        monotonic_s = self.store.world.monotonic_s
        deadline = None if timeout is None else monotonic_s() + timeout
        while True:
            # asked before the look, so that what comes in between is not slept over
            behind = self.store.max_queue_offset(_TOPIC, 0)
            meta = self.get_task_meta(task_id)
            if meta["status"] in READY_STATES:
                return meta
            if on_interval is not None:
                on_interval()
            left_ms = _LOOK_MS if deadline is None else (deadline - monotonic_s()) * 1000
            if left_ms <= 0:
                raise CeleryTimeoutError("The operation timed out.")
            self.store.wait(_TOPIC, 0, behind, min(left_ms, _LOOK_MS))

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Whether a call that raised may be made again, with ``result_backend_always_retry``."""
        return isinstance(exc, StoreError | OSError)


def _bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def _ms(seconds: float | None) -> int:
    """As the store has times to live: 0 for ever."""
    return int((seconds or 0) * 1000)
