"""Objects in S3, Google's or Azure's store, read through ``pyarrow.fs``.

S3 is written through boto3, since ``pyarrow.fs`` knows no write that fails when there is an object
of that name. Each object is written in one piece, which S3 allows up to 5 GiB.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rmqcore.errors import ConfigError, RmqCoreError
from rmqcore.files.objects.errors import ObjectStoreError
from rmqcore.files.objects.protocol import ObjectInfo
from rmqcore.files.objects.storage_options import StorageOptions, s3_options
from rmqcore.files.objects.tries import tried

_CONNECT_TIMEOUT_S = 10.0
_REQUEST_TIMEOUT_S = 30.0
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
        self._files = self._file_system(scheme.lower(), account.partition(".")[0])
        self._client: Any = None
        self._lock = threading.Lock()

    def _file_system(self, scheme: str, account: str) -> Any:
        try:
            from pyarrow import fs  # noqa: PLC0415 - an extra
        except ImportError:
            raise RmqCoreError(f"{scheme}:// needs pyarrow: pip install 'rmqcore[s3]'") from None
        if self._is_s3:
            return self._s3_files(fs)
        is_gcs = scheme in ("gs", "gcs")
        kind = "GcsFileSystem" if is_gcs else "AzureFileSystem"
        try:
            if is_gcs:
                return fs.GcsFileSystem(**_of_gcs(self._options))
            named = {"account_name": account} if account else {}
            return fs.AzureFileSystem(**{**named, **self._options})
        except (TypeError, ValueError):
            rule = f"the arguments of pyarrow.fs.{kind}"
            if not is_gcs:
                rule += ", account_name among them where the URL does not name it"
            raise ConfigError("storage_options", ", ".join(self._options), rule) from None

    def _s3_files(self, fs: Any) -> Any:
        given = s3_options(self._options)
        connect_s, request_s = _timeouts(given)
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
        """As `Objects.create`; S3 compares the SHA-256 with what it has got.

        Raises:
            ObjectStoreError: it is not S3, which alone can be written here; or it cannot be made.
        """
        client, (bucket, key) = self._writer(), self._place(name)

        def put() -> str:
            body = content if isinstance(content, bytes) else content.open("rb")
            try:
                answer = client.put_object(
                    Bucket=bucket,
                    Key=key,
                    Body=body,
                    IfNoneMatch="*",
                    ChecksumSHA256=base64.b64encode(bytes.fromhex(sha256)).decode(),
                )
            finally:
                if not isinstance(body, bytes):
                    body.close()
            return str(answer["ETag"])

        return str(self._try(put, name))

    def settle(self, name: str) -> None:
        """As `Objects.settle`: what is listed there stays."""

    def delete(self, name: str) -> None:
        """Delete an object."""
        client, (bucket, key) = self._writer(), self._place(name)
        self._try(lambda: client.delete_object(Bucket=bucket, Key=key), name)

    def _place(self, name: str) -> tuple[str, str]:
        bucket, _, key = f"{self._root}/{name}".partition("/")
        return bucket, key

    def _writer(self) -> Any:
        if not self._is_s3:
            reason = "it can be read, not written: archive to S3, a directory, or through fsspec"
            raise ObjectStoreError(self.url, reason)
        with self._lock:
            if self._client is None:
                self._client = self._s3_client()
        return self._client

    def _s3_client(self) -> Any:
        try:
            import boto3  # noqa: PLC0415 - an extra
            import botocore.config  # noqa: PLC0415 - comes with it
            from botocore import UNSIGNED  # noqa: PLC0415 - same
        except ImportError:
            raise RmqCoreError("writing to S3 needs boto3: pip install 'rmqcore[s3]'") from None
        given = s3_options(self._options)
        connect_s, request_s = _timeouts(given)
        settings: dict[str, Any] = {
            "connect_timeout": connect_s,
            "read_timeout": request_s,
            "retries": {"total_max_attempts": 1},
        }
        if given.get("anonymous", "").lower() == "true":
            settings["signature_version"] = UNSIGNED
        return self._try(
            lambda: boto3.session.Session().client(
                "s3",
                aws_access_key_id=given.get("access_key_id"),
                aws_secret_access_key=given.get("secret_access_key"),
                aws_session_token=given.get("session_token"),
                region_name=given.get("region", "us-east-1"),
                endpoint_url=given.get("endpoint_url"),
                config=botocore.config.Config(**settings),
            ),
            "",
        )


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


def _timeouts(given: StorageOptions) -> tuple[float, float]:
    try:
        return (
            float(given.get("connect_timeout_s", _CONNECT_TIMEOUT_S)),
            float(given.get("request_timeout_s", _REQUEST_TIMEOUT_S)),
        )
    except ValueError:
        rule = "connect_timeout_s and request_timeout_s are seconds"
        raise ConfigError("storage_options", "a timeout", rule) from None


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
        facts = stream.metadata() or {}
        tag = next((value for name, value in facts.items() if _text(name) == "ETag"), "")
        self.tag = _text(tag)

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
