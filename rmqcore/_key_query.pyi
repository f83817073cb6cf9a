from pathlib import Path
from typing import final

from typing_extensions import Buffer

from rmqcore._log_map import LogMap
from rmqcore._message import MessageExt

@final
class MappedIndex:
    def __init__(self, buffer: Buffer, path: Path, slot_count: int, entry_count: int) -> None: ...

def find_by_key(
    files: list[MappedIndex],
    log: LogMap,
    topic: str,
    key: str,
    min_offset: int,
    begin_ms: int,
    end_ms: int,
    slack_ms: int,
    max_messages: int,
) -> list[MessageExt] | None: ...
