"""Credentials and endpoint of object storage under the names that deltalake and PyIceberg have.

Their values are in no commit and in no error text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from rmqcore.errors import ConfigError
from rmqcore.files.objects.storage_options import (
    S3_NAMES,
    is_url,
    s3_options,
    scheme_of,
    scrubbed,
)

_OF_ICEBERG: Final = {
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "region": "s3.region",
    "endpoint_url": "s3.endpoint",
    "anonymous": "s3.anonymous",
    "connect_timeout_s": "s3.connect-timeout",
    "request_timeout_s": "s3.request-timeout",
}
_OF_DELTA: Final = {
    "anonymous": "aws_skip_signature",
    "connect_timeout_s": "connect_timeout",
    "request_timeout_s": "timeout",
}
_SECRET: Final = re.compile("key|secret|token|password|credential|auth|header", re.IGNORECASE)


def delta_options(place: str, given: Mapping[str, str]) -> dict[str, str]:
    """What deltalake takes for a table.

    Args:
        place: of the table.
        given: our names of S3's options, see `s3_options`; others are deltalake's own.

    Raises:
        ConfigError: half a pair of keys, credentials in the URL, or a % in it, which archives and
            tables would take for different things.
    """
    ours, others = _divided(given)
    if is_url(place) and scheme_of(place) != "file" and "%" in place:
        raise ConfigError("table", place, "a URL without %: write each letter as it is")
    if not is_url(place) or scheme_of(place) not in ("s3", "s3a"):
        return dict(given)
    found = {_OF_DELTA.get(name, f"aws_{name}"): value for name, value in s3_options(ours).items()}
    for name in ("timeout", "connect_timeout"):
        if name in found:
            found[name] += "s"
    if found.get("aws_endpoint_url", "").startswith("http://"):
        found["aws_allow_http"] = "true"
    return found | others


def iceberg_options(given: Mapping[str, str]) -> dict[str, str]:
    """What PyIceberg takes to read and write files.

    Args:
        given: our names of S3's options, see `s3_options`; others are PyIceberg's own.

    Raises:
        ConfigError: half a pair of keys.
    """
    ours, others = _divided(given)
    return {_OF_ICEBERG[name]: value for name, value in s3_options(ours).items()} | others


def without_secrets(error: object, options: Mapping[str, str], catalog: Mapping[str, str]) -> str:
    """The text of an error in one line, without what nobody should see.

    Args:
        error: somebody else's.
        options: of object storage.
        catalog: properties of a catalog.
    """
    secrets = {name: value for name, value in catalog.items() if _SECRET.search(name)}
    secrets |= {"password": urlsplit(catalog.get("uri", "")).password or ""}
    secrets |= {name: value for name, value in options.items() if _SECRET.search(name)}
    return re.sub("\x1b\\[[0-9;]*m", "", scrubbed(error, secrets))


def _divided(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options that have our names, and others."""
    ours = {n: v for n, v in given.items() if n.lower().removeprefix("aws_") in S3_NAMES}
    return ours, {name: value for name, value in given.items() if name not in ours}
