"""Objects of S3, made only where there is none: one PUT each, which S3 allows to 5 GiB."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from rmqcore.errors import ConfigError, RmqCoreError
from rmqcore.files.objects.storage_options import StorageOptions, s3_options

_CONNECT_TIMEOUT_S = 10.0
_REQUEST_TIMEOUT_S = 30.0


class S3Writer:
    """See `rmqcore.files.objects.protocol.ObjectWriter`; S3 compares the SHA-256.

    Args:
        options: as `s3_options` takes them.

    Raises:
        RmqCoreError: boto3 is not installed.
        ConfigError: an unknown option, or half a pair of keys.
    """

    def __init__(self, options: StorageOptions) -> None:
        try:
            import boto3  # noqa: PLC0415 - an extra
            import botocore.config  # noqa: PLC0415 - comes with it
            from botocore import UNSIGNED  # noqa: PLC0415 - same
        except ImportError:
            raise RmqCoreError("writing to S3 needs boto3: pip install 'rmqcore[s3]'") from None
        given = s3_options(options)
        connect_s, request_s = timeouts(given)
        settings: dict[str, Any] = {
            "connect_timeout": connect_s,
            "read_timeout": request_s,
            "retries": {"total_max_attempts": 1},
        }
        if given.get("anonymous", "").lower() == "true":
            settings["signature_version"] = UNSIGNED
        self._client = boto3.session.Session().client(
            "s3",
            aws_access_key_id=given.get("access_key_id"),
            aws_secret_access_key=given.get("secret_access_key"),
            aws_session_token=given.get("session_token"),
            region_name=given.get("region", "us-east-1"),
            endpoint_url=given.get("endpoint_url"),
            config=botocore.config.Config(**settings),
        )

    def create(self, bucket: str, name: str, content: bytes | Path, sha256: str) -> str:
        """As `ObjectWriter.create`."""
        body = content if isinstance(content, bytes) else content.open("rb")
        try:
            answer = self._client.put_object(
                Bucket=bucket,
                Key=name,
                Body=body,
                IfNoneMatch="*",
                ChecksumSHA256=base64.b64encode(bytes.fromhex(sha256)).decode(),
            )
        finally:
            if not isinstance(body, bytes):
                body.close()
        return str(answer["ETag"])

    def delete(self, bucket: str, name: str) -> None:
        """As `ObjectWriter.delete`."""
        self._client.delete_object(Bucket=bucket, Key=name)


def timeouts(given: StorageOptions) -> tuple[float, float]:
    """Seconds until a connection stands, and until an answer comes.

    Args:
        given: options by their short names.

    Raises:
        ConfigError: one is no number.
    """
    try:
        return (
            float(given.get("connect_timeout_s", _CONNECT_TIMEOUT_S)),
            float(given.get("request_timeout_s", _REQUEST_TIMEOUT_S)),
        )
    except ValueError:
        rule = "connect_timeout_s and request_timeout_s are seconds"
        raise ConfigError("storage_options", "a timeout", rule) from None
