"""Trying again what an object store refuses for a moment."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from rmqcore.errors import RmqCoreError
from rmqcore.files.objects.errors import (
    ObjectAccessError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectStoreError,
)
from rmqcore.files.objects.storage_options import StorageOptions, scrubbed
from rmqcore.world import sleep

Answer = TypeVar("Answer")
TRIES_MAX = 5
_FIRST_WAIT_S = 0.1
#: Codes with which pyarrow, boto3 and HTTP say that access is denied: not tried again.
_DENIED = frozenset(
    (
        "401",
        "403",
        "ACCESS_DENIED",
        "AccessDenied",
        "AuthenticationFailed",
        "AuthorizationFailure",
        "EXPIRED_TOKEN",
        "ExpiredToken",
        "INVALID_ACCESS_KEY_ID",
        "INVALID_CLIENT_TOKEN_ID",
        "InvalidAccessKeyId",
        "InvalidToken",
        "MISSING_AUTHENTICATION_TOKEN",
        "PERMISSION_DENIED",
        "SIGNATURE_DOES_NOT_MATCH",
        "SignatureDoesNotMatch",
        "UNAUTHENTICATED",
        "UNRECOGNIZED_CLIENT",
    )
)
_MISSING = frozenset(
    ("404", "NO_SUCH_BUCKET", "NO_SUCH_KEY", "NoSuchBucket", "NoSuchKey", "RESOURCE_NOT_FOUND")
)
_EXISTS = frozenset(("412", "BlobAlreadyExists", "PreconditionFailed"))
_NO_CREDENTIALS = (
    "ClientAuthenticationError",
    "CredentialUnavailableError",
    "DefaultCredentialsError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "RefreshError",
    "TokenRetrievalError",
)
#: Where the text of pyarrow's errors has the code of AWS, Azure or Google.
_ARROW_CODE = re.compile(
    r"AWS Error (\w+)(?: \(HTTP status (\d+)\))?|Azure Error: \[(\w*)\] (\d+)"
    r"|(PERMISSION_DENIED|UNAUTHENTICATED)"
)


def tried(
    action: Callable[[], Answer], url: str, options: StorageOptions, *, whole: int | None = None
) -> Answer:
    """Do something with an object, again after a while where that may help.

    Args:
        action: what is done; raises `OSError` or an error of its package.
        url: of the object, for errors.
        options: whose values are kept out of error texts.
        whole: bytes that the answer has to have, else a connection was cut.

    Raises:
        ObjectMissingError, ObjectExistsError, ObjectAccessError: at once.
        ObjectStoreError: it did not come right.
    """
    wait_s = _FIRST_WAIT_S
    for left in reversed(range(TRIES_MAX)):
        try:
            answer = action()
            if whole is None or len(answer) == whole:  # type: ignore[arg-type]
                return answer
            error: ObjectStoreError = ObjectStoreError(url, "the answer was cut short")
        except RmqCoreError:
            raise
        except Exception as found:  # noqa: BLE001 - packages have errors of all kinds
            error = told(found, url, options)
            if isinstance(error, ObjectMissingError | ObjectExistsError | ObjectAccessError):
                raise error from None
        if not left:
            raise error
        sleep(wait_s)
        wait_s *= 2
    raise AssertionError


def told(found: Exception, url: str, options: StorageOptions) -> ObjectStoreError:
    """What somebody else's error means.

    Args:
        found: what a package has raised.
        url: of the object.
        options: whose secrets are kept out of the text.

    Returns:
        the nearest error of ours; it is not raised here.
    """
    text = scrubbed(found, options) or type(found).__name__
    codes = _codes(found)
    if isinstance(found, FileExistsError) or codes & _EXISTS:
        return ObjectExistsError(url, "there is an object of that name")
    is_unknown = type(found).__name__ in _NO_CREDENTIALS
    if isinstance(found, PermissionError) or is_unknown or codes & _DENIED:
        return ObjectAccessError(url, f"access was refused: {text}")
    if isinstance(found, FileNotFoundError) or codes & _MISSING:
        return ObjectMissingError(url, "no such object")
    return ObjectStoreError(url, text)


def _codes(found: Exception) -> frozenset[str]:
    """The error codes and HTTP status in an error of a store's client or of pyarrow."""
    answer = getattr(found, "response", None)
    if isinstance(answer, dict):
        code = str(answer.get("Error", {}).get("Code", ""))
        status = str(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
        return frozenset((code, status))
    # Google's and Azure's clients
    told = (getattr(found, name, None) for name in ("code", "status_code", "error_code"))
    if codes := frozenset(str(getattr(one, "value", one)) for one in told if one is not None):
        return codes
    match = _ARROW_CODE.search(str(found))
    return frozenset(filter(None, match.groups())) if match else frozenset()
