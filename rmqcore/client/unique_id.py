"""Ids of messages as producers give them."""

from __future__ import annotations

import ipaddress
import itertools
import os
from collections.abc import Callable
from datetime import UTC, datetime

from rmqcore.chance import token_bytes

_COUNTER_MASK = 0xFFFF
_TIME_MASK = 0xFFFFFFFF


class UniqueIds:
    """Makes ids of 32 upper-case hexadecimal digits: host, process, start, time, number.

    RocketMQ's tools read the time out of them, as milliseconds since the month began.

    Source: MessageClientIDSetter, createUniqID.
    """

    def __init__(self, host: str, clock_ms: Callable[[], int]) -> None:
        """Prepare ids of one client.

        Args:
            host: the client's own address.
            clock_ms: Unix time in milliseconds.
        """
        self._clock_ms = clock_ms
        try:
            packed = ipaddress.ip_address(host).packed[-4:]
        except ValueError:
            packed = token_bytes(4)
        process = (os.getpid() & 0xFFFF).to_bytes(2, "big")
        self._prefix = (packed + process + token_bytes(4)).hex().upper()
        self._numbers = itertools.count()
        self._month_ms = self._next_month_ms = 0

    def make(self) -> str:
        """Make the next id."""
        now_ms = self._clock_ms()
        if not self._month_ms <= now_ms < self._next_month_ms:
            self._enter_month(now_ms)
        passed_ms = (now_ms - self._month_ms) & _TIME_MASK
        return f"{self._prefix}{passed_ms:08X}{next(self._numbers) & _COUNTER_MASK:04X}"

    def _enter_month(self, now_ms: int) -> None:
        now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone()
        first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        years, month = divmod(first.month, 12)
        following = first.replace(year=first.year + years, month=month + 1)
        self._month_ms = int(first.astimezone().timestamp() * 1000)
        self._next_month_ms = int(following.astimezone().timestamp() * 1000)
