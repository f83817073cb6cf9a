from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, final

from typing_extensions import Buffer

from rmqcore.native.columns._arrow import ColumnBatch, ColumnBatches
from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.native.format._message import MessageExt
from rmqcore.native.read._log_map import LogMap
from rmqcore.status import GetMessageStatus

@final
class GetMessageResult:
    """Messages of one queue, and where to go on.

    Attributes:
        status: `GetMessageStatus`.
        next_queue_offset: where the next get begins.
        min_queue_offset, max_queue_offset: bounds of the queue when it was read.
        buffer_total_size: bytes of all records found.

    The records are held without a copy; `messages` decodes them on first use and raises
    CorruptRecordError where a body contradicts its CRC.

    Source: RocketMQ store/GetMessageResult.java.
    """

    status: GetMessageStatus
    next_queue_offset: int
    min_queue_offset: int
    max_queue_offset: int
    def __init__(
        self,
        status: GetMessageStatus,
        next_queue_offset: int,
        min_queue_offset: int,
        max_queue_offset: int,
    ) -> None: ...
    @property
    def buffer_total_size(self) -> int: ...
    @property
    def messages(self) -> list[MessageExt]:
        """The messages, decoded once."""
    def collect(
        self,
        buffer: Buffer,
        end: int,
        path: str | Path | None,
        base_offset: int,
        units: bytes,
        first: int,
        max_messages: int,
        max_bytes: int,
        tags_codes: bytes | None = None,
    ) -> tuple[int, int]:
        """Take records out of one buffer of the commit log, in the order of the units.

        Args:
            buffer: bytes of the log.
            end: how many of them, from the first on, may be read.
            path, base_offset: its file, and the physical offset of its first byte.
            units: consume-queue units, 20 bytes each.
            first: number of the unit to begin with.
            max_messages, max_bytes: stop before either is exceeded; the first message always fits.
            tags_codes: packed int64 values to match, or None for every message.

        Returns:
            (number of the first unit not looked at, why it stopped: 0 all looked at, 1 enough,
            2 that unit points outside the buffer, 3 it contradicts the record it points at).

        Raises:
            IndexError: ``first`` is below 0.
        """
    def batches(self, columns: Iterable[str] = ...) -> ColumnBatches:
        """The messages as a stream of record batches, for anything that takes Arrow.

        Args:
            columns: names of a message's attributes; times lose their ``_ms``.

        Raises:
            ValueError: an unknown column.
            CorruptRecordError: when the stream comes to a body that contradicts its CRC.
        """
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def to_arrow(self) -> Any:
        """The messages as a ``pyarrow.Table``; needs pyarrow."""
    def to_pandas(self) -> Any:
        """The messages as a ``pandas.DataFrame``; needs pandas and pyarrow."""
    def to_polars(self) -> Any:
        """The messages as a ``polars.DataFrame``; needs polars."""
    def collect_mapped(self, log: LogMap, units: bytes, max_messages: int, max_bytes: int) -> int:
        """Take every unit's record out of the mapped log: the plain case, in one call.

        Args:
            log: the mapped files.
            units: consume-queue units, 20 bytes each.
            max_messages, max_bytes: stop before either is exceeded; the first message always fits.

        Returns:
            units taken; they end where ``max_bytes`` would be exceeded. -1 when one of them needs
            a closer look: nothing has been taken then.
        """
    def expect(self, topic: str, queue_id: int, least_offset: int, demand_crc: bool) -> None:
        """Say whose records `messages` may hand out; any other is an error.

        Args:
            topic, queue_id: of the queue.
            least_offset: number of the first message; each has a greater one than that before it.
            demand_crc: refuse records without a right ``__CRC32#`` property.
        """
    @property
    def expected(self) -> tuple[str, int, int, bool] | None:
        """The arguments that `expect` was given; None before."""
    def slices(self) -> list[memoryview]:
        """The records' bytes as read-only memoryviews, without a copy and without any check."""
    def sizes(self) -> list[int]:
        """Size in bytes of every record, read from the record itself."""
    def __len__(self) -> int: ...
    def _repr_html_(self) -> str: ...
    def __iter__(self) -> Iterator[MessageExt]: ...

def decoded(slices: Iterable[memoryview], decoder: ColumnDecoder) -> Iterator[ColumnBatch]:
    """Batches of records that lie in many places."""
