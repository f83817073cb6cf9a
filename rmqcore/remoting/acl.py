"""Signatures of requests: RocketMQ's, and a strict one of our own beside it.

RocketMQ's covers the values of the header fields, run together in the order of their names, and the
body. It covers neither the names nor where a value ends, nor the request's code: who has seen one
signed request can send another, with other names and borders, as often as it likes.

The strict one covers code, version, names, values, their borders, the body and the time at which it
was made; it is good for `STRICT_FOR_MS`, in which the same request can be sent again. Neither hides
anything: over a network that others can read, use TLS.
"""

from __future__ import annotations

import base64
import hmac
import struct
from collections.abc import Mapping

from rmqcore.remoting.codes import VERSION_4_9_3
from rmqcore.remoting.command import RemotingCommand
from rmqcore.world import REAL, World

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of a header field
#: Header fields of a strict signature: the signature, and the Unix time in milliseconds at which
#: it was made.
STRICT_SIGNATURE = "StrictSignature"
SIGNED_MS = "SignedMs"
_SIGNED_BY = frozenset({ACCESS_KEY, SIGNATURE, SECURITY_TOKEN, STRICT_SIGNATURE, SIGNED_MS})
#: A strict signature is refused when the clocks of both ends differ by more than this.
STRICT_FOR_MS = 300_000
#: A number of more digits is no 64-bit number.
_DIGITS_MAX = 18
_HEAD = struct.Struct(">16sii")
_SIZE = struct.Struct(">q")
#: Clients up to 4.9.3 set this field after they have signed, so it is left out of what was signed.
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


class AclSigner:
    """Signs the requests of one user, for any RocketMQ.

    Args:
        access_key, secret_key: the user's.
        security_token: one more field, for servers that ask for it.
        strict: adds the strict signature, which servers of RocketMQ pass over.
        world: its clock; a strict signature names its time.

    Source: AclClientRPCHook.
    """

    def __init__(
        self,
        access_key: str,
        secret_key: str,
        security_token: str | None = None,
        *,
        strict: bool = False,
        world: World = REAL,
    ) -> None:
        self._access_key = access_key
        self._secret_key = secret_key
        self._security_token = security_token
        self._strict = strict
        self._clock_ms = world.clock_ms

    def __repr__(self) -> str:
        return f"AclSigner({self._access_key!r})"

    def sign(self, command: RemotingCommand) -> None:
        """Add the user's name and the signature to a request's fields."""
        fields = command.ext_fields
        fields.pop(SIGNATURE, None)
        fields[ACCESS_KEY] = self._access_key
        if self._security_token is not None:
            fields[SECURITY_TOKEN] = self._security_token
        if self._strict:
            fields[SIGNED_MS] = str(self._clock_ms())
            fields[STRICT_SIGNATURE] = _strict_signature(command, self._secret_key)
        fields[SIGNATURE] = signature(fields, command.body, self._secret_key)


def signature(ext_fields: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """HMAC-SHA1 over the values in the order of their names, then the body; as Base64.

    Args:
        ext_fields: the header's fields; an old signature among them does not count.
        body: what follows the header.
        secret_key: of the account.

    Source: AclUtils, combineRequestContent; AclSigner, calSignature.
    """
    digest = hmac.new(secret_key.encode("utf-8"), digestmod="sha1")
    for name in sorted(ext_fields, key=_java_order):
        if name != SIGNATURE:
            digest.update(ext_fields[name].encode("utf-8", "replace"))
    digest.update(body)
    return base64.b64encode(digest.digest()).decode("ascii")


def unsigned(ext_fields: Mapping[str, str]) -> dict[str, str]:
    """The fields of a request that is passed on, without whose it is and the signature.

    Who has seen a signature can make other requests of it.

    Args:
        ext_fields: the header's fields.
    """
    return {name: value for name, value in ext_fields.items() if name not in _SIGNED_BY}


def signature_is_right(command: RemotingCommand, secret_key: str) -> bool:
    """Tell whether a request's signature was made with this secret; in constant time.

    Args:
        command: the request, with its signature in the header.
        secret_key: of the account that it names.

    Source: DefaultAuthenticationContextBuilder, build.
    """
    fields = command.ext_fields
    if command.version <= VERSION_4_9_3 and _UNIQUE_KEY_QUERY in fields:
        fields = {name: value for name, value in fields.items() if name != _UNIQUE_KEY_QUERY}
    expected = signature(fields, command.body, secret_key)
    given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(expected.encode("ascii"), given)


def _strict_signature(command: RemotingCommand, secret_key: str) -> str:
    """HMAC-SHA256 over all that a request says, each part behind its size; as Base64.

    Args:
        command: code, version, fields but for both signatures, and body are signed.
        secret_key: of the account.
    """
    digest = hmac.new(secret_key.encode("utf-8"), digestmod="sha256")
    digest.update(_HEAD.pack(b"rmqcore-strict-1", command.code, command.version))
    fields = command.ext_fields
    for name in sorted(fields.keys() - {SIGNATURE, STRICT_SIGNATURE}, key=_java_order):
        for text in (name, fields[name]):
            part = text.encode("utf-8", "replace")
            digest.update(_SIZE.pack(len(part)))
            digest.update(part)
    digest.update(_SIZE.pack(-1))
    digest.update(command.body)
    return base64.b64encode(digest.digest()).decode("ascii")


def strict_signature_is_right(command: RemotingCommand, secret_key: str, now_ms: int) -> bool:
    """Tell whether a request's strict signature was made with this secret, and is not old.

    Args:
        command: the request.
        secret_key: of the account that it names.
        now_ms: the time of day, Unix time.
    """
    signed_ms = command.ext_fields.get(SIGNED_MS, "")
    if not (signed_ms.isascii() and signed_ms.isdigit() and len(signed_ms) <= _DIGITS_MAX):
        return False
    expected = _strict_signature(command, secret_key).encode("ascii")
    given = command.ext_fields.get(STRICT_SIGNATURE, "").encode("utf-8", "replace")
    right = hmac.compare_digest(expected, given)
    return right and abs(now_ms - int(signed_ms)) <= STRICT_FOR_MS


def _java_order(name: str) -> bytes:
    """Java compares texts by UTF-16 code units."""
    return name.encode("utf-16-be", "surrogatepass")
