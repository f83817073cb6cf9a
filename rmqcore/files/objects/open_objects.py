"""From a URL or a directory to a place of objects."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from rmqcore.files.objects.arrow_objects import ArrowObjects
from rmqcore.files.objects.directory import DirectoryObjects
from rmqcore.files.objects.fsspec_objects import FsspecObjects
from rmqcore.files.objects.protocol import Objects
from rmqcore.files.objects.storage_options import ENVIRONMENT, StorageOptions, is_url, scheme_of

_ARROW = ("s3", "s3a", "gs", "gcs", "abfs", "abfss")


def open_objects(
    place: str | os.PathLike[str], storage_options: StorageOptions | None = None
) -> Objects:
    """A place of objects; nothing is read yet.

    Args:
        place: ``s3://bucket/prefix``, ``gs://``, ``abfs://``, any URL of fsspec, ``file:///path``,
            or a directory.
        storage_options: credentials and endpoint. S3: ``aws_access_key_id``,
            ``aws_secret_access_key``, ``aws_session_token``, ``aws_region``, ``aws_endpoint_url``;
            without them what AWS's own tools find. GCS and Azure: arguments of ``pyarrow.fs``.
            Else what fsspec's file system takes.

    Raises:
        ConfigError: an unknown option, or a URL that holds credentials.
        RmqCoreError: a package is not installed.
    """
    options = tuple(sorted((storage_options or {}).items()))
    found = tuple(os.environ.get(name, "") for name in ENVIRONMENT)
    return _opened(os.fspath(place), options, found, os.getpid())


@lru_cache(maxsize=16)
def _opened(
    place: str, options: tuple[tuple[str, str], ...], _environment: tuple[str, ...], _pid: int
) -> Objects:
    """One place for all who ask in this process: it keeps connections."""
    if not is_url(place):
        return DirectoryObjects(Path(place))
    scheme = scheme_of(place)
    if scheme == "file":
        return DirectoryObjects(Path(unquote(place[len("file://") :])))
    if scheme in _ARROW:
        return ArrowObjects(place, dict(options))
    return FsspecObjects(place, dict(options))
