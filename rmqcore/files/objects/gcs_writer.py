"""Objects of Google's store, made only where there is none: ``ifGenerationMatch=0``."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rmqcore.errors import RmqCoreError
from rmqcore.files.objects.storage_options import StorageOptions

#: An upload in more than one piece sends so much at once, which is in memory.
_PIECE_SIZE = 32 << 20
_TIMEOUT_S = (10.0, 60.0)
_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)


class GcsWriter:
    """See `rmqcore.files.objects.protocol.ObjectWriter`; the store compares a CRC-32C.

    Args:
        options: those of ``pyarrow.fs.GcsFileSystem``, with texts as values.

    Raises:
        RmqCoreError: google-cloud-storage is not installed.
    """

    def __init__(self, options: StorageOptions) -> None:
        try:
            from google.cloud import storage  # noqa: PLC0415 - an extra
        except ImportError:
            reason = "writing to gs:// needs google-cloud-storage: pip install 'rmqcore[gcs]'"
            raise RmqCoreError(reason) from None
        settings: dict[str, Any] = {}
        if "endpoint_override" in options:
            endpoint = f"{options.get('scheme', 'https')}://{options['endpoint_override']}"
            settings["client_options"] = {"api_endpoint": endpoint}
        self._client = storage.Client(
            project=options.get("project_id"), credentials=_credentials(options), **settings
        )

    def create(self, bucket: str, name: str, content: bytes | Path, sha256: str) -> str:
        """As `ObjectWriter.create`; the SHA-256 is not compared."""
        blob = self._client.bucket(bucket).blob(name, chunk_size=_PIECE_SIZE)
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as stream:
            blob.upload_from_file(
                stream,
                size=size,
                content_type="application/octet-stream",
                if_generation_match=0,
                checksum="crc32c",
                timeout=_TIMEOUT_S,
                # what fails is tried again in one way for all stores
                retry=None,
            )
        return str(blob.generation)

    def delete(self, bucket: str, name: str) -> None:
        """As `ObjectWriter.delete`."""
        self._client.bucket(bucket).blob(name).delete(timeout=_TIMEOUT_S, retry=None)


def _credentials(options: StorageOptions) -> Any:
    """As ``pyarrow.fs`` takes them; None for what Google's own tools find."""
    from google import auth  # noqa: PLC0415 - comes with the client
    from google.auth import credentials, impersonated_credentials  # noqa: PLC0415 - same
    from google.oauth2.credentials import Credentials  # noqa: PLC0415 - same

    if str(options.get("anonymous", "")).lower() == "true":
        return credentials.AnonymousCredentials()
    found = Credentials(options["access_token"]) if "access_token" in options else None
    if "target_service_account" in options:
        source = auth.default()[0] if found is None else found
        return impersonated_credentials.Credentials(
            source, options["target_service_account"], list(_SCOPES)
        )
    return found
