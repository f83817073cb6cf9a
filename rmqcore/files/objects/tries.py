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
_DENIED = re.compile(
    r"ACCESS_DENIED|Access ?Denied|Forbidden|\b403\b|\b401\b"
    r"|INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH|SignatureDoesNotMatch|ExpiredToken|INVALID_CLIENT_TOKEN_ID"
    r"|NoCredentials|Unable to locate credentials",
    re.IGNORECASE,
)
_MISSING = re.compile(r"NoSuchKey|NoSuchBucket|NO_SUCH_KEY|NO_SUCH_BUCKET|\b404\b")
_EXISTS = re.compile(r"PreconditionFailed|\b412\b|ConditionalRequestConflict")


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
    """What somebody else's error means."""
    text = scrubbed(found, options) or type(found).__name__
    if isinstance(found, FileExistsError) or _EXISTS.search(text):
        return ObjectExistsError(url, "there is an object of that name")
    if isinstance(found, PermissionError) or _DENIED.search(text):
        return ObjectAccessError(url, f"access was refused: {text}")
    if isinstance(found, FileNotFoundError) or _MISSING.search(text):
        return ObjectMissingError(url, "no such object")
    return ObjectStoreError(url, text)
