"""What object stores and archives refuse."""

from __future__ import annotations

from rmqcore.errors import StoreError


class ObjectStoreError(StoreError, OSError):
    """An object store did not do what was asked of it, after several tries where those help.

    Attributes:
        url: the object, or where objects lie.
        reason: what it answered; no credentials are in it.
    """

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{url}: {reason}")


class ObjectMissingError(ObjectStoreError, FileNotFoundError):
    """No such object is there."""


class ObjectExistsError(ObjectStoreError, FileExistsError):
    """An object of that name is there already, and nothing is overwritten."""


class ObjectAccessError(ObjectStoreError, PermissionError):
    """The object store knows these credentials not, or allows them not what was asked."""


class ObjectChangedError(ObjectStoreError):
    """An object is not the one that was archived: it has been replaced or cut short."""


class ArchiveError(StoreError):
    """An archive is not there, or contradicts the store: nothing was overwritten.

    Attributes:
        url: of the archive.
        reason: what was found, and what helps.
    """

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{url}: {reason}")


class ArchiveConflictError(ArchiveError):
    """Another archiver works at the same place, or another store has been archived there."""


class StoreUnsettledError(ArchiveError):
    """What lies in the store's log may still change: nothing of it is archived yet."""
