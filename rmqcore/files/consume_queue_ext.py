"""The extension file of a consume queue: what did not fit into the 8 bytes of a tags code.

Written by brokers with ``enableConsumeQueueExt``; read here, never written.
"""

from __future__ import annotations

import struct
from pathlib import Path

from rmqcore.errors import CorruptStoreError
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.mapped_file_queue import file_size_of, numbered_files

#: a tags code below this is an address in the extension file
EXT_ADDRESS_BELOW = -(2**31)
_ADDRESS_BASE = -(2**63)
_UNIT = struct.Struct(">hqqh")


class ConsumeQueueExt:
    """Units of one queue's extension file, found by the address in the consume queue.

    Layout: docs/format/consume-queue.md, "Extension unit".
    Source: RocketMQ store/ConsumeQueueExt.java.
    """

    def __init__(self, directory: Path, open_files: OpenFiles) -> None:
        found = numbered_files(directory)
        self._file_size = file_size_of(found) or 1
        self._files = {
            start: MappedFile(path, size, start, open_files, writable=False)
            for start, path, size in found
        }

    def tags_code_at(self, address: int) -> int | None:
        """The tags code of the unit at an address, None when it is not there, or is none."""
        offset = address - _ADDRESS_BASE
        start = offset - offset % self._file_size
        file = self._files.get(start)
        if file is None or offset - start > file.size - _UNIT.size:
            return None
        try:
            unit = file.read_bytes(offset - start, _UNIT.size)
        except (OSError, CorruptStoreError):
            # a broker has removed it meanwhile
            return None
        size, tags_code, stored_ms, bit_map_size = _UNIT.unpack(unit)
        # of a page that a power cut has taken zeros are left
        is_whole = size == _UNIT.size + bit_map_size and bit_map_size >= 0 and stored_ms != 0
        return tags_code if is_whole else None
