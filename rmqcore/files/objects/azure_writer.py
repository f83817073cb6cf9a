"""Objects of Azure's store, made only where there is none: ``If-None-Match: *``.

A large one goes up in blocks with names drawn by chance, which become the object in one conditional
request.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rmqcore.errors import ConfigError, RmqCoreError
from rmqcore.files.objects.storage_options import StorageOptions

#: What is larger goes up in blocks of this size, one of which is in memory.
_BLOCK_SIZE = 32 << 20
_CONNECT_TIMEOUT_S = 10
_READ_TIMEOUT_S = 60
_AUTHORITY = ".blob.core.windows.net"


class AzureWriter:
    """See `rmqcore.files.objects.protocol.ObjectWriter`; the store compares the MD5 of each block.

    Args:
        account: that the URL names; empty where the options do.
        options: those of ``pyarrow.fs.AzureFileSystem``, with texts as values.

    Raises:
        RmqCoreError: azure-storage-blob or azure-identity is not installed.
        ConfigError: no account is named, or a key is none.
    """

    def __init__(self, account: str, options: StorageOptions) -> None:
        try:
            from azure.storage.blob import BlobServiceClient  # noqa: PLC0415 - an extra
        except ImportError:
            reason = "writing to abfs:// needs azure-storage-blob: pip install 'rmqcore[azure]'"
            raise RmqCoreError(reason) from None
        account = options.get("account_name", account)
        authority = options.get("blob_storage_authority", _AUTHORITY)
        place = account + authority if authority.startswith(".") else f"{authority}/{account}"
        try:
            self._client: Any = BlobServiceClient(
                f"{options.get('blob_storage_scheme', 'https')}://{place}",
                credential=_credential(account, options),
                # what fails is tried again in one way for all stores
                retry_total=0,
                max_single_put_size=_BLOCK_SIZE,
                max_block_size=_BLOCK_SIZE,
                connection_timeout=_CONNECT_TIMEOUT_S,
                read_timeout=_READ_TIMEOUT_S,
            )
        except ValueError:
            rule = "an account, and a key or other credentials of it"
            raise ConfigError("storage_options", ", ".join(options), rule) from None

    def create(self, bucket: str, name: str, content: bytes | Path, sha256: str) -> str:
        """As `ObjectWriter.create`; the SHA-256 is not compared."""
        blob = self._client.get_blob_client(bucket, name)
        stream = io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")
        with stream:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            # the condition is asked with the last request only
            if size > _BLOCK_SIZE and blob.exists():
                raise FileExistsError(name)
            answer = blob.upload_blob(stream, length=size, overwrite=False, validate_content=True)
        return str(answer["etag"])

    def delete(self, bucket: str, name: str) -> None:
        """As `ObjectWriter.delete`."""
        self._client.get_blob_client(bucket, name).delete_blob()


def _credential(account: str, options: StorageOptions) -> Any:
    """As ``pyarrow.fs`` takes them; else what Azure's own tools find."""
    if "account_key" in options:
        return {"account_name": account, "account_key": options["account_key"]}
    if "sas_token" in options:
        return options["sas_token"]
    try:
        from azure import identity  # noqa: PLC0415 - an extra
    except ImportError:
        reason = "without a key abfs:// needs azure-identity: pip install 'rmqcore[azure]'"
        raise RmqCoreError(reason) from None
    if "client_secret" in options:
        told = (options.get(name, "") for name in ("tenant_id", "client_id", "client_secret"))
        return identity.ClientSecretCredential(*told)
    if "client_id" in options:
        return identity.ManagedIdentityCredential(client_id=options["client_id"])
    return identity.DefaultAzureCredential()
