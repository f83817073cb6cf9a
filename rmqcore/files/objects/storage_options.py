"""Credentials and endpoint of an object store: by name, or as AWS's own tools find them.

Their values are in no error text and in no ``repr``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from rmqcore.errors import ConfigError

StorageOptions = Mapping[str, str]
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
#: The options under the names that other readers of S3 give them, with or without ``aws_``.
S3_NAMES = (
    "access_key_id",
    "secret_access_key",
    "session_token",
    "region",
    "endpoint_url",
    "anonymous",
    "connect_timeout_s",
    "request_timeout_s",
)
#: URLs whose host is no host, but a bucket or container.
_BUCKETS = ("s3", "s3a", "gs", "gcs", "abfs", "abfss")
#: URLs in which nothing stands in front of an @.
_NO_USER = ("s3", "s3a", "gs", "gcs", "http", "https")
#: The environment variables by which AWS's own tools find an endpoint and a region.
_FROM_ENVIRONMENT = {
    "endpoint_url": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
_SECRETS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)
#: The environment variables that say how S3 is reached.
ENVIRONMENT = (
    *_SECRETS,
    "AWS_PROFILE",
    *(n for names in _FROM_ENVIRONMENT.values() for n in names),
)
#: The options whose values are no secrets: of S3, Google's store, Azure's.
_OPEN_NAMES = frozenset(
    (
        "region",
        "endpoint_url",
        "anonymous",
        "connect_timeout_s",
        "request_timeout_s",
        "scheme",
        "endpoint_override",
        "project_id",
        "retry_time_limit",
        "default_bucket_location",
        "blob_storage_authority",
        "blob_storage_scheme",
        "account_name",
        "dfs_storage_authority",
        "dfs_storage_scheme",
        "tenant_id",
        "client_id",
    )
)
#: The part of a shared access signature that is a secret; in a URL it stands among others.
_SIGNATURE = re.compile(r"\bsig=([^&\s]+)")


def is_url(place: str | os.PathLike[str]) -> bool:
    """True for ``scheme://...``, False for a directory."""
    return _URL.match(os.fspath(place)) is not None


def scheme_of(url: str) -> str:
    """The scheme of a URL, in small letters.

    Raises:
        ConfigError: it holds credentials, which belong elsewhere; a query; no bucket; or a part
            that one store takes as a name and another as a way up.
    """
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    if parts.password or ("@" in parts.netloc and scheme in _NO_USER):
        rule = "no credentials in a URL: give them by storage_options or the environment"
        raise ConfigError("url", f"{parts.scheme}://...", rule)
    if parts.query or parts.fragment:
        raise ConfigError("url", url.partition("?")[0], "a URL without ? and #")
    names = parts.path.removeprefix("/").removesuffix("/").split("/")
    if {".", ".."} & set(names) or "" in names[1:] or parts.path.startswith("//"):
        raise ConfigError("url", url, "a URL without empty parts, . and ..")
    if scheme in _BUCKETS and not parts.netloc.partition("@")[0]:
        raise ConfigError("url", url, f"{parts.scheme}://, and a bucket or container")
    return scheme


def s3_options(given: StorageOptions) -> dict[str, str]:
    """Options of S3 by their short names, with what the environment adds.

    Raises:
        ConfigError: an unknown name, or half a pair of keys.
    """
    found: dict[str, str] = {}
    for name, value in given.items():
        short = name.lower().removeprefix("aws_")
        if short not in S3_NAMES:
            known = ", ".join(f"aws_{one}" for one in S3_NAMES)
            raise ConfigError("storage_options", name, f"one of {known}")
        found[short] = str(value)
    if ("access_key_id" in found) != ("secret_access_key" in found):
        rule = "aws_access_key_id and aws_secret_access_key, both or neither"
        raise ConfigError("storage_options", "one key", rule)
    for short, names in _FROM_ENVIRONMENT.items():
        told = next((os.environ[name] for name in names if os.environ.get(name)), None)
        if told is not None:
            found.setdefault(short, told)
    return found


def scrubbed(text: object, given: StorageOptions) -> str:
    """A text of somebody else's in one line, without any secret.

    Args:
        text: an error or a message; its line ends become blanks.
        given: options by name; the values of those that are secret, and AWS's in the environment,
            go.
    """
    line = " ".join(str(text).split())
    secrets = [str(value) for name, value in given.items() if _is_secret(name)]
    secrets += [os.environ.get(name, "") for name in _SECRETS]
    signatures = [found for secret in secrets for found in _SIGNATURE.findall(secret)]
    secrets += signatures + [unquote(signature) for signature in signatures]
    for secret in sorted(secrets, key=len, reverse=True):
        if secret:
            line = line.replace(secret, "***")
    return line


def _is_secret(name: str) -> bool:
    return name.lower().removeprefix("aws_") not in _OPEN_NAMES
