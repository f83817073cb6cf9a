"""Objects behind fsspec: HDFS through WebHDFS, memory, and whatever has a package for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rmqcore.errors import RmqCoreError
from rmqcore.files.objects.errors import ObjectStoreError
from rmqcore.files.objects.protocol import ObjectInfo
from rmqcore.files.objects.storage_options import StorageOptions
from rmqcore.files.objects.tries import tried

#: The file systems of fsspec whose mode "xb" fails when an object of that name exists.
_CREATE = ("memory", "s3", "s3a", "gs", "gcs")


class FsspecObjects:
    """Objects below a URL.

    Args:
        url: of a scheme that fsspec knows.
        options: of its file system.
    """

    def __init__(self, url: str, options: StorageOptions) -> None:
        self.url = url.rstrip("/")
        self._options = dict(options)
        self._scheme = url.partition("://")[0].lower()
        try:
            import fsspec  # noqa: PLC0415 - an extra
        except ImportError:
            raise RmqCoreError(f"{self._scheme}:// needs fsspec: pip install fsspec") from None
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.url, **self._options)
        except (ImportError, ValueError) as error:
            raise ObjectStoreError(self.url, str(error)) from None

    def _try(self, action: Callable[[], Any], name: str) -> Any:
        return tried(action, f"{self.url}/{name}", self._options)

    def list(self, prefix: str) -> list[ObjectInfo]:
        """The objects below a name, sorted."""
        place = f"{self._root}/{prefix}"

        def find() -> dict[str, int]:
            # it keeps what it has listed once
            self._files.invalidate_cache()
            return dict(self._sizes_below(place.rstrip("/")))

        found = self._try(find, prefix)
        names = [(path[len(self._root) :].lstrip("/"), size) for path, size in found.items()]
        return [ObjectInfo(*one) for one in sorted(names)]

    def _sizes_below(self, place: str) -> Iterator[tuple[str, int]]:
        """(path, bytes) of each file; ``find`` would take what it cannot list for nothing there."""
        listed: list[dict[str, Any]] = []
        with suppress(FileNotFoundError):
            listed = self._files.ls(place, detail=True)
        for one in listed:
            path = one["name"]
            if one["type"] != "directory":
                yield path, int(one["size"])
            elif path.rstrip("/") != place:
                yield from self._sizes_below(path.rstrip("/"))

    def open(self, name: str) -> FsspecReader:
        """Open an object for reading."""
        path, url = f"{self._root}/{name}", f"{self.url}/{name}"

        def info() -> dict[str, Any]:
            # it keeps what it has listed once, and what was replaced has another tag
            self._files.invalidate_cache()
            return dict(self._files.info(path))

        facts = self._try(info, name)
        return FsspecReader(self._files, path, url, facts, self._options)

    def create(self, name: str, content: bytes | Path, sha256: str) -> str:
        """As `Objects.create`; the SHA-256 is not compared here.

        Raises:
            ObjectStoreError: the scheme has no write that refuses a name which is there; or it
                fails.
        """
        if self._scheme not in _CREATE:
            reason = f"{self._scheme}:// can be read, not written: no write there is for new names"
            raise ObjectStoreError(self.url, f"{reason} only")

        def put() -> None:
            with self._files.open(f"{self._root}/{name}", "xb") as stream:
                if isinstance(content, bytes):
                    stream.write(content)
                else:
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, stream, 8 << 20)

        self._try(put, name)
        return ""

    def settle(self, name: str) -> None:
        """As `Objects.settle`: what is listed there stays."""

    def delete(self, name: str) -> None:
        """Delete an object."""
        path = f"{self._root}/{name}"
        self._try(lambda: self._files.exists(path) and self._files.rm_file(path), name)


class FsspecReader:
    """An object that is open for reading.

    Args:
        files: the file system.
        path: of the object there.
        url: of the object.
        facts: what the file system tells of it.
        options: whose values are kept out of error texts.
    """

    def __init__(
        self, files: Any, path: str, url: str, facts: dict[str, Any], options: StorageOptions
    ) -> None:
        self._files = files
        self._path = path
        self._url = url
        self._options = options
        self.size = int(facts["size"])
        self.tag = str(facts.get("ETag") or facts.get("etag") or "")

    def read_at(self, position: int, size: int) -> bytes:
        """So many bytes from a position on; see `ObjectReader.read_at`."""
        end = min(position + size, self.size)
        return tried(
            lambda: bytes(self._files.cat_file(self._path, start=position, end=end)),
            self._url,
            self._options,
            whole=max(0, end - position),
        )

    def close(self) -> None:
        """Nothing is held open."""
