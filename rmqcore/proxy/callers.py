"""`Caller`: who makes a call, as its headers say, and whether that is true.

RocketMQ's clients sign the time alone (`x-mq-date-time`), with the secret key of an account: who
has seen one signature can use it. They write local time and call it UTC, so the client's clock is
compared but for whole quarters of an hour, by which time zones differ: a signature is taken again
around each quarter of the next 14 hours. Over a network that others can read, use TLS.

Source: RocketMQ auth/authentication/builder/DefaultAuthenticationContextBuilder.java, build; the
clients' Signature.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

from rmqcore.chance import token_hex
from rmqcore.proxy.calls import Call
from rmqcore.proxy.codes import Code, RefusedError
from rmqcore.remoting import Account

_SCHEME: Final = "MQv2-HMAC-SHA1"
_DATE_TIME: Final = "%Y%m%dT%H%M%SZ"
#: A signature is refused when the clocks of both ends differ by more than this.
SIGNED_FOR_S: Final = 300
#: No time zone is further from UTC than this.
_ZONES_S: Final = 14 * 3600
_ZONE_STEP_S: Final = 900
_NAME_SIZE_MAX: Final = 255
#: The access key of a client's account, empty where everybody is served; and the client's id.
ClientKey: TypeAlias = tuple[str, str]

_UNSIGNED: Final = "the call needs the credentials of an account"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call.

    Attributes:
        client_id: what the client calls itself; never empty.
        namespace: in front of its topics and groups; empty without.
        address: `host:port`.
        language, version: of the client, as it says.
        account: whose credentials it has shown; None where everybody is served.
    """

    client_id: str
    namespace: str
    address: str
    language: str
    version: str
    account: Account | None

    @property
    def client(self) -> ClientKey:
        """Whose client it is, and what that calls itself: what another account says is another."""
        return "" if self.account is None else self.account.access_key, self.client_id


class Callers:
    """Knows callers by their headers.

    Args:
        accounts: by access key; None serves everybody.
        clock_ms: Unix time in milliseconds.
    """

    def __init__(self, accounts: Mapping[str, Account] | None, clock_ms: Callable[[], int]) -> None:
        self._accounts = accounts
        self._clock_ms = clock_ms
        self._decoy = token_hex(16)

    def of(self, call: Call) -> Caller:
        """Who makes a call.

        Raises:
            RefusedError: it names no client, or shows no right credentials.
        """
        headers = call.headers
        client_id = _text(headers, b"x-mq-client-id")
        if not client_id:
            raise RefusedError(Code.CLIENT_ID_REQUIRED, "the header x-mq-client-id is missing")
        return Caller(
            client_id,
            _text(headers, b"x-mq-namespace"),
            call.peer,
            _text(headers, b"x-mq-language"),
            _text(headers, b"x-mq-client-version"),
            None if self._accounts is None else self._account(call),
        )

    def _account(self, call: Call) -> Account:
        signed = _text(call.headers, b"x-mq-date-time")
        key, given = _credentials(_text(call.headers, b"authorization"))
        accounts = self._accounts or {}
        account = accounts.get(key)
        # an unknown account takes as long to be refused as a wrong signature
        secret = account.secret_key if account else self._decoy
        right = hmac.compare_digest(signature(secret, signed), given.encode("ascii", "replace"))
        if account is None or not right or not account.may_come_from(call.peer):
            raise RefusedError(Code.UNAUTHORIZED, _UNSIGNED)
        if account.strict:
            reason = "the account needs the strict signature, which calls over gRPC cannot have"
            raise RefusedError(Code.UNAUTHORIZED, reason)
        if not is_in_time(signed, self._clock_ms() // 1000):
            reason = f"x-mq-date-time is more than {SIGNED_FOR_S} s away from the server's clock"
            raise RefusedError(Code.UNAUTHORIZED, reason)
        return account


def signature(secret_key: str, signed: str) -> bytes:
    """HMAC-SHA1 over the text that is signed, in hex.

    Args:
        secret_key: of the account.
        signed: what the client has signed: the text of ``x-mq-date-time``.
    """
    digest = hmac.new(secret_key.encode(), signed.encode("utf-8", "replace"), "sha1")
    return digest.hexdigest().encode()


def is_in_time(signed: str, now_s: int) -> bool:
    """Tell whether a signature's time is now, in one time zone or another.

    Args:
        signed: the header.
        now_s: Unix time.
    """
    try:
        then = datetime.strptime(signed, _DATE_TIME).replace(tzinfo=UTC)
    except ValueError:
        return False
    apart_s = round(then.timestamp()) - now_s
    beside_s = (apart_s + _ZONE_STEP_S // 2) % _ZONE_STEP_S - _ZONE_STEP_S // 2
    return abs(apart_s) <= _ZONES_S + SIGNED_FOR_S and abs(beside_s) <= SIGNED_FOR_S


def _credentials(text: str) -> tuple[str, str]:
    """Access key and signature of the header `authorization`; empty where they are missing."""
    scheme, _, rest = text.partition(" ")
    if scheme != _SCHEME:
        return "", ""
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    key = parts.get("Credential", "").partition("/")[0]
    return key, parts.get("Signature", "").lower()


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    value = headers.get(name)
    return "" if value is None else value.decode("utf-8", "replace")[:_NAME_SIZE_MAX]
