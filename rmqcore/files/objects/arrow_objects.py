"""Objects in S3, Google's or Azure's store, read through ``pyarrow.fs``.

They are written through the clients of these stores, since ``pyarrow.fs`` knows no write that fails
when there is an object of that name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rmqcore.errors import ConfigError, RmqCoreError
from rmqcore.files.objects.azure_writer import AzureWriter
from rmqcore.files.objects.errors import ObjectMissingError
from rmqcore.files.objects.gcs_writer import GcsWriter
from rmqcore.files.objects.protocol import ObjectInfo, ObjectWriter
from rmqcore.files.objects.s3_writer import S3Writer, timeouts
from rmqcore.files.objects.storage_options import StorageOptions, s3_options
from rmqcore.files.objects.tries import tried

#: What fails is tried again here; by itself Google's client would go on for 15 minutes.
_GCS_RETRIES_S = 1.0


class ArrowObjects:
    """Objects below a URL.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/...``, ``abfs://container/...`` or
            ``abfs://container@account.dfs.core.windows.net/...``.
        options: credentials and endpoint.

    Raises:
        ConfigError: an option that the file system does not take, or that is no value of its kind.
    """

    def __init__(self, url: str, options: StorageOptions) -> None:
        self.url = url.rstrip("/")
        self._options = dict(options)
        scheme, _, place = self.url.partition("://")
        host, slash, prefix = place.partition("/")
        container, _, account = host.partition("@")
        self._root = container + slash + prefix
        self._is_s3 = scheme.lower() in ("s3", "s3a")
        self._is_gcs = scheme.lower() in ("gs", "gcs")
        self._account = account.partition(".")[0]
        self._files = self._file_system(scheme.lower())
        self._opened_writer: ObjectWriter | None = None
        self._lock = threading.Lock()

    def _file_system(self, scheme: str) -> Any:
        try:
            from pyarrow import fs  # noqa: PLC0415 - an extra
        except ImportError:
            raise RmqCoreError(f"{scheme}:// needs pyarrow: pip install 'rmqcore[s3]'") from None
        if self._is_s3:
            return self._s3_files(fs)
        kind = "GcsFileSystem" if self._is_gcs else "AzureFileSystem"
        try:
            if self._is_gcs:
                return fs.GcsFileSystem(**_of_gcs(self._options))
            named = {"account_name": self._account} if self._account else {}
            return fs.AzureFileSystem(**{**named, **self._options})
        except (TypeError, ValueError):
            rule = f"the arguments of pyarrow.fs.{kind}"
            if not self._is_gcs:
                rule += ", account_name among them where the URL does not name it"
            raise ConfigError("storage_options", ", ".join(self._options), rule) from None

    def _s3_files(self, fs: Any) -> Any:
        given = s3_options(self._options)
        connect_s, request_s = timeouts(given)
        found: dict[str, Any] = {
            "access_key": given.get("access_key_id"),
            "secret_key": given.get("secret_access_key"),
            "session_token": given.get("session_token"),
            "region": given.get("region"),
            "endpoint_override": given.get("endpoint_url"),
            "anonymous": given.get("anonymous", "").lower() == "true",
            "connect_timeout": connect_s,
            "request_timeout": request_s,
            # what fails is tried again here, in one way for all stores
            "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=1),
        }
        return tried(lambda: fs.S3FileSystem(**found), self.url, self._options)

    def _try(self, action: Callable[[], Any], name: str) -> Any:
        return tried(action, f"{self.url}/{name}", self._options)

    def list(self, prefix: str) -> list[ObjectInfo]:
        """The objects below a name, sorted."""
        from pyarrow import fs  # noqa: PLC0415 - an extra

        place = f"{self._root}/{prefix}".rstrip("/")
        selector = fs.FileSelector(place, recursive=True, allow_not_found=True)
        found = self._try(lambda: self._files.get_file_info(selector), prefix)
        names = [(one.path[len(self._root) + 1 :], one.size) for one in found if one.is_file]
        return [ObjectInfo(*one) for one in sorted(names)]

    def open(self, name: str) -> ArrowReader:
        """Open an object for reading."""
        url = f"{self.url}/{name}"
        stream = self._try(lambda: self._files.open_input_file(f"{self._root}/{name}"), name)
        return ArrowReader(stream, url, self._options)

    def create(self, name: str, content: bytes | Path, sha256: str) -> str:
        """As `Objects.create`, in one request that is refused where the name is taken."""
        writer, place = self._writer(), self._place(name)
        return str(self._try(lambda: writer.create(*place, content, sha256), name))

    def settle(self, name: str) -> None:
        """As `Objects.settle`: what is listed there stays."""

    def delete(self, name: str) -> None:
        """Delete an object."""
        writer, place = self._writer(), self._place(name)
        with suppress(ObjectMissingError):
            self._try(lambda: writer.delete(*place), name)

    def _place(self, name: str) -> tuple[str, str]:
        bucket, _, key = f"{self._root}/{name}".partition("/")
        return bucket, key

    def _writer(self) -> ObjectWriter:
        with self._lock:
            if self._opened_writer is None:
                self._opened_writer = self._try(self._new_writer, "")
        return self._opened_writer

    def _new_writer(self) -> ObjectWriter:
        if self._is_s3:
            return S3Writer(self._options)
        if self._is_gcs:
            return GcsWriter(self._options)
        return AzureWriter(self._account, self._options)


def _of_gcs(options: StorageOptions) -> dict[str, Any]:
    """Arguments of ``pyarrow.fs.GcsFileSystem`` out of texts.

    Raises:
        ValueError: one is no number of seconds, or no time.
    """
    found: dict[str, Any] = {"retry_time_limit": _GCS_RETRIES_S, **options}
    found["retry_time_limit"] = timedelta(seconds=float(found["retry_time_limit"]))
    if "anonymous" in found:
        found["anonymous"] = str(found["anonymous"]).lower() == "true"
    if "credential_token_expiration" in found:
        until = datetime.fromisoformat(found["credential_token_expiration"])
        found["credential_token_expiration"] = until
    return found


class ArrowReader:
    """An object that is open for reading.

    Args:
        stream: of ``pyarrow.fs``.
        url: of the object.
        options: whose values are kept out of error texts.
    """

    def __init__(self, stream: Any, url: str, options: StorageOptions) -> None:
        self._stream = stream
        self._url = url
        self._options = options
        self.size = int(tried(stream.size, url, options))
        facts = {_text(name): _text(value) for name, value in (stream.metadata() or {}).items()}
        # Google's ETag also changes with what is said about an object
        self.tag = facts.get("generation") or facts.get("ETag", "")

    def read_at(self, position: int, size: int) -> bytes:
        """So many bytes from a position on; see `ObjectReader.read_at`."""
        size = max(0, min(size, self.size - position))
        return tried(
            lambda: bytes(self._stream.read_at(size, position)),
            self._url,
            self._options,
            whole=size,
        )

    def close(self) -> None:
        """Close it."""
        self._stream.close()


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
