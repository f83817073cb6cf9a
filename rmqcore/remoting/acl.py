"""Signatures of requests: they prove who sent header fields and body, and that none was changed.

The request's code, remark and opaque are not signed, and a signed request can be sent again by who
has seen it: over a network that others can read, use TLS as well.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping

from rmqcore.remoting.codes import VERSION_4_9_3
from rmqcore.remoting.command import RemotingCommand

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of a header field
#: set by clients up to 4.9.3 after they have signed
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


class AclSigner:
    """Signs the requests of one user.

    Source: AclClientRPCHook.
    """

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self._access_key = access_key
        self._secret_key = secret_key
        self._security_token = security_token

    def __repr__(self) -> str:
        return f"AclSigner({self._access_key!r})"

    def sign(self, command: RemotingCommand) -> None:
        """Add the user's name and the signature to a request's fields."""
        fields = command.ext_fields
        fields.pop(SIGNATURE, None)
        fields[ACCESS_KEY] = self._access_key
        if self._security_token is not None:
            fields[SECURITY_TOKEN] = self._security_token
        fields[SIGNATURE] = signature(fields, command.body, self._secret_key)


def signature(ext_fields: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """HMAC-SHA1 over the values in the order of their names, then the body; as Base64.

    Source: AclUtils, combineRequestContent; AclSigner, calSignature.
    """
    digest = hmac.new(secret_key.encode("utf-8"), digestmod="sha1")
    for name in sorted(ext_fields, key=_java_order):
        if name != SIGNATURE:
            digest.update(ext_fields[name].encode("utf-8", "replace"))
    digest.update(body)
    return base64.b64encode(digest.digest()).decode("ascii")


def signature_is_right(command: RemotingCommand, secret_key: str) -> bool:
    """Tell whether a request's signature was made with this secret; in constant time.

    Source: DefaultAuthenticationContextBuilder, build.
    """
    fields = command.ext_fields
    if command.version <= VERSION_4_9_3 and _UNIQUE_KEY_QUERY in fields:
        fields = {name: value for name, value in fields.items() if name != _UNIQUE_KEY_QUERY}
    expected = signature(fields, command.body, secret_key)
    given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(expected.encode("ascii"), given)


def _java_order(name: str) -> bytes:
    """Java compares texts by UTF-16 code units."""
    return name.encode("utf-16-be", "surrogatepass")
