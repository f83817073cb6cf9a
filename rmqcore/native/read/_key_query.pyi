from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from typing_extensions import Buffer

from rmqcore.native.format._message import MessageExt

@final
class QueryMessageResult:
    """What a key query found.

    Attributes:
        messages: true hits, ascending by physical offset, each once.
        buffer_total_size: bytes of their records.
        next_page: pass it as ``page`` for older hits; None when there are none.
        explanation: filled when it was asked for.

    Source: RocketMQ store/QueryMessageResult.java.
    """

    def __init__(
        self,
        messages: list[MessageExt],
        next_page: int | None = None,
        explanation: object | None = None,
    ) -> None: ...
    @property
    def messages(self) -> list[MessageExt]:
        """The messages; CorruptRecordError where a body contradicts its CRC."""
    @property
    def buffer_total_size(self) -> int: ...
    @property
    def next_page(self) -> int | None: ...
    @property
    def explanation(self) -> Any: ...
    def __len__(self) -> int: ...
    def _repr_html_(self) -> str: ...
    def __iter__(self) -> Iterator[MessageExt]: ...

@final
class MappedIndex:
    """The held bytes of one index file and their geometry."""

    def __init__(self, buffer: Buffer, path: Path, slot_count: int, entry_count: int) -> None: ...

def may_hold_hits(
    index_count: int, file_begin_ms: int, file_end_ms: int, begin_ms: int, end_ms: int
) -> bool:
    """Whether an index file has to be asked: the first rule of a key query.

    Args:
        index_count, file_begin_ms, file_end_ms: of the file's header; its times may be off by as
            much as the clock may have stepped back, 10 s.
        begin_ms, end_ms: store times wanted, both included.
    """

def is_hit(message: MessageExt, topic: str, key: str, begin_ms: int, end_ms: int) -> bool:
    """Whether a candidate counts: the second rule of a key query.

    Args:
        message: a record that an entry with the key's hash leads to.
        topic, key: what to look for; the record's own topic, keys and UNIQ_KEY are compared.
        begin_ms, end_ms: store times wanted, both included.
    """
