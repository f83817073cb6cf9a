"""A store's sealed log files on object storage, and back: archive, restore, verify.

Never changes a log, and never overwrites an object.

Floor: F7.
"""

from rmqcore.transfer.archive.archiver import Archiver, ArchiveReport
from rmqcore.transfer.archive.restore import RestoreReport, restore
from rmqcore.transfer.archive.verify import ArchiveVerifyReport, verify_archive

__all__ = [
    "ArchiveReport",
    "ArchiveVerifyReport",
    "Archiver",
    "RestoreReport",
    "restore",
    "verify_archive",
]
