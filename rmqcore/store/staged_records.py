"""Files of staged records: whole records that the owner of a log appends, in their order.

A task, or any other process, writes one (`StagedWriter`); the owner reads it (`StagedRecords`) and
puts its pieces. docs/format/staged-records.md has the bytes. A file is complete and on the disk
before anybody hears of it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, NamedTuple, Self

from rmqcore._codec import crc32
from rmqcore.config import StoreConfig
from rmqcore.errors import MessageIllegalError, Naming, StoreError
from rmqcore.files.service_topics import is_service_topic
from rmqcore.files.store_dir import make_directory
from rmqcore.native.columns._encode_columns import ColumnEncoder
from rmqcore.store.parts.column_puts import PIECE_SIZE, Queues, encoder_for
from rmqcore.world import begin_sync, sync_directory, sync_fd

_QUEUE: Final = struct.Struct(">iH")
_PIECE: Final = struct.Struct(">qqI")
_TRAILER: Final = struct.Struct(">qqiiiiI4s")
_CRC_SIZE: Final = 8
_MAGIC: Final = b"RMQS"
_VERSION: Final = 1
_NAMES_LIGHT_QUEUES: Final = 1
_SIZE_WORD: Final = 4
#: The disk begins with so many bytes while the next ones are made.
_AT_ONCE: Final = 8 << 20


class Piece(NamedTuple):
    """Records that are appended at a time.

    Attributes:
        size: bytes of the records.
        row_count: how many there are.
        crc: CRC-32 of them.
    """

    size: int
    row_count: int
    crc: int


class StagedWriter:
    """Writes one file of staged records.

    Args:
        path: of the file; its directory is made when missing.
        config: settings of the store that it is for.
        piece_size: bytes that are appended at a time.

    Attributes:
        row_count: records written.
        content_sum: of them, as of `ColumnEncoder`.
    """

    def __init__(self, path: Path, config: StoreConfig, *, piece_size: int = PIECE_SIZE) -> None:
        make_directory(path.parent)
        self.path = path
        self.row_count = self.content_sum = 0
        self._config = config
        self._piece_size = piece_size
        self._file = path.open("wb", buffering=0)
        self._begun = self._size = 0
        self._queues: Queues = []
        self._pieces: list[Piece] = []
        self._names_light_queues = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if error is not None:
            self.path.unlink(missing_ok=True)

    def put_table(self, table: object, *, copy: bool = False, **settings: Any) -> None:
        """Write the rows of the one table of this file.

        Args:
            table: as for `MessagePuts.put_columns`.
            copy: take also what waits in a broker's own topics, or asks for a delay.
            settings: topic, queue_count, unique_prefix: as of `ColumnEncoder`.

        Raises:
            MessageIllegalError: a row is no message, or only one of a copy.
            ArgumentError: the table, or a column of it, is none that can be put.
        """
        encoder = encoder_for(self._config, table, copy=copy, light_queues=False, **settings)
        while encoder.next_batch() is not None:
            if not copy:
                _refuse_service_topics(encoder.queues[len(self._queues) :])
            self._queues = list(encoder.queues)
            self._write_pieces(encoder)
        self.content_sum = encoder.content_sum
        self._names_light_queues = encoder.names_light_queues

    def _write_pieces(self, encoder: ColumnEncoder) -> None:
        while (records := encoder.next_piece(self._piece_size)) is not None:
            self._write(records)
            count = encoder.piece_row_count
            self._pieces.append(Piece(len(records), count, crc32(records)))
            self.row_count += count

    def _write(self, data: bytes) -> None:
        """Write all of it, and let the disk begin with what is there every so often."""
        left = memoryview(data)
        with Naming(self.path):
            while left:
                left = left[self._file.write(left) :]
        self._size += len(data)
        if self._size - self._begun >= _AT_ONCE:
            begin_sync(self._file.fileno(), self._begun, self._size - self._begun)
            self._begun = self._size

    def finish(self) -> int:
        """Write the tables and make the file survive a power cut; its bytes."""
        tables = b"".join(_queue_bytes(*queue) for queue in self._queues)
        tables += b"".join(_PIECE.pack(*piece) for piece in self._pieces)
        numbers = (
            sum(piece.size for piece in self._pieces),
            self.row_count,
            len(self._queues),
            len(self._pieces),
            _NAMES_LIGHT_QUEUES if self._names_light_queues else 0,
            _VERSION,
        )
        covered = tables + _TRAILER.pack(*numbers, 0, _MAGIC)[:-_CRC_SIZE]
        self._write(tables + _TRAILER.pack(*numbers, crc32(covered), _MAGIC))
        with Naming(self.path):
            sync_fd(self._file.fileno())
        sync_directory(self.path.parent)
        return self._file.tell()


class StagedRecords:
    """A complete file of staged records.

    Args:
        path: of the file.
        size: its bytes.

    Attributes:
        queues: (topic, queue id) by the number in the records.
        row_count: records in the file.
        names_light_queues: some record does; where the store has them, such a one is put by itself.

    Raises:
        StoreError: the file is not what its writer left.
    """

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        try:
            file = Path(path).open("rb")  # noqa: SIM115 - closed below
        except FileNotFoundError:
            raise StoreError(f"{path}: the staged rows are gone") from None
        with file:
            if os.fstat(file.fileno()).st_size != size or size < _TRAILER.size:
                raise StoreError(f"{path}: the staged rows are not complete")
            self._read_tables(file, size)

    def _read_tables(self, file: BinaryIO, size: int) -> None:
        file.seek(size - _TRAILER.size)
        trailer = file.read(_TRAILER.size)
        records_size, self.row_count, queues, pieces, flags, version, crc, magic = _TRAILER.unpack(
            trailer
        )
        if magic != _MAGIC or not 0 <= records_size <= size - _TRAILER.size:
            raise self._damaged("it has no trailer")
        file.seek(records_size)
        tables = file.read(size - records_size - _TRAILER.size)
        if crc32(tables + trailer[:-_CRC_SIZE]) != crc:
            raise self._damaged("its tables contradict their CRC")
        if version != _VERSION:
            raise StoreError(f"{self._path}: staged by another release, as version {version}")
        self.names_light_queues = bool(flags & _NAMES_LIGHT_QUEUES)
        self.queues, at = _queues_of(tables, queues)
        self._pieces = [Piece(*each) for each in _PIECE.iter_unpack(tables[at:])]
        if len(self._pieces) != pieces:
            raise self._damaged("its tables are not complete")

    def pieces(self, first: int = 0) -> Iterator[bytes]:
        """The records behind the first ``first``, as many at a time as are appended together.

        Raises:
            StoreError: they are not what was written.
        """
        with Path(self._path).open("rb") as file:
            for piece in self._pieces:
                if first >= piece.row_count:
                    file.seek(piece.size, os.SEEK_CUR)
                    first -= piece.row_count
                    continue
                records = file.read(piece.size)
                if len(records) != piece.size or crc32(records) != piece.crc:
                    raise self._damaged("its records contradict their CRC")
                yield _behind(records, first)
                first = 0

    def _damaged(self, reason: str) -> StoreError:
        return StoreError(f"{self._path}: the staged rows are damaged: {reason}")


def records_in(piece: bytes) -> Iterator[bytes]:
    """The single records of a piece."""
    at = 0
    while at < len(piece):
        size = int.from_bytes(piece[at : at + _SIZE_WORD])
        yield piece[at : at + size]
        at += size


def _behind(piece: bytes, count: int) -> bytes:
    """A piece without its first records."""
    at = 0
    for _ in range(count):
        at += int.from_bytes(piece[at : at + _SIZE_WORD])
    return piece[at:]


def _queue_bytes(topic: str, queue_id: int) -> bytes:
    name = topic.encode()
    return _QUEUE.pack(queue_id, len(name)) + name


def _queues_of(tables: bytes, count: int) -> tuple[Queues, int]:
    """The table of queues, and where it ends."""
    queues, at = [], 0
    for _ in range(count):
        queue_id, size = _QUEUE.unpack_from(tables, at)
        at += _QUEUE.size + size
        queues.append((tables[at - size : at].decode(), queue_id))
    return queues, at


def _refuse_service_topics(queues: Queues) -> None:
    for topic, _ in queues:
        if is_service_topic(topic):
            raise MessageIllegalError(
                f"topic {topic} is a broker's own, which delivers what is in it; copy=true appends "
                "it as it is"
            )
