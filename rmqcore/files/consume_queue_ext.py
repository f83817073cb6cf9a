"""The extension file of a consume queue: what did not fit into the 8 bytes of a tags code.

Written by brokers with ``enableConsumeQueueExt``; read here, never written. Files go with the
messages that they are for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from rmqcore.errors import CorruptStoreError
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.mapped_file_queue import file_size_of, numbered_files
from rmqcore.world import sync_directory

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
        self._directory = directory
        found = numbered_files(directory)
        self._file_size = file_size_of(found) or 1
        self._files = {
            start: MappedFile(path, size, start, open_files, writable=False)
            for start, path, size in found
        }

    def tags_code_at(self, address: int) -> int | None:
        """The tags code of the unit at an address, None when it is not there, or is none."""
        start, position = self._place(address)
        file = self._files.get(start)
        if file is None or position > file.size - _UNIT.size:
            return None
        try:
            unit = file.read_bytes(position, _UNIT.size)
        except (OSError, CorruptStoreError):
            # a broker has removed it meanwhile
            return None
        size, tags_code, stored_ms, bit_map_size = _UNIT.unpack(unit)
        # of a page that a power cut has taken zeros are left
        is_whole = size == _UNIT.size + bit_map_size and bit_map_size >= 0 and stored_ms != 0
        return tags_code if is_whole else None

    def _place(self, address: int) -> tuple[int, int]:
        """Where the file of an address begins, and the position in it."""
        offset = address - _ADDRESS_BASE
        position = offset % self._file_size
        return offset - position, position

    def delete_before(self, addresses: Iterable[int]) -> int:
        """Remove files in front of the first one that is needed, never the last; how many went.

        Args:
            addresses: in the units of the messages that are left, from the first on.

        Raises:
            OSError: a file could not be removed.

        Source: RocketMQ store/ConsumeQueueExt.java, truncateByMinAddress.
        Differs: RocketMQ removes none where the first unit that is left has no address.
        """
        if len(self._files) < 2:
            return 0
        starts = (self._place(address)[0] for address in addresses)
        needed = next((start for start in starts if start in self._files), max(self._files))
        gone = sorted(start for start in self._files if start < needed)
        for start in gone:
            self._files[start].destroy()
            sync_directory(self._directory)
            del self._files[start]
        return len(gone)
