"""Moves messages between stores and files: export, import, migration of a MetaQ store.

Never copies offsets: what is put again is numbered by the store that takes it.

Floor: F7.
"""

from rmqcore.transfer.export import ExportedPart, export, export_store, messages
from rmqcore.transfer.import_files import ImportReport, import_files, message_of
from rmqcore.transfer.import_once import import_once

__all__ = [
    "ExportedPart",
    "ImportReport",
    "export",
    "export_store",
    "import_files",
    "import_once",
    "message_of",
    "messages",
]
